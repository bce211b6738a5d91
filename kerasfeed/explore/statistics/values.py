"""Moments of the columns of arrays, counts of single values, and a sample of them.

Invariant: all of it merges to the same bits in any order. Counts are of values, never of the order in which they came.
All sums are of float64, within one scene in an order that its shape alone decides, and of scenes in one that their
positions do; so they depend neither on who read which scene nor on when.
"""

import functools
import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

_BLOCK = 1 << 15  # values, float64: what the cache of a core holds
_ALL = 1 << 62  # more positions than there are
_MOST_VALUES = 1_000  # distinct ones that are counted one by one
_MOST_IN_ARRAY = 128  # of one scene: an image of 8 bits has more
_MOST_APART = 4_096  # the largest and the smallest of one scene
_SAMPLE = 64  # values of a scene in the sample, spread over it
_MOST_SAMPLED = 1 << 14
_MIXERS = np.array([0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9], np.uint64)

# How many values, about what their mean is, what it is more than that, and the sum of squared differences from it: so a
# mean far from zero costs no digits. As numbers where it is of all values, as arrays where it is by column.
Node = tuple[Any, Any, Any, Any]


def nodes_of(rows: NDArray[Any], columns: int, finite: NDArray[np.bool_] | None) -> Node:
    """The finite values of arrays whose columns stand side by side, a row each: float64[arrays, columns], four times.

    Args:
        rows: The arrays.
        columns: How many there are.
        finite: Which values are; None where all are.
    """
    step = max(1, _BLOCK // columns) * columns
    blocks = range(0, rows.shape[1], step)
    parts = (slice(begin, begin + step) for begin in blocks)
    nodes = (_block_node(rows[:, part], columns, None if finite is None else finite[:, part]) for part in parts)
    return functools.reduce(_joined, nodes)


def _block_node(rows: NDArray[Any], columns: int, finite: NDArray[np.bool_] | None) -> Node:
    def by_column(array: NDArray[Any], dtype: Any) -> NDArray[Any]:  # [arrays, columns, values]: sums run along memory
        return np.array(array.reshape(len(rows), -1, columns).swapaxes(1, 2), dtype, order="C")

    values = by_column(rows, np.float64)
    counts: Any = float(values.shape[2])
    lacks = None if finite is None else ~by_column(finite, np.bool_)
    if lacks is not None:
        values[lacks] = 0
        counts = counts - lacks.sum(axis=2)
    about = values.sum(axis=2) / np.maximum(counts, 1)
    values -= about[..., None]
    if lacks is not None:
        values[lacks] = 0
    more = values.sum(axis=2) / np.maximum(counts, 1)
    squares = np.square(values, out=values).sum(axis=2) - counts * more * more
    return np.broadcast_to(counts, about.shape), about, more, np.maximum(squares, 0)


def pooled(counts: NDArray[Any], about: NDArray[Any], more: NDArray[Any], squares: NDArray[Any]) -> Node:
    """The same of the values of all columns together: float64[arrays], four times."""
    totals, apart = counts.sum(axis=1), about - about[:, :1] + more
    mean = (counts * apart).sum(axis=1) / np.maximum(totals, 1)
    return totals, about[:, 0], mean, (squares + counts * (apart - mean[:, None]) ** 2).sum(axis=1)


def _joined(one: Node, other: Node) -> Node:
    """Of the values of both (Chan, Golub and LeVeque 1979)."""
    count = one[0] + other[0]
    share = other[0] / (count + (count == 0))
    apart = other[1] - one[1] + (other[2] - one[2])
    return count, one[1], one[2] + share * apart, one[3] + other[3] + apart * apart * share * one[0]


class Moments:
    """Number, mean and variance of values, or of each column of them.

    Scenes are joined along a binary tree over their positions: a node of level n and place k is of the positions from
    `k << n` to `(k + 1) << n`, and is made as soon as both its halves are there.
    """

    def __init__(self) -> None:
        self._nodes: dict[tuple[int, int], Node] = {}  # by level and place; their parents are not there

    def add(self, node: Node, place: int, level: int = 0) -> None:
        """Add the values of the scene at the position `place`, or of a node of a higher level."""
        while (other := self._nodes.pop((level, place ^ 1), None)) is not None:
            node = _joined(other, node) if place & 1 else _joined(node, other)
            level, place = level + 1, place >> 1
        self._nodes[level, place] = node

    def close(self, begin: int, end: int) -> None:
        """No more scenes come of the positions from `begin` to `end`: a half whose other half lacks is the whole."""
        for level in range(end.bit_length()):
            size = 2 << level
            for place in [place for its_level, place in self._nodes if its_level == level]:
                first = (place >> 1) * size
                if begin <= first and first + size <= end and (level, place) in self._nodes:
                    self.add(self._nodes.pop((level, place)), place >> 1, level + 1)

    def merge(self, other: "Moments") -> None:
        """Add those of `other`, of other scenes."""
        for (level, place), node in other._nodes.items():
            self.add(node, place, level)

    def result(self) -> tuple[Any, Any]:
        """Mean, and mean square of the differences from it; NaN for no value.

        The squares are infinite or NaN where they are too large for a float64.
        """
        self.close(0, _ALL)
        counts, about, more, squares = map(np.asarray, next(iter(self._nodes.values()), (0, 0, 0, 0)))
        return np.where(counts > 0, about + more, math.nan), squares / counts


class FewValues:
    """How often each value comes, as long as there are few of them.

    Args:
        most: How many different ones are counted.

    Attributes:
        counts: Number of scenes, or of values, by value; None where there are more different ones.
    """

    def __init__(self, most: int = _MOST_VALUES) -> None:
        self.counts: Counter[Any] | None = Counter()
        self._most = most

    def update(self, counts: Mapping[Any, int] | None) -> None:
        """Add counts by value; None stands for too many values."""
        if self.counts is None or counts is None:
            self.counts = None
            return
        self.counts.update(counts)
        if len(self.counts) > self._most:
            self.counts = None


def counts_of(row: NDArray[Any], low: int, high: int) -> dict[int, int] | None:
    """How often each value comes in integers or booleans from `low` to `high`; None where many differ."""
    if high - low >= _MOST_APART:
        return None
    # int8 from -128 to 127, and uint64 beyond int64, wrap around to the difference; a tenth of the time of sorting.
    apart = np.subtract(row, row.dtype.type(low)).view(f"u{row.dtype.itemsize}") if row.dtype.kind != "b" else row - low
    counts = {low + number: count for number, count in enumerate(np.bincount(apart.astype(np.int64)).tolist()) if count}
    return counts if len(counts) <= _MOST_IN_ARRAY else None


class Sample:
    """Values of scenes spread over the sequence: of those whose hashed positions are smallest, whoever adds them."""

    def __init__(self) -> None:
        self._most = (1 << 64) - 1  # of a hashed position
        self._parts: list[tuple[NDArray[np.uint64], NDArray[np.float64]]] = []  # hashed positions, and values
        self._size = 0

    def add(self, rows: NDArray[Any], columns: int, positions: NDArray[np.int64]) -> None:
        """Add up to 64 values of each array, a row each, spread over it and over its `columns`."""
        hashed = positions.astype(np.uint64) * _MIXERS[0]
        hashed = (hashed ^ (hashed >> 31)) * _MIXERS[1]
        chosen = hashed <= self._most
        step = -(-rows.shape[1] // _SAMPLE)
        while math.gcd(step, columns) > 1:
            step += 1
        values = rows[chosen, ::step].astype(np.float64)
        self._parts.append((np.repeat(hashed[chosen], values.shape[1]), values.reshape(-1)))
        self._size += values.size
        if self._size > 2 * _MOST_SAMPLED:
            self.settle()

    def settle(self) -> NDArray[np.float64]:
        """Keep what is to be kept; returns it."""
        if not self._parts:
            return np.empty(0)
        hashed, values = map(np.concatenate, zip(*self._parts, strict=True))
        while np.count_nonzero(hashed <= self._most) > _MOST_SAMPLED:
            self._most >>= 1
        kept = hashed <= self._most
        self._parts, self._size = [(hashed[kept], values[kept])], int(np.count_nonzero(kept))
        return self._parts[0][1]

    def merge(self, other: "Sample") -> None:
        """Add the values of `other`."""
        self._most = min(self._most, other._most)
        self._parts += other._parts
        self.settle()

    def histogram(self, low: float, high: float, bins: int) -> tuple[list[float], list[float]]:
        """Edges of `bins` bins of one width between `low` and `high`, and the share of values in each, 0 to 1."""
        values = self.settle()
        values = values[np.isfinite(values)]
        if not (values.size and high > low and math.isfinite(high - low)):
            return [], []
        counts, edges = np.histogram(values, np.linspace(low, high, bins + 1))
        return edges.tolist(), (counts / values.size).tolist()
