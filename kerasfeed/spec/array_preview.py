"""A small picture of one array, as HTML: a scatter of points, a thumbnail, a curve, or its text.

Invariant: every function is pure, never raises on account of an array's content, and looks at a few thousand values of
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

_HEIGHT = 64  # CSS pixels of every picture: about three lines of text
_MAX_POINTS = 300
_MAX_VERTICES = 200
_MAX_PIXELS = 64  # along one side; noise of 64 x 64 RGBA, which does not compress, is 22 kB of base64
_MAX_TEXT = 60
_ACCENT = "#4a90d9"  # contrast of about 3.3 on white and 5 on Jupyter's dark grey


def preview(array: NDArray[Any]) -> str:
    """A small picture of one array, chosen by its shape and dtype.

    A point cloud (float[N, C], C >= 2 and N many times C) becomes a scatter of its first two or three
    columns, an image ([H, W], or [H, W, 1 | 3 | 4]) a thumbnail, numbers in one axis a curve, a single number
    or string its text. Values that are not finite are left out. Everything else has no picture.

    Args:
        array: Any NumPy array.

    Returns:
        HTML of one inline element, or "".
    """
    if array.ndim == 0 or (array.ndim == 1 and array.size == 1):
        return _text(array)
    if array.dtype.kind not in "biuf" or array.size == 0:
        return ""
    with np.errstate(all="ignore"):
        if array.ndim == 1:
            return _curve(array)
        if array.ndim == 2 and _is_point_cloud(array):
            return _scatter(array)
        if (array.ndim == 2 and min(array.shape) > 1) or (array.ndim == 3 and array.shape[-1] in (1, 3, 4)):
            return _thumbnail(array)
    return ""


def _text(array: NDArray[Any]) -> str:
    if array.dtype.kind not in "biufcUSO":
        return ""
    value = array.reshape(-1)[0]
    text = str(value.item() if isinstance(value, np.generic) else value)
    return html.escape(text if len(text) <= _MAX_TEXT else text[: _MAX_TEXT - 1] + "…")


def _is_point_cloud(array: NDArray[Any]) -> bool:
    rows, columns = array.shape
    return array.dtype.kind == "f" and 2 <= columns <= 16 and rows >= 8 * columns


def _spread(length: int, count: int) -> NDArray[np.intp]:
    """Up to `count` indices spread evenly over `length`: int[min(length, count)], both ends included."""
    return np.linspace(0, length - 1, min(length, count)).round().astype(np.intp)


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


def _curve(array: NDArray[Any]) -> str:
    values = array[_spread(len(array), _MAX_VERTICES)].astype(np.float64)
    finite = np.isfinite(values)
    if not finite.any():
        return ""
    width = 3 * _HEIGHT
    x = np.linspace(3, width - 3, len(values))
    y = np.full(len(values), np.nan)
    y[finite] = (_HEIGHT - 6) * (1 - _unit(values[finite])) + 3
    lines = "".join(f'<polyline points="{" ".join(f"{x[k]:.1f},{y[k]:.1f}" for k in run)}"/>' for run in _runs(finite))
    return _svg(width, f'<g fill="none" stroke="{_ACCENT}" stroke-width="1.5">{lines}</g>')


def _runs(mask: NDArray[np.bool_]) -> list[NDArray[np.intp]]:
    """Indices of each run of True, in order."""
    places = np.flatnonzero(mask)
    return np.split(places, np.flatnonzero(np.diff(places) > 1) + 1)


def _scatter(array: NDArray[Any]) -> str:
    axes = 3 if array.shape[1] >= 3 else 2
    points = array[_spread(len(array), _MAX_POINTS), :axes].astype(np.float64)
    points = points[np.isfinite(points).all(axis=1)]
    if len(points) < 2:
        return ""
    largest = float(np.max(np.abs(points))) or 1.0
    points = points / largest
    if axes == 3:
        # Seen from above one corner, the last axis up: the third number is the distance from the eye.
        x, y, z = points.T
        across, up, depth = (x - y) * math.sqrt(3) / 2, z + (x + y) / 2 * 0.7, x + y
    else:
        (across, up), depth = points.T, np.zeros(len(points))
    span = max(float(np.ptp(across)), float(np.ptp(up)))
    nearness = 1 - _unit(depth)
    order = np.argsort(nearness, kind="stable")
    px = (_HEIGHT - 6) * _unit(across, span) + 3
    py = (_HEIGHT - 6) * (1 - _unit(up, span)) + 3
    dots = "".join(
        f'<circle cx="{px[k]:.1f}" cy="{py[k]:.1f}" r="1" fill-opacity="{0.35 + 0.65 * nearness[k]:.2f}"/>'
        for k in order
    )
    return _svg(_HEIGHT, f'<g fill="{_ACCENT}">{dots}</g>')


def _svg(width: int, content: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{_HEIGHT}" '
        f'viewBox="0 0 {width} {_HEIGHT}" style="vertical-align:middle">{content}</svg>'
    )


def _thumbnail(array: NDArray[Any]) -> str:
    rows, columns = _spread(array.shape[0], _MAX_PIXELS), _spread(array.shape[1], _MAX_PIXELS)
    pixels = array[np.ix_(rows, columns)].astype(np.float64)
    pixels = pixels.reshape(len(rows), len(columns), -1)
    rgba = _rgba(pixels, is_byte=array.dtype == np.uint8)
    uri = base64.b64encode(_png(rgba)).decode("ascii")
    width = min(max(round(_HEIGHT * array.shape[1] / array.shape[0]), 8), 3 * _HEIGHT)
    return (
        f'<img src="data:image/png;base64,{uri}" width="{width}" height="{_HEIGHT}" alt="image" '
        'style="image-rendering:pixelated;vertical-align:middle;margin:0;max-width:none">'
    )


def _rgba(pixels: NDArray[np.float64], *, is_byte: bool) -> NDArray[np.uint8]:
    """Colours uint8[H, W, 4] of float64[H, W, 1 | 3 | 4]; pixels that are not finite are transparent."""
    finite = np.isfinite(pixels)
    colour = np.zeros_like(pixels)
    if finite.any():
        values = pixels[finite]
        if is_byte:
            colour[finite] = values
        elif values.min() >= 0 and values.max() <= 1:
            colour[finite] = 255 * values
        else:
            colour[finite] = 255 * _unit(values)
    rgba = np.full((*pixels.shape[:2], 4), 255.0)
    channels = pixels.shape[2]
    rgba[..., : channels if channels > 1 else 3] = colour
    rgba[~finite.all(axis=2), 3] = 0
    return np.clip(rgba, 0, 255).round().astype(np.uint8)


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
