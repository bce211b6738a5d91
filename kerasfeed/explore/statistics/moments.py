"""Count, sum and sum of squares of values, column by column.

Invariant: all additions are of float64, within one scene in an order that its shape alone decides, and of scenes in
one that their positions do. So the result depends neither on who read which scene nor on when, to the last bit. Values
are taken as differences from a shift, about the mean of the first scene, so that a mean far from zero costs the
variance no digits.
"""

import functools
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

_BLOCK = 1 << 15  # values, float64: what the cache of a core holds
_WIDTH = 512  # values that are added side by side: several rows, where columns are few
_SMALL = 2_048  # values of an array, up to which several are added at once
_ALL = 1 << 62  # more positions than there are


class ColumnSums:
    """Sums of the columns of arrays, and of their squares, as differences from a shift.

    Args:
        shift: float64[columns].
    """

    def __init__(self, shift: NDArray[np.float64]) -> None:
        self.shift = shift
        self._rows = max(1, _WIDTH // len(shift))
        self._width = len(shift) * self._rows
        self._size = max(1, _BLOCK // self._width) * self._width

    @functools.cached_property
    def _shifts(self) -> NDArray[np.float64]:
        return np.tile(self.shift, self._size // len(self.shift))

    @functools.cached_property
    def _room(self) -> NDArray[np.float64]:
        return np.empty(self._size)

    def sums(self, rows: NDArray[Any], finite: NDArray[np.bool_] | None = None) -> NDArray[np.float64]:
        """Of arrays whose columns stand side by side, a row each, the sums of each column, then those of the squares.

        Args:
            rows: [arrays, size].
            finite: bool[arrays, size]: which values are added; None for all. One that is not finite makes sums that
                are not.

        Returns:
            float64[arrays, 2 * columns].
        """
        if rows.shape[1] <= _SMALL:
            return self._sums_of_small(rows, finite)
        assert len(rows) == 1
        return self._sums_of_large(rows[0], None if finite is None else finite[0])

    def _sums_of_small(self, rows: NDArray[Any], finite: NDArray[np.bool_] | None) -> NDArray[np.float64]:
        # The order of the additions within a row is the same for any number of rows.
        table = rows.astype(np.float64).reshape(len(rows), -1, len(self.shift)) - self.shift
        if finite is not None:
            table[~finite.reshape(table.shape)] = 0
        return np.concatenate([np.add.reduce(table, 1), np.add.reduce(table * table, 1)], axis=1)

    def _sums_of_large(self, flat: NDArray[Any], finite: NDArray[np.bool_] | None) -> NDArray[np.float64]:
        found = np.zeros((2, self._width))
        for begin in range(0, flat.size, self._size):
            block = flat[begin : begin + self._size]
            end = -(-block.size // self._width) * self._width
            self._room[block.size : end] = 0
            room = self._room[: block.size]
            np.copyto(room, block, casting="unsafe")  # with the subtraction apart a third faster than in one
            np.subtract(room, self._shifts[: block.size], out=room)
            if finite is not None:
                room[~finite[begin : begin + self._size]] = 0
            table = self._room[:end].reshape(-1, self._width)
            found[0] += np.add.reduce(table, 0)
            np.multiply(table, table, out=table)
            found[1] += np.add.reduce(table, 0)
        return np.asarray(found.reshape(2, self._rows, -1).sum(axis=1).reshape(1, -1))


class Moments:
    """Count, sum and sum of squares of each column.

    Sums of scenes are added along a binary tree over the scenes' positions: a node of level n and place k is the sum
    of the positions from `k << n` to `(k + 1) << n`, and is made as soon as both its halves are there.

    Args:
        shift: float64[columns], from which values are taken as differences.

    Attributes:
        shift: As given.
        counts: int64[columns], finite values.
    """

    def __init__(self, shift: NDArray[np.float64]) -> None:
        self.shift = shift
        self.counts = np.zeros(len(shift), np.int64)
        self._nodes: dict[tuple[int, int], NDArray[np.float64]] = {}  # by level and place; their parents are not there

    def add(self, sums: NDArray[np.float64], counts: Any, positions: NDArray[np.int64]) -> None:
        """Add what `ColumnSums.sums` has given of the scenes at `positions`, of so many values a column."""
        self.counts += counts
        for position, row in zip(positions.tolist(), sums, strict=True):
            self._add(0, position, row)

    def _add(self, level: int, place: int, sums: NDArray[np.float64]) -> None:
        while (other := self._nodes.pop((level, place ^ 1), None)) is not None:
            sums, level, place = sums + other, level + 1, place >> 1
        self._nodes[level, place] = sums

    @np.errstate(all="ignore")
    def close(self, begin: int, end: int) -> None:
        """No more scenes come of the positions from `begin` to `end`: a half whose other half lacks is the whole."""
        for level in range(end.bit_length()):
            size = 2 << level
            for place in [place for found, place in self._nodes if found == level]:
                first = (place >> 1) * size
                if begin <= first and first + size <= end and (level, place) in self._nodes:
                    self._add(level + 1, place >> 1, self._nodes.pop((level, place)))

    @np.errstate(all="ignore")
    def merge(self, other: "Moments") -> None:
        """Add those of `other`, of the same shift and of other scenes."""
        self.counts += other.counts
        for (level, place), sums in other._nodes.items():
            self._add(level, place, sums)

    @np.errstate(all="ignore")
    def means(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Of each column the mean, and the mean square of differences from it; NaN for no value.

        Both are infinite or NaN where the squares are too large for a float64.
        """
        self.close(0, _ALL)
        sums = next(iter(self._nodes.values()), np.zeros(2 * len(self.shift)))
        means, squares = sums.reshape(2, -1) / self.counts
        return self.shift + means, np.maximum(squares - means * means, 0)


@np.errstate(all="ignore")
def pooled(counts: Any, means: Any, variances: Any) -> tuple[float, float]:
    """Mean and variance of the values of all columns together; NaN for no value."""
    there = np.asarray(counts) > 0
    if not there.any():
        return math.nan, math.nan
    shares = counts[there] / counts.sum()
    means, variances = means[there], variances[there]
    mean = means[0] + (shares * (means - means[0])).sum()
    return float(mean), float((shares * (variances + (means - mean) ** 2)).sum())
