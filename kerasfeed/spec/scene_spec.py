"""The spec of a scene: its nesting, and all shapes and dtypes.

Invariant: a spec is a value; `kerasfeed.spec.inference` makes it from scenes.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import optree

from kerasfeed.spec.nesting import field_paths, structure_text

TEXT = np.dtype("U")
BYTES = np.dtype("S")


@dataclass(frozen=True)
class ArraySpec:
    """Shape and dtype of a scene's field, or of a batch's array.

    Attributes:
        shape: Sizes of the axes; None if the size differs between scenes.
        dtype: NumPy dtype in native byte order. `np.dtype("U")` means `str`, and `np.dtype("S")` means `bytes`, of
            any length; such fields are object arrays in a batch.
        weak: True for a Python number, or a list of Python numbers. NumPy chose its dtype, which may therefore be
            promoted.
        untyped: True for an empty list, which gets the dtype and further axes that other scenes have.

    Examples:
        A scene of a point cloud of any length and a label:

        >>> spec = (kf.ArraySpec((None, 3), np.dtype("float32")), kf.ArraySpec((), np.dtype("int64")))
        >>> spec[0].fits((100, 3)), spec[0].fits((100, 4))
        (True, False)
    """

    shape: tuple[int | None, ...]
    dtype: np.dtype[Any]
    weak: bool = dataclasses.field(default=False, repr=False, compare=False)
    untyped: bool = dataclasses.field(default=False, repr=False, compare=False)

    @property
    def is_text(self) -> bool:
        """Whether the field holds `str` or `bytes`."""
        return self.dtype in (TEXT, BYTES)

    @property
    def is_fixed(self) -> bool:
        """Whether the field is not text and all its sizes are fixed."""
        return not self.is_text and None not in self.shape

    def fits(self, shape: tuple[int | None, ...]) -> bool:
        """Whether an array of this shape may be a value.

        Args:
            shape: Sizes of the axes.

        Returns:
            True if the number of axes agrees, and all sizes that are not None.

        Examples:
            >>> kf.ArraySpec((None, 3), np.dtype("float32")).fits((7, 3))
            True
        """
        return len(shape) == len(self.shape) and all(
            want is None or want == size for want, size in zip(self.shape, shape, strict=True)
        )

    @property
    def nbytes(self) -> int:
        """Bytes of one array, with unknown axes counted as 1.

        0 for text.
        """
        if self.is_text:
            return 0
        return int(np.prod([size or (1 if size is None else 0) for size in self.shape])) * self.dtype.itemsize

    def __str__(self) -> str:
        dtype = np.dtype(self.dtype)  # users may pass a name
        name = {TEXT: "str", BYTES: "bytes"}.get(dtype) or dtype.name
        return f"{name}[{', '.join('?' if size is None else str(size) for size in self.shape)}]"


@dataclass(frozen=True)
class SceneSpec:
    """Structure of a scene, and its `ArraySpec`s in optree's order.

    Attributes:
        treespec: The nesting.
        fields: One `ArraySpec` per field.
    """

    treespec: optree.PyTreeSpec
    fields: tuple[ArraySpec, ...]

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """The name of every field: keys and positions joined by dots, `1.points`."""
        return field_paths(self.treespec)

    @cached_property
    def has_lists(self) -> bool:
        """Whether a list is part of the nesting."""
        return "[" in structure_text(self.treespec)

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """The scene's nesting with `leaves` in place of its fields."""
        return self.treespec.unflatten(leaves)


def with_open_rows(spec: SceneSpec) -> SceneSpec:
    """Return a batch's spec, changed to allow any number of rows."""
    fields = [
        dataclasses.replace(field, shape=(None, *field.shape[1:])) if field.shape else field for field in spec.fields
    ]
    return SceneSpec(spec.treespec, tuple(fields))


def as_others(field: ArraySpec, other: ArraySpec) -> ArraySpec:
    """Give an empty list's spec the dtype and further axes of `other`."""
    if not field.untyped:
        return field
    shape = (*field.shape, *(size or 0 for size in other.shape[len(field.shape) :]))
    return ArraySpec(shape, other.dtype, other.weak, other.untyped)
