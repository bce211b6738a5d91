"""Scenes of one structure that lie one behind the other in a chunk, as they are put in and as they are taken out.

Invariant: an array is copied once, as its scene is put in, so that the generator may use its own again.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
import optree
from numpy.typing import NDArray

from kerasfeed.feeds.generators.chunk_leaves import is_packed
from kerasfeed.spec.lists import own
from kerasfeed.spec.nesting import is_nested

_NUMBER_BYTES = 8  # about what a number in a list takes in a chunk
_ALIGNMENT = 16  # of a field; a chunk starts where a slot does, on 64 bytes


@dataclass(frozen=True)
class Structure:
    """What scenes of one kind have in common.

    Attributes:
        treespec: Their nesting.
        dtypes: The dtype of each field; None for Python numbers and text, which travel as objects.
        axes: The number of axes of each field, or the name of its Python type.
    """

    treespec: optree.PyTreeSpec
    dtypes: tuple[np.dtype[Any] | None, ...]
    axes: tuple[int | str, ...]

    @cached_property
    def is_bare(self) -> bool:
        """Whether a scene is a single field."""
        return bool(self.treespec.is_leaf())

    @cached_property
    def is_flat(self) -> bool:
        """Whether a scene is a plain tuple of fields."""
        return self.treespec.type is tuple and all(child.is_leaf() for child in self.treespec.children())


class Group(ABC):
    """Scenes of one structure.

    Attributes:
        offset: Of the first of them, bytes.
        stop: Where the last of them ends, bytes.
        stride: From one scene to the next, bytes; -1 where it differs.
        rows: How many there are.
        columns: Of each field where it stands, or its values where it is not packed.
        structure: What they have in common.
    """

    stride = -1

    def __init__(
        self, leaves: list[Any], treespec: optree.PyTreeSpec, memory: NDArray[np.uint8], before: "Group | None"
    ) -> None:
        """Begin with a scene like this one, which is not put in; `memory` is where they go, behind group `before`."""
        self._memory = memory
        self.offset: int = 0 if before is None else before.stop
        self.stop: int = self.offset
        self.rows = 0
        self.columns: list[Any] = [[] for _ in leaves]
        self._leaves_of = treespec.flatten_up_to
        self._types = [type(leaf) for leaf in leaves]
        packed = [is_packed(leaf) for leaf in leaves]
        self._packed = [number for number, inside in enumerate(packed) if inside]
        self._values = [(number, self._types[number]) for number, inside in enumerate(packed) if not inside]
        dtypes = tuple(leaf.dtype if inside else None for leaf, inside in zip(leaves, packed, strict=True))
        axes = tuple(leaf.ndim if inside else type(leaf).__name__ for leaf, inside in zip(leaves, packed, strict=True))
        self.structure = Structure(treespec, dtypes, axes)
        if before is not None and before.structure == self.structure:
            self.structure = before.structure
        self._begin(leaves)

    @abstractmethod
    def _begin(self, leaves: list[Any]) -> None:
        """Note what the arrays of a scene are."""

    @abstractmethod
    def _pack(self, leaves: list[Any]) -> bool:
        """Copy the arrays of a scene; False where they are of another kind, or have no room."""

    def add(self, scene: Any) -> int | None:
        """Put a scene in; the bytes of its text, or None where it is of another kind, or there is no room."""
        try:
            leaves = self._leaves_of(scene)
        except ValueError:
            return None
        if [*map(type, leaves)] != self._types:
            return None
        text = 0
        for number, kind in self._values:
            if kind is np.ndarray and is_packed(leaves[number]):
                return None
            if kind is str or kind is bytes:
                text += len(leaves[number])
            elif kind is list:
                if is_nested(leaves[number], self.structure.treespec):
                    return None
                text += _NUMBER_BYTES * len(leaves[number])
        if not self._pack(leaves):
            return None
        for number, kind in self._values:
            value = leaves[number]
            self.columns[number].append(own(value) if kind is np.ndarray or kind is list else value)
        self.rows += 1
        return text


class EvenGroup(Group):
    """Scenes of one shape, at equal distances, so that each field of theirs is one strided array.

    Attributes:
        room: How many scenes there is room for.
    """

    def _begin(self, leaves: list[Any]) -> None:
        memory, offset = self._memory, self.offset
        self.stride = nbytes_of(leaves)
        self.room = (len(memory) - offset) // self.stride if self.stride else 1 << 30
        self._arrays: list[tuple[int, NDArray[Any] | None, np.dtype[Any], tuple[int, ...]]] = []
        place = 0
        for number in self._packed:
            leaf = leaves[number]
            target = None
            if leaf.nbytes and self.room > 0:
                target = _strided(memory, self.room, leaf.shape, leaf.dtype, offset + place, self.stride)
            self._arrays.append((number, target, leaf.dtype, leaf.shape))
            self.columns[number] = (place, leaf.shape)
            place += _rounded(leaf.nbytes)

    def _pack(self, leaves: list[Any]) -> bool:
        row = self.rows
        if row >= self.room:
            return False
        for number, target, dtype, shape in self._arrays:
            leaf = leaves[number]
            if leaf.shape != shape or (leaf.dtype is not dtype and leaf.dtype != dtype):
                return False
            if target is not None:
                target[row] = leaf
        self.stop += self.stride
        return True


class UnevenGroup(Group):
    """Scenes whose shapes differ."""

    def _begin(self, leaves: list[Any]) -> None:
        self._arrays = [(number, leaves[number].dtype, leaves[number].ndim) for number in self._packed]

    def _pack(self, leaves: list[Any]) -> bool:
        stop = self.stop
        for number, dtype, axes in self._arrays:
            leaf = leaves[number]
            if leaf.ndim != axes or (leaf.dtype is not dtype and leaf.dtype != dtype):
                return False
            stop += _rounded(leaf.nbytes)
        if stop > len(self._memory):
            return False
        place = self.stop
        for number, dtype, _ in self._arrays:
            leaf = leaves[number]
            if leaf.nbytes:
                np.ndarray(leaf.shape, dtype, self._memory, place)[...] = leaf
            self.columns[number].append((place, leaf.shape))
            place += _rounded(leaf.nbytes)
        self.stop = stop
        return True


def nbytes_of(leaves: list[Any]) -> int:
    """Bytes that a scene's arrays take in a chunk."""
    return sum(_rounded(leaf.nbytes) for leaf in leaves if is_packed(leaf))


def scenes_of(
    structure: Structure, chunk: NDArray[np.uint8], rows: int, offset: int, stride: int, columns: list[Any]
) -> list[Any]:
    """The scenes of a group, of which the arguments are what is known; their arrays refer to the chunk."""
    fields = []
    for dtype, column in zip(structure.dtypes, columns, strict=True):
        if dtype is None:
            fields.append(column)
        elif stride < 0:
            fields.append([_array(chunk, shape, dtype, place) for place, shape in column])
        elif prod(column[1]) * dtype.itemsize:
            fields.append(list(_strided(chunk, rows, column[1], dtype, offset + column[0], stride)))
        else:
            fields.append(list(np.empty((rows, *column[1]), dtype)))
    if structure.is_bare:
        return list(fields[0])
    if structure.is_flat:
        return list(zip(*fields, strict=True))
    return [structure.treespec.unflatten(leaves) for leaves in zip(*fields, strict=True)]


def _array(chunk: NDArray[np.uint8], shape: tuple[int, ...], dtype: np.dtype[Any], place: int) -> Any:
    if not prod(shape) * dtype.itemsize:
        return np.empty(shape, dtype)
    array: NDArray[Any] = np.ndarray(shape, dtype, chunk, place)
    return array if shape else array[()]


def _strided(
    memory: NDArray[np.uint8], rows: int, shape: tuple[int, ...], dtype: np.dtype[Any], start: int, stride: int
) -> NDArray[Any]:
    inner, size = [], dtype.itemsize
    for each in reversed(shape):
        inner.append(size)
        size *= each
    return np.ndarray((rows, *shape), dtype, memory, start, (stride, *reversed(inner)))


def _rounded(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT
