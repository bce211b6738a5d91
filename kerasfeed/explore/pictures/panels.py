"""A part of a scene drawn into matplotlib axes, by its kind: point clouds, curves, tables and text; images, `images`.

Invariant: looks at a bounded number of values, and says where it has left some out. Axes are given, so nothing here
imports matplotlib, and no state of pyplot is touched. Point clouds have equal aspect, and near points hide far ones.
What text holds is never taken for mathematics.
"""

import textwrap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.explore.pictures.images import draw_image, draw_mask, draw_volume, slices_of
from kerasfeed.explore.pictures.kinds import spatial_shape
from kerasfeed.explore.pictures.panel import ACCENT, INK, LINE, MUTED, Panel, class_colours, joined
from kerasfeed.spec.array_pictures import MOST_CURVES, channels_of, runs, seen, spread

_MOST_POINTS = (2_500, 30_000)  # in a grid and alone
_MOST_MOMENTS = (1_000, 6_000)
_MOST_CELLS = (6, 12)  # along a side
_CHARACTERS = (220, 2_000)
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


def draw_points(axes: Any, panel: Panel) -> str:
    """Points as a distant eye sees them, coloured by their labels, else by height."""
    cloud, labels = np.asarray(panel.value), panel.labels
    total = len(cloud)
    kept = np.ones(total, bool) if panel.valid is None else panel.valid
    padded, finite = total - int(kept.sum()), np.isfinite(cloud[:, :3]).all(axis=1)
    lost = int((kept & ~finite).sum())
    kept = kept & finite
    places = np.flatnonzero(kept)
    most = panel.most(_MOST_POINTS)
    said = ""
    if len(places) > most:
        said = f"{most:,} of {len(places):,} points"
        places = places[spread(len(places), most)]
    said = joined(said, f"{padded:,} padded" if padded else "", f"{lost:,} not finite" if lost else "")
    points = cloud[places, :3].astype(np.float64)
    axes.set_axis_off()
    axes.set_aspect("equal")
    if not len(points):
        return joined("no points", said)
    across, up, depth = seen(points)
    order = np.argsort(-depth, kind="stable")
    values = points[:, -1]
    size = min(60.0, max(0.5, (9_000.0 if panel.large else 2_200.0) / len(points)))
    style: dict[str, Any] = {"s": size, "linewidths": 0}
    if labels is not None:
        style["c"] = class_colours(labels[places][order])
    else:
        style.update(c=values[order], cmap="viridis", vmax=float(values.max()) + 0.12 * float(np.ptp(values)) + 1e-12)
    axes.scatter(across[order], up[order], **style)
    half = 0.52 * max(float(np.ptp(across)), float(np.ptp(up)), 1e-12)
    for set_limits, places_along in ((axes.set_xlim, across), (axes.set_ylim, up)):
        middle = (float(places_along.max()) + float(places_along.min())) / 2
        set_limits(middle - half, middle + half)
    return said


def draw_signal(axes: Any, panel: Panel) -> str:
    """Values over their number, a line a channel; padding is grey, and labels of moments colour the ground."""
    series = channels_of(np.asarray(panel.value))
    length, channels = series.shape
    places = spread(length, panel.most(_MOST_MOMENTS))
    shown = min(channels, MOST_CURVES)
    values = series[places][:, :shown].astype(np.float64)
    colours = class_colours(np.arange(shown))
    for channel in range(shown):
        axes.plot(places, values[:, channel], color=colours[channel] if shown > 1 else ACCENT, linewidth=0.9)
    _axes_of_curve(axes, length)
    if panel.valid is not None:
        _shade_padding(axes, panel.valid)
    labels = panel.labels
    if labels is not None:
        _shade_classes(axes, labels)
    more = f"{shown} of {channels} channels" if channels > shown else ""
    return joined(f"{len(places):,} of {length:,} values" if len(places) < length else "", more)


def draw_spectrum(axes: Any, panel: Panel) -> str:
    """Values over their number, the area below filled."""
    array = np.asarray(panel.value)
    spectrum = np.abs(array).astype(np.float64).reshape(-1)
    bins = min(len(spectrum), panel.most(_MOST_MOMENTS))
    # The highest of neighbours stands for them, so that no line is lost.
    begins = np.unique(np.linspace(0, len(spectrum), bins, endpoint=False).astype(np.intp))
    peaks = np.maximum.reduceat(spectrum, begins)
    axes.fill_between(begins, peaks, color=ACCENT, alpha=0.25, linewidth=0)
    axes.plot(begins, peaks, color=ACCENT, linewidth=0.9)
    _axes_of_curve(axes, len(spectrum))
    if panel.valid is not None:
        _shade_padding(axes, panel.valid)
    axes.set_ylim(bottom=min(0.0, float(np.nanmin(peaks)) if len(peaks) else 0.0))
    said = f"highest of each {len(spectrum) / bins:.3g} values" if bins < len(spectrum) else ""
    return joined("magnitude" if array.dtype.kind == "c" else "", said)


def _axes_of_curve(axes: Any, length: int) -> None:
    axes.set_xlim(0, max(1, length - 1))
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(LINE)
    axes.tick_params(labelsize=6, colors=MUTED, length=2, width=0.6, color=LINE)
    axes.locator_params(nbins=4)


def _shade_padding(axes: Any, valid: NDArray[np.bool_]) -> None:
    for begin, end in runs(~valid):
        axes.axvspan(begin, end, color=LINE, alpha=0.7, linewidth=0)


def _shade_classes(axes: Any, labels: NDArray[np.int64]) -> None:
    for value in np.unique(labels)[:20]:
        for begin, end in runs(labels == value)[:200]:
            axes.axvspan(begin, end, color=class_colours(value), alpha=0.18, linewidth=0)


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
