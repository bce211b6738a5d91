"""Draws a part of a scene into matplotlib axes, by its kind.

Invariant: a panel shows a bounded number of values, and its remark says if some are skipped. The caller passes the
axes, so this module imports no matplotlib and uses no state of pyplot. Point clouds have equal aspect, and near points
hide far ones. In images and volumes class 0 is the transparent background. Text is never parsed as mathematics.
"""

import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.explore.show.array_kinds import MOST_CURVES, channels_of, image_of, in_unit_range, seen, spread
from kerasfeed.explore.show.parts import ACCENT, INK, LINE, MUTED, Panel, class_colours, joined, spatial_shape

_MOST_PIXELS = (320, 1_200)  # per side, in a grid and alone
_MASK_OPACITY = 0.5
_BACKGROUND = (0.93, 0.94, 0.95)
_PADDING = (0.84, 0.86, 0.88)
_NARROW = 8  # ratio of sides; beyond it, an image is stretched
_MOST_POINTS = (2_500, 30_000)  # in a grid and alone
_MOST_MOMENTS = (1_000, 6_000)
_MOST_CELLS = (6, 12)  # per side
_LONGEST_NUMBER = 9  # characters
_CHARACTERS = (220, 2_000)
# Inches of a panel in a grid, and alone; the height of images follows from their shape.
_SIZES = {
    **dict.fromkeys(("image", "mask"), ((1.85, 1.85), (5.6, 5.6))),
    **dict.fromkeys(("signal", "spectrum"), ((2.35, 1.1), (9.0, 2.8))),
    "points": ((1.85, 1.85), (6.0, 6.0)),
    "volume": ((3.2, 1.3), (8.4, 3.1)),
    "table": ((2.5, 0.9), (7.0, 2.6)),
    "text": ((2.5, 1.0), (8.0, 2.6)),
}


def panel_size(value: Any, kind: str, large: bool) -> tuple[float, float]:
    """Return width and height of the panel of a field, inches."""
    wide, high = _SIZES[kind][large]
    if kind == "table":
        cells, unit = cells_of(value, large), (0.75, 0.26) if large else (0.5, 0.19)
        return max(1.5, cells[1] * unit[0]), max(1, cells[0]) * unit[1]
    if kind not in ("image", "mask", "volume"):
        return wide, high
    rows, columns = map(float, spatial_shape(value, kind)[:2])
    if kind == "volume":
        pieces = slices_of(value)[0]
        rows = 1.1 * max(piece.shape[0] for piece in pieces)
        columns = sum(piece.shape[1] for piece in pieces) + 0.11 * rows
    return wide, min(max(wide * rows / max(1.0, columns), 0.3 * wide), 1.25 * wide)


def draw_panel(axes: Any, panel: Panel) -> str:
    """Draw a part of a scene; return a remark, or ""."""
    if getattr(panel.value, "size", 1) == 0 and panel.part.kind not in ("points", "text"):  # which draw an empty value
        axes.set_axis_off()
        return "empty"
    with np.errstate(all="ignore"):
        remark: str = _DRAWN[panel.part.kind](axes, panel)
    return remark


def draw_image(axes: Any, panel: Panel) -> str:
    """Draw an image and its mask."""
    image, channels = image_of(panel.value)
    array, steps, remark = _thinned(image, _MOST_PIXELS[panel.large])
    array = np.abs(array) if array.dtype.kind == "c" else array
    pixels, scaled = in_unit_range(array)
    stretched = _draw_pixels(axes, pixels, image.shape)
    labels = panel.labels(steps)
    if labels is not None:
        _draw_pixels(axes, _overlay(labels), image.shape)
    return joined(f"channel 0 of {channels}" if channels == 2 else "", remark, stretched, scaled)


def draw_mask(axes: Any, panel: Panel) -> str:
    """Draw the labels of pixels, one colour per class."""
    mask = panel.value[..., 0] if panel.value.ndim == 3 else panel.value
    array, _, remark = _thinned(mask, _MOST_PIXELS[panel.large])
    colours = class_colours(array)
    colours[array == 0] = _BACKGROUND
    return joined(remark, _draw_pixels(axes, colours, mask.shape))


def _draw_pixels(axes: Any, pixels: NDArray[Any], shape: tuple[int, ...]) -> str:
    """Draw pixels of an image of `shape`; return "stretched" or ""."""
    rows, columns = shape[:2]
    is_narrow = max(rows, columns) > _NARROW * min(rows, columns)
    axes.imshow(
        pixels, cmap="gray", vmin=0, vmax=1, extent=(0, columns, rows, 0), interpolation="nearest",
        aspect="auto" if is_narrow else "equal",
    )  # fmt: skip
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_color(LINE)
    return "stretched" if is_narrow else ""


def draw_volume(axes: Any, panel: Panel) -> str:
    """Draw three slices, or three frames, side by side."""
    labels = panel.labels()
    slices, titles, remark = slices_of(panel.value)
    over = [] if labels is None else _middles(labels)
    flat = np.concatenate([piece.reshape(-1)[:: max(1, piece.size // 50_000)] for piece in slices])
    flat = flat[np.isfinite(flat)]
    low, high = (float(flat.min()), float(flat.max())) if flat.size else (0.0, 1.0)
    begin, height = 0.0, max(piece.shape[0] for piece in slices)
    for number, piece in enumerate(slices):
        rows, columns = piece.shape[:2]
        extent = (begin, begin + columns, (height + rows) / 2, (height - rows) / 2)
        thin, (down, across), _ = _thinned(piece, _MOST_PIXELS[panel.large])
        pixels = in_unit_range(thin)[0] if piece.ndim == 3 else np.clip((thin - low) / max(high - low, 1e-30), 0, 1)
        axes.imshow(pixels, cmap="gray", vmin=0, vmax=1, extent=extent, interpolation="nearest")
        if over:
            axes.imshow(_overlay(over[number][::down, ::across]), extent=extent, interpolation="nearest")
        axes.text(begin, height * 1.02, titles[number], va="top", fontsize=8 if panel.large else 6, color=MUTED)
        begin += columns + 0.06 * height
    axes.set_xlim(0, begin - 0.06 * height)
    axes.set_ylim(height * 1.1, 0)
    axes.set_axis_off()
    return remark


def slices_of(volume: NDArray[Any]) -> tuple[list[NDArray[Any]], list[str], str]:
    """Return the slices to draw, their titles, and a remark."""
    volume = volume[0] if volume.ndim == 5 else volume
    volume = np.abs(volume) if volume.dtype.kind == "c" else volume
    if volume.ndim == 4 and volume.shape[-1] in (3, 4):
        chosen = [0, len(volume) // 2, len(volume) - 1]
        titles = [f"frame {number}" for number in chosen]
        return [volume[number] for number in chosen], titles, f"{len(volume):,} frames"
    remark = f"channel 0 of {volume.shape[-1]}" if volume.ndim == 4 and volume.shape[-1] > 1 else ""
    volume = volume[..., 0] if volume.ndim == 4 else volume
    return _middles(volume), [f"{axis} = {size // 2}" for axis, size in zip("zyx", volume.shape, strict=True)], remark


def _middles(volume: NDArray[Any]) -> list[NDArray[Any]]:
    z, y, x = (size // 2 for size in volume.shape[:3])
    return [volume[z], volume[:, y], volume[:, :, x]]


def _overlay(labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return float64[..., 4]: colours of classes; class 0 is transparent."""
    inside = labels != 0
    edge = np.zeros_like(inside)
    rows, columns = labels[1:] != labels[:-1], labels[:, 1:] != labels[:, :-1]
    for side, differs in ((edge[1:], rows), (edge[:-1], rows), (edge[:, 1:], columns), (edge[:, :-1], columns)):
        side |= differs
    opacity = np.where(inside, np.where(edge, 0.95, _MASK_OPACITY), 0.0)
    return np.concatenate([class_colours(labels), opacity[..., None]], axis=-1)


def _thinned(array: NDArray[Any], most: int) -> tuple[NDArray[Any], tuple[int, int], str]:
    """Subsample pixels; return them, the steps, and a remark."""
    down, across = (max(1, -(-size // most)) for size in array.shape[:2])
    remark = f"1 of {down * across} pixels" if down * across > 1 else ""
    return array[::down, ::across], (down, across), remark


def draw_points(axes: Any, panel: Panel) -> str:
    """Draw points, coloured by label, else by height."""
    cloud, labels = np.asarray(panel.value), panel.labels()
    total = len(cloud)
    shown = np.ones(total, bool) if panel.valid is None else panel.valid
    padded, finite = total - int(shown.sum()), np.isfinite(cloud[:, :3]).all(axis=1)
    lost = int((shown & ~finite).sum())
    shown = shown & finite
    rows = np.flatnonzero(shown)
    most = _MOST_POINTS[panel.large]
    remark = ""
    if len(rows) > most:
        remark = f"{most:,} of {len(rows):,} points"
        rows = rows[spread(len(rows), most)]
    remark = joined(remark, f"{padded:,} padded" if padded else "", f"{lost:,} not finite" if lost else "")
    points = cloud[rows, :3].astype(np.float64)
    axes.set_axis_off()
    axes.set_aspect("equal")
    if not len(points):
        return joined("no points", remark)
    across, up, depth = seen(points)
    order = np.argsort(-depth, kind="stable")
    values = points[:, -1]
    size = min(60.0, max(0.5, (9_000.0 if panel.large else 2_200.0) / len(points)))
    style: dict[str, Any] = {"s": size, "linewidths": 0}
    if labels is not None:
        style["c"] = class_colours(labels[rows][order])
    else:
        style.update(c=values[order], cmap="viridis", vmax=float(values.max()) + 0.12 * float(np.ptp(values)) + 1e-12)
    axes.scatter(across[order], up[order], **style)
    half = 0.52 * max(float(np.ptp(across)), float(np.ptp(up)), 1e-12)
    for set_limits, coordinates in ((axes.set_xlim, across), (axes.set_ylim, up)):
        middle = (float(coordinates.max()) + float(coordinates.min())) / 2
        set_limits(middle - half, middle + half)
    return remark


def draw_signal(axes: Any, panel: Panel) -> str:
    """Draw a line per channel, padding in grey, labels as background."""
    series = channels_of(np.asarray(panel.value))
    length, channels = series.shape
    moments = spread(length, _MOST_MOMENTS[panel.large])
    shown = min(channels, MOST_CURVES)
    values = series[moments][:, :shown].astype(np.float64)
    colours = class_colours(np.arange(shown))
    for channel in range(shown):
        axes.plot(moments, values[:, channel], color=colours[channel] if shown > 1 else ACCENT, linewidth=0.9)
    _axes_of_curve(axes, length)
    _shade_padding(axes, panel, length)
    labels = panel.labels()
    if labels is not None:
        _shade(axes, class_colours(labels[moments]), 0.18)
    more = f"{shown} of {channels} channels" if channels > shown else ""
    return joined(f"{len(moments):,} of {length:,} values" if len(moments) < length else "", more)


def draw_spectrum(axes: Any, panel: Panel) -> str:
    """Draw values over their index, with the area below filled."""
    array = np.asarray(panel.value)
    spectrum = np.abs(array).astype(np.float64).reshape(-1)
    bins = min(len(spectrum), _MOST_MOMENTS[panel.large])
    # Draw the highest of neighbouring values, so that no peak is lost.
    begins = np.unique(np.linspace(0, len(spectrum), bins, endpoint=False).astype(np.intp))
    peaks = np.maximum.reduceat(spectrum, begins)
    axes.fill_between(begins, peaks, color=ACCENT, alpha=0.25, linewidth=0)
    axes.plot(begins, peaks, color=ACCENT, linewidth=0.9)
    _axes_of_curve(axes, len(spectrum))
    axes.set_ylim(bottom=float(peaks[np.isfinite(peaks)].min(initial=0.0)))
    _shade_padding(axes, panel, len(spectrum))
    remark = f"highest of each {len(spectrum) / bins:.3g} values" if bins < len(spectrum) else ""
    return joined("magnitude" if array.dtype.kind == "c" else "", remark)


def _axes_of_curve(axes: Any, length: int) -> None:
    axes.set_xlim(0, max(1, length - 1))
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(LINE)
    axes.tick_params(labelsize=6, colors=MUTED, length=2, width=0.6, color=LINE)
    axes.locator_params(nbins=4)


def _shade_padding(axes: Any, panel: Panel, length: int) -> None:
    """Colour the padding of a curve, if the mask has its length."""
    if panel.valid is not None and len(panel.valid) == length:
        valid = panel.valid[spread(len(panel.valid), _MOST_MOMENTS[panel.large])]
        _shade(axes, np.full((len(valid), 3), _PADDING), np.where(valid, 0.0, 0.7))


def _shade(axes: Any, colours: NDArray[np.float64], opacity: NDArray[np.float64] | float) -> None:
    """Colour the background of a curve from left to right."""
    ground = np.concatenate([colours, np.broadcast_to(opacity, len(colours))[:, None]], axis=1)
    axes.set_ylim(axes.get_ylim())  # freeze the limits, which imshow would change
    extent = (*axes.get_xlim(), *axes.get_ylim())
    axes.imshow(ground[None], extent=extent, aspect="auto", interpolation="nearest", zorder=0)


def cells_of(value: NDArray[Any], large: bool) -> tuple[int, int]:
    """Return the number of rows and columns of a table to write."""
    shape = (1, value.size) if value.ndim < 2 else (len(value), value.size // max(1, len(value)))
    most = _MOST_CELLS[large]
    return min(shape[0], most), min(shape[1], most)


def draw_table(axes: Any, panel: Panel) -> str:
    """Write the first numbers of a table."""
    table = np.asarray(panel.value)
    table = table.reshape(1, -1) if table.ndim < 2 else table.reshape(len(table), -1)
    rows, columns = cells_of(panel.value, panel.large)
    cells = [[_cell_text(value) for value in row[:columns]] for row in table[:rows]]
    write_table(axes, cells, 9 if panel.large else 6.5)
    left_out = (rows, columns) != table.shape
    return f"{rows} x {columns} of {table.shape[0]:,} x {table.shape[1]:,} numbers" if left_out else ""


def _cell_text(value: Any) -> str:
    text = str(value)
    is_short = isinstance(value, np.inexact) or (isinstance(value, np.integer) and len(text) > _LONGEST_NUMBER)
    return f"{value:.3g}"[:_LONGEST_NUMBER] if is_short else text


def write_table(axes: Any, rows: Sequence[Sequence[str]], size: float, widths: Sequence[float] | None = None) -> Any:
    """Write a table that fills the axes; return the matplotlib `Table`."""
    axes.set_axis_off()
    shades = [["#f1f4f7" if row % 2 == 0 else "none"] * len(cells) for row, cells in enumerate(rows)]
    texts = [[text.replace("$", r"\$") for text in cells] for cells in rows]
    table = axes.table(texts, shades, cellLoc="right", colWidths=widths, bbox=(0, 0, 1, 1))
    table.auto_set_font_size(False)
    table.set_fontsize(size)
    for cell in table.get_celld().values():
        cell.set_linewidth(0)
        cell.get_text().set(color=INK)
    return table


def draw_text(axes: Any, panel: Panel) -> str:
    """Write text in lines, truncated if long."""
    value, most = panel.value, _CHARACTERS[panel.large]
    if isinstance(value, np.ndarray):
        text = ", ".join(plain_text(each[:most]) for each in value.reshape(-1)[:50].tolist())
        length = len(text)
    else:
        text, length = plain_text(value[:most]), len(value)
    remark = f"{most} of {length:,} characters" if length > most else ""
    lines = textwrap.wrap(text[:most], 96 if panel.large else 36) or ["(empty)"]
    height = 28 if panel.large else 7
    if len(lines) > height:
        remark = remark or f"{height} of {len(lines)} lines"
    shown = "\n".join(lines[:height]).replace("$", r"\$")
    axes.text(
        0, 1, shown, va="top", ha="left", fontsize=9 if panel.large else 7, color=INK,
        transform=axes.transAxes, linespacing=1.4,
    )  # fmt: skip
    axes.set_axis_off()
    return remark


def plain_text(value: str | bytes) -> str:
    """Return printable text."""
    text = value if isinstance(value, str) else value.decode(errors="backslashreplace")
    return "".join(character if character.isprintable() else " " for character in text)


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
