"""Count, sum and sum of squares of values, column by column, merged exactly.

Invariant: within one scene values are added in float64, in an order that their shape alone decides; scenes are added
exactly. So the result depends neither on who read which scene nor on when. Values are taken as differences from a
shift, about the mean of the first scene, so that a mean far from zero costs the variance no digits.
"""

import functools
import math
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.util.exact_sum import ExactSums

_BLOCK = 1 << 15  # values, float64: what the cache of a core holds
_WIDTH = 512  # values that are added side by side: several rows, where columns are few
_SMALL = 2_048  # values of an array, up to which several are added at once
_KEPT = 64  # scenes whose sums wait to be added, which costs as much for one as for many


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

    Args:
        shift: float64[columns], from which values are taken as differences.

    Attributes:
        shift: As given.
        counts: int64[columns], finite values.
        lost: Whether a sum was too large for a float64.
    """

    def __init__(self, shift: NDArray[np.float64]) -> None:
        self.shift = shift
        self.counts = np.zeros(len(shift), np.int64)
        self.lost = False
        self._sums = ExactSums(2 * len(shift))
        self._waiting: list[NDArray[np.float64]] = []
        self._kept = 0

    def add(self, sums: NDArray[np.float64], counts: Any) -> None:
        """Add what `ColumnSums.sums` has given, of so many values a column."""
        self.counts += counts
        if not np.isfinite(sums).all():
            self.lost = True
            return
        self._waiting.append(sums)
        self._kept += len(sums)
        if self._kept >= _KEPT:
            self.settle()

    def settle(self) -> None:
        """Add what waits."""
        if self._waiting:
            self._sums.add(np.concatenate(self._waiting))
            self._waiting.clear()
            self._kept = 0

    def merge(self, other: "Moments") -> None:
        """Add those of `other`, of the same shift."""
        self.settle()
        other.settle()
        self.counts += other.counts
        self.lost |= other.lost
        self._sums.merge(other._sums)

    def __getstate__(self) -> dict[str, Any]:
        self.settle()
        return self.__dict__

    def powers(self) -> list[tuple[int, Fraction, Fraction]]:
        """Of each column the count, the sum of values and that of their squares, exact but for the scenes' own sums."""
        self.settle()
        totals = self._sums.totals()
        found = []
        for column, (count, shift) in enumerate(zip(self.counts.tolist(), self.shift.tolist(), strict=True)):
            by, total, squares = Fraction(shift), totals[column], totals[len(self.shift) + column]
            found.append((count, total + count * by, squares + 2 * by * total + count * by * by))
        return found


def mean_and_variance(count: int, total: Fraction, squares: Fraction) -> tuple[float, float]:
    """The mean, and the mean square of differences from it; NaN for no value."""
    if not count:
        return math.nan, math.nan
    mean = total / count
    return _as_float(mean), _as_float(max(squares / count - mean * mean, Fraction(0)))


def _as_float(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.nan


def joined(several: list[tuple[int, Fraction, Fraction]]) -> tuple[int, Fraction, Fraction]:
    """Count, sum and sum of squares of all columns together."""
    counts, totals, squares = zip(*several, strict=True)
    return sum(counts), sum(totals, Fraction(0)), sum(squares, Fraction(0))
