"""What a part of a scene is drawn with.

Invariant: a value; nothing here draws.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.explore.pictures.kinds import Fields, Part, spatial_shape


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
        if not self.part.labels:
            return None
        found = np.asarray(self.fields[self.part.labels])
        inner = spatial_shape(self.value, self.part.kind) if self.part.kind in ("image", "volume") else found.shape
        if self.part.kind in ("image", "volume") and found.ndim == len(inner) + 1 and found.shape[-1] > 1:
            found = found.argmax(axis=-1)  # one-hot
        elif found.ndim > 1 and found.shape[-1] == 1 and found.shape != inner:
            found = found[..., 0]
        return found.astype(np.int64)

    @property
    def valid(self) -> NDArray[np.bool_] | None:
        """bool[length]: False where there is padding; None without a mask."""
        return self.fields[self.part.padding] if self.part.padding else None

    def most(self, limits: tuple[int, int]) -> int:
        """The second of two limits where the scene is alone."""
        return limits[self.large]

    def classes(self) -> list[int]:
        """The classes whose colours are in the picture."""
        labels = np.asarray(self.value).astype(np.int64) if self.part.kind == "mask" else self.labels
        if labels is None:
            return []
        found = np.unique(labels[labels != 0] if self.part.kind in ("image", "volume", "mask") else labels)
        return [int(value) for value in found]


def joined(*texts: str) -> str:
    """What is said, apart from each other."""
    return ", ".join(filter(None, texts))
