"""What an array is (image, mask, point cloud, ...), and a small picture of it as HTML, without matplotlib.

And what a sequence says of itself in a notebook: the fields of its first scene with such pictures.

Invariant: every function is pure, never raises on account of an array's content, and looks at some thousand values of
an array however large it is. Pictures are a mid-tone, so that light and dark themes both show them; text is escaped.
"""

import base64
import html
import math
import struct
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.spec.field_values import as_array
from kerasfeed.spec.inference import describe
from kerasfeed.spec.nesting import flatten
from kerasfeed.spec.scene_spec import ArraySpec
from kerasfeed.util.error_text import summary
from kerasfeed.util.report import Graphic, Report, Table

FIELD_COLUMNS = ("field", "shape", "dtype")
WRITTEN = ("label", "number", "word")  # over or beside pictures
KINDS = ("image", "mask", "points", "volume", "signal", "spectrum", "table", "text", *WRITTEN, "hidden")
MOST_CLASSES = 64
MOST_CURVES = 8  # of a signal
_CHANNELS = (1, 3, 4)
_LONGEST_ROW = 16  # numbers that are written out
_SMALLEST_IMAGE = 8
_LONGEST_WORD = 28
_LOOKED_AT = 20_000  # values, or rows
_SPECTRUM_NAMES = ("spectr", "psd", "fft", "intensit", "power", "magnitude")
_SIGNAL_NAMES = ("signal", "audio", "wave", "ecg", "eeg", "series", "trace", "track", "sound")
_POINT_NAMES = ("point", "cloud", "xyz", "coord", "vert", "pos")
_AZIMUTH, _ELEVATION = np.radians(-52), np.radians(24)  # of the eye that looks at point clouds

_HEIGHT = 64  # CSS pixels of every picture: about three lines of text
_MAX_POINTS = 300
_MAX_VERTICES = 200
_MAX_PIXELS = 64  # along one side; noise of 64 x 64 RGBA, which does not compress, is 22 kB of base64
_MAX_TEXT = 60
_ACCENT = "#4a90d9"  # contrast of about 3.3 on white and 5 on Jupyter's dark grey


# ---- kinds


def kind_of(path: str, value: Any) -> str:
    """What a field is, one of `KINDS`; told from shape, dtype and values of an array or text, and from its name."""
    if isinstance(value, str | bytes) or value.dtype.kind in "OUST":
        return "word" if isinstance(value, str | bytes) and len(value) <= _LONGEST_WORD else "text"
    if value.dtype.kind not in "biufc" or value.ndim > 5:
        return "number"  # for which its dtype and shape are written
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
    """Whether neighbouring rows are alike, as those of a signal are, in every column."""
    values = matrix.astype(np.float64)
    return bool((np.abs(np.diff(values, axis=0)).mean(axis=0) < 0.4 * np.nanstd(values, axis=0)).all())


def is_labels(array: NDArray[Any]) -> bool:
    """Whether values are those of classes: few whole numbers."""
    if array.dtype == np.bool_:
        return True
    found = np.unique(_sample(array))
    if not found.size or not np.isfinite(found).all() or len(found) > MOST_CLASSES:
        return False
    # Few values of 8 bits are rather shades of grey where they are up to 255 and not 0 and 255 alone.
    is_shades = array.dtype == np.uint8 and len(found) > 16 and int(found[-1]) >= MOST_CLASSES
    return not is_shades and bool((found == np.round(found)).all())


def _sample(array: NDArray[Any]) -> NDArray[Any]:
    """Values spread over an array."""
    places = np.arange(0, array.size, max(1, array.size // _LOOKED_AT))
    return array[np.unravel_index(places, array.shape)]


def _is_channels_first(array: NDArray[Any]) -> bool:
    first, last = array.shape[0], array.shape[-1]
    return array.ndim == 3 and last not in _CHANNELS and first in _CHANNELS and min(array.shape[1:]) >= _SMALLEST_IMAGE


# ---- what all pictures are made of


def image_of(array: NDArray[Any]) -> tuple[NDArray[Any], int]:
    """An image as [H, W] or [H, W, 3 | 4], and how many channels it has; of two channels the first."""
    array = np.moveaxis(array, 0, -1) if _is_channels_first(array) else array
    channels = array.shape[-1] if array.ndim == 3 else 1
    return array[..., 0] if array.ndim == 3 and channels not in (3, 4) else array, channels


def in_unit_range(array: NDArray[Any]) -> tuple[NDArray[np.float64], str]:
    """Brightness of pixels in [0, 1], and in words how it was scaled where that is not plain."""
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
    """Places across and up as a distant eye sees them, and the distance from it; the third coordinate is up."""
    if points.shape[1] < 3:
        return points[:, 0], points[:, 1], np.zeros(len(points))
    x, y, z = (points - points.mean(axis=0)).T
    sin, cos = np.sin(_AZIMUTH), np.cos(_AZIMUTH)
    nearer = x * cos + y * sin
    across = y * cos - x * sin
    up = z * np.cos(_ELEVATION) - nearer * np.sin(_ELEVATION)
    return across, up, -(nearer * np.cos(_ELEVATION) + z * np.sin(_ELEVATION))


def channels_of(signal: NDArray[Any]) -> NDArray[Any]:
    """A signal as [moments, channels]: moments are along the longer axis."""
    series = signal.T if signal.ndim == 2 and signal.shape[0] < signal.shape[1] else signal
    return series.reshape(len(series), math.prod(series.shape[1:]))


def spread(length: int, count: int) -> NDArray[np.intp]:
    """Up to `count` indices spread evenly over `length`: int[min(length, count)], both ends included."""
    return np.linspace(0, length - 1, min(length, count)).round().astype(np.intp)


def runs(mask: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Begin and end of each run of True, in order."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], mask.astype(np.int8), [0]])))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))


def _unit(values: NDArray[np.float64], span: float | None = None) -> NDArray[np.float64]:
    """Shift and scale finite values: centred on 0.5, with `span` (their own by default) made 1."""
    largest = float(np.max(np.abs(values)))
    if largest > 1e300 or 0 < largest < 1e-300:
        # Differences of such values overflow or vanish; the picture is the same at any scale.
        values = values / largest
        span = None if span is None else span / largest
    low, high = float(np.min(values)), float(np.max(values))
    span = high - low if span is None else span
    if not span > 0:
        return np.full(values.shape, 0.5)
    return (values - (low + high) / 2) / span + 0.5


# ---- the small picture


def preview(array: NDArray[Any], path: str = "") -> str:
    """A small picture of one array, chosen by its kind.

    A point cloud becomes a scatter of its first two or three columns, an image, a mask or a table of several rows a
    thumbnail, a signal, a spectrum or a row of numbers a curve, a single number or string its text. Values that are not
    finite are left out. Everything else has no picture.

    Args:
        array: Any NumPy array.
        path: Name of the field, which may tell what it is.

    Returns:
        HTML of one inline element, or "".
    """
    if array.ndim == 0 or (array.ndim == 1 and array.size == 1):
        return _text(array)
    if array.dtype.kind not in "biuf" or array.size == 0:
        return ""
    kind = kind_of(path, array)
    with np.errstate(all="ignore"):
        if array.ndim == 1 or kind == "signal":
            return _curve(channels_of(array))
        if kind == "points":
            return _scatter(array)
        if kind in ("image", "mask") or (kind == "table" and min(array.shape) > 1):
            return _thumbnail(image_of(array)[0])
    return ""


def _text(array: NDArray[Any]) -> str:
    if array.dtype.kind not in "biufcUSO":
        return ""
    value = array.reshape(-1)[0]
    text = str(value.item() if isinstance(value, np.generic) else value)
    return html.escape(text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "…")


def _curve(series: NDArray[Any]) -> str:
    values = series[spread(len(series), _MAX_VERTICES), :MOST_CURVES].astype(np.float64)
    finite = np.isfinite(values)
    if not finite.any():
        return ""
    width = 3 * _HEIGHT
    x = np.linspace(3, width - 3, len(values))
    y = np.full(values.shape, np.nan)
    y[finite] = (_HEIGHT - 6) * (1 - _unit(values[finite])) + 3
    lines = "".join(
        f'<polyline points="{" ".join(f"{x[k]:.1f},{y[k, channel]:.1f}" for k in range(begin, end))}"/>'
        for channel in range(values.shape[1])
        for begin, end in runs(finite[:, channel])
    )
    return _svg(width, f'<g fill="none" stroke="{_ACCENT}" stroke-width="1.5">{lines}</g>')


def _scatter(array: NDArray[Any]) -> str:
    points = array[spread(len(array), _MAX_POINTS), :3].astype(np.float64)
    points = points[np.isfinite(points).all(axis=1)]
    if len(points) < 2:
        return ""
    across, up, depth = seen(points / (float(np.max(np.abs(points))) or 1.0))
    span = max(float(np.ptp(across)), float(np.ptp(up)))
    nearness = 1 - _unit(depth)
    px = (_HEIGHT - 6) * _unit(across, span) + 3
    py = (_HEIGHT - 6) * (1 - _unit(up, span)) + 3
    dots = "".join(
        f'<circle cx="{px[k]:.1f}" cy="{py[k]:.1f}" r="1" fill-opacity="{0.35 + 0.65 * nearness[k]:.2f}"/>'
        for k in np.argsort(nearness, kind="stable")
    )
    return _svg(_HEIGHT, f'<g fill="{_ACCENT}">{dots}</g>')


def _svg(width: int, content: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{_HEIGHT}" '
        f'viewBox="0 0 {width} {_HEIGHT}" style="vertical-align:middle">{content}</svg>'
    )


def _thumbnail(image: NDArray[Any]) -> str:
    """Of [H, W] or [H, W, 3 | 4]; pixels that are not finite are transparent."""
    pixels = image[np.ix_(spread(image.shape[0], _MAX_PIXELS), spread(image.shape[1], _MAX_PIXELS))]
    colour = in_unit_range(pixels)[0].reshape(*pixels.shape[:2], -1)
    rgba = np.ones((*pixels.shape[:2], 4))
    rgba[..., : max(3, colour.shape[2])] = colour
    rgba[~np.isfinite(pixels.reshape(colour.shape)).all(axis=2), 3] = 0
    uri = base64.b64encode(_png(np.clip(255 * rgba, 0, 255).round().astype(np.uint8))).decode("ascii")
    width = min(max(round(_HEIGHT * image.shape[1] / image.shape[0]), 8), 3 * _HEIGHT)
    return (
        f'<img src="data:image/png;base64,{uri}" width="{width}" height="{_HEIGHT}" alt="image" '
        'style="image-rendering:pixelated;vertical-align:middle;margin:0;max-width:none">'
    )


def _png(rgba: NDArray[np.uint8]) -> bytes:
    """Encode uint8[H, W, 4] as PNG (ISO/IEC 15948): one filter byte 0 before each line, one IDAT chunk."""
    height, width = rgba.shape[:2]
    lines = np.zeros((height, 1 + 4 * width), np.uint8)
    lines[:, 1:] = rgba.reshape(height, -1)

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(lines.tobytes(), 9))
        + chunk(b"IEND", b"")
    )


def sequence_report(sequence: Any) -> Report:
    """The fields of scene 0; where that cannot be read, the error."""
    name = type(sequence).__name__
    try:
        length, scene = len(sequence), sequence[0]
        spec = describe(scene)
        rows = [
            (*field_cells(path, field), Graphic("", preview(np.asarray(as_array(leaf, path)), path)))
            for path, field, leaf in zip(spec.paths, spec.fields, flatten(scene)[0], strict=True)
        ]
    except Exception as error:  # noqa: BLE001 - a notebook must show the sequence even when a scene cannot be read
        return Report(name, [("error", summary(error))])
    columns = [*FIELD_COLUMNS, "preview" if any(row[-1].html for row in rows) else ""]
    return Report(f"{name}, scene 0", [("scenes", f"{length:,}")], [Table(columns, rows)])


def field_cells(path: str, field: ArraySpec) -> tuple[str, str, str]:
    """What stands in the columns `FIELD_COLUMNS` of a field."""
    dtype, _, shape = str(field).partition("[")
    return path, f"[{shape}", dtype
