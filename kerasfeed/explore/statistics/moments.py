"""Count, sum and sum of squares of values, column by column, merged exactly.

Invariant: within one scene values are added in float64, in an order that their shape alone decides; scenes are added
exactly. So the result depends neither on who read which scene nor on when. Values are taken as differences from a
shift, the mean of the first scene, so that a mean far from zero costs the variance no digits.
"""

import math
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.util.exact_sum import ExactSums

_BLOCK = 1 << 15  # values, float64: what the cache of a core holds
_WIDTH = 512  # values that are added side by side: several rows, where columns are few
_KEPT = 64  # scenes whose sums wait to be added, which costs as much for one as for many


class Summer:
    """Sums of the columns of an array, and of their squares, as differences from a shift.

    Args:
        shift: float64[columns].
    """

    def __init__(self, shift: NDArray[np.float64]) -> None:
        self.shift = shift
        self._rows = max(1, _WIDTH // len(shift))
        self._width = len(shift) * self._rows
        self._size = max(1, _BLOCK // self._width) * self._width
        self._shifts = np.tile(shift, self._size // len(shift))
        self._room = np.empty(self._size)

    def sums(self, flat: NDArray[Any]) -> NDArray[np.float64]:
        """Of columns that stand side by side in `flat`, [rows * columns], the sums and then the sums of squares.

        Values that are not finite make sums that are not.
        """
        columns = len(self.shift)
        if flat.size == 1:
            value = float(flat[0]) - float(self.shift[0])
            return np.array([value, value * value])
        found = np.zeros((2, self._width))
        for begin in range(0, flat.size, self._size):
            block = flat[begin : begin + self._size]
            end = -(-block.size // self._width) * self._width
            self._room[block.size : end] = 0
            room = self._room[: block.size]
            np.copyto(room, block, casting="unsafe")  # with the subtraction apart a third faster than in one
            np.subtract(room, self._shifts[: block.size], out=room)
            rows = self._room[:end].reshape(-1, self._width)
            found[0] += np.add.reduce(rows, 0)
            np.multiply(rows, rows, out=rows)
            found[1] += np.add.reduce(rows, 0)
        return np.asarray(found.reshape(2, self._rows, columns).sum(axis=1).reshape(-1))


def is_finite(sums: NDArray[np.float64]) -> bool:
    """Whether all of a few sums are, and their sum."""
    return math.isfinite(float(sums.sum()))


class Moments:
    """Count, sum and sum of squares of each column.

    Args:
        shift: float64[columns], from which values are taken as differences.

    Attributes:
        shift: As given.
        counts: int64[columns], finite values.
        lost: Whether a sum of squares was too large for a float64.
    """

    def __init__(self, shift: NDArray[np.float64]) -> None:
        self.shift = shift
        self.counts = np.zeros(len(shift), np.int64)
        self.lost = False
        self._sums = ExactSums(2 * len(shift))
        self._waiting: list[NDArray[np.float64]] = []

    def add(self, sums: NDArray[np.float64], counts: Any) -> None:
        """Add what `Summer.sums` has given, of so many values a column."""
        self.counts += counts
        if not is_finite(sums):
            self.lost = True
            return
        self._waiting.append(sums)
        if len(self._waiting) >= _KEPT:
            self.settle()

    def settle(self) -> None:
        """Add what waits."""
        if self._waiting:
            self._sums.add(np.array(self._waiting))
            self._waiting.clear()

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
