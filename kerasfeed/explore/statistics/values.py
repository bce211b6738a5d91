"""Moments of the columns of arrays, counts of single values, and counts of ranges of values.

Invariant: all of it merges to the same bits in any order. Counts are of values, never of the order in which they came.
All sums are of float64, within one scene in an order that its shape alone decides, and of scenes in one that their
positions do; so they depend neither on who read which scene nor on when.
"""

import functools
import math
from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

_BLOCK = 1 << 15  # values, float64: what the cache of a core holds
_WIDTH = 512  # values that are added side by side: several rows, where columns are few
_SMALL = 2_048  # values of an array, up to which several are added at once
_ALL = 1 << 62  # more positions than there are
_MOST_VALUES = 1_000  # distinct ones that are counted one by one
_MOST_IN_ARRAY = 128  # of one scene: an image of 8 bits has more
_MOST_APART = 4_096  # the largest and the smallest of one scene
_ONE_BY_ONE = 8
_MOST_WAITING = 1 << 14  # values that wait to be counted
_SAMPLE = 256  # values of a scene that the ranges are counted of, spread over it
_SHIFT = 18  # of a float32's 32 bits these are left out, so that a range is 3 % wide
_BINS = 1 << (32 - _SHIFT)


class Moments:
    """Count, sum and sum of squares of each column.

    Values are taken as differences from a shift, about the mean of the first scene, so that a mean far from zero costs
    the variance no digits. Sums of scenes are added along a binary tree over the scenes' positions: a node of level n
    and place k is the sum of the positions from `k << n` to `(k + 1) << n`, and is made as soon as both its halves are
    there.

    Args:
        shift: float64[columns].

    Attributes:
        shift: As given.
        counts: int64[columns], finite values.
    """

    def __init__(self, shift: NDArray[np.float64]) -> None:
        self.shift = shift
        self.counts = np.zeros(len(shift), np.int64)
        self._nodes: dict[tuple[int, int], NDArray[np.float64]] = {}  # by level and place; their parents are not there
        self._rows = max(1, _WIDTH // len(shift))
        self._width = len(shift) * self._rows
        self._size = max(1, _BLOCK // self._width) * self._width

    @functools.cached_property
    def _rooms(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """A block of shifts, and room for one of values."""
        return np.tile(self.shift, self._size // len(self.shift)), np.empty(self._size)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_rooms"}

    def add(self, rows: NDArray[Any], positions: NDArray[np.int64]) -> NDArray[np.bool_] | None:
        """Add what is finite in arrays whose columns stand side by side, a row each, of the scenes at `positions`.

        Returns:
            bool[arrays, size]: which values are finite; None where all are.
        """
        sums, finite = self._sums(rows, None), None
        if rows.dtype.kind == "f" and not math.isfinite(float(sums.sum())):
            finite = np.isfinite(rows)
            if not finite.all():  # else their squares are too large
                sums = self._sums(rows, finite)
        width = len(self.shift)
        self.counts += rows.size // width if finite is None else finite.reshape(-1, width).sum(axis=0)
        for position, row in zip(positions.tolist(), sums, strict=True):
            self._add(0, position, row)
        return finite

    def _sums(self, rows: NDArray[Any], finite: NDArray[np.bool_] | None) -> NDArray[np.float64]:
        """Of each array the sums of each column, then those of the squares, float64[arrays, 2 * columns]."""
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
        sums = np.zeros((2, self._width))
        shifts, values = self._rooms
        for begin in range(0, flat.size, self._size):
            block = flat[begin : begin + self._size]
            end = -(-block.size // self._width) * self._width
            values[block.size : end] = 0
            room = values[: block.size]
            np.copyto(room, block, casting="unsafe")  # with the subtraction apart a third faster than in one
            np.subtract(room, shifts[: block.size], out=room)
            if finite is not None:
                room[~finite[begin : begin + self._size]] = 0
            table = values[:end].reshape(-1, self._width)
            sums[0] += np.add.reduce(table, 0)
            np.multiply(table, table, out=table)
            sums[1] += np.add.reduce(table, 0)
        return np.asarray(sums.reshape(2, self._rows, -1).sum(axis=1).reshape(1, -1))

    def _add(self, level: int, place: int, sums: NDArray[np.float64]) -> None:
        while (other := self._nodes.pop((level, place ^ 1), None)) is not None:
            sums, level, place = sums + other, level + 1, place >> 1
        self._nodes[level, place] = sums

    @np.errstate(all="ignore")
    def close(self, begin: int, end: int) -> None:
        """No more scenes come of the positions from `begin` to `end`: a half whose other half lacks is the whole."""
        for level in range(end.bit_length()):
            size = 2 << level
            for place in [place for its_level, place in self._nodes if its_level == level]:
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

    def add(self, value: Any, count: int = 1) -> None:
        """Count a value that comes so many times."""
        if self.counts is not None:
            self.counts[value] += count
            self._check()

    def add_rows(self, rows: NDArray[Any]) -> None:
        """Count integers or booleans of scenes, a row each."""
        if self.counts is None or not rows.size:
            return
        lows, highs = rows.min(axis=1).tolist(), rows.max(axis=1).tolist()
        if any(high - low >= _MOST_APART for low, high in zip(lows, highs, strict=True)):
            self.counts = None
        elif rows.shape[1] > _MOST_IN_ARRAY:
            for row, low, high in zip(rows, lows, highs, strict=True):
                self._add_long(row, int(low), int(high))
        else:
            values, counts = np.unique(rows, return_counts=True)
            self.counts.update(dict(zip(map(int, values.tolist()), counts.tolist(), strict=True)))
        self._check()

    def _add_long(self, row: NDArray[Any], low: int, high: int) -> None:
        """Count those of one scene, of which `low` is the smallest and `high` the largest."""
        if high - low < _ONE_BY_ONE:
            counts = [int(np.count_nonzero(row == value)) for value in range(low, high)]
            counts.append(row.size - sum(counts))
        else:
            # int8 from -128 to 127, and uint64 beyond int64, wrap around to the difference.
            apart = np.subtract(row, row.dtype.type(low)).view(f"u{row.dtype.itemsize}")
            counts = np.bincount(apart.astype(np.int64)).tolist()
        by_value = {low + number: count for number, count in enumerate(counts) if count}
        if len(by_value) > _MOST_IN_ARRAY:
            self.counts = None
        elif self.counts is not None:
            self.counts.update(by_value)

    def forget(self) -> None:
        """Count no more: there are too many, or they are no classes."""
        self.counts = None

    def merge(self, other: "FewValues") -> None:
        """Add the counts of `other`."""
        if self.counts is None or other.counts is None:
            self.counts = None
            return
        self.counts.update(other.counts)
        self._check()

    def _check(self) -> None:
        if self.counts is not None and len(self.counts) > self._most:
            self.counts = None


class Spread:
    """How many values lie in each of 16,384 ranges, which grow with the distance from `centre`, by 3 % each.

    Args:
        centre: Where the ranges are narrow.
    """

    def __init__(self, centre: float) -> None:
        self.centre = centre
        self._counts: NDArray[np.int64] | None = None
        self._waiting: list[NDArray[Any]] = []
        self._size = 0

    def add(self, rows: NDArray[Any], columns: int) -> None:
        """Count up to 256 values of each array, a row each, spread over it and over its `columns`."""
        step = -(-rows.shape[1] // _SAMPLE)
        while math.gcd(step, columns) > 1:
            step += 1
        sample = rows[:, ::step].reshape(-1)
        self._waiting.append(np.subtract(sample, self.centre, dtype=np.float64, casting="unsafe").astype(np.float32))
        self._size += sample.size
        if self._size >= _MOST_WAITING:
            self._settle()

    def _settle(self) -> NDArray[np.int64]:
        if self._counts is None:
            self._counts = np.zeros(_BINS, np.int64)
        if self._waiting:
            values = np.concatenate(self._waiting)
            self._waiting.clear()
            self._size = 0
            keys = values[np.isfinite(values)].view(np.uint32) >> _SHIFT
            self._counts += np.bincount(keys, minlength=_BINS)
        return self._counts

    def merge(self, other: "Spread") -> None:
        """Add the counts of `other`, of the same centre."""
        counts = self._settle()
        counts += other._settle()

    def __getstate__(self) -> dict[str, Any]:
        counts = self._settle()
        used = np.flatnonzero(counts).astype(np.uint16)
        return {"centre": self.centre, "used": used, "counts": counts[used]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["centre"])  # type: ignore[misc]
        self._settle()[state["used"]] = state["counts"]

    def histogram(self, low: float, high: float, bins: int) -> tuple[list[float], list[float]]:
        """Edges of `bins` bins of one width between `low` and `high`, and the share of values in each, 0 to 1."""
        counts = self._settle()
        used = np.flatnonzero(counts)
        if not (used.size and high > low and math.isfinite(high - low)):
            return [], []
        edges = np.linspace(low, high, bins + 1)
        ends = np.stack([used, used + 1]).astype(np.uint32) << _SHIFT
        with np.errstate(all="ignore"):
            limits = np.sort(ends.view(np.float32).astype(np.float64), axis=0) + self.centre
            begin, end = np.clip(np.nan_to_num(limits, nan=high, posinf=high, neginf=low), low, high)
            width = np.maximum(end - begin, 1e-9 * (high - low))
            begin = np.minimum(begin, high - width)
            # Of each range the share below every edge: values are taken to lie evenly within it.
            below = np.clip((edges[:, None] - begin) / width, 0, 1) @ counts[used]
        shares = np.diff(below)
        return edges.tolist(), (shares / max(1e-300, float(shares.sum()))).tolist()
