"""Scenes of a generator that travel together: packed into a slot by a worker, and taken out as views of it.

Invariant: what is taken out equals what was put in, and does not change when the generator goes on: an array is copied
once, as its scene is put in. Scenes stand one behind the other, each readable as soon as the slot counts its bytes, so
that a consumer may have the first of them while the generator pauses.
"""

import mmap
import pickle
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Any

import cloudpickle
import numpy as np
import optree
from numpy.typing import NDArray

from kerasfeed.errors import SpecError
from kerasfeed.pool.memory import align
from kerasfeed.spec.field_values import as_array, start_of
from kerasfeed.spec.inference import no_field_text
from kerasfeed.spec.lists import is_weak
from kerasfeed.spec.nesting import field_paths, flatten, structure_text

HEADER = 64  # bytes before a chunk, so that it stands on a boundary of 64 bytes
_LARGEST = 64 << 20  # bytes of a slot, at most; pages that are not written cost nothing
_SCENE = struct.Struct("=qq")  # bytes of what is pickled of a scene, and of all of it
_ALIGNMENT = 16  # of scenes and fields, bytes; a power of two
_KNOWN = 64  # kinds of scenes of which it is remembered what they have in common
# What scenes have in common: nesting, and the dtype of each field that travels as the bytes of its array.
Kind = tuple[optree.PyTreeSpec, tuple[np.dtype[Any] | None, ...]]
_ITEM = (bool, int, float, complex, str, bytes)  # these travel as they are


class Word(IntEnum):
    """Places in the `control` of a slot; the last ones are what a `Chunk` says."""

    GIVEN_UP = 0  # number of the last task that was, while in the slot
    SERIAL = 1  # number of the task whose chunk is there
    BYTES = 2  # of that, so far
    POSITION = 3
    IS_LAST = 4
    LOST = 5


class ChunkSlot:
    """The views of one slot.

    Attributes:
        control: int64[8], by `Word`.
        room: uint8[bytes] for the chunk.
    """

    __slots__ = ("control", "room")

    def __init__(self, memory: Any, base: int, nbytes: int) -> None:
        self.control = memoryview(memory)[base : base + HEADER].cast("q")
        self.room = np.ndarray((nbytes - HEADER,), np.uint8, memory, base + HEADER)


@dataclass(frozen=True)
class ChunkLayout:
    """What slots are like.

    Attributes:
        nbytes: Of a slot, whole pages.
    """

    nbytes: int

    @classmethod
    def sharing(cls, max_memory: int, slots: int) -> "ChunkLayout":
        """The layout of slots of which so many have room in `max_memory` bytes."""
        page = mmap.ALLOCATIONGRANULARITY
        return cls(max(align(8192, page), min(_LARGEST, max_memory // slots) // page * page))

    def view(self, memory: Any, base: int) -> ChunkSlot:
        """The views of the slot that stands at `base` in `memory`."""
        return ChunkSlot(memory, base, self.nbytes)


@dataclass(frozen=True, eq=False)
class Chunk:
    """What has come of a generator.

    Attributes:
        data: Its scenes, uint8[bytes].
        position: Number of the first of them, from 0.
        ended: Whether no scene comes after it.
        lost: Whether the generator does not run there: ask again, saying where to begin.
    """

    data: NDArray[np.uint8]
    position: int
    ended: bool
    lost: bool

    @classmethod
    def of(cls, data: NDArray[np.uint8], slot: ChunkSlot) -> "Chunk":
        """The chunk of which `slot` tells; `data` are its scenes, which may have had no room there."""
        control = slot.control
        return cls(data, control[Word.POSITION], bool(control[Word.IS_LAST]), bool(control[Word.LOST]))


class ChunkWriter:
    """Packs scenes of one generator, chunk after chunk.

    Attributes:
        data: The chunk so far, uint8[bytes].
        fits: Whether that is in the room that `begin` was given; else the last scene had no room there.
        is_full: Whether another scene as large as the last one has no room there.
    """

    def __init__(self, capacity: int) -> None:
        """Make chunks of about `capacity` bytes; of more where the last scene is larger than those before it."""
        self._capacity = capacity

    def begin(self, room: NDArray[np.uint8]) -> None:
        """Begin a chunk in `room`, uint8[bytes]."""
        self._memory = room
        self._most = min(self._capacity, len(room))
        self.data, self.fits, self.is_full = room[:0], True, False

    def add(self, scene: Any) -> None:
        """Put a scene in.

        Raises:
            SpecError: A field is of a type that no batch can hold; the message names the field.
        """
        leaves, treespec = flatten(scene)
        if not leaves or not all(map(_is_plain, leaves)):
            leaves = _plain(leaves, treespec, scene)
        dtypes = tuple([leaf.dtype if _travels_as_bytes(leaf) else None for leaf in leaves])
        values = [leaf if dtype is None else leaf.shape for leaf, dtype in zip(leaves, dtypes, strict=True)]
        pickled = pickle.dumps((_described(treespec, dtypes), values), pickle.HIGHEST_PROTOCOL)
        arrays = [leaf for leaf, dtype in zip(leaves, dtypes, strict=True) if dtype is not None]
        start = len(self.data)
        place = start + _rounded(_SCENE.size + len(pickled))
        stop = place + sum([_rounded(array.nbytes) for array in arrays])
        if stop > len(self._memory):
            self._memory, self.fits = np.empty(stop, np.uint8), False
            self._memory[:start] = self.data
        memory = self._memory
        _SCENE.pack_into(memory.data, start, len(pickled), stop - start)
        memory.data[start + _SCENE.size : start + _SCENE.size + len(pickled)] = pickled
        for array in arrays:
            np.ndarray(array.shape, array.dtype, memory, place)[...] = array
            place += _rounded(array.nbytes)
        self.data, self.is_full = memory[:stop], 2 * stop - start > self._most


def scenes_in(data: NDArray[np.uint8], known: dict[bytes, Kind]) -> Iterator[Any]:
    """The scenes of a chunk.

    Args:
        data: What a writer has packed, at a place that is as well aligned; arrays of the scenes refer to it.
        known: What scenes before have had in common, by how it was described; added to.
    """
    memory, start = data.data, 0
    while start < len(data):
        length, nbytes = _SCENE.unpack_from(memory, start)
        described, leaves = pickle.loads(memory[start + _SCENE.size : start + _SCENE.size + length])
        if described not in known:
            known[described] = pickle.loads(described)
        treespec, dtypes = known[described]
        place = start + _rounded(_SCENE.size + length)
        for number, dtype in enumerate(dtypes):
            if dtype is not None:
                array: NDArray[Any] = np.ndarray(leaves[number], dtype, data, place)
                leaves[number] = array
                place += _rounded(array.nbytes)
        yield treespec.unflatten(leaves)
        start += nbytes


@lru_cache(_KNOWN)
def _described(treespec: optree.PyTreeSpec, dtypes: tuple[np.dtype[Any] | None, ...]) -> bytes:
    """A `Kind` as bytes."""
    kind: Kind = (treespec, dtypes)
    described: bytes = cloudpickle.dumps(kind)
    return described


def _rounded(nbytes: int) -> int:
    return (nbytes + _ALIGNMENT - 1) & -_ALIGNMENT


def _travels_as_bytes(leaf: Any) -> bool:
    """Whether a leaf travels as the bytes of its array, and is not pickled."""
    return type(leaf) is np.ndarray and leaf.dtype.kind in "biufc"


def _is_plain(leaf: Any) -> bool:
    """Whether a leaf can travel as it is: an ordinary array, a number, `str` or `bytes`."""
    return (
        type(leaf) in _ITEM or _travels_as_bytes(leaf) or (isinstance(leaf, np.generic) and leaf.dtype.kind in "biufc")
    )


def _plain(leaves: list[Any], treespec: optree.PyTreeSpec, scene: Any) -> list[Any]:
    """The leaves of a scene as arrays, NumPy scalars, Python numbers, lists of these, `str` and `bytes`.

    Raises:
        SpecError: One of them is something else.
    """
    if not leaves:
        made = f"the generator yielded {start_of(scene)} ({structure_text(treespec)})"
        raise SpecError(no_field_text(scene, made, "Yield an array, or a tuple or dict of arrays"))
    return [
        # A list of numbers stays one: the feed chooses its dtype.
        leaf if _is_plain(leaf) or (type(leaf) is list and is_weak(leaf)) else as_array(leaf, path)
        for leaf, path in zip(leaves, field_paths(treespec), strict=True)
    ]
