"""What is drawn of a scene: its parts, which fields are the labels or the padding of others, names of classes, colours.

Invariant: nothing here draws. What the user has said comes before what is guessed. A class has one colour in all
pictures, whatever other classes are in them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.errors import SpecError
from kerasfeed.explore.show.array_kinds import (
    KINDS,
    MOST_CLASSES,
    WRITTEN,
    channels_of,
    image_of,
    is_labels,
    kind_of,
)
from kerasfeed.spec.field_values import as_array
from kerasfeed.spec.inference import no_field_text
from kerasfeed.spec.nesting import field_paths, flatten
from kerasfeed.util.array_bits import widened

INK, MUTED, LINE, ACCENT, WRONG = "#22272e", "#6b7280", "#d7dbe0", "#2f6fb0", "#b3361f"
# Told apart by most eyes, also in print; the first is blue, and 0 of masks is left clear.
_COLOURS = (
    "4477aa", "ee7733", "228833", "cc3377", "66ccee", "ccbb44", "aa3377", "009988", "bb5544", "7766cc",
    "99a83d", "dd88aa", "336655", "b08d57", "5599dd", "884422", "77aa88", "aa77bb", "556677", "dda15e",
)  # fmt: skip
_RGB = np.array([[int(text[place : place + 2], 16) / 255 for place in (0, 2, 4)] for text in _COLOURS])
_MOST_LOOKED_AT = 1_200  # pixels along a side, for the classes of the legend
_LINKED = {"image": "mask", "volume": "mask", "points": "label", "signal": "label"}
Fields = dict[str, Any]
ClassNames = Callable[[str], Any]


@dataclass(frozen=True)
class ScenePart:
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


def parts_of(fields: Fields, said: Mapping[str, str]) -> tuple[ScenePart, ...]:
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
        ScenePart(path, kind, labels.get(path, ""), padding.get(path, ""))
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
            drawn = channels_of(other) if kind == "signal" else other  # of which the longer axis is that of moments
            if value.dtype.kind in "biu" and shape == drawn.shape[:1] and other.ndim > 1:
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


@dataclass(frozen=True)
class Panel:
    """What a part of a scene is drawn with.

    Attributes:
        fields: Of the scene.
        part: Which of them.
        large: Whether the scene is the only one of the picture.
    """

    fields: Fields
    part: ScenePart
    large: bool

    @property
    def value(self) -> Any:
        """The field."""
        return self.fields[self.part.path]

    def labels(self, steps: tuple[int, int] = (1, 1)) -> NDArray[Any] | None:
        """The labels of it, int64, without an axis of 1; None where there are none, or not one for each moment.

        Args:
            steps: Of an image, from one row and one column of the labels that are wanted to the next.
        """
        if not self.part.labels:
            return None
        labels = np.asarray(self.fields[self.part.labels])
        inner = spatial_shape(self.value, self.part.kind) if self.part.kind in ("image", "volume") else labels.shape
        is_one_hot = labels.ndim == len(inner) + 1 and labels.shape[-1] > 1
        if not is_one_hot and labels.ndim > 1 and labels.shape[-1] == 1 and labels.shape != inner:
            labels = labels[..., 0]
        if self.part.kind == "signal" and labels.shape != channels_of(np.atleast_1d(self.value)).shape[:1]:
            return None
        if steps != (1, 1):  # before any copy is made of what may be large
            labels = labels[:: steps[0], :: steps[1]]
        return (labels.argmax(axis=-1) if is_one_hot else labels).astype(np.int64)

    @property
    def valid(self) -> NDArray[np.bool_] | None:
        """bool[length]: False where there is padding; None without a mask."""
        return self.fields[self.part.padding] if self.part.padding else None

    def classes(self) -> list[int]:
        """The classes whose colours are in the picture; none where the scene lacks the field, or its labels."""
        if self.part.path not in self.fields or (self.part.labels and self.part.labels not in self.fields):
            return []
        kind, value, step = self.part.kind, np.asarray(self.value), 1
        if kind in ("image", "mask"):
            step = max(1, max(spatial_shape(value, "image")) // _MOST_LOOKED_AT)
        labels = value[::step, ::step].astype(np.int64) if kind == "mask" else self.labels((step, step))
        if labels is None:
            return []
        return [*map(int, np.unique(labels[labels != 0] if kind in ("image", "volume", "mask") else labels))]


def joined(*texts: str, by: str = ", ") -> str:
    """One text of those that are not empty."""
    return by.join(filter(None, texts))


def class_colours(classes: NDArray[Any]) -> NDArray[np.float64]:
    """float64[..., 3], the colour of each class, RGB in [0, 1]; after 20 classes they come again."""
    return np.asarray(_RGB[np.asarray(classes).astype(np.int64) % len(_RGB)])


def check_names(given: Any) -> ClassNames:
    """From a field to the names of its classes, as a user gives them: a list or a dict from class to name, or None.

    Args:
        given: A list of names, a dict from class to name, or a dict from field to one of these; None for none.

    Raises:
        TypeError: It is none of that.
    """
    if isinstance(given, Mapping) and given and all(map(_is_names, given.values())):
        return {str(path): names for path, names in given.items()}.get
    if given is None or _is_names(given):
        return lambda path: given
    raise TypeError(
        "names must be a list of the classes' names, a dict from class to name, or a dict from field to one of these, "
        f"received {given!r:.80}"
    )


def class_text(value: Any, names: Any) -> str:
    """The name of a class; its number where it has none."""
    number = int(value)
    if isinstance(names, Mapping):
        return str(names.get(number, number))
    return str(names[number]) if names is not None and 0 <= number < len(names) else str(number)


def _is_names(given: Any) -> bool:
    if isinstance(given, Mapping):
        return all(isinstance(key, int | np.integer) and not isinstance(key, bool) for key in given)
    return isinstance(given, Sequence | np.ndarray) and not isinstance(given, str | bytes)
