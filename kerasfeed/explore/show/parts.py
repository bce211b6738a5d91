"""The parts of a scene to draw, class names and colours.

Invariant: nothing here draws. The user's settings override guesses. A class has the same colour in all pictures.
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
# With most kinds of colour vision these colours are distinct, also in print. Masks leave class 0 transparent.
_COLOURS = (
    "4477aa", "ee7733", "228833", "cc3377", "66ccee", "ccbb44", "aa3377", "009988", "bb5544", "7766cc",
    "99a83d", "dd88aa", "336655", "b08d57", "5599dd", "884422", "77aa88", "aa77bb", "556677", "dda15e",
)  # fmt: skip
_RGB = np.array([[int(text[offset : offset + 2], 16) / 255 for offset in (0, 2, 4)] for text in _COLOURS])
_MOST_LOOKED_AT = 1_200  # pixels per side examined for the legend
_LINKED = {"image": "mask", "volume": "mask", "points": "label", "signal": "label"}
Fields = dict[str, Any]
ClassNames = Callable[[str], Any]


@dataclass(frozen=True)
class ScenePart:
    """One part of a scene to draw or to write.

    Attributes:
        path: The field.
        kind: One of `KINDS`.
        labels: Field with the labels or the mask to draw over it; empty for none.
        padding: Field that is False at padding; empty for none.
    """

    path: str
    kind: str
    labels: str = ""
    padding: str = ""

    @property
    def is_drawn(self) -> bool:
        """Whether the part needs axes; otherwise it is written in the heading."""
        return self.kind not in (*WRITTEN, "hidden")


def fields_of(scene: Any) -> Fields:
    """Return the fields of a scene by path: arrays, `str` and `bytes`.

    Raises:
        SpecError: A field is not an array, or the scene has no field.
    """
    leaves, treespec = flatten(scene)
    if not leaves:
        raise SpecError(no_field_text(scene, f"__getitem__ returned {scene!r:.60}", "Return an array"))
    values = zip(field_paths(treespec), map(as_array, leaves, field_paths(treespec)), strict=True)
    return {path: widened(value) if isinstance(value, np.ndarray) else value for path, value in values}


def parts_of(fields: Fields, given: Mapping[str, str]) -> tuple[ScenePart, ...]:
    """Return the parts to draw; `given` has the user's kinds by field."""
    kinds = {path: given.get(path) or kind_of(path, value) for path, value in fields.items()}
    labels, padding = {}, {}
    for path in fields:
        if owner := _padded(path, fields):
            padding[owner] = path
        elif path not in given or given[path] in ("mask", "label"):
            owner = _labelled(path, fields, kinds)
            if owner and owner not in labels:
                labels[owner] = path
    drawn_with_image = {*labels.values(), *padding.values()}
    return tuple(
        ScenePart(path, kind, labels.get(path, ""), padding.get(path, ""))
        for path, kind in kinds.items()
        if kind != "hidden" and path not in drawn_with_image
    )


def _padded(path: str, fields: Fields) -> str:
    """Return the field that `path` masks, as in `kf.Pad`, or ""."""
    mask = fields[path]
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_ or mask.ndim != 1:
        return ""
    owner = path.removesuffix("_mask") if path.endswith("_mask") else path[:-1] + "0" if path.endswith(".1") else ""
    value = fields.get(owner)
    fits = owner != path and isinstance(value, np.ndarray) and value.shape[:1] == mask.shape
    return owner if fits else ""


def _labelled(path: str, fields: Fields, kinds: Mapping[str, str]) -> str:
    """Return the field that `path` labels, or ""."""
    value = fields[path]
    if not isinstance(value, np.ndarray) or not value.ndim or value.dtype.kind not in "biuf":
        return ""
    shape = value.shape[:-1] if value.shape[-1] == 1 and value.ndim > 1 else value.shape
    for owner, kind in kinds.items():
        other = fields[owner]
        if owner == path or kind not in _LINKED or not isinstance(other, np.ndarray):
            continue
        if kind in ("points", "signal"):
            drawn = channels_of(other) if kind == "signal" else other  # time runs along the longer axis
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
    """Return the shape without channels: [H, W] or [D, H, W]."""
    if kind == "image" and array.ndim == 3:
        return image_of(array)[0].shape[:2]
    return array.shape[:3] if kind == "volume" else array.shape


def _is_one_hot(array: NDArray[Any]) -> bool:
    if array.shape[-1] > MOST_CLASSES or array.shape[-1] < 2:
        return False
    return bool(np.isin(array, (0, 1)).all() and (array.sum(axis=-1) == 1).all())


def check_kinds(kinds: Any) -> dict[str, str]:
    """Check the kinds given by the user; return them by path.

    Raises:
        TypeError: `kinds` is not a dict.
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
    """A part of a scene, ready to draw.

    Attributes:
        fields: Fields of the scene.
        part: The part.
        large: Whether the scene is the only one in the picture.
    """

    fields: Fields
    part: ScenePart
    large: bool

    @property
    def value(self) -> Any:
        """The field."""
        return self.fields[self.part.path]

    def labels(self, steps: tuple[int, int] = (1, 1)) -> NDArray[Any] | None:
        """Return the labels, int64, or None if they do not fit.

        Args:
            steps: For an image, the steps between the rows and between the columns whose labels are returned.
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
        if steps != (1, 1):  # before a large array is copied
            labels = labels[:: steps[0], :: steps[1]]
        return (labels.argmax(axis=-1) if is_one_hot else labels).astype(np.int64)

    @property
    def valid(self) -> NDArray[np.bool_] | None:
        """bool[length], False at padding; None without a mask."""
        return self.fields[self.part.padding] if self.part.padding else None

    def classes(self) -> list[int]:
        """Return the classes in the panel; empty if fields are missing."""
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
    """Join the texts that are not empty."""
    return by.join(filter(None, texts))


def class_colours(classes: NDArray[Any]) -> NDArray[np.float64]:
    """Return colours of classes, float64[..., 3]; they repeat after 20."""
    return np.asarray(_RGB[np.asarray(classes).astype(np.int64) % len(_RGB)])


def check_names(given: Any) -> ClassNames:
    """Check class names; return a function from a field to its names.

    Args:
        given: A list of names, a dict from class to name, or a dict from field to one of these; None for none.

    Raises:
        TypeError: `given` is none of these.
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
    """Return the name of a class, or its number."""
    number = int(value)
    if isinstance(names, Mapping):
        return str(names.get(number, number))
    return str(names[number]) if names is not None and 0 <= number < len(names) else str(number)


def _is_names(given: Any) -> bool:
    if isinstance(given, Mapping):
        return all(isinstance(key, int | np.integer) and not isinstance(key, bool) for key in given)
    return isinstance(given, Sequence | np.ndarray) and not isinstance(given, str | bytes)
