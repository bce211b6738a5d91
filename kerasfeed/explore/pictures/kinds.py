"""What the fields of a scene are: image, mask, point cloud, ...; told from shape, dtype, values and names.

Invariant: pure functions of one scene. What the user has said comes before what is guessed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.errors import SpecError
from kerasfeed.spec.field_values import as_array
from kerasfeed.spec.inference import no_field_text
from kerasfeed.spec.nesting import field_paths, flatten
from kerasfeed.util.custom_floats import widened

_WRITTEN = ("label", "number", "word")  # over the picture
KINDS = ("image", "mask", "points", "volume", "signal", "spectrum", "table", "text", *_WRITTEN, "hidden")
CHANNELS = (1, 3, 4)
_MOST_CLASSES = 64
_LONGEST_ROW = 16  # numbers that are written out
_SMALLEST_IMAGE = 8
_LONGEST_WORD = 28
_SPECTRUM_NAMES = ("spectr", "psd", "fft", "intensit", "power", "magnitude")
_SIGNAL_NAMES = ("signal", "audio", "wave", "ecg", "eeg", "series", "trace", "track", "sound")
_POINT_NAMES = ("point", "cloud", "xyz", "coord", "vert", "pos")
_LINKED = {"image": "mask", "volume": "mask", "points": "label", "signal": "label"}
Fields = dict[str, Any]


@dataclass(frozen=True)
class Part:
    """One thing to draw of a scene, or to write.

    Attributes:
        path: The field.
        kind: One of `KINDS`.
        labels: Field of the labels or of the mask that is drawn over it; empty for none.
        padding: Field that is False where there is padding; empty for none.
    """

    path: str
    kind: str
    labels: str = ""
    padding: str = ""

    @property
    def is_drawn(self) -> bool:
        """Whether it needs axes of its own; else it is written beside the others."""
        return self.kind not in (*_WRITTEN, "hidden")


def fields_of(scene: Any) -> Fields:
    """The fields of a scene by path: arrays, `str` and `bytes`.

    Raises:
        SpecError: A field is no array, or there is none.
    """
    leaves, treespec = flatten(scene)
    if not leaves:
        raise SpecError(no_field_text(scene, f"__getitem__ returned {scene!r:.60}", "Return an array"))
    values = zip(field_paths(treespec), map(as_array, leaves, field_paths(treespec)), strict=True)
    return {path: widened(value) if isinstance(value, np.ndarray) else value for path, value in values}


def parts_of(fields: Fields, said: Mapping[str, str]) -> tuple[Part, ...]:
    """What to draw of a scene, in the order of its fields; `said` are the kinds that the user has given."""
    kinds = {path: said.get(path) or _kind_of(path, value) for path, value in fields.items()}
    labels, padding = {}, {}
    for path in fields:
        if owner := _padded(path, fields):
            padding[owner] = path
        elif path not in said or said[path] in ("mask", "label"):
            owner = _labelled(path, fields, kinds)
            if owner and owner not in labels:
                labels[owner] = path
    beside = {*labels.values(), *padding.values()}
    return tuple(
        Part(path, kind, labels.get(path, ""), padding.get(path, ""))
        for path, kind in kinds.items()
        if kind != "hidden" and path not in beside
    )


def _padded(path: str, fields: Fields) -> str:
    """The field that `path` is the mask of, as `kf.Pad(mask=True)` makes them."""
    mask = fields[path]
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.ndim != 1:
        return ""
    owner = path.removesuffix("_mask") if path.endswith("_mask") else path[:-1] + "0" if path.endswith(".1") else ""
    value = fields.get(owner)
    fits = owner != path and isinstance(value, np.ndarray) and value.shape[:1] == mask.shape
    return owner if fits else ""


def _labelled(path: str, fields: Fields, kinds: Mapping[str, str]) -> str:
    """The field whose pixels, voxels, points or moments `path` has labels for."""
    value = fields[path]
    if not isinstance(value, np.ndarray) or not value.ndim or value.dtype.kind not in "biuf":
        return ""
    shape = value.shape[:-1] if value.shape[-1] == 1 and value.ndim > 1 else value.shape
    for owner, kind in kinds.items():
        other = fields[owner]
        if owner == path or kind not in _LINKED or not isinstance(other, np.ndarray):
            continue
        if kind in ("points", "signal"):
            if value.dtype.kind in "biu" and shape == other.shape[:1] and other.ndim > 1:
                return owner
            continue
        inner = spatial_shape(other, kind)
        if shape == inner and _is_labels(value) and not (_is_labels(other) and owner > path):
            return owner
        if kind == "image" and value.ndim == 3 and value.shape[:2] == inner and _is_one_hot(value):
            return owner
    return ""


def spatial_shape(array: NDArray[Any], kind: str) -> tuple[int, ...]:
    """The shape without channels: of an image [H, W], of a volume [D, H, W]."""
    if kind == "image" and array.ndim == 3:
        return array.shape[1:] if is_channels_first(array) else array.shape[:2]
    return array.shape[:3] if kind == "volume" else array.shape


def is_channels_first(array: NDArray[Any]) -> bool:
    """Whether a 3-d array is an image [channels, H, W]."""
    first, last = array.shape[0], array.shape[-1]
    return last not in CHANNELS and first in CHANNELS and min(array.shape[1:]) >= _SMALLEST_IMAGE


def _is_labels(array: NDArray[Any]) -> bool:
    """Whether values are those of classes: few whole numbers."""
    if array.dtype == np.bool_:
        return True
    sample = array.reshape(-1)[:: max(1, array.size // 20_000)]
    if not sample.size or (array.dtype.kind == "f" and not np.isfinite(sample).all()):
        return False
    found = np.unique(sample)
    return len(found) <= _MOST_CLASSES and bool((found == np.round(found)).all()) and not _is_shades(array, found)


def _is_shades(array: NDArray[Any], found: NDArray[Any]) -> bool:
    """Whether few values of 8 bits are rather shades of grey: up to 255 and not 0 and 255 alone."""
    return array.dtype == np.uint8 and len(found) > 16 and int(found[-1]) >= _MOST_CLASSES


def _is_one_hot(array: NDArray[Any]) -> bool:
    if array.shape[-1] > _MOST_CLASSES or array.shape[-1] < 2:
        return False
    return bool(np.isin(array, (0, 1)).all() and (array.sum(axis=-1) == 1).all())


def _kind_of(path: str, value: Any) -> str:
    if isinstance(value, str | bytes) or value.dtype.kind in "OUST":
        return "word" if isinstance(value, str | bytes) and len(value) <= _LONGEST_WORD else "text"
    if value.dtype.kind not in "biufc":
        return "hidden"
    name = path.rsplit(".", 1)[-1].lower()
    if value.size <= 1 or not value.ndim:
        return "label" if value.dtype.kind in "biu" else "number"
    if value.ndim == 1:
        return _kind_of_row(name, value)
    if value.ndim == 2:
        return _kind_of_matrix(name, value)
    if value.ndim == 3:
        is_last = value.shape[-1] in (*CHANNELS, 2) and min(value.shape[:2]) >= 4
        return "image" if is_channels_first(value) or is_last else "volume"
    return "volume" if value.ndim in (4, 5) else "hidden"


def _kind_of_row(name: str, row: NDArray[Any]) -> str:
    if any(part in name for part in _SPECTRUM_NAMES) or row.dtype.kind == "c":
        return "spectrum"
    if row.size <= _LONGEST_ROW and not any(part in name for part in _SIGNAL_NAMES):
        return "table"
    positive = row.dtype.kind == "f" and not any(part in name for part in _SIGNAL_NAMES) and bool((row >= 0).all())
    return "spectrum" if positive else "signal"


def _kind_of_matrix(name: str, matrix: NDArray[Any]) -> str:
    rows, columns = matrix.shape
    if any(part in name for part in _SIGNAL_NAMES):
        return "signal"
    if 2 <= columns <= _LONGEST_ROW and matrix.dtype.kind == "f":
        if any(part in name for part in _POINT_NAMES):
            return "points"
        if rows >= 8 * columns:
            return "signal" if columns != 3 and _is_smooth(matrix) else "points"
    if min(rows, columns) >= _SMALLEST_IMAGE:
        return "mask" if matrix.dtype.kind in "biu" and _is_labels(matrix) else "image"
    if rows <= _LONGEST_ROW and columns >= 8 * rows:
        return "signal"
    return "signal" if rows > 4 * _LONGEST_ROW else "table"


def _is_smooth(matrix: NDArray[Any]) -> bool:
    """Whether neighbouring rows are alike, as those of a signal are, in every column."""
    with np.errstate(all="ignore"):
        steps = np.abs(np.diff(matrix.astype(np.float64), axis=0)).mean(axis=0)
        return bool((steps < 0.4 * np.nanstd(matrix.astype(np.float64), axis=0)).all())


def check_kinds(kinds: Any) -> dict[str, str]:
    """The kinds that a user has given, by path.

    Raises:
        TypeError: `kinds` is no dict.
        ValueError: A kind is unknown.
    """
    if kinds is None:
        return {}
    if not isinstance(kinds, Mapping):
        raise TypeError(f"kinds must be a dict from field to kind, such as {{'0': 'points'}}, received {kinds!r:.80}")
    for path, kind in kinds.items():
        if kind not in KINDS:
            raise ValueError(f"kinds[{path!r}] must be one of {', '.join(map(repr, KINDS))}, received {kind!r}")
    return {str(path): kind for path, kind in kinds.items()}
