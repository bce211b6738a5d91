"""Images, label maps and volumes, drawn into matplotlib axes.

Invariant: see `kerasfeed.explore.pictures.panels`. A class of 0 is background, and stays clear.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.explore.pictures.panel import LINE, MUTED, Panel, class_colours, joined
from kerasfeed.spec.array_pictures import image_of, in_unit_range

_MOST_PIXELS = (320, 1_200)  # along a side, in a grid and alone
_MASK_OPACITY = 0.5
_BACKGROUND = (0.93, 0.94, 0.95)


def draw_image(axes: Any, panel: Panel) -> str:
    """An image with its mask over it."""
    array, channels = image_of(panel.value)
    array, step = _thinned(array, panel.most(_MOST_PIXELS))
    array = np.abs(array) if array.dtype.kind == "c" else array
    pixels, scaled = in_unit_range(array)
    if pixels.ndim == 3:
        axes.imshow(pixels[..., : 4 if pixels.shape[-1] == 4 else 3], interpolation="nearest")
    else:
        axes.imshow(pixels, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    labels = panel.labels_at(step)
    if labels is not None:
        axes.imshow(_overlay(labels), interpolation="nearest")
    _frame(axes)
    one = f"channel 0 of {channels}" if channels == 2 else ""
    return joined(one, f"every {_ordinal(step)} pixel" if step > 1 else "", scaled)


def draw_mask(axes: Any, panel: Panel) -> str:
    """Labels of pixels, a colour each."""
    array = panel.value
    array, step = _thinned(array[..., 0] if array.ndim == 3 else array, panel.most(_MOST_PIXELS))
    colours = class_colours(array)
    colours[array == 0] = _BACKGROUND
    axes.imshow(colours, interpolation="nearest")
    _frame(axes)
    return f"every {_ordinal(step)} pixel" if step > 1 else ""


def draw_volume(axes: Any, panel: Panel) -> str:
    """Three slices through the middle, side by side; of frames in colour the first, the middle and the last."""
    labels = panel.labels
    slices, titles, said = slices_of(panel.value)
    over = None if labels is None else _middles(labels)
    flat = np.concatenate([piece.reshape(-1)[:: max(1, piece.size // 50_000)] for piece in slices])
    flat = flat[np.isfinite(flat)]
    low, high = (float(flat.min()), float(flat.max())) if flat.size else (0.0, 1.0)
    begin, height = 0.0, max(piece.shape[0] for piece in slices)
    for number, piece in enumerate(slices):
        rows, columns = piece.shape[:2]
        extent = (begin, begin + columns, (height + rows) / 2, (height - rows) / 2)
        thin, step = _thinned(piece, panel.most(_MOST_PIXELS))
        pixels = in_unit_range(thin)[0] if piece.ndim == 3 else np.clip((thin - low) / max(high - low, 1e-30), 0, 1)
        axes.imshow(pixels, cmap="gray", vmin=0, vmax=1, extent=extent, interpolation="nearest")
        if over is not None:
            axes.imshow(_overlay(over[number][::step, ::step]), extent=extent, interpolation="nearest")
        axes.text(begin, height * 1.02, titles[number], va="top", fontsize=8 if panel.large else 6, color=MUTED)
        begin += columns + 0.06 * height
    axes.set_xlim(0, begin - 0.06 * height)
    axes.set_ylim(height * 1.1, 0)
    axes.set_axis_off()
    return said


def slices_of(volume: NDArray[Any]) -> tuple[list[NDArray[Any]], list[str], str]:
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


def _overlay(labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """float64[..., 4]: colours of classes, clear where the class is 0, with an opaque edge."""
    inside = labels != 0
    edge = np.zeros_like(inside)
    rows, columns = labels[1:] != labels[:-1], labels[:, 1:] != labels[:, :-1]
    for side, differs in ((edge[1:], rows), (edge[:-1], rows), (edge[:, 1:], columns), (edge[:, :-1], columns)):
        side |= differs
    opacity = np.where(inside, np.where(edge, 0.95, _MASK_OPACITY), 0.0)
    return np.concatenate([class_colours(labels), opacity[..., None]], axis=-1)


def _thinned(array: NDArray[Any], most: int) -> tuple[NDArray[Any], int]:
    step = -(-max(array.shape[:2]) // most)
    return array[::step, ::step], step


def _frame(axes: Any) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_color(LINE)


def _ordinal(number: int) -> str:
    ending = {1: "st", 2: "nd", 3: "rd"}.get(number % 10 if number % 100 not in (11, 12, 13) else 0, "th")
    return f"{number}{ending}"
