"""How values are spread: counts of each value where they are few, and of ranges of values where they are many.

Invariant: counts are of values, never of the order in which they came, so they merge exactly.
"""

import math
from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

MOST_VALUES = 1_000  # distinct ones that are counted one by one
_MOST_IN_ARRAY = 128  # of one scene: an image of 8 bits has more
_MOST_APART = 4_096  # the largest and the smallest of one scene
_ONE_BY_ONE = 8
_KEPT = 1 << 14  # values that wait to be counted
SAMPLE = 256  # values of a scene that the ranges are counted of, spread over it
_SHIFT = 18  # of a float32's 32 bits these are left out, so that a range is 3 % wide
_BINS = 1 << (32 - _SHIFT)


class FewValues:
    """How often each value comes, as long as there are few of them.

    Attributes:
        counts: Number of scenes, or of values, by value; None where there are too many different ones.
    """

    def __init__(self) -> None:
        self.counts: Counter[Any] | None = Counter()

    def add(self, value: Any) -> None:
        """Count one value."""
        if self.counts is not None:
            self.counts[value] += 1
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
            found = {value: int(np.count_nonzero(row == value)) for value in range(low, high)}
            found[high] = row.size - sum(found.values())
        else:
            # int8 from -128 to 127, and uint64 beyond int64, wrap around to the difference.
            apart = np.subtract(row, row.dtype.type(low)).view(f"u{row.dtype.itemsize}")
            bins = np.bincount(apart.astype(np.int64))
            found = {low + int(place): int(bins[place]) for place in np.flatnonzero(bins)}
        if len(found) > _MOST_IN_ARRAY:
            self.counts = None
        elif self.counts is not None:
            self.counts.update({value: count for value, count in found.items() if count})

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
        if self.counts is not None and len(self.counts) > MOST_VALUES:
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
        step = -(-rows.shape[1] // SAMPLE)
        while math.gcd(step, columns) > 1:
            step += 1
        sample = rows[:, ::step].reshape(-1)
        self._waiting.append(np.subtract(sample, self.centre, dtype=np.float64, casting="unsafe").astype(np.float32))
        self._size += sample.size
        if self._size >= _KEPT:
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
