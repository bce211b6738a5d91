"""What is known of one field after some scenes, and how two such things become one.

Invariant: merging gives the same bits in any order, but for the place of the first scene with other bits. Only numbers
are kept; a scene never, but for small arrays of one shape and dtype, which wait until there are 64 to be added at once.
"""

import math
import struct
from collections import Counter
from typing import Any

import numpy as np
from isal import isal_zlib
from numpy.typing import NDArray

from kerasfeed.explore.statistics.values import FewValues, Moments, Spread
from kerasfeed.util.array_bits import widened

_MOST_SHAPES = 16
_MOST_COLUMNS = 1_024  # of a field with one axis
_MOST_CHANNELS = 16  # of a field with more
_LONGEST_CLASS = 64  # characters
_SMALL_NBYTES = 2_048  # arrays up to it are kept for a moment, and added together
_KEPT = 64
_SHIFT_ROWS = 4_096  # of the first scene, that the shifts are taken from


def columns_of(shape: tuple[int, ...]) -> int | None:
    """Size of the last axis where its entries are features of their own, such as coordinates; else None."""
    if not shape or not shape[-1]:
        return None
    return shape[-1] if shape[-1] <= (_MOST_COLUMNS if len(shape) == 1 else _MOST_CHANNELS) else None


class FieldStatistics:
    """One field, of the scenes that were added.

    Args:
        shifts: Of the moments by column and of those of all values, as `shifts` gave them; None where the first scene
            has no numbers here.
        first: Whether the scene that comes first decides them.

    Attributes:
        counts: Number of `scenes` that have the field, of `values`, and of those that are `nan`, `infinite`, `zeros`.
        dtypes: Number of scenes by name of the dtype; `str` and `bytes` for text.
        shapes: Number of scenes by shape, of up to 16 shapes.
        sizes: By number of axes, the smallest and the largest size of each.
        low, high: Smallest and largest finite value, and the first position that has it; None without one.
        scenes_with: Positions of scenes in which there are `nan` or `infinite`, or which are `uniform`: all values, of
            which there are several, are equal; int64[n] each, in any order.
        columns, whole: Moments by column, and those of all values, of scenes whose last axis is no such thing.
        few: Counts of single values; of text, too.
        spread: Counts of ranges of values, or of lengths.
        lengths: Number, smallest, largest, sum and sum of squares of the lengths of text; None without text.
        constant: Whether all scenes have the same bits here.
    """

    def __init__(self, shifts: tuple[NDArray[np.float64] | None, float] | None = None, *, first: bool = False) -> None:
        self._first = first
        self.counts: Counter[str] = Counter()
        self.dtypes: Counter[str] = Counter()
        self.shapes = FewValues(_MOST_SHAPES)
        self.sizes: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self.low: tuple[Any, int] | None = None
        self.high: tuple[Any, int] | None = None
        self.scenes_with: dict[str, list[NDArray[np.int64]]] = {"nan": [], "infinite": [], "uniform": []}
        self.columns: Moments | None = None
        self.whole: Moments | None = None
        self.few = FewValues()
        self.spread: Spread | None = None
        self.lengths: tuple[int, int, int, int, int] | None = None
        self.constant = True
        self._bits: bytes | None = None
        self._waiting: list[bytes] = []
        self._positions: list[int] = []  # of what waits
        self._kind: tuple[tuple[int, ...], np.dtype[Any]] | None = None  # shape and dtype of what waits
        self._name, self._head = "", b""  # of that dtype; what tells both
        if shifts is not None:
            self._begin(*shifts)

    def _begin(self, shift: NDArray[np.float64] | None, centre: float) -> None:
        self.columns = None if shift is None else Moments(shift)
        self.whole = Moments(np.array([centre]))
        self.spread = Spread(centre)

    def shifts(self) -> tuple[NDArray[np.float64] | None, float] | None:
        """From what values are taken as differences; None before the first number."""
        self.settle()
        if self.whole is None:
            return None
        return None if self.columns is None else self.columns.shift, float(self.whole.shift[0])

    # ---- one scene

    def add(self, value: Any, position: int) -> bytes:
        """Add what the scene at `position` has here, as `as_array` gives it; returns what tells its bits apart."""
        self.counts["scenes"] += 1
        if isinstance(value, str | bytes):
            bits = self._add_text([value], "str" if isinstance(value, str) else "bytes", ())
        elif value.dtype.kind in "OUST":
            texts = value.reshape(-1).tolist()
            is_bytes = value.dtype.kind == "S" or bool(texts and isinstance(texts[0], bytes))
            bits = self._add_text(texts, "bytes" if is_bytes else "str", value.shape)
        else:
            bits = self._add_array(value, position)
        if self._bits is None:
            self._bits = bits
        elif self.constant:
            self.constant = bits == self._bits
        return bits

    def _add_kind(self, dtype: str, shape: tuple[int, ...], scenes: int, values: int) -> None:
        self.dtypes[dtype] += scenes
        self.shapes.add(shape, scenes)
        self._add_sizes(shape, shape)
        self.counts["values"] += values

    def _add_sizes(self, low: tuple[int, ...], high: tuple[int, ...]) -> None:
        own = self.sizes.get(len(low), (low, high))
        self.sizes[len(low)] = tuple(map(min, own[0], low)), tuple(map(max, own[1], high))

    def _add_text(self, texts: list[Any], kind: str, shape: tuple[int, ...]) -> bytes:
        self._add_kind(kind, shape, 1, len(texts))
        parts = []
        for text in texts:
            data = text if isinstance(text, bytes) else text.encode(errors="surrogatepass")
            parts += [struct.pack("<q", len(data)), data]
            self.counts["zeros"] += not text
            self._add_lengths(1, len(text), len(text), len(text), len(text) ** 2)
            if len(text) <= _LONGEST_CLASS:
                self.few.add(text)
            else:
                self.few.forget()
        if texts:
            self.spread = self.spread or Spread(0.0)
            self.spread.add(np.array([[len(text) for text in texts]]), 1)
        return f"{kind}{shape}".encode() + _identity(b"".join(parts))

    def _add_lengths(self, count: int, short: int, long: int, total: int, squares: int) -> None:
        if self.lengths is not None:
            short, long = min(short, self.lengths[1]), max(long, self.lengths[2])
            count, total, squares = count + self.lengths[0], total + self.lengths[3], squares + self.lengths[4]
        self.lengths = count, short, long, total, squares

    def _add_array(self, array: NDArray[Any], position: int) -> bytes:
        kind = array.shape, array.dtype
        if kind != self._kind or len(self._waiting) >= _KEPT:
            self.settle()
            self._kind, self._head = kind, f"{array.dtype.str}{array.shape}".encode()
            self._name = array.dtype.name if array.dtype.names is None else str(array.dtype)
        if array.nbytes <= _SMALL_NBYTES:
            data = array.tobytes()
            self._waiting.append(data)
            self._positions.append(position)
            return self._head + data
        flat = np.ascontiguousarray(array).reshape(1, -1)
        self._add_arrays(flat, array.shape, [position])
        return self._head + _identity(flat.view(np.uint8))

    def settle(self) -> None:
        """Add what waits."""
        if self._waiting and self._kind is not None:
            shape, dtype = self._kind
            rows: NDArray[Any] = np.ndarray((len(self._waiting), math.prod(shape)), dtype, b"".join(self._waiting))
            positions, self._positions = self._positions, []
            self._waiting.clear()
            self._add_arrays(rows, shape, positions)

    def _add_arrays(self, rows: NDArray[Any], shape: tuple[int, ...], positions: list[int]) -> None:
        """Add arrays of one shape, flat, a row each."""
        self._add_kind(self._name, shape, len(rows), rows.size)
        with np.errstate(all="ignore"):
            numbers = _as_numbers(rows)
            if numbers is not None:
                self._add_numbers(numbers, columns_of(shape), np.array(positions, np.int64))

    def _add_numbers(self, rows: NDArray[Any], columns: int | None, positions: NDArray[np.int64]) -> None:
        if self.whole is None:
            self._begin(*(_first_shifts(rows, columns) if self._first else (None, 0.0)))
        assert self.whole is not None
        assert self.spread is not None
        if not rows.size:
            return
        by_column = self.columns is not None and columns == len(self.columns.shift)
        moments = self.columns if by_column and self.columns is not None else self.whole
        finite = moments.add(rows, positions)
        self.spread.add(rows, columns or 1)
        self._count(rows, finite, positions)

    def _count(self, rows: NDArray[Any], finite: NDArray[np.bool_] | None, positions: NDArray[np.int64]) -> None:
        flat = rows if finite is None else rows[finite]
        if finite is not None and flat.size < rows.size:
            nan = np.count_nonzero(np.isnan(rows), axis=1)
            infinite = rows.shape[1] - np.count_nonzero(finite, axis=1) - nan
            for what, numbers in (("nan", nan), ("infinite", infinite)):
                self.counts[what] += int(numbers.sum())
                self._note(what, positions, numbers > 0)
        self.counts["zeros"] += flat.size - int(np.count_nonzero(flat))
        if flat.size == rows.size:
            lows, highs = rows.min(axis=1), rows.max(axis=1)
        elif finite is not None:
            lows = np.min(rows, axis=1, where=finite, initial=np.inf)
            highs = np.max(rows, axis=1, where=finite, initial=-np.inf)
        if flat.size:
            if rows.shape[1] > 1:
                self._note("uniform", positions, (lows == highs) & (True if finite is None else finite.all(axis=1)))
            to_number = float if flat.dtype.kind == "f" else int
            low, high = int(lows.argmin()), int(highs.argmax())
            self.low = _lower(self.low, (to_number(lows[low]), int(positions[low])))
            self.high = _higher(self.high, (to_number(highs[high]), int(positions[high])))
        if rows.dtype.kind in "biu":
            self.few.add_rows(rows)
        else:
            self.few.forget()

    def _note(self, what: str, positions: NDArray[np.int64], where: NDArray[np.bool_]) -> None:
        if where.any():
            self.scenes_with[what].append(positions[where])

    # ---- several

    def close(self, begin: int, end: int) -> None:
        """Note that no more scenes come of the positions from `begin` to `end`."""
        self.settle()
        for moments in (self.columns, self.whole):
            if moments is not None:
                moments.close(begin, end)

    def merge(self, other: "FieldStatistics") -> None:
        """Add what `other` knows, of scenes behind these; both are closed."""
        self.counts.update(other.counts)
        self.dtypes.update(other.dtypes)
        self.shapes.merge(other.shapes)
        for sizes in other.sizes.values():
            self._add_sizes(*sizes)
        self.low = _lower(self.low, other.low)
        self.high = _higher(self.high, other.high)
        for what, positions in other.scenes_with.items():
            self.scenes_with[what] += positions
        self.columns = _merged(self.columns, other.columns)
        self.whole = _merged(self.whole, other.whole)
        self.spread = _merged(self.spread, other.spread)
        self.few.merge(other.few)
        if other.lengths is not None:
            self._add_lengths(*other.lengths)
        same = self._bits is None or other._bits is None or self._bits == other._bits
        self.constant = self.constant and other.constant and same
        self._bits = self._bits or other._bits


def _identity(data: Any) -> bytes:
    """What differs where bytes differ: the bytes themselves, or of many their number and two checksums, at 10 GB/s."""
    if len(data) <= _SMALL_NBYTES and isinstance(data, bytes):
        return data
    return struct.pack("<qII", memoryview(data).nbytes, isal_zlib.crc32(data), isal_zlib.adler32(data))


def _lower(*pairs: tuple[Any, int] | None) -> tuple[Any, int] | None:
    """The pair of value and position with the smaller value, of equal ones that which comes first."""
    return min((pair for pair in pairs if pair is not None), default=None)


def _higher(*pairs: tuple[Any, int] | None) -> tuple[Any, int] | None:
    """The same with the larger value."""
    return max((pair for pair in pairs if pair is not None), key=lambda pair: (pair[0], -pair[1]), default=None)


def _merged(one: Any, other: Any) -> Any:
    if one is not None and other is not None:
        one.merge(other)
    return other if one is None else one


def _as_numbers(rows: NDArray[Any]) -> NDArray[Any] | None:
    """Values whose statistics are taken: of complex ones the magnitude, of custom floats float32; None for others."""
    if rows.dtype.kind == "c":
        return np.asarray(np.abs(rows))
    rows = widened(rows)
    return rows if rows.dtype.kind in "biuf" else None


def _first_shifts(rows: NDArray[Any], columns: int | None) -> tuple[NDArray[np.float64] | None, float]:
    """About the mean of each column, and of all values."""
    table = rows.reshape(-1, columns or 1)
    values = table[:: max(1, len(table) // _SHIFT_ROWS)].astype(np.float64)
    finite = np.isfinite(values)
    centre = float(np.where(finite, values, 0).sum() / max(1, np.count_nonzero(finite)))
    centre = centre if np.isfinite(centre) else 0.0
    if columns is None:
        return None, centre
    by_column = np.where(finite, values, centre).sum(axis=0) / max(1, len(values))
    return np.where(np.isfinite(by_column), by_column, centre), centre
