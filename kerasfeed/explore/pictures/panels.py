"""A part of a scene drawn into matplotlib axes, by its kind.

Invariant: looks at a bounded number of values, and says where it has left some out. Axes are given, so nothing here
imports matplotlib, and no state of pyplot is touched.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.explore.pictures.curve_panels import draw_points, draw_signal, draw_spectrum
from kerasfeed.explore.pictures.image_panels import draw_image, draw_mask, draw_volume, slices_of
from kerasfeed.explore.pictures.kinds import spatial_shape
from kerasfeed.explore.pictures.panel import Panel
from kerasfeed.explore.pictures.text_panels import cells_of, draw_table, draw_text

# Inches of a panel in a grid, and of one that is alone; the height of pictures follows from their shape.
_SIZES: dict[str, tuple[tuple[float, float], tuple[float, float]]] = {
    "image": ((1.85, 1.85), (5.6, 5.6)),
    "mask": ((1.85, 1.85), (5.6, 5.6)),
    "points": ((1.85, 1.85), (6.0, 6.0)),
    "volume": ((3.2, 1.3), (8.4, 3.1)),
    "signal": ((2.35, 1.1), (9.0, 2.8)),
    "spectrum": ((2.35, 1.1), (9.0, 2.8)),
    "table": ((2.5, 0.9), (7.0, 2.6)),
    "text": ((2.5, 1.0), (8.0, 2.6)),
}
_DRAWN = {
    "image": draw_image,
    "mask": draw_mask,
    "points": draw_points,
    "volume": draw_volume,
    "signal": draw_signal,
    "spectrum": draw_spectrum,
    "table": draw_table,
    "text": draw_text,
}


def panel_size(value: Any, kind: str, large: bool) -> tuple[float, float]:
    """Width and height of a panel for a field, inches."""
    wide, high = _SIZES[kind][large]
    if kind == "table":
        rows, columns = cells_of(value, large)
        unit = (0.75, 0.26) if large else (0.5, 0.19)
        return max(1.5, columns * unit[0]), max(1, rows) * unit[1]
    if kind not in ("image", "mask", "volume"):
        return wide, high
    tall, broad = _picture_shape(value, kind)
    high = min(max(wide * tall / max(1.0, broad), 0.3 * wide), 1.25 * wide)
    return wide, high


def _picture_shape(value: NDArray[Any], kind: str) -> tuple[float, float]:
    """Rows and columns of the picture of an image or a volume."""
    if kind != "volume":
        shape = spatial_shape(value, kind) if kind == "image" else value.shape
        return float(shape[0]), float(shape[1])
    pieces = slices_of(value)[0]
    rows = max(piece.shape[0] for piece in pieces)
    return 1.1 * rows, sum(piece.shape[1] for piece in pieces) + 0.12 * rows


def draw_panel(axes: Any, panel: Panel) -> str:
    """Draw a part of a scene into axes; returns what was left out or scaled, in words, empty for nothing."""
    with np.errstate(all="ignore"):
        said: str = _DRAWN[panel.part.kind](axes, panel)
    return said
