"""A profile as HTML for notebooks: bars of a scene's time and of rates, and a table.

Invariant: see `kerasfeed.spec.html`.
"""

import html
from collections.abc import Sequence
from typing import Protocol

from kerasfeed.explore.profiling.profile_words import Prediction, change_text
from kerasfeed.loaders.worker_choice import Setup, duration
from kerasfeed.spec.html import table


class Figures(Protocol):
    """What is shown; see `kerasfeed.explore.profiling.profile.Profile`."""

    @property
    def name(self) -> str: ...  # noqa: D102 - see there
    @property
    def workers(self) -> int: ...  # noqa: D102
    @property
    def worker_type(self) -> str: ...  # noqa: D102
    @property
    def rate(self) -> float: ...  # noqa: D102
    @property
    def training_rate(self) -> float | None: ...  # noqa: D102
    @property
    def wait_share(self) -> float | None: ...  # noqa: D102
    @property
    def verdict(self) -> str: ...  # noqa: D102
    @property
    def predictions(self) -> Sequence[Prediction]: ...  # noqa: D102
    @property
    def recommended(self) -> Prediction | None: ...  # noqa: D102
    @property
    def parts(self) -> Sequence[tuple[str, float]]: ...  # noqa: D102


_WIDTH, _BAR, _LINE = 640, 16, 22
_LABEL = 270  # pixels to the left of the bars of rates
_MOST = 9  # bars of rates
# Mid-tones that differ in lightness too, so that light and dark pages show them, and who sees no colours.
_COLOURS = {
    "waiting": "#9aa5b1", "holding the GIL": "#d1495b", "computing without the GIL": "#3f88c5", "collation": "#e0a030",
    "transport": "#5fa777",
}  # fmt: skip


def profile_html(profile: Figures) -> str:
    """The verdict, the two pictures and the figures."""
    facts = [
        ("workers", str(Setup(profile.workers, profile.worker_type))),
        ("loads", f"{profile.rate:,.0f} scenes/s"),
    ]
    if profile.training_rate is not None:
        facts.append(("the model trains on", f"{profile.training_rate:,.0f} scenes/s"))
    if profile.wait_share is not None:
        facts.append(("training waits", f"{profile.wait_share:.0%}"))
    rows = [
        [
            each.change,
            f"{each.rate:,.0f}",
            f"x {each.gain:.2g}",
            "measured" if each.measured else "predicted",
            each.note,
        ]
        for each in profile.predictions
    ]
    columns = ["with", "scenes/s", "gain", "", ""]
    return (
        f'<div style="line-height:1.5"><div><strong>{html.escape(profile.name)}</strong>: '
        f"{html.escape(profile.verdict)}</div>{_scene(profile)}{_rates(profile)}</div>"
        + table("", facts, columns, rows)
    )


def _scene(profile: Figures) -> str:
    parts = [(name, seconds) for name, seconds in profile.parts if seconds > 0]
    total = sum(seconds for _, seconds in parts)
    if not total:
        return ""
    shapes, legend, place, across, line = [], [], 0.0, 0.0, 0
    for name, seconds in parts:
        width = seconds / total * _WIDTH
        shapes.append(
            f'<rect x="{place:.1f}" y="18" width="{max(width, 0.5):.1f}" height="{_BAR}" fill="{_COLOURS[name]}">'
            f"<title>{html.escape(name)}: {duration(seconds)}</title></rect>"
        )
        place += width
        text = f"{name} {duration(seconds)}"
        if across + 7 * len(text) + 24 > _WIDTH:
            across, line = 0.0, line + 1
        y = 52 + 18 * line
        legend.append(
            f'<rect x="{across:.0f}" y="{y - 9}" width="10" height="10" fill="{_COLOURS[name]}"/>'
            f'<text x="{across + 15:.0f}" y="{y}">{html.escape(text)}</text>'
        )
        across += 7 * len(text) + 30
    title = f'<text x="0" y="12">a scene, {duration(total)} in one worker</text>'
    return _svg(60 + 18 * line, title + "".join(shapes + legend))


def _rates(profile: Figures) -> str:
    bars = [("as it is", profile.rate, "#9aa5b1")]
    bars += [(change_text(each), each.rate, _colour(profile, each.change)) for each in profile.predictions[:_MOST]]
    largest = max([rate for _, rate, _ in bars] + [profile.training_rate or 0.0]) or 1.0
    room = _WIDTH - _LABEL - 90
    shapes = []
    for number, (name, rate, colour) in enumerate(bars):
        y, width = _LINE * number + 4, rate / largest * room
        short = name if len(name) <= 38 else name[:37] + "…"
        shapes.append(
            f'<text x="{_LABEL - 8}" y="{y + 12}" text-anchor="end">{html.escape(short)}</text>'
            f'<rect x="{_LABEL}" y="{y}" width="{max(width, 1):.1f}" height="{_BAR}" fill="{colour}"/>'
            f'<text x="{_LABEL + width + 6:.0f}" y="{y + 12}">{rate:,.0f}/s</text>'
        )
    height = _LINE * len(bars) + 8
    if profile.training_rate is not None:
        x = _LABEL + profile.training_rate / largest * room
        shapes.append(
            f'<line x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height}" stroke="currentColor" stroke-dasharray="4 3"/>'
            f'<text x="{min(x, _WIDTH - 10):.1f}" y="{height + 12}" text-anchor="{"end" if x > 400 else "start"}">'
            f"the model trains on {profile.training_rate:,.0f}/s</text>"
        )
        height += 18
    return _svg(height, "".join(shapes))


def _colour(profile: Figures, change: str) -> str:
    best = profile.recommended is not None and profile.recommended.change == change
    return "#3f88c5" if best else "#a9c7e3"


def _svg(height: int, content: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height}" viewBox="0 0 {_WIDTH} {height}" '
        'style="display:block;margin:.5em 0;max-width:100%" font-size="12" font-family="sans-serif" '
        f'fill="currentColor">{content}</svg>'
    )
