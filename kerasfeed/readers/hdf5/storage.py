"""How a dataset is stored, as values: where each chunk is, and which parts of which make up a box.

Invariant: pure; plain facts, made by `kerasfeed.readers.hdf5.inspection` and read by the readers; neither a file nor
HDF5 nor a lock is needed to use them. Chunks are numbered row-major over the grid they form (their number is what
`offset` sums to), and a piece joins places of the result (`target`) with places inside a chunk (`source`).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kerasfeed.readers.hdf5.codecs import Pipeline
from kerasfeed.readers.hdf5.selection import Box


class AxisPiece(NamedTuple):
    """What one row of chunks contributes along one axis.

    Attributes:
        offset: Its share of the chunk's number.
        target: Index into this axis of the result: a slice or int64[n].
        source: Index into this axis of the chunk.
        whole: Whether the source is a chunk's whole extent, in order.
    """

    offset: int
    target: Any
    source: Any
    whole: bool


class ChunkPart(NamedTuple):
    """What one chunk contributes to a box.

    Attributes:
        number: The chunk.
        target: Index into the result.
        source: Index into the chunk.
        whole: Whether the source is the whole chunk, none of it beyond the dataset's edge.
    """

    number: int
    target: tuple[Any, ...]
    source: tuple[Any, ...]
    whole: bool


class ChunkLocation(NamedTuple):
    """Where a chunk is stored.

    Attributes:
        number: The chunk.
        address: Byte offset in the file.
        size: Bytes stored.
        mask: Bit i is set where filter i was skipped.
    """

    number: int
    address: int
    size: int
    mask: int


@dataclass(frozen=True)
class Grid:
    """The chunks of a dataset.

    Attributes:
        shape: Sizes of the dataset's axes.
        chunks: Sizes of a chunk's axes.
    """

    shape: tuple[int, ...]
    chunks: tuple[int, ...]

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Chunks along each axis."""
        return tuple(-(-size // chunk) for size, chunk in zip(self.shape, self.chunks, strict=True))

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """What one step along each axis adds to a chunk's number."""
        counts = self.counts
        return tuple(math.prod(counts[axis + 1 :]) for axis in range(len(counts)))

    @cached_property
    def count(self) -> int:
        """Chunks in all, missing ones included."""
        return math.prod(self.counts)

    def is_edge(self, number: int) -> bool:
        """Whether a chunk reaches beyond the dataset."""
        return any(part.stop - part.start < size for part, size in zip(self.region(number), self.chunks, strict=True))

    def region(self, number: int) -> tuple[slice, ...]:
        """The part of the dataset that a chunk holds."""
        firsts = [
            number // stride % count * chunk
            for stride, count, chunk in zip(self.strides, self.counts, self.chunks, strict=True)
        ]
        return tuple(
            slice(first, min(first + chunk, size))
            for first, chunk, size in zip(firsts, self.chunks, self.shape, strict=True)
        )

    @cached_property
    def has_edges(self) -> bool:
        """Whether any chunk reaches beyond the dataset."""
        return any(size % chunk for size, chunk in zip(self.shape, self.chunks, strict=True))

    @staticmethod
    def parts(pieces: list[list[AxisPiece]]) -> Iterator[ChunkPart]:
        """The chunks that a box touches, each once; made of what `pieces` gives."""
        for combined in product(*pieces):
            offsets, targets, sources, wholes = zip(*combined, strict=True)
            yield ChunkPart(sum(offsets), targets, sources, all(wholes))

    @staticmethod
    def numbers(pieces: list[list[AxisPiece]]) -> list[int]:
        """The chunks that a box touches, in the order of `parts`."""
        return [sum(combined) for combined in product(*([piece.offset for piece in along] for along in pieces))]

    def pieces(self, box: Box) -> list[list[AxisPiece]]:
        """What each row of chunks contributes along each axis; their product is the chunks touched."""
        return [
            _range(places, chunk, stride) if isinstance(places, range) else _listed(places, chunk, stride)
            for places, chunk, stride in zip(box, self.chunks, self.strides, strict=False)
        ]


def _range(places: range, chunk: int, stride: int) -> list[AxisPiece]:
    pieces = []
    for number in range(places.start // chunk, -(-places.stop // chunk)):
        first = number * chunk
        begin, end = max(first, places.start), min(first + chunk, places.stop)
        target, source = slice(begin - places.start, end - places.start), slice(begin - first, end - first)
        pieces.append(AxisPiece(number * stride, target, source, end - begin == chunk))
    return pieces


def _listed(places: NDArray[np.int64], chunk: int, stride: int) -> list[AxisPiece]:
    numbers, within = np.divmod(places, chunk)
    order, starts = _groups(numbers)
    pieces = []
    for low, high in zip(starts, [*starts[1:], len(places)], strict=True):
        members = order[low:high]
        number = int(numbers[members[0]])
        source, target = _run(within[members]), _run(members)
        both = isinstance(source, slice) and isinstance(target, slice)
        pieces.append(AxisPiece(number * stride, target, source, both and source.stop - source.start == chunk))
    return pieces


def _groups(numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], list[int]]:
    """An order that puts equal numbers together, and where each group starts in it."""
    steps = np.diff(numbers)
    order = np.arange(len(numbers)) if (steps >= 0).all() else np.argsort(numbers, kind="stable")
    starts = np.flatnonzero(np.diff(numbers[order])) + 1
    return order, [0, *starts.tolist()]


def _run(places: NDArray[np.int64]) -> Any:
    """A slice where the places follow each other (NumPy copies those 3 to 20 times faster), else the places."""
    first, count = int(places[0]), len(places)
    if int(places[-1]) - first == count - 1 and (count < 3 or bool((np.diff(places) == 1).all())):
        return slice(first, first + count)
    return places


@dataclass(frozen=True, eq=False)
class ChunkIndex:
    """Where every chunk of a dataset is stored: 12 bytes a chunk, and 4 more, the mask, where a filter was skipped.

    Attributes:
        addresses: uint64[count] by number: byte offset in the file; 0, which is the file's own, where it is missing.
        sizes: uint32[count]: bytes stored.
        masks: uint32[count]: bit i is set where filter i was skipped; None where none was.
    """

    addresses: NDArray[np.uint64]
    sizes: NDArray[np.uint32]
    masks: NDArray[np.uint32] | None

    def find(self, number: int) -> ChunkLocation | None:
        """Where chunk `number` is stored; None when it is missing."""
        address = self.addresses.item(number)
        if not address:
            return None
        return ChunkLocation(
            number, address, self.sizes.item(number), 0 if self.masks is None else self.masks.item(number)
        )


@dataclass(frozen=True)
class ReaderChoice:
    """Who reads a dataset.

    Attributes:
        kind: "direct" (past HDF5, in parallel) or "h5py" (under HDF5's lock).
        reason: Why not directly; empty for "direct".
    """

    kind: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.reason}" if self.reason else self.kind


@dataclass(frozen=True, eq=False)
class Contiguous:
    """A dataset stored in one piece.

    Attributes:
        shape: Sizes of the axes.
        dtype: As stored; structures as opaque bytes, which NumPy moves up to 50 times faster.
        address: Byte offset in the file.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    address: int


@dataclass(frozen=True, eq=False)
class Chunked:
    """A dataset stored in chunks.

    Attributes:
        grid: Its shape and chunks.
        dtype: As that of `Contiguous`.
        index: Where each chunk is.
        pipeline: What undoes the filters.
        fill: 0-d array: what missing chunks hold.
    """

    grid: Grid
    dtype: np.dtype[Any]
    index: ChunkIndex
    pipeline: Pipeline
    fill: NDArray[Any]


Layout = Contiguous | Chunked


def plain_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype to move items with: structures as opaque bytes."""
    return np.dtype((np.void, dtype.itemsize)) if dtype.names is not None else dtype
