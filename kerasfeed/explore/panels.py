"""One part of a scene drawn into matplotlib axes.

Invariant: looks at a bounded number of values, and says where it has left some out. Axes are given, so nothing here
imports matplotlib, and no state of pyplot is touched.
"""

import textwrap
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.explore.kinds import Fields, Part, is_channels_first, spatial_shape
from kerasfeed.explore.palette import ACCENT, INK, LINE, MUTED, class_colours

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
_MOST_PIXELS = (320, 1_200)  # along a side, in a grid and alone
_MOST_POINTS = (2_500, 30_000)
_MOST_MOMENTS = (1_000, 6_000)
_MOST_CELLS = 12
_MASK_OPACITY = 0.5
_AZIMUTH, _ELEVATION = np.radians(-52), np.radians(24)  # of the eye that looks at point clouds
_CHARACTERS = (220, 2_000)


@dataclass(frozen=True)
class Panel:
    """What a part of a scene is drawn with.

    Attributes:
        fields: Of the scene.
        part: Which of them.
        large: Whether the scene is the only one of the picture.
    """

    fields: Fields
    part: Part
    large: bool

    @property
    def value(self) -> Any:
        """The field."""
        return self.fields[self.part.path]

    @property
    def labels(self) -> NDArray[Any] | None:
        """The labels of it, int64, without an axis of 1; None for none."""
        if not self.part.labels:
            return None
        found = np.asarray(self.fields[self.part.labels])
        inner = spatial_shape(self.value, self.part.kind) if self.part.kind in ("image", "volume") else found.shape
        if self.part.kind in ("image", "volume") and found.ndim == len(inner) + 1 and found.shape[-1] > 1:
            found = found.argmax(axis=-1)  # one-hot
        elif found.ndim > 1 and found.shape[-1] == 1 and found.shape != inner:
            found = found[..., 0]
        return found.astype(np.int64)

    @property
    def valid(self) -> NDArray[np.bool_] | None:
        """bool[length]: False where there is padding; None without a mask."""
        return self.fields[self.part.padding] if self.part.padding else None

    def most(self, limits: tuple[int, int]) -> int:
        """The second of two limits where the scene is alone."""
        return limits[self.large]


    def classes(self) -> list[int]:
        """The classes whose colours are in the picture."""
        labels = np.asarray(self.value).astype(np.int64) if self.part.kind == "mask" else self.labels
        if labels is None:
            return []
        found = np.unique(labels[labels != 0] if self.part.kind in ("image", "volume", "mask") else labels)
        return [int(value) for value in found]


def panel_size(value: Any, kind: str, large: bool) -> tuple[float, float]:
    """Width and height of a panel for a field, inches."""
    wide, high = _SIZES[kind][large]
    if kind == "table":
        rows, columns = _cells(value, large)
        unit = (0.75, 0.26) if large else (0.5, 0.19)
        return max(1.5, columns * unit[0]), max(1, rows) * unit[1]
    if kind not in ("image", "mask", "volume"):
        return wide, high
    rows, columns = (float(size) for size in _picture_shape(value, kind))
    high = min(max(wide * rows / max(1.0, columns), 0.3 * wide), 1.25 * wide)
    return wide, high


def _cells(value: NDArray[Any], large: bool) -> tuple[int, int]:
    """Rows and columns of a table that are written."""
    shape = (1, value.size) if value.ndim < 2 else (len(value), value.size // max(1, len(value)))
    most = _MOST_CELLS if large else 6
    return min(shape[0], most), min(shape[1], most)


def _picture_shape(value: NDArray[Any], kind: str) -> tuple[float, float]:
    """Rows and columns of the picture of an image or a volume."""
    if kind != "volume":
        shape = spatial_shape(value, kind) if kind == "image" else value.shape
        return float(shape[0]), float(shape[1])
    pieces = _slices(value)[0]
    rows = max(piece.shape[0] for piece in pieces)
    return 1.1 * rows, sum(piece.shape[1] for piece in pieces) + 0.12 * rows


def draw_panel(axes: Any, panel: Panel) -> str:
    """Draw a part of a scene into axes; returns what was left out or scaled, in words, empty for nothing."""
    with np.errstate(all="ignore"):
        said: str = _DRAWN[panel.part.kind](axes, panel)
    return said


# ---- pictures


def _draw_image(axes: Any, panel: Panel) -> str:
    array = panel.value
    if array.ndim == 3 and is_channels_first(array):
        array = np.moveaxis(array, 0, -1)
    array = np.abs(array) if array.dtype.kind == "c" else array
    if array.ndim == 3 and array.shape[-1] == 1:
        array = array[..., 0]
    array, step = _thinned(array, panel.most(_MOST_PIXELS))
    pixels, scaled = _in_unit_range(array)
    if pixels.ndim == 3:
        axes.imshow(pixels[..., : 4 if pixels.shape[-1] == 4 else 3], interpolation="nearest")
    else:
        axes.imshow(pixels, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    labels = panel.labels
    if labels is not None:
        axes.imshow(_overlay(labels[::step, ::step]), interpolation="nearest")
    _frame(axes)
    return _joined(f"every {_ordinal(step)} pixel" if step > 1 else "", scaled)


def _draw_mask(axes: Any, panel: Panel) -> str:
    array = panel.value
    array, step = _thinned(array[..., 0] if array.ndim == 3 else array, panel.most(_MOST_PIXELS))
    colours = class_colours(array)
    colours[array == 0] = (0.93, 0.94, 0.95)
    axes.imshow(colours, interpolation="nearest")
    _frame(axes)
    return f"every {_ordinal(step)} pixel" if step > 1 else ""


def _draw_volume(axes: Any, panel: Panel) -> str:
    """Three slices through the middle, side by side; of frames in colour the first, the middle and the last."""
    labels = panel.labels
    slices, titles, said = _slices(panel.value)
    over = None if labels is None else _middles(labels)
    flat = np.concatenate([piece.reshape(-1)[:: max(1, piece.size // 50_000)] for piece in slices])
    flat = flat[np.isfinite(flat)]
    low, high = (float(flat.min()), float(flat.max())) if flat.size else (0.0, 1.0)
    begin, height = 0.0, max(piece.shape[0] for piece in slices)
    for number, piece in enumerate(slices):
        rows, columns = piece.shape[:2]
        extent = (begin, begin + columns, (height + rows) / 2, (height - rows) / 2)
        thin, step = _thinned(piece, panel.most(_MOST_PIXELS))
        pixels = _in_unit_range(thin)[0] if piece.ndim == 3 else np.clip((thin - low) / max(high - low, 1e-30), 0, 1)
        axes.imshow(pixels, cmap="gray", vmin=0, vmax=1, extent=extent, interpolation="nearest")
        if over is not None:
            axes.imshow(_overlay(over[number][::step, ::step]), extent=extent, interpolation="nearest")
        axes.text(begin, height * 1.02, titles[number], va="top", fontsize=8 if panel.large else 6, color=MUTED)
        begin += columns + 0.06 * height
    axes.set_xlim(0, begin - 0.06 * height)
    axes.set_ylim(height * 1.1, 0)
    axes.set_axis_off()
    return said


def _slices(volume: NDArray[Any]) -> tuple[list[NDArray[Any]], list[str], str]:
    """The slices that are drawn, what each is called, and what was left out."""
    volume = volume[0] if volume.ndim == 5 else volume
    volume = np.abs(volume) if volume.dtype.kind == "c" else volume
    if volume.ndim == 4 and volume.shape[-1] in (3, 4):
        chosen = [0, len(volume) // 2, len(volume) - 1]
        return [volume[place] for place in chosen], [f"frame {place}" for place in chosen], f"{len(volume):,} frames"
    said = f"channel 0 of {volume.shape[-1]}" if volume.ndim == 4 and volume.shape[-1] > 1 else ""
    volume = volume[..., 0] if volume.ndim == 4 else volume
    return _middles(volume), [f"{axis} = {size // 2}" for axis, size in zip("zyx", volume.shape, strict=True)], said


def _middles(volume: NDArray[Any]) -> list[NDArray[Any]]:
    z, y, x = (size // 2 for size in volume.shape[:3])
    return [volume[z], volume[:, y], volume[:, :, x]]


def _in_unit_range(array: NDArray[Any]) -> tuple[NDArray[np.float64], str]:
    """Values in [0, 1], and in words how they were scaled where that is not plain."""
    if array.dtype == np.bool_:
        return array.astype(np.float64), ""
    values = array.astype(np.float64)
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    values = np.nan_to_num(values, nan=low, posinf=high, neginf=low)
    if array.dtype == np.uint8 or (array.dtype.kind in "iu" and array.ndim == 3 and low >= 0 and high <= 255):
        return values / 255, ""
    if low >= 0 and high <= 1 and array.dtype.kind == "f":
        return values, ""
    if array.ndim == 3 and low >= 0 and 1 < high <= 255 and array.shape[-1] in (3, 4):
        return values / 255, ""
    return (values - low) / max(high - low, 1e-300), f"{low:.3g} to {high:.3g}"


def _overlay(labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """float64[..., 4]: colours of classes, clear where the class is 0, with an opaque edge."""
    inside = labels != 0
    edge = np.zeros_like(inside)
    edge[1:] |= labels[1:] != labels[:-1]
    edge[:, 1:] |= labels[:, 1:] != labels[:, :-1]
    opacity = np.where(inside, np.where(edge, 0.95, _MASK_OPACITY), 0.0)
    return np.concatenate([class_colours(labels), opacity[..., None]], axis=-1)


def _thinned(array: NDArray[Any], most: int) -> tuple[NDArray[Any], int]:
    step = -(-max(array.shape[:2]) // most)
    return array[::step, ::step], step


# ---- points and curves


def _draw_points(axes: Any, panel: Panel) -> str:
    cloud, labels = np.asarray(panel.value), panel.labels
    total = len(cloud)
    kept = np.ones(total, bool) if panel.valid is None else panel.valid
    kept = kept & np.isfinite(cloud[:, :3]).all(axis=1)
    places = np.flatnonzero(kept)
    most = panel.most(_MOST_POINTS)
    said = ""
    if len(places) > most:
        said = f"{most:,} of {len(places):,} points"
        places = places[np.linspace(0, len(places) - 1, most).astype(np.intp)]
    if len(places) < total and int(kept.sum()) < total and panel.valid is not None:
        said = _joined(said, f"{total - int(kept.sum()):,} padded")
    points = cloud[places, :3].astype(np.float64)
    axes.set_axis_off()
    axes.set_aspect("equal")
    if not len(points):
        return "no points"
    across, up, depth = _seen(points)
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


def _seen(points: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Places across and up as a distant eye sees them, and the distance from it; the third coordinate is up."""
    if points.shape[1] < 3:
        return points[:, 0], points[:, 1], np.zeros(len(points))
    x, y, z = (points - points.mean(axis=0)).T
    sin, cos = np.sin(_AZIMUTH), np.cos(_AZIMUTH)
    nearer = x * cos + y * sin
    across = y * cos - x * sin
    up = z * np.cos(_ELEVATION) - nearer * np.sin(_ELEVATION)
    return across, up, -(nearer * np.cos(_ELEVATION) + z * np.sin(_ELEVATION))


def _draw_signal(axes: Any, panel: Panel) -> str:
    series = np.asarray(panel.value)
    if series.ndim == 2 and series.shape[0] < series.shape[1]:
        series = series.T
    series = series.reshape(len(series), -1)
    length, channels = series.shape
    most = panel.most(_MOST_MOMENTS)
    places = np.unique(np.linspace(0, length - 1, min(length, most)).round().astype(np.intp))
    shown = min(channels, 8)
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
    return _joined(f"{len(places):,} of {length:,} values" if len(places) < length else "", more)


def _draw_spectrum(axes: Any, panel: Panel) -> str:
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
    return _joined("magnitude" if array.dtype.kind == "c" else "", said)


def _axes_of_curve(axes: Any, length: int) -> None:
    axes.set_xlim(0, max(1, length - 1))
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(LINE)
    axes.tick_params(labelsize=6, colors=MUTED, length=2, width=0.6, color=LINE)
    axes.locator_params(nbins=4)


def _shade_padding(axes: Any, valid: NDArray[np.bool_]) -> None:
    for begin, end in _runs(~valid):
        axes.axvspan(begin, end, color=LINE, alpha=0.7, linewidth=0)


def _shade_classes(axes: Any, labels: NDArray[np.int64]) -> None:
    for value in np.unique(labels)[:20]:
        for begin, end in _runs(labels == value)[:200]:
            axes.axvspan(begin, end, color=class_colours(value), alpha=0.18, linewidth=0)


def _runs(mask: NDArray[np.bool_]) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


# ---- numbers and text


def _draw_table(axes: Any, panel: Panel) -> str:
    table = np.asarray(panel.value)
    table = table.reshape(1, -1) if table.ndim < 2 else table.reshape(len(table), -1)
    rows, columns = _cells(panel.value, panel.large)
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


def _draw_text(axes: Any, panel: Panel) -> str:
    value = panel.value
    if isinstance(value, np.ndarray):
        values = value.reshape(-1).tolist()
        text = ", ".join(plain_text(each) for each in values[:50])
    else:
        text = plain_text(value)
    most = panel.most(_CHARACTERS)
    said = f"{most} of {len(text):,} characters" if len(text) > most else ""
    lines = textwrap.wrap(text[:most], 96 if panel.large else 36) or ["(empty)"]
    height = 28 if panel.large else 7
    if len(lines) > height:
        said = said or f"{height} of {len(lines)} lines"
    axes.text(
        0, 1, "\n".join(lines[:height]).replace("$", r"\$"), va="top", ha="left", fontsize=9 if panel.large else 7, color=INK,
        transform=axes.transAxes, linespacing=1.4,
    )  # fmt: skip
    axes.set_axis_off()
    return said


def plain_text(value: str | bytes) -> str:
    """Text that can be printed."""
    text = value if isinstance(value, str) else value.decode(errors="backslashreplace")
    return "".join(each if each.isprintable() else " " for each in text)


def _frame(axes: Any) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_color(LINE)


def _joined(*texts: str) -> str:
    return ", ".join(filter(None, texts))


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10 if number % 100 not in (11, 12, 13) else 0, "th")
    return f"{number}{ending}"


_DRAWN = {
    "image": _draw_image,
    "mask": _draw_mask,
    "points": _draw_points,
    "volume": _draw_volume,
    "signal": _draw_signal,
    "spectrum": _draw_spectrum,
    "table": _draw_table,
    "text": _draw_text,
}
