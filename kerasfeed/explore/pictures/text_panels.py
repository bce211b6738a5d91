"""Tables of numbers and text, written into matplotlib axes.

Invariant: see `kerasfeed.explore.pictures.panels`. What text holds is never taken for mathematics.
"""

import textwrap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.explore.pictures.palette import INK
from kerasfeed.explore.pictures.panel import Panel

_MOST_CELLS = (6, 12)  # along a side, in a grid and alone
_CHARACTERS = (220, 2_000)


def cells_of(value: NDArray[Any], large: bool) -> tuple[int, int]:
    """Rows and columns of a table that are written."""
    shape = (1, value.size) if value.ndim < 2 else (len(value), value.size // max(1, len(value)))
    most = _MOST_CELLS[large]
    return min(shape[0], most), min(shape[1], most)


def draw_table(axes: Any, panel: Panel) -> str:
    """The first numbers of a table."""
    table = np.asarray(panel.value)
    table = table.reshape(1, -1) if table.ndim < 2 else table.reshape(len(table), -1)
    rows, columns = cells_of(panel.value, panel.large)
    shown = table[:rows, :columns]
    small = 9 if panel.large else 6.5
    for row in range(rows):
        for column in range(columns):
            if row % 2 == 0 and column == 0:
                axes.axhspan(row - 0.5, row + 0.5, color="#f1f4f7", linewidth=0)
            text = f"{shown[row, column]:.3g}"[:9] if shown.dtype.kind in "fc" else str(shown[row, column])
            axes.text(column + 0.42, row, text, ha="right", va="center", fontsize=small, color=INK)
    axes.set_xlim(-0.5, columns - 0.5)
    axes.set_ylim(max(rows, 1) - 0.5, -0.5)
    axes.set_axis_off()
    left_out = (rows, columns) != table.shape
    return f"{rows} x {columns} of {table.shape[0]:,} x {table.shape[1]:,} numbers" if left_out else ""


def draw_text(axes: Any, panel: Panel) -> str:
    """Text in lines, cut where it is long."""
    value, most = panel.value, panel.most(_CHARACTERS)
    if isinstance(value, np.ndarray):
        text = ", ".join(plain_text(each[:most]) for each in value.reshape(-1)[:50].tolist())
        length = len(text)
    else:
        text, length = plain_text(value[:most]), len(value)
    said = f"{most} of {length:,} characters" if length > most else ""
    lines = textwrap.wrap(text[:most], 96 if panel.large else 36) or ["(empty)"]
    height = 28 if panel.large else 7
    if len(lines) > height:
        said = said or f"{height} of {len(lines)} lines"
    shown = "\n".join(lines[:height]).replace("$", r"\$")
    axes.text(
        0, 1, shown, va="top", ha="left", fontsize=9 if panel.large else 7, color=INK,
        transform=axes.transAxes, linespacing=1.4,
    )  # fmt: skip
    axes.set_axis_off()
    return said


def plain_text(value: str | bytes) -> str:
    """Text that can be printed."""
    text = value if isinstance(value, str) else value.decode(errors="backslashreplace")
    return "".join(each if each.isprintable() else " " for each in text)
