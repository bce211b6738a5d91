"""A description as text for a terminal.

Invariant: pure; nothing is cut: what is said of a field goes on in the next line. A line has at most 120 columns
unless a name or a shape is longer than its column.
"""

import textwrap
from typing import Any

from kerasfeed.explore.statistics.description_words import (
    dtype_text,
    facts,
    findings,
    note_text,
    number_text,
    numbers_text,
    shape_text,
)

_BARS = " ▁▂▃▄▅▆▇█"
_HEAD = ("field", "dtype", "shape", "min", "max", "mean", "std", "histogram")
_NUMBERS = {"min", "max", "mean", "std"}
_WIDTH = 118


def description_text(description: Any) -> str:
    """A `Description` in lines: a head, a table with a row a field, remarks, and what is known of single scenes."""
    head = f"{description.name}: " + ", ".join(f"{name} {value}" for name, value in facts(description)[1:])
    lines = [head.replace(": a scene", f": {facts(description)[0][1]} scenes, each", 1)]
    rows = [_row(field) for field in description.values()]
    if rows:
        lines += ["", *_table([_HEAD, *rows])]
    notes = [(path, note_text(field, description)) for path, field in description.items()]
    notes = [(path, text) for path, text in notes if text]
    below = [*notes, *findings(description)]
    if below:
        width = max(len(name) for name, _ in below)
        lines += ["", *(line for name, text in below for line in _wrapped(f"{name:<{width}}  ", text))]
    return "\n".join(lines)


def _row(field: Any) -> tuple[str, ...]:
    if field.is_text:
        mean, std, low, high = field.mean, field.std, field.min, field.max
        texts = [f"{number_text(value)} long" for value in (low, high, mean)]
        return field.path, dtype_text(field), shape_text(field), *texts, number_text(std), sparkline(field.shares)
    numbers = number_text(field.min), number_text(field.max), numbers_text(field.mean), numbers_text(field.std)
    return field.path, dtype_text(field), shape_text(field), *numbers, sparkline(field.shares)


def sparkline(shares: Any) -> str:
    """Shares as a line of bars of 8 heights; what is not 0 is seen."""
    most = max(shares, default=0.0)
    if not most:
        return ""
    return "".join(_BARS[max(1, round(8 * share / most))] if share else _BARS[0] for share in shares)


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[place]) for row in rows) for place in range(len(_HEAD))]
    return [
        "  ".join(
            f"{cell:>{width}}" if name in _NUMBERS else f"{cell:<{width}}"
            for name, cell, width in zip(_HEAD, row, widths, strict=True)
        ).rstrip()
        for row in rows
    ]


def _wrapped(head: str, text: str) -> list[str]:
    return textwrap.wrap(
        text, max(_WIDTH, len(head) + 40), initial_indent=head, subsequent_indent=" " * len(head),
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
