"""Statistics of one field, which grow by scene and can merge.

Invariant: merging gives the same bits in any order. Only numbers are kept; small arrays of one shape and dtype are kept
for a moment, to be added together. Counts do not depend on the order of values. Sums are float64; their order depends
only on the shape of a scene and the positions of scenes, and not on which worker read a scene or when.
"""

import functools
import math
import struct
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from isal import isal_zlib
from numpy.typing import NDArray

from kerasfeed.util.array_bits import widened

_BLOCK = 1 << 15  # float64 values: fits the cache of a core
_ALL = 1 << 62  # above any position
_MOST_VALUES = 1_000  # distinct values that are counted
_MOST_IN_ARRAY = 128  # distinct values of one scene: an 8-bit image has more
_MOST_APART = 4_096  # difference between the largest and smallest value of a scene
_SAMPLE = 64  # sampled values of a scene, spread over it
_MOST_SAMPLED = 1 << 14
_MIXERS = np.array([0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9], np.uint64)
_MOST_SHAPES = 16
_MOST_COLUMNS = 1_024  # of a field with one axis
_MOST_CHANNELS = 16  # of a field with more axes
_LONGEST_CLASS = 64  # characters
# Arrays up to this size are collected and added together, in a tenth of the time for single numbers.
_SMALL_NBYTES = 16_384
_KEPT = 64
_MOST_COMPARED = 2_048  # bytes compared without a checksum

# (count, origin, offset, squares): the mean is origin + offset, so values far from zero lose no digits; squares is the
# sum of squared differences from the mean. Numbers for all values together, arrays by column.
Node = tuple[Any, Any, Any, Any]


def columns_of(shape: tuple[int, ...]) -> int | None:
    """Return the size of a last axis of features, else None."""
    if not shape or not shape[-1]:
        return None
    return shape[-1] if shape[-1] <= (_MOST_COLUMNS if len(shape) == 1 else _MOST_CHANNELS) else None


class FieldStatistics:
    """Statistics of one field. For text, the numbers are lengths.

    Attributes:
        first: Position of the first scene that has the field, and the number of the field in that scene.
        counts: Number of `scenes` that have the field, of `values`, and of `nan`, `infinite` and `zeros` among them.
        dtypes: Number of scenes by name of the dtype; `str` and `bytes` for text.
        shapes: Number of scenes by shape, for up to 16 shapes.
        sizes: By number of axes, the smallest and the largest size of each axis.
        low, high: Smallest and largest finite value, and the first position that has it; None without one.
        scenes_with: Positions of scenes with `nan` or `infinite` values, and of scenes with several values that are all
            equal (`uniform`); int64[n] each, in any order.
        whole: Moments of all values.
        columns: Moments by column; None if scenes have no columns, or different numbers of them.
        few: Counts of distinct values, also of text.
        sample: Some values.
        constant: Whether the field has the same bits in all scenes.
    """

    def __init__(self, first: tuple[int, int]) -> None:
        self.first = first
        self.counts: Counter[str] = Counter()
        self.dtypes: Counter[str] = Counter()
        self.shapes = FewValues(_MOST_SHAPES)
        self.sizes: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self.low: tuple[Any, int] | None = None
        self.high: tuple[Any, int] | None = None
        self.scenes_with: dict[str, list[NDArray[np.int64]]] = {"nan": [], "infinite": [], "uniform": []}
        self.whole = Moments()
        self.columns: Moments | None = Moments()
        self.few = FewValues()
        self.sample = Sample()
        self.constant = True
        self._widths: set[int | None] = set()  # numbers of columns seen
        self._bits: bytes | None = None
        self._waiting: list[bytes] = []
        self._positions: list[int] = []  # of the waiting arrays
        self._kind: tuple[str, tuple[int, ...], np.dtype[Any]] | None = None  # of the waiting arrays

    # ---- one scene

    def add(self, value: Any, position: int) -> bytes:
        """Add the value of a scene; return an identity of its bits."""
        self.counts["scenes"] += 1
        if isinstance(value, str | bytes):
            bits = self._add_text([value], "str" if isinstance(value, str) else "bytes", (), position)
        elif value.dtype.kind in "OUST":
            texts = value.reshape(-1).tolist()
            is_bytes = value.dtype.kind == "S" or bool(texts and isinstance(texts[0], bytes))
            bits = self._add_text(texts, "bytes" if is_bytes else "str", value.shape, position)
        else:
            data = self._add_array(value, "", position)
            bits = f"{value.dtype.str}{value.shape}".encode() + data
        if self._bits is None:
            self._bits = bits
        elif self.constant:
            self.constant = bits == self._bits
        return bits

    def _add_text(self, texts: list[Any], kind: str, shape: tuple[int, ...], position: int) -> bytes:
        parts = [kind.encode(), str(shape).encode()]
        for text in texts:
            data = text if isinstance(text, bytes) else text.encode(errors="surrogatepass")
            parts += [struct.pack("<q", len(data)), data]
            self.few.update({text: 1} if len(text) <= _LONGEST_CLASS else None)
        self._add_array(np.array(list(map(len, texts)), np.int64).reshape(shape), kind, position)
        return _identity(b"".join(parts))

    def _add_array(self, array: NDArray[Any], text: str, position: int) -> bytes:
        """Add an array or lengths of text; return an identity."""
        kind = text, array.shape, array.dtype
        if kind != self._kind or len(self._waiting) >= _KEPT:
            self._settle()
            self._kind = kind
        if array.nbytes <= _SMALL_NBYTES:
            data = array.tobytes()
            self._waiting.append(data)
            self._positions.append(position)
            return _identity(data)
        flat = np.ascontiguousarray(array).reshape(1, -1)
        self._add_arrays(flat, array.shape, text, [position])
        return _identity(flat.view(np.uint8))

    def _settle(self) -> None:
        """Add the waiting arrays."""
        if self._waiting and self._kind is not None:
            text, shape, dtype = self._kind
            rows: NDArray[Any] = np.ndarray((len(self._waiting), math.prod(shape)), dtype, b"".join(self._waiting))
            positions, self._positions = self._positions, []
            self._waiting.clear()
            self._add_arrays(rows, shape, text, positions)

    @np.errstate(all="ignore")
    def _add_arrays(self, rows: NDArray[Any], shape: tuple[int, ...], text: str, positions: list[int]) -> None:
        """Add arrays of one shape, each flattened into a row."""
        self.dtypes[text or _name(rows.dtype)] += len(rows)
        self.shapes.update({shape: len(rows)})
        self._add_sizes(shape, shape)
        self.counts["values"] += rows.size
        numbers = _as_numbers(rows)
        if numbers is not None and numbers.size:
            self._add_numbers(numbers, None if text else columns_of(shape), np.array(positions, np.int64), bool(text))

    def _add_sizes(self, low: tuple[int, ...], high: tuple[int, ...]) -> None:
        own = self.sizes.get(len(low), (low, high))
        self.sizes[len(low)] = tuple(map(min, own[0], low)), tuple(map(max, own[1], high))

    def _add_numbers(
        self, rows: NDArray[Any], columns: int | None, positions: NDArray[np.int64], are_lengths: bool
    ) -> None:
        finite = np.isfinite(rows) if rows.dtype.kind == "f" else None
        finite = None if finite is None or finite.all() else finite
        self._add_moments(nodes_of(rows, columns or 1, finite), columns, positions)
        self.sample.add(rows, columns or 1, positions)
        self.counts["zeros"] += rows.size - int(np.count_nonzero(rows))
        if finite is None:
            lows, highs = rows.min(axis=1), rows.max(axis=1)
        else:
            nan = np.isnan(rows).sum(axis=1)
            infinite = rows.shape[1] - finite.sum(axis=1) - nan
            for what, numbers in (("nan", nan), ("infinite", infinite)):
                self.counts[what] += int(numbers.sum())
                self._record(what, positions, numbers > 0)
            lows = np.min(rows, axis=1, where=finite, initial=np.inf)
            highs = np.max(rows, axis=1, where=finite, initial=-np.inf)
        if finite is None or finite.any():
            to_number = float if rows.dtype.kind == "f" else int
            low, high = int(lows.argmin()), int(highs.argmax())
            self.low = _lower(self.low, (to_number(lows[low]), int(positions[low])))
            self.high = _higher(self.high, (to_number(highs[high]), int(positions[high])))
        if are_lengths:
            return
        if rows.shape[1] > 1:
            self._record("uniform", positions, (lows == highs) & (True if finite is None else finite.all(axis=1)))
        if self.few.counts is None:
            return
        if rows.dtype.kind not in "biu" or any(
            int(high) - int(low) >= _MOST_APART for low, high in zip(lows, highs, strict=True)
        ):
            self.few.update(None)
        elif rows.shape[1] <= _MOST_IN_ARRAY:
            self.few.update(Counter(map(int, rows.reshape(-1).tolist())))
        else:
            for row, low in zip(rows, lows, strict=True):
                self.few.update(counts_of(row, int(low)))

    def _add_moments(self, nodes: Node, columns: int | None, positions: NDArray[np.int64]) -> None:
        self._add_widths({columns})
        for position, node in zip(positions.tolist(), zip(*nodes, strict=True), strict=True):
            if self.columns is not None:
                self.columns.add(node, position)
        numbers = [each.tolist() for each in pooled(*nodes)]
        for position, node in zip(positions.tolist(), zip(*numbers, strict=True), strict=True):
            if node[0]:
                self.whole.add(node, position)

    def _add_widths(self, widths: set[int | None]) -> None:
        self._widths |= widths
        if len(self._widths) > 1 or None in self._widths:
            self.columns = None

    def _record(self, what: str, positions: NDArray[np.int64], where: NDArray[np.bool_]) -> None:
        if where.any():
            self.scenes_with[what].append(positions[where])

    # ---- several

    def close(self, begin: int, end: int) -> None:
        """Complete the positions from `begin` to `end`."""
        self._settle()
        self.sample.settle()
        for moments in (self.columns, self.whole):
            if moments is not None:
                moments.close(begin, end)

    @np.errstate(all="ignore")
    def merge(self, other: "FieldStatistics") -> None:
        """Add the statistics of `other`, which has other scenes; both are closed."""
        self.first = min(self.first, other.first)
        self.counts.update(other.counts)
        self.dtypes.update(other.dtypes)
        self.shapes.update(other.shapes.counts)
        for sizes in other.sizes.values():
            self._add_sizes(*sizes)
        self.low = _lower(self.low, other.low)
        self.high = _higher(self.high, other.high)
        for what, positions in other.scenes_with.items():
            self.scenes_with[what] += positions
        self._add_widths(other._widths)
        if self.columns is not None and other.columns is not None:
            self.columns.merge(other.columns)
        self.whole.merge(other.whole)
        self.sample.merge(other.sample)
        self.few.update(other.few.counts)
        same = self._bits is None or other._bits is None or self._bits == other._bits
        self.constant = self.constant and other.constant and same
        self._bits = self._bits or other._bits


@functools.cache
def _name(dtype: np.dtype[Any]) -> str:
    return dtype.name if dtype.names is None else str(dtype)


def _identity(data: Any) -> bytes:
    """Return `data` if short, else size and checksums (10 GB/s)."""
    if len(data) <= _MOST_COMPARED and isinstance(data, bytes):
        return data
    return struct.pack("<qII", memoryview(data).nbytes, isal_zlib.crc32(data), isal_zlib.adler32(data))


def _lower(*pairs: tuple[Any, int] | None) -> tuple[Any, int] | None:
    """Return the pair with the smaller value, then the earlier position."""
    return min((pair for pair in pairs if pair is not None), default=None)


def _higher(*pairs: tuple[Any, int] | None) -> tuple[Any, int] | None:
    """Return the pair with the larger value, then the earlier position."""
    return max((pair for pair in pairs if pair is not None), key=lambda pair: (pair[0], -pair[1]), default=None)


def _as_numbers(rows: NDArray[Any]) -> NDArray[Any] | None:
    """Return the numbers to analyse, or None if not numeric."""
    if rows.dtype.kind == "c":
        return np.asarray(np.abs(rows))
    rows = widened(rows)
    return rows if rows.dtype.kind in "biuf" else None


# ---- moments of columns, counts of distinct values, and a sample


def nodes_of(rows: NDArray[Any], columns: int, finite: NDArray[np.bool_] | None) -> Node:
    """Return moments of finite values: four arrays, float64[arrays, columns].

    Args:
        rows: The arrays, one per row; values of one column lie `columns` apart.
        columns: Number of columns.
        finite: Mask of finite values; None if all are finite.
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
    about = values[..., 0].copy()  # any value is near enough to the mean to lose no digits
    if lacks is not None:
        values[lacks] = 0
        counts = counts - lacks.sum(axis=2)
        about = np.where(lacks[..., 0], values.sum(axis=2) / np.maximum(counts, 1), about)
    values -= about[..., None]
    if lacks is not None:
        values[lacks] = 0
    more = values.sum(axis=2) / np.maximum(counts, 1)
    squares = np.square(values, out=values).sum(axis=2) - counts * more * more
    return np.broadcast_to(counts, about.shape), about, more, np.maximum(squares, 0)


def pooled(counts: NDArray[Any], about: NDArray[Any], more: NDArray[Any], squares: NDArray[Any]) -> Node:
    """Combine the moments of all columns: four arrays, float64[arrays]."""
    totals, apart = counts.sum(axis=1), about - about[:, :1] + more
    mean = (counts * apart).sum(axis=1) / np.maximum(totals, 1)
    return totals, about[:, 0], mean, (squares + counts * (apart - mean[:, None]) ** 2).sum(axis=1)


def _joined(one: Node, other: Node) -> Node:
    """Combine the moments of two sets (Chan, Golub and LeVeque 1979)."""
    count = one[0] + other[0]
    share = other[0] / (count + (count == 0))
    apart = other[1] - one[1] + (other[2] - one[2])
    return count, one[1], one[2] + share * apart, one[3] + other[3] + apart * apart * share * one[0]


class Moments:
    """Number, mean and variance of all values, or of each column.

    Scenes are combined along a binary tree over their positions. The node (level n, number k) covers the positions from
    `k << n` to `(k + 1) << n`, and is made as soon as both halves exist.
    """

    def __init__(self) -> None:
        self._nodes: dict[tuple[int, int], Node] = {}  # by level and number; parents replace their halves

    def add(self, node: Node, number: int, level: int = 0) -> None:
        """Add the values of a scene (level 0) or a node."""
        while (other := self._nodes.pop((level, number ^ 1), None)) is not None:
            node = _joined(other, node) if number & 1 else _joined(node, other)
            level, number = level + 1, number >> 1
        self._nodes[level, number] = node

    def close(self, begin: int, end: int) -> None:
        """Complete the positions from `begin` to `end`."""
        for level in range(end.bit_length()):
            size = 2 << level
            for number in [number for its_level, number in self._nodes if its_level == level]:
                first = (number >> 1) * size
                if begin <= first and first + size <= end and (level, number) in self._nodes:
                    self.add(self._nodes.pop((level, number)), number >> 1, level + 1)

    def merge(self, other: "Moments") -> None:
        """Add the moments of `other`, which has other scenes."""
        for (level, number), node in other._nodes.items():
            self.add(node, number, level)

    def result(self) -> tuple[Any, Any]:
        """Return mean and mean squared difference; NaN without values.

        The squares are infinite or NaN if they exceed float64.
        """
        self.close(0, _ALL)
        counts, about, more, squares = map(np.asarray, next(iter(self._nodes.values()), (0, 0, 0, 0)))
        return np.where(counts > 0, about + more, math.nan), squares / counts


class FewValues:
    """Number of occurrences of each value, while there are few distinct values.

    Args:
        most: Largest number of distinct values.

    Attributes:
        counts: Number of scenes, or of values, by value; None if there are too many distinct values.
    """

    def __init__(self, most: int = _MOST_VALUES) -> None:
        self.counts: Counter[Any] | None = Counter()
        self._most = most

    def update(self, counts: Mapping[Any, int] | None) -> None:
        """Add counts by value; None if there are too many distinct values."""
        if self.counts is None or counts is None:
            self.counts = None
            return
        for value, count in counts.items():
            self.counts[value] += count
        if len(self.counts) > self._most:
            self.counts = None


def counts_of(row: NDArray[Any], low: int) -> dict[int, int] | None:
    """Count each value; return None if there are many distinct ones.

    `low` is the smallest value.
    """
    # Differences of int8, and of uint64 beyond int64, wrap around correctly. Sorting would take ten times as long.
    apart = np.subtract(row, row.dtype.type(low)).view(f"u{row.dtype.itemsize}") if row.dtype.kind != "b" else row - low
    counts = {low + number: count for number, count in enumerate(np.bincount(apart.astype(np.int64)).tolist()) if count}
    return counts if len(counts) <= _MOST_IN_ARRAY else None


class Sample:
    """Values of the scenes with the smallest hashed positions."""

    def __init__(self) -> None:
        self._most = (1 << 64) - 1  # largest hashed position that is kept
        self._parts: list[tuple[NDArray[np.uint64], NDArray[np.float64]]] = []  # hashed positions and values
        self._size = 0

    def add(self, rows: NDArray[Any], columns: int, positions: NDArray[np.int64]) -> None:
        """Add up to 64 values of each array, spread over it."""
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
        """Drop scenes beyond the limit; return the values of the others."""
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
        """Return edges of `bins` equal bins, and shares of values."""
        values = self.settle()
        values = values[np.isfinite(values)]
        if not (values.size and high > low and math.isfinite(high - low)):
            return [], []
        counts, edges = np.histogram(values, np.linspace(low, high, bins + 1))
        return edges.tolist(), (counts / values.size).tolist()
