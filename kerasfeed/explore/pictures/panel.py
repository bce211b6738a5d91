"""What a part of a scene is drawn with: its fields, and colours and names of classes.

Invariant: nothing here draws. A class has one colour in all pictures, whatever other classes are in them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.explore.pictures.kinds import Fields, Part, spatial_shape

INK, MUTED, LINE, ACCENT, WRONG = "#22272e", "#6b7280", "#d7dbe0", "#2f6fb0", "#b3361f"
# Told apart by most eyes, also in print; the first is blue, and 0 of masks is left clear.
_COLOURS = (
    "4477aa", "ee7733", "228833", "cc3377", "66ccee", "ccbb44", "aa3377", "009988", "bb5544", "7766cc",
    "99a83d", "dd88aa", "336655", "b08d57", "5599dd", "884422", "77aa88", "aa77bb", "556677", "dda15e",
)  # fmt: skip
_RGB = np.array([[int(text[place : place + 2], 16) / 255 for place in (0, 2, 4)] for text in _COLOURS])
_MOST_LOOKED_AT = 1_200  # pixels along a side, for the classes of the legend


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
        return self.labels_at(1)

    def labels_at(self, step: int) -> NDArray[Any] | None:
        """The same, of an image those of every `step`-th pixel along both axes."""
        if not self.part.labels:
            return None
        found = np.asarray(self.fields[self.part.labels])
        inner = spatial_shape(self.value, self.part.kind) if self.part.kind in ("image", "volume") else found.shape
        is_one_hot = self.part.kind in ("image", "volume") and found.ndim == len(inner) + 1 and found.shape[-1] > 1
        if not is_one_hot and found.ndim > 1 and found.shape[-1] == 1 and found.shape != inner:
            found = found[..., 0]
        if step > 1:  # before any copy is made of what may be large
            found = found[::step, ::step]
        return (found.argmax(axis=-1) if is_one_hot else found).astype(np.int64)

    @property
    def valid(self) -> NDArray[np.bool_] | None:
        """bool[length]: False where there is padding; None without a mask."""
        return self.fields[self.part.padding] if self.part.padding else None

    def most(self, limits: tuple[int, int]) -> int:
        """The second of two limits where the scene is alone."""
        return limits[self.large]

    def classes(self) -> list[int]:
        """The classes whose colours are in the picture."""
        step = 1
        if self.part.kind in ("image", "mask"):
            step = max(1, max(spatial_shape(np.asarray(self.value), "image")) // _MOST_LOOKED_AT)
        labels = self.labels_at(step)
        if self.part.kind == "mask":
            labels = np.asarray(self.value)[::step, ::step].astype(np.int64)
        if labels is None:
            return []
        found = np.unique(labels[labels != 0] if self.part.kind in ("image", "volume", "mask") else labels)
        return [int(value) for value in found]


def joined(*texts: str) -> str:
    """What is said, apart from each other."""
    return ", ".join(filter(None, texts))


def class_colours(classes: NDArray[Any]) -> NDArray[np.float64]:
    """float64[..., 3], the colour of each class, RGB in [0, 1]; after 20 classes they come again."""
    return np.asarray(_RGB[np.asarray(classes).astype(np.int64) % len(_RGB)])


class ClassNames:
    """Names of classes, as a user gives them.

    Args:
        given: A list of names, a dict from class to name, or a dict from field to one of these; None for none.

    Raises:
        TypeError: It is none of that.
    """

    def __init__(self, given: Any) -> None:
        self._all: Any = None
        self._of: dict[str, Any] = {}
        if isinstance(given, Mapping) and given and all(_is_names(each) for each in given.values()):
            self._of = {str(path): each for path, each in given.items()}
        elif given is None or _is_names(given):
            self._all = given
        else:
            raise TypeError(
                "names must be a list of the classes' names, a dict from class to name, or a dict from field to one of "
                f"these, received {given!r:.80}"
            )

    def name(self, path: str, value: Any) -> str:
        """The name of class `value` of field `path`; its number where it has none."""
        names, number = self._of.get(path, self._all), int(value)
        if isinstance(names, Mapping):
            return str(names.get(number, number))
        if names is not None and 0 <= number < len(names):
            return str(names[number])
        return str(number)

    def knows(self, path: str) -> bool:
        """Whether classes of the field have names."""
        return self._of.get(path, self._all) is not None


def _is_names(given: Any) -> bool:
    if isinstance(given, Mapping):
        return all(isinstance(key, int | np.integer) and not isinstance(key, bool) for key in given)
    return isinstance(given, Sequence | np.ndarray) and not isinstance(given, str | bytes)
