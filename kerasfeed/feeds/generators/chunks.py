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
from typing import Any

import cloudpickle
import numpy as np
import optree
from numpy.typing import NDArray

from kerasfeed.errors import SpecError
from kerasfeed.pool.memory import align
from kerasfeed.spec.field_values import as_array, describe_leaf
from kerasfeed.spec.inference import describe, merge, no_field_text
from kerasfeed.spec.nesting import field_paths, flatten, structure_text
from kerasfeed.spec.scene_spec import ArraySpec, SceneSpec

HEADER = 64  # bytes before a chunk, so that it stands on a boundary of 64 bytes
_LARGEST = 64 << 20  # bytes of a slot, at most; pages that are not written cost nothing
_SCENE = struct.Struct("=qq")  # bytes of what is pickled of a scene, and of all of it
_ALIGNMENT = 16  # of scenes and fields, bytes; a power of two
_ITEM = (bool, int, float, complex, str, bytes)  # these travel as they are
_BARE = optree.treespec_leaf()


class Word(IntEnum):
    """Places in the `control` of a slot; the last ones are what a `Chunk` says."""

    GIVEN_UP = 0  # number of the last task that was, while in the slot
    SERIAL = 1  # number of the task whose chunk is there
    BYTES = 2  # of that, so far
    POSITION = 3
    IS_LAST = 4
    LOST = 5
    IS_FIRST = 6


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
        is_first: Whether nothing was asked of this worker before; where it is `lost` too, it is what the worker
            before this one had in hand when it died.
    """

    data: NDArray[np.uint8]
    position: int
    ended: bool
    lost: bool
    is_first: bool

    @classmethod
    def of(cls, data: NDArray[np.uint8], slot: ChunkSlot) -> "Chunk":
        """The chunk of which `slot` tells; `data` are its scenes, which may have had no room there."""
        control = slot.control
        return cls(
            data,
            control[Word.POSITION],
            bool(control[Word.IS_LAST]),
            bool(control[Word.LOST]),
            bool(control[Word.IS_FIRST]),
        )


class _Kind:
    """What scenes that are alike have in common.

    Attributes:
        structure: Their nesting; and of each field dtype and number of axes, or the name of its Python type where it is
            pickled.
        arrays: Number, dtype and number of axes of each field that travels as the bytes of its array.
    """

    def __init__(self, leaves: list[Any], treespec: optree.PyTreeSpec) -> None:
        kinds = tuple([(leaf.dtype, leaf.ndim) if _is_array(leaf) else type(leaf).__name__ for leaf in leaves])
        self.structure = (treespec, kinds)
        self.arrays = [(number, *kind) for number, kind in enumerate(kinds) if type(kind) is tuple]
        self._leaves_of = treespec.flatten_up_to
        self._types = [*map(type, leaves)] if all(map(_is_plain, leaves)) else None

    def leaves(self, scene: Any) -> list[Any] | None:
        """The leaves of a scene of this kind; None where it is to be looked at more closely."""
        try:
            leaves = self._leaves_of(scene)
        except ValueError:
            return None
        if [*map(type, leaves)] != self._types:
            return None
        for number, dtype, axes in self.arrays:
            if leaves[number].dtype != dtype or leaves[number].ndim != axes:
                return None
        return leaves


class ChunkWriter:
    """Packs scenes of one generator, chunk after chunk.

    Attributes:
        data: The chunk so far, uint8[bytes].
        fits: Whether that is in the room that `begin` was given; else a single scene, which is larger.
    """

    def __init__(self, capacity: int) -> None:
        """Make chunks of `capacity` bytes; of more where a single scene is larger."""
        self._capacity = capacity
        self._kind: _Kind | None = None  # of the last scene
        self._known: dict[Any, bytes] = {}

    def begin(self, room: NDArray[np.uint8]) -> None:
        """Begin a chunk in `room`, uint8[bytes]."""
        self._memory = room
        self._most = min(self._capacity, len(room))
        self._is_described = False
        self.data, self.fits = room[:0], True

    def add(self, scene: Any) -> bool:
        """Put a scene in; False where the chunk is full.

        Raises:
            SpecError: A field is of a type that no batch can hold; the message names the field.
        """
        kind, leaves = self._kind, None if self._kind is None else self._kind.leaves(scene)
        if kind is None or leaves is None:
            leaves, treespec = flatten(scene)
            if not leaves or not all(map(_is_plain, leaves)):
                leaves = _plain(leaves, treespec, scene)
            kind, last = _Kind(leaves, treespec), kind
            self._is_described &= last is not None and last.structure == kind.structure
            self._kind = kind
        values = [*leaves]
        for number, _, _ in kind.arrays:
            values[number] = leaves[number].shape
        described = None if self._is_described else self._described(kind)
        pickled = pickle.dumps((described, values), pickle.HIGHEST_PROTOCOL)
        start = len(self.data)
        place = start + _rounded(_SCENE.size + len(pickled))
        places = []
        for number, _, _ in kind.arrays:
            places.append(place)
            place += _rounded(leaves[number].nbytes)
        if start and place > self._most:
            return False
        if place > len(self._memory):
            self._memory, self.fits = np.empty(place, np.uint8), False
        memory = self._memory
        _SCENE.pack_into(memory.data, start, len(pickled), place - start)
        memory.data[start + _SCENE.size : start + _SCENE.size + len(pickled)] = pickled
        for (number, dtype, _), at in zip(kind.arrays, places, strict=True):
            if leaves[number].nbytes:
                np.ndarray(values[number], dtype, memory, at)[...] = leaves[number]
        self.data, self._is_described = memory[:place], True
        return True

    def _described(self, kind: _Kind) -> bytes:
        if kind.structure not in self._known:
            self._known[kind.structure] = cloudpickle.dumps(kind.structure)
        return self._known[kind.structure]


class ChunkReader:
    """Takes scenes out of chunks."""

    def __init__(self) -> None:
        self._known: dict[bytes, Any] = {}  # what it was described as

    def read(self, data: NDArray[np.uint8]) -> Iterator[tuple[bytes, Any]]:
        """The scenes of a chunk, each with what is the same for all of its nesting, dtypes and numbers of axes.

        Args:
            data: What a writer has packed, at a place that is as well aligned; arrays of the scenes refer to it.
        """
        memory, start, described = data.data, 0, b""
        while start < len(data):
            length, nbytes = _SCENE.unpack_from(memory, start)
            place = start + _SCENE.size
            other, leaves = pickle.loads(memory[place : place + length])
            if other is not None:
                described = other
                if described not in self._known:
                    treespec, kinds = pickle.loads(described)
                    arrays = [(number, kind[0]) for number, kind in enumerate(kinds) if type(kind) is tuple]
                    self._known[described] = treespec.unflatten, arrays
                unflatten, arrays = self._known[described]
            place = start + _rounded(_SCENE.size + length)
            for number, dtype in arrays:
                array: Any = np.ndarray(leaves[number], dtype, data, place)
                place += _rounded(array.nbytes)
                leaves[number] = array if array.ndim else array[()]
            yield described, unflatten(leaves)
            start += nbytes


def _rounded(nbytes: int) -> int:
    return (nbytes + _ALIGNMENT - 1) & -_ALIGNMENT


def _is_array(leaf: Any) -> bool:
    """Whether a leaf travels as the bytes of its array."""
    return isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind not in "OUSTMm"


def _is_plain(leaf: Any) -> bool:
    """Whether a leaf can travel as it is: an ordinary array, a number, `str` or `bytes`."""
    kind = type(leaf)
    return kind in _ITEM or ((kind is np.ndarray or isinstance(leaf, np.generic)) and leaf.dtype.kind in "biufc")


def _plain(leaves: list[Any], treespec: optree.PyTreeSpec, scene: Any) -> list[Any]:
    """The leaves of a scene as arrays, NumPy scalars, Python numbers, lists of these, `str` and `bytes`.

    Raises:
        SpecError: One of them is something else.
    """
    if not leaves:
        text = repr(scene)
        made = f"the generator yielded {text if len(text) <= 80 else text[:77] + '...'} ({structure_text(treespec)})"
        raise SpecError(no_field_text(scene, made, "Yield an array, or a tuple or dict of arrays"))
    paths = field_paths(treespec)
    return [_plain_leaf(leaf, path) for leaf, path in zip(leaves, paths, strict=True)]


def _plain_leaf(leaf: Any, path: str) -> Any:
    if type(leaf) in _ITEM:
        return leaf
    if isinstance(leaf, list):  # one that may be promoted stays a list
        return leaf if describe_leaf(leaf, path).weak else as_array(leaf, path)
    array = as_array(leaf, path)
    if isinstance(array, str | bytes):
        return array
    return leaf if isinstance(leaf, np.generic) and array.dtype.kind not in "US" else array


class Agreement:
    """Nesting, dtypes and number of axes that scenes have in common; what agrees is compared once.

    Shapes may differ: what becomes of those the feed decides.
    """

    def __init__(self) -> None:
        self._spec: SceneSpec | None = None
        self._first = 0
        self._known: set[bytes] = set()

    def check(self, described: bytes, scene: Any, n: int, position: int) -> None:
        """Compare a scene with those before.

        Args:
            described: The same for all scenes that need not be compared with each other.
            scene: One of them.
            n: Number of its generator.
            position: Its number there.

        Raises:
            SpecError: They disagree; the message names the generators and the field.
        """
        if described in self._known:
            return
        spec = describe(scene)
        if self._spec is None:
            self._spec, self._first = spec, n
        try:
            self._spec = merge([(0, self._spec), (1, spec)])
        except SpecError:
            raise SpecError(_text(self._spec, spec, self._first, n, position)) from None
        self._known.add(described)


def _text(one: SceneSpec, other: SceneSpec, first: int, n: int, position: int) -> str:
    who = f"generator {first} disagrees with itself" if first == n else f"generators {first} and {n} disagree"
    where = "at first" if first == n else f"in generator {first}"
    here = f"at its scene {position}" if first == n else f"in scene {position} of generator {n}"
    if one.treespec != other.treespec:
        return (
            f"{who}: scenes are {structure_text(one.treespec)} {where} and {structure_text(other.treespec)} {here}. "
            "Yield the same nesting of tuples and dicts always"
        )
    fields = zip(one.paths, one.fields, other.fields, strict=True)
    path, before, now = next(each for each in fields if not _agree(*each[1:]))
    example = "" if before.is_text else f", for example array.astype(np.{before.dtype.name})"
    if len(before.shape) != len(now.shape):
        example = ""
    return (
        f"{who}: field {path!r} is {before} {where} and {now} {here}. Yield one dtype and one number of axes "
        f"always{example}"
    )


def _agree(*fields: ArraySpec) -> bool:
    try:
        merge([(0, SceneSpec(_BARE, (field,))) for field in fields])
    except SpecError:
        return False
    return True
