"""Guess the kind of an array, and prepare it for drawing.

Invariant: every function is pure. No content of an array makes a function raise. A guess looks at a
bounded number of values, whatever the size of the array.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

WRITTEN = ("label", "number", "word")  # in headings
KINDS = ("image", "mask", "points", "volume", "signal", "spectrum", "table", "text", *WRITTEN, "hidden")
MOST_CLASSES = 64
MOST_CURVES = 8  # of a signal
_CHANNELS = (1, 3, 4)
_LONGEST_ROW = 16  # numbers
_SMALLEST_IMAGE = 8
_LONGEST_WORD = 28
_LOOKED_AT = 20_000  # values, or rows
_SPECTRUM_NAMES = ("spectr", "psd", "fft", "intensit", "power", "magnitude")
_SIGNAL_NAMES = ("signal", "audio", "wave", "ecg", "eeg", "series", "trace", "track", "sound")
_POINT_NAMES = ("point", "cloud", "xyz", "coord", "vert", "pos")
_AZIMUTH, _ELEVATION = np.radians(-52), np.radians(24)  # of the viewer of point clouds


# ---- kinds


def kind_of(path: str, value: Any) -> str:
    """Guess the kind of a field, one of `KINDS`."""
    if isinstance(value, str | bytes) or value.dtype.kind in "OUST":
        return "word" if isinstance(value, str | bytes) and len(value) <= _LONGEST_WORD else "text"
    if value.dtype.kind not in "biufc" or value.ndim > 5:
        return "number"  # shown as its dtype and shape
    name = path.rsplit(".", 1)[-1].lower()
    if value.size <= 1 or not value.ndim:
        return "label" if value.dtype.kind in "biu" else "number"
    with np.errstate(all="ignore"):
        if value.ndim == 1:
            return _kind_of_row(name, value)
        if value.ndim == 2:
            return _kind_of_matrix(name, value)
    if value.ndim == 3:
        is_last = value.shape[-1] in (*_CHANNELS, 2) and min(value.shape[:2]) >= 4
        return "image" if _is_channels_first(value) or is_last else "volume"
    return "volume"


def _kind_of_row(name: str, row: NDArray[Any]) -> str:
    if any(part in name for part in _SPECTRUM_NAMES) or row.dtype.kind == "c":
        return "spectrum"
    if row.size <= _LONGEST_ROW and not any(part in name for part in _SIGNAL_NAMES):
        return "table"
    positive = row.dtype.kind == "f" and not any(part in name for part in _SIGNAL_NAMES) and (_sample(row) >= 0).all()
    return "spectrum" if positive else "signal"


def _kind_of_matrix(name: str, matrix: NDArray[Any]) -> str:
    rows, columns = matrix.shape
    if any(part in name for part in _SIGNAL_NAMES):
        return "signal"
    if 2 <= columns <= _LONGEST_ROW and matrix.dtype.kind == "f":
        if any(part in name for part in _POINT_NAMES):
            return "points"
        if rows >= 8 * columns:
            return "signal" if columns != 3 and _is_smooth(matrix[:_LOOKED_AT]) else "points"
    if min(rows, columns) >= _SMALLEST_IMAGE:
        return "mask" if matrix.dtype.kind in "biu" and is_labels(matrix) else "image"
    if rows <= _LONGEST_ROW and columns >= 8 * rows:
        return "signal"
    return "signal" if rows > 4 * _LONGEST_ROW else "table"


def _is_smooth(matrix: NDArray[Any]) -> bool:
    """Whether neighbouring rows are similar in every column, as in a signal."""
    values = matrix.astype(np.float64)
    return bool((np.abs(np.diff(values, axis=0)).mean(axis=0) < 0.4 * np.nanstd(values, axis=0)).all())


def is_labels(array: NDArray[Any]) -> bool:
    """Whether the values look like classes: few distinct whole numbers."""
    if array.dtype == np.bool_:
        return True
    found = np.unique(_sample(array))
    if not found.size or not np.isfinite(found).all() or len(found) > MOST_CLASSES:
        return False
    # Many values of 8 bits up to 255 are shades of grey; 0 and 255 alone are a mask.
    is_shades = array.dtype == np.uint8 and len(found) > 16 and int(found[-1]) >= MOST_CLASSES
    return not is_shades and bool((found == np.round(found)).all())


def _sample(array: NDArray[Any]) -> NDArray[Any]:
    """Return values spread over an array."""
    positions = np.arange(0, array.size, max(1, array.size // _LOOKED_AT))
    return array[np.unravel_index(positions, array.shape)]


def _is_channels_first(array: NDArray[Any]) -> bool:
    first, last = array.shape[0], array.shape[-1]
    return array.ndim == 3 and last not in _CHANNELS and first in _CHANNELS and min(array.shape[1:]) >= _SMALLEST_IMAGE


# ---- preparing arrays for drawing


def image_of(array: NDArray[Any]) -> tuple[NDArray[Any], int]:
    """Return pixels, [H, W] or [H, W, C], and the channel count."""
    array = np.moveaxis(array, 0, -1) if _is_channels_first(array) else array
    channels = array.shape[-1] if array.ndim == 3 else 1
    return array[..., 0] if array.ndim == 3 and channels not in (3, 4) else array, channels


def in_unit_range(array: NDArray[Any]) -> tuple[NDArray[np.float64], str]:
    """Scale pixels to [0, 1]; return them and a remark."""
    values = array.astype(np.float64)
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    values = np.nan_to_num(values, nan=low, posinf=high, neginf=low)
    is_colour = array.ndim == 3 and low >= 0 and high <= 255
    if array.dtype == np.uint8 or (is_colour and (array.dtype.kind in "iu" or high > 1)):
        return values / 255, ""
    if low >= 0 and high <= 1:
        return values, ""
    return _unit(values), f"{low:.3g} to {high:.3g}"


def seen(points: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Project points as a distant viewer sees them: across, up, distance."""
    if points.shape[1] < 3:
        return points[:, 0], points[:, 1], np.zeros(len(points))
    x, y, z = (points - points.mean(axis=0)).T
    sin, cos = np.sin(_AZIMUTH), np.cos(_AZIMUTH)
    nearer = x * cos + y * sin
    across = y * cos - x * sin
    up = z * np.cos(_ELEVATION) - nearer * np.sin(_ELEVATION)
    return across, up, -(nearer * np.cos(_ELEVATION) + z * np.sin(_ELEVATION))


def channels_of(signal: NDArray[Any]) -> NDArray[Any]:
    """Return a signal as [time, channels]; time runs along the longer axis."""
    series = signal.T if signal.ndim == 2 and signal.shape[0] < signal.shape[1] else signal
    return series.reshape(len(series), math.prod(series.shape[1:]))


def spread(length: int, count: int) -> NDArray[np.intp]:
    """Return int[min(length, count)], indices spread evenly over `length`."""
    return np.linspace(0, length - 1, min(length, count)).round().astype(np.intp)


def _unit(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Shift and scale finite values to [0, 1]."""
    largest = float(np.max(np.abs(values)))
    if largest > 1e300 or 0 < largest < 1e-300:
        values = values / largest  # differences of such values overflow or vanish
    low, high = float(np.min(values)), float(np.max(values))
    return (values - low) / (high - low) if high > low else np.full(values.shape, 0.5)
