"""What is known of one field after some scenes, and how two such things become one.

Invariant: merging gives the same bits in any order, but for the place of the first scene with other bits. Only numbers
are kept; a scene never, but for small arrays of one shape and dtype, which wait to be added together.
"""

import functools
import math
import struct
from collections import Counter
from typing import Any

import numpy as np
from isal import isal_zlib
from numpy.typing import NDArray

from kerasfeed.explore.statistics.values import FewValues, Moments, Node, Sample, counts_of, nodes_of, pooled
from kerasfeed.util.array_bits import widened

_MOST_SHAPES = 16
_MOST_COLUMNS = 1_024  # of a field with one axis
_MOST_CHANNELS = 16  # of a field with more
_LONGEST_CLASS = 64  # characters
# Arrays up to it are kept for a moment, and added together: a tenth of the time for single numbers.
_SMALL_NBYTES = 16_384
_KEPT = 64
_MOST_TOLD = 2_048  # bytes that are compared as they are


def columns_of(shape: tuple[int, ...]) -> int | None:
    """Size of the last axis where its entries are features of their own, such as coordinates; else None."""
    if not shape or not shape[-1]:
        return None
    return shape[-1] if shape[-1] <= (_MOST_COLUMNS if len(shape) == 1 else _MOST_CHANNELS) else None


class FieldStatistics:
    """One field, of the scenes that were added. Of text, the numbers are lengths.

    Attributes:
        counts: Number of `scenes` that have the field, of `values`, and of those that are `nan`, `infinite`, `zeros`.
        dtypes: Number of scenes by name of the dtype; `str` and `bytes` for text.
        shapes: Number of scenes by shape, of up to 16 shapes.
        sizes: By number of axes, the smallest and the largest size of each.
        low, high: Smallest and largest finite value, and the first position that has it; None without one.
        scenes_with: Positions of scenes in which there are `nan` or `infinite`, or which are `uniform`: all values, of
            which there are several, are equal; int64[n] each, in any order.
        whole: Moments of all values.
        columns: Moments by column; None where scenes differ in the number of columns, or have none.
        few: Counts of single values; of text, too.
        sample: Some values.
        constant: Whether all scenes have the same bits here.
    """

    def __init__(self) -> None:
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
        self._widths: set[int | None] = set()  # numbers of columns of scenes
        self._bits: bytes | None = None
        self._waiting: list[bytes] = []
        self._positions: list[int] = []  # of what waits
        self._kind: tuple[str, tuple[int, ...], np.dtype[Any]] | None = None  # of what waits; str or bytes for text

    # ---- one scene

    def add(self, value: Any, position: int) -> bytes:
        """Add what the scene at `position` has here, as `as_array` gives it; returns what tells its bits apart."""
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
        """Add an array, or the lengths of `text`, "str" or "bytes"; returns what tells its values apart."""
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
        """Add what waits."""
        if self._waiting and self._kind is not None:
            text, shape, dtype = self._kind
            rows: NDArray[Any] = np.ndarray((len(self._waiting), math.prod(shape)), dtype, b"".join(self._waiting))
            positions, self._positions = self._positions, []
            self._waiting.clear()
            self._add_arrays(rows, shape, text, positions)

    @np.errstate(all="ignore")
    def _add_arrays(self, rows: NDArray[Any], shape: tuple[int, ...], text: str, positions: list[int]) -> None:
        """Add arrays of one shape, flat, a row each."""
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
                self._note(what, positions, numbers > 0)
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
            self._note("uniform", positions, (lows == highs) & (True if finite is None else finite.all(axis=1)))
        if rows.dtype.kind not in "biu":
            self.few.update(None)
        elif rows.shape[1] == 1:
            self.few.update(Counter(map(int, lows)))
        else:
            for row, low, high in zip(rows, map(int, lows), map(int, highs), strict=True):
                if self.few.counts is not None:
                    self.few.update(counts_of(row, low, high))

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

    def _note(self, what: str, positions: NDArray[np.int64], where: NDArray[np.bool_]) -> None:
        if where.any():
            self.scenes_with[what].append(positions[where])

    # ---- several

    def close(self, begin: int, end: int) -> None:
        """Note that no more scenes come of the positions from `begin` to `end`."""
        self._settle()
        self.sample.settle()
        for moments in (self.columns, self.whole):
            if moments is not None:
                moments.close(begin, end)

    @np.errstate(all="ignore")
    def merge(self, other: "FieldStatistics") -> None:
        """Add what `other` knows, of scenes behind these; both are closed."""
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
    """What differs where bytes differ: the bytes themselves, or of many their number and two checksums, at 10 GB/s."""
    if len(data) <= _MOST_TOLD and isinstance(data, bytes):
        return data
    return struct.pack("<qII", memoryview(data).nbytes, isal_zlib.crc32(data), isal_zlib.adler32(data))


def _lower(*pairs: tuple[Any, int] | None) -> tuple[Any, int] | None:
    """The pair of value and position with the smaller value, of equal ones that which comes first."""
    return min((pair for pair in pairs if pair is not None), default=None)


def _higher(*pairs: tuple[Any, int] | None) -> tuple[Any, int] | None:
    """The same with the larger value."""
    return max((pair for pair in pairs if pair is not None), key=lambda pair: (pair[0], -pair[1]), default=None)


def _as_numbers(rows: NDArray[Any]) -> NDArray[Any] | None:
    """Values whose statistics are taken: of complex ones the magnitude, of custom floats float32; None for others."""
    if rows.dtype.kind == "c":
        return np.asarray(np.abs(rows))
    rows = widened(rows)
    return rows if rows.dtype.kind in "biuf" else None
