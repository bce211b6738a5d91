"""What a part of a scene is drawn with.

Invariant: a value; nothing here draws.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.explore.pictures.kinds import Fields, Part, spatial_shape

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
