"""The storage of a dataset as values: chunks and their positions.

Invariant: pure values, made by `kerasfeed.readers.hdf5.inspection` and used by the readers. Using them needs no file,
no HDF5 and no lock. Chunks are numbered row-major over their grid (the number is the sum of `offset`). A piece maps
indices into a chunk (`source`) to indices into the result (`target`).
"""

import math
from bisect import bisect_left
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
    """A box in one row of chunks, on one axis.

    Attributes:
        offset: The term that this axis adds to the chunk's number.
        target: Index into this axis of the result: a slice or int64[n].
        source: Index into this axis of the chunk.
        whole: Whether the source is the whole axis of the chunk, in order.
    """

    offset: int
    target: Any
    source: Any
    whole: bool


class ChunkPart(NamedTuple):
    """The part of a chunk that is in a box.

    Attributes:
        number: Number of the chunk.
        target: Index into the result.
        source: Index into the chunk.
        whole: Whether the source is the whole chunk, and none of it is beyond the dataset's edge.
    """

    number: int
    target: tuple[Any, ...]
    source: tuple[Any, ...]
    whole: bool


class ChunkLocation(NamedTuple):
    """Where a chunk is stored.

    Attributes:
        position: Its position among the stored chunks.
        address: Byte offset in the file.
        size: Stored bytes.
        mask: Bit i is set if filter i was skipped.
    """

    position: int
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
        """Number of chunks along each axis."""
        return tuple(-(-size // chunk) for size, chunk in zip(self.shape, self.chunks, strict=True))

    @cached_property
    def strides(self) -> tuple[int, ...]:
        """Increase of a chunk's number per step along each axis."""
        counts = self.counts
        return tuple(math.prod(counts[axis + 1 :]) for axis in range(len(counts)))

    @cached_property
    def count(self) -> int:
        """Number of all chunks, including missing ones."""
        return math.prod(self.counts)

    def is_edge(self, number: int) -> bool:
        """Whether a chunk extends beyond the dataset."""
        return any(
            (number // stride % count + 1) * chunk > size
            for stride, count, chunk, size in zip(self.strides, self.counts, self.chunks, self.shape, strict=True)
        )

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

    @staticmethod
    def parts(pieces: list[list[AxisPiece]]) -> Iterator[ChunkPart]:
        """Yield the chunks that a box touches, each once.

        The argument is a result of `pieces`.
        """
        for combined in product(*pieces):
            offsets, targets, sources, wholes = zip(*combined, strict=True)
            yield ChunkPart(sum(offsets), targets, sources, all(wholes))

    def pieces(self, box: Box) -> list[list[AxisPiece]]:
        """Return the parts of each row of chunks along each axis.

        Their product gives the chunks that the box touches.
        """
        return [
            _range(positions, chunk, stride) if isinstance(positions, range) else _listed(positions, chunk, stride)
            for positions, chunk, stride in zip(box, self.chunks, self.strides, strict=False)
        ]


def _range(positions: range, chunk: int, stride: int) -> list[AxisPiece]:
    pieces = []
    for number in range(positions.start // chunk, -(-positions.stop // chunk)):
        first = number * chunk
        begin, end = max(first, positions.start), min(first + chunk, positions.stop)
        target, source = slice(begin - positions.start, end - positions.start), slice(begin - first, end - first)
        pieces.append(AxisPiece(number * stride, target, source, end - begin == chunk))
    return pieces


def _listed(positions: NDArray[np.int64], chunk: int, stride: int) -> list[AxisPiece]:
    numbers, within = np.divmod(positions, chunk)
    order, starts = _groups(numbers)
    pieces = []
    for low, high in zip(starts, [*starts[1:], len(positions)], strict=True):
        members = order[low:high]
        number = int(numbers[members[0]])
        source, target = _run(within[members]), _run(members)
        both = isinstance(source, slice) and isinstance(target, slice)
        pieces.append(AxisPiece(number * stride, target, source, both and source.stop - source.start == chunk))
    return pieces


def _groups(numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], list[int]]:
    """Return an order that groups equal numbers, and each group's start."""
    steps = np.diff(numbers)
    order = np.arange(len(numbers)) if (steps >= 0).all() else np.argsort(numbers, kind="stable")
    starts = np.flatnonzero(np.diff(numbers[order])) + 1
    return order, [0, *starts.tolist()]


def _run(positions: NDArray[np.int64]) -> Any:
    """Return a slice for consecutive positions, else the positions.

    NumPy copies slices 3 to 20 times faster.
    """
    first, count = int(positions[0]), len(positions)
    if int(positions[-1]) - first == count - 1 and (count < 3 or bool((np.diff(positions) == 1).all())):
        return slice(first, first + count)
    return positions


class ChunkIndex:
    """Where every chunk of a dataset is stored.

    It takes 12 bytes per chunk for address and stored size, 8 more for the number if chunks are missing, and 4 more for
    the mask if a filter was skipped.
    """

    def __init__(
        self,
        numbers: NDArray[np.int64],
        addresses: NDArray[np.uint64],
        sizes: NDArray[np.uint32],
        masks: NDArray[np.uint32],
        count: int,
    ) -> None:
        """Sort HDF5's list of chunks.

        The arrays have one entry per stored chunk; `count` is the size of the grid.
        """
        if not (np.diff(numbers) > 0).all():
            order = np.argsort(numbers, kind="stable")
            numbers, addresses, sizes, masks = numbers[order], addresses[order], sizes[order], masks[order]
        self.addresses, self.sizes = addresses, sizes
        self.numbers = None if len(numbers) == count else numbers
        self.masks = masks if masks.any() else None

    def __len__(self) -> int:
        return len(self.addresses)

    def find(self, number: int) -> ChunkLocation | None:
        """Where chunk `number` is stored; None if it is missing."""
        position = number
        if self.numbers is not None:
            position = bisect_left(self.numbers, number)
            if position == len(self.numbers) or self.numbers[position] != number:
                return None
        mask = 0 if self.masks is None else self.masks.item(position)
        return ChunkLocation(position, self.addresses.item(position), self.sizes.item(position), mask)

    def stored(self, position: int) -> int:
        """The number of the stored chunk at `position` of the index."""
        return position if self.numbers is None else self.numbers.item(position)


@dataclass(frozen=True)
class ReaderChoice:
    """The reader of a dataset.

    Attributes:
        kind: "direct" (without HDF5, in parallel) or "h5py" (under HDF5's lock).
        reason: Why h5py reads it; empty for "direct".
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
        dtype: Stored dtype; structures as opaque bytes, which NumPy moves up to 50 times faster.
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
        dtype: As in `Contiguous`.
        index: Where each chunk is stored.
        pipeline: Decoder of the filters.
        fill: 0-d array: the value of missing chunks.
    """

    grid: Grid
    dtype: np.dtype[Any]
    index: ChunkIndex
    pipeline: Pipeline
    fill: NDArray[Any]


def plain_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype for moving items: structures become opaque bytes."""
    return np.dtype((np.void, dtype.itemsize)) if dtype.names is not None else dtype
