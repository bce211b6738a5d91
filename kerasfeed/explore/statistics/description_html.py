"""A description as HTML for a notebook: a table with a row a field and a small histogram in each.

Invariant: pure; all text that came from a user is escaped, and pictures are a mid-tone, so that light and dark themes
both show them.
"""

import html
from typing import Any

from kerasfeed.explore.statistics.description_words import (
    dtype_text,
    facts,
    findings,
    note_text,
    number_text,
    numbers_text,
    shape_text,
    share_text,
)
from kerasfeed.spec.html import table_with_pictures

_COLUMNS = ["field", "dtype", "shape", "min", "max", "mean", "std", "histogram", ""]
_WIDTH, _HEIGHT = 144, 36  # CSS pixels
_COLOUR = "#4a90d9"
_MOST_BARS = 40


def description_html(description: Any) -> str:
    """A `Description` as HTML of one `div`."""
    rows = [_row(field, description) for field in description.values()]
    return table_with_pictures(
        f"{description.name}, described", facts(description), _COLUMNS, rows, findings(description)
    )


def _row(field: Any, description: Any) -> list[str]:
    unit = " characters" if "str" in field.dtypes else " bytes" if field.is_text else ""
    numbers = number_text(field.min), number_text(field.max), numbers_text(field.mean), numbers_text(field.std)
    cells = [dtype_text(field), shape_text(field), *(f"{text}{unit}" for text in numbers)]
    return [
        f"<code>{html.escape(field.path)}</code>",
        *map(html.escape, cells),
        _histogram(field),
        f'<span style="white-space:normal;opacity:.8">{html.escape(note_text(field, description))}</span>',
    ]


def _histogram(field: Any) -> str:
    if 1 < len(field.classes) <= _MOST_BARS:
        total = sum(field.classes.values())
        bars = [(count / total, f"{value}: {share_text(count / total)}") for value, count in field.classes.items()]
    else:
        ends = zip(field.edges, field.edges[1:], field.shares, strict=False)
        bars = [(share, f"{number_text(low)} to {number_text(high)}: {share_text(share)}") for low, high, share in ends]
    most = max((share for share, _ in bars), default=0.0)
    if not most:
        return ""
    step = _WIDTH / len(bars)
    gap = 1 if step > 3 else 0
    rects = "".join(
        f'<rect x="{place * step:.1f}" y="{_HEIGHT - high:.1f}" width="{step - gap:.1f}" height="{high:.1f}">'
        f"<title>{html.escape(text)}</title></rect>"
        for place, (share, text) in enumerate(bars)
        if (high := max(1.0, (_HEIGHT - 2) * share / most) if share else 0.0)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
        f' style="vertical-align:middle"><g fill="{_COLOUR}">{rects}</g></svg>'
    )
