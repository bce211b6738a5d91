"""Chunks as arithmetic: where each is stored, and which parts of which make up a selection.

Invariant: pure; no file is touched. Chunks are numbered row-major over the grid they form (their number is what
`offset` sums to), and a piece joins places of the result (`target`) with places inside a chunk (`source`).
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

from kerasfeed.readers.hdf5.selection import Axis, Points, Span


class Piece(NamedTuple):
    """What one chunk, or one row of chunks, contributes along one axis (or along the axes of `Points`).

    Attributes:
        offset: Its share of the chunk's number.
        target: Index into this axis of the result: a slice or int64[n].
        source: Indices into the chunk's axes, one each.
        whole: Whether the source is a chunk's whole extent, in order.
    """

    offset: int
    target: Any
    source: tuple[Any, ...]
    whole: bool


class Part(NamedTuple):
    """What one chunk contributes to a selection.

    Attributes:
        number: The chunk.
        target: Index into the result, dropped axes kept.
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
        position: Its position among the stored chunks.
        address: Byte offset in the file.
        size: Bytes stored.
        mask: Bit i is set where filter i was skipped.
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

    @cached_property
    def has_edges(self) -> bool:
        """Whether any chunk reaches beyond the dataset."""
        return any(size % chunk for size, chunk in zip(self.shape, self.chunks, strict=True))

    @staticmethod
    def parts(pieces: list[list[Piece]]) -> Iterator[Part]:
        """The chunks that a selection touches, each once; made of what `pieces` gives."""
        for combined in product(*pieces):
            yield Part(
                sum(piece.offset for piece in combined),
                tuple(piece.target for piece in combined),
                tuple(index for piece in combined for index in piece.source),
                all(piece.whole for piece in combined),
            )

    @staticmethod
    def numbers(pieces: list[list[Piece]]) -> list[int]:
        """The chunks that a selection touches, in the order of `parts`."""
        return [sum(combined) for combined in product(*([piece.offset for piece in along] for along in pieces))]

    def pieces(self, axes: tuple[Axis, ...]) -> list[list[Piece]]:
        """What each row of chunks contributes along each axis; their product is the chunks touched."""
        pieces, place = [], 0
        strides = self.strides
        for axis in axes:
            if isinstance(axis, Points):
                width = len(axis.coordinates)
                pieces.append(_points(axis, self.chunks[place : place + width], strides[place : place + width]))
                place += width
                continue
            size, chunk, stride = self.shape[place], self.chunks[place], strides[place]
            pieces.append(
                _span(axis, size, chunk, stride) if isinstance(axis, Span) else _listed(axis.places, chunk, stride)
            )
            place += 1
        return pieces


def _span(span: Span, size: int, chunk: int, stride: int) -> list[Piece]:
    if span.count == 1:
        number, place = divmod(span.start, chunk)
        return [Piece(number * stride, slice(0, 1), (slice(place, place + 1),), chunk == 1)]
    if span.count == 0:
        return []
    step, backwards = abs(span.step), span.step < 0
    first = span.start if not backwards else span.start + (span.count - 1) * span.step
    last = first + (span.count - 1) * step
    pieces = []
    numbers = range(first // chunk, last // chunk + 1)
    for number in numbers if step <= chunk else [place // chunk for place in range(first, last + 1, step)]:
        begin, end = number * chunk, min((number + 1) * chunk, size)
        low = max(0, -(-(begin - first) // step))  # the first selected place that is not before the chunk
        high = min(span.count, -(-(end - first) // step))
        place = first + low * step - begin
        source = slice(place, place + (high - low - 1) * step + 1, step)
        if backwards:
            stop = span.count - 1 - high
            target = slice(span.count - 1 - low, stop if stop >= 0 else None, -1)
        else:
            target = slice(low, high)
        whole = high - low == chunk and not backwards
        pieces.append(Piece(number * stride, target, (source,), whole))
    return pieces


def _listed(places: NDArray[np.int64], chunk: int, stride: int) -> list[Piece]:
    if not len(places):
        return []
    numbers, within = np.divmod(places, chunk)
    order, starts = _groups(numbers)
    pieces = []
    for low, high in zip(starts, [*starts[1:], len(places)], strict=True):
        members = order[low:high]
        number = int(numbers[members[0]])
        source, target = _run(within[members]), _run(members)
        both = isinstance(source, slice) and isinstance(target, slice)
        pieces.append(Piece(number * stride, target, (source,), both and source.stop - source.start == chunk))
    return pieces


def _points(points: Points, chunks: tuple[int, ...], strides: tuple[int, ...]) -> list[Piece]:
    if not points.count:
        return []
    within, offsets = [], np.zeros(points.count, np.int64)
    for places, chunk, stride in zip(points.coordinates, chunks, strides, strict=True):
        numbers, inner = np.divmod(places, chunk)
        offsets += numbers * stride
        within.append(inner)
    order, starts = _groups(offsets)
    pieces = []
    for low, high in zip(starts, [*starts[1:], len(offsets)], strict=True):
        members = order[low:high]
        source = tuple(inner[members] for inner in within)
        pieces.append(Piece(int(offsets[members[0]]), _run(members), source, whole=False))
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


class ChunkIndex:
    """Where every chunk of a dataset is stored.

    12 bytes a chunk: address and stored size; 8 more, its number, where chunks are missing, and 4 more, the mask, where
    a filter was skipped.
    """

    def __init__(
        self,
        numbers: NDArray[np.int64],
        addresses: NDArray[np.uint64],
        sizes: NDArray[np.uint32],
        masks: NDArray[np.uint32],
        count: int,
    ) -> None:
        """Sort what HDF5 lists in any order; arguments are arrays of one entry a stored chunk, `count` the grid's."""
        if not (np.diff(numbers) > 0).all():
            order = np.argsort(numbers, kind="stable")
            numbers, addresses, sizes, masks = numbers[order], addresses[order], sizes[order], masks[order]
        self.addresses, self.sizes = addresses, sizes
        self.numbers = None if len(numbers) == count else numbers
        self.masks = masks if masks.any() else None

    def __len__(self) -> int:
        return len(self.addresses)

    def find(self, number: int) -> ChunkLocation | None:
        """Where chunk `number` is stored; None when it is missing."""
        place = number
        if self.numbers is not None:
            place = bisect_left(self.numbers, number)
            if place == len(self.numbers) or self.numbers[place] != number:
                return None
        mask = 0 if self.masks is None else self.masks.item(place)
        return ChunkLocation(place, self.addresses.item(place), self.sizes.item(place), mask)

    def stored(self, position: int) -> int:
        """The number of the stored chunk at `position` of the index."""
        return position if self.numbers is None else self.numbers.item(position)
