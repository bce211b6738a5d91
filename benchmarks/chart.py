"""The figures as one picture: horizontal bars, a panel per workload and consumer, kerasfeed highlighted.

Invariant: draws what `Figures` holds, on the Agg canvas, and computes nothing but positions.
"""

from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.catalog import PEERS, WORKLOADS
from benchmarks.figures import Figures, Row, reference_of
from benchmarks.report import CONSUMERS, short

OURS, THEIRS, LIMIT = "#c8384f", "#a9b4c0", "#4f5d75"
BAR_INCHES = 0.26
HEAD_INCHES = 0.95
COLUMN_INCHES = 8.0


def draw(figures: Figures, machine: dict[str, Any], path: Path) -> None:
    """Writes the chart of a run: the panels fill two columns of about the same height."""
    panels = _panels(figures)
    if not panels:
        return
    columns = _columns(panels)
    height = max(sum(map(_inches, column)) for column in columns)
    figure = Figure(figsize=(COLUMN_INCHES * len(columns), height + 0.7), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(
        f"Scenes per second on {machine['cores']} cores, longer is better "
        "(black line: least to greatest of the repeats)",
        fontsize=12,
    )
    parts = figure.subfigures(1, len(columns), squeeze=False)[0]
    for part, column in zip(parts, columns, strict=True):
        heights = [_inches(rows) for rows in column]
        spare = height - sum(heights)
        grid = part.subplots(len(column) + 1, 1, height_ratios=[*heights, max(spare, 0.01)])
        for axes, rows in zip(grid, column, strict=False):
            _panel(axes, rows)
        grid[-1].set_axis_off()
    figure.savefig(path, dpi=110)


def _panels(figures: Figures) -> list[list[Row]]:
    """The rows with a rate, the slowest first, one list per workload and consumer."""
    kinds = [(workload, consumer) for workload in WORKLOADS for consumer in ("loop", "epoch", "fit")]
    panels = []
    for kind in kinds:
        rows = [row for row in figures.rows if (row.case.workload, row.case.consumer) == kind and row.rate]
        if rows:
            panels.append(sorted(rows, key=lambda row: row.rate.median if row.rate else 0.0))
    return panels


def _inches(rows: list[Row]) -> float:
    return HEAD_INCHES + BAR_INCHES * len(rows)


def _columns(panels: list[list[Row]]) -> list[list[list[Row]]]:
    """The panels in one column, or in order in the two whose heights differ least."""
    if len(panels) == 1:
        return [panels]

    def uneven(cut: int) -> float:
        return abs(sum(map(_inches, panels[:cut])) - sum(map(_inches, panels[cut:])))

    cut = min(range(1, len(panels)), key=uneven)
    return [panels[:cut], panels[cut:]]


def _panel(axes: Any, rows: list[Row]) -> None:
    for place, row in enumerate(rows):
        _bar(axes, place, row)
    case = rows[0].case
    workload, reference = WORKLOADS[case.workload], reference_of(case)
    ideal = workload.ideal if reference == "ideal" else None
    if ideal:
        axes.axvline(ideal, color=LIMIT, linewidth=1, linestyle="--", zorder=0)
    words = f"ideal, {short(ideal)} scenes/s (dashed)" if ideal else PEERS[reference].title
    axes.set_title(f"{workload.title}, {CONSUMERS[case.consumer]}", fontsize=10, loc="left", pad=16)
    axes.annotate(
        f"in brackets: ratio to {words}",
        (0, 1),
        xytext=(0, 4),
        xycoords="axes fraction",
        textcoords="offset points",
        fontsize=8,
        color=LIMIT,
    )
    axes.set_yticks(range(len(rows)), [PEERS[row.case.peer].title for row in rows], fontsize=8.5)
    for label, row in zip(axes.get_yticklabels(), rows, strict=True):
        if PEERS[row.case.peer].ours:
            label.set(color=OURS, fontweight="bold")
    greatest = max(row.rate.high for row in rows if row.rate)
    axes.set_xlim(0, 1.25 * max(greatest, ideal or 0.0))
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.locator_params(axis="x", nbins=6)
    axes.xaxis.set_major_formatter(lambda value, _: short(value))
    axes.tick_params(axis="x", labelsize=8)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _bar(axes: Any, place: int, row: Row) -> None:
    rate, peer = row.rate, PEERS[row.case.peer]
    assert rate is not None
    colour = OURS if peer.ours else LIMIT if peer.is_limit else THEIRS
    axes.barh(place, rate.median, height=0.72, color=colour)
    axes.plot([rate.low, rate.high], [place, place], color="black", linewidth=1.2)
    words = short(rate.median) + (f"  ({_times(row.ratio.median)}x)" if row.ratio else "")
    axes.annotate(
        words,
        (rate.high, place),
        xytext=(5, 0),
        textcoords="offset points",
        va="center",
        fontsize=8,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
    )


def _times(ratio: float) -> str:
    return f"{ratio:.2g}" if ratio < 100 else short(ratio)
