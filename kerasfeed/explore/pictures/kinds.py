"""What is drawn of a scene, and which fields are the labels or the padding of others.

Invariant: pure functions of one scene. What the user has said comes before what is guessed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.errors import SpecError
from kerasfeed.spec.array_pictures import KINDS, MOST_CLASSES, WRITTEN, image_of, is_labels, kind_of
from kerasfeed.spec.field_values import as_array
from kerasfeed.spec.inference import no_field_text
from kerasfeed.spec.nesting import field_paths, flatten
from kerasfeed.util.array_bits import widened

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
        return self.kind not in (*WRITTEN, "hidden")


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
    kinds = {path: said.get(path) or kind_of(path, value) for path, value in fields.items()}
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
        if shape == inner and is_labels(value) and not (is_labels(other) and owner > path):
            return owner
        if kind == "image" and value.ndim == 3 and value.shape[:2] == inner and _is_one_hot(value):
            return owner
    return ""


def spatial_shape(array: NDArray[Any], kind: str) -> tuple[int, ...]:
    """The shape without channels: of an image [H, W], of a volume [D, H, W]."""
    if kind == "image" and array.ndim == 3:
        return image_of(array)[0].shape[:2]
    return array.shape[:3] if kind == "volume" else array.shape


def _is_one_hot(array: NDArray[Any]) -> bool:
    if array.shape[-1] > MOST_CLASSES or array.shape[-1] < 2:
        return False
    return bool(np.isin(array, (0, 1)).all() and (array.sum(axis=-1) == 1).all())


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
