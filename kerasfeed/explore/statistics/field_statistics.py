"""What is known of one field after some scenes, and how two such things become one.

Invariant: merging is exact and needs no order, but for the place of the first scene with other bits. Only numbers are
kept, never a scene.
"""

import functools
import struct
from collections import Counter
from typing import Any

import numpy as np
from isal import isal_zlib
from numpy.typing import NDArray

from kerasfeed.explore.statistics.moments import Moments, Summer, is_finite
from kerasfeed.explore.statistics.value_counts import FewValues, Spread

_MOST_SHAPES = 16
_MOST_COLUMNS = 1_024  # of a field with one axis
_MOST_CHANNELS = 16  # of a field with more
_LONGEST_CLASS = 64  # characters


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
        scenes: How many have the field.
        dtypes: Number of scenes by name of the dtype; `str` and `bytes` for text.
        shapes: Number of scenes by shape; None where there are more than 16 shapes.
        sizes: By number of axes, the smallest and the largest size of each.
        values, nan, infinite, zeros: How many.
        low, high: Smallest and largest finite value; None without one.
        columns, whole: Moments by column, and those of all values, of scenes whose last axis is no such thing.
        few: Counts of single values; of text, too.
        spread: Counts of ranges of values, or of lengths.
        lengths: Smallest, largest, sum and sum of squares of the lengths of text; None without text.
        constant: Whether all scenes have the same bits here.
    """

    def __init__(self, shifts: tuple[NDArray[np.float64] | None, float] | None = None, *, first: bool = False) -> None:
        self.scenes = 0
        self._first = first
        self.dtypes: Counter[str] = Counter()
        self.shapes: Counter[tuple[int, ...]] | None = Counter()
        self.sizes: dict[int, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        self.values = self.nan = self.infinite = self.zeros = 0
        self.low: Any = None
        self.high: Any = None
        self.columns: Moments | None = None
        self.whole: Moments | None = None
        self.few = FewValues()
        self.spread: Spread | None = None
        self.lengths: tuple[int, int, int, int] | None = None
        self.constant = True
        self._bits: bytes | None = None
        self._summers: dict[bool, Summer] = {}
        if shifts is not None:
            self._begin(*shifts)

    def _begin(self, shift: NDArray[np.float64] | None, centre: float) -> None:
        self.columns = None if shift is None else Moments(shift)
        self.whole = Moments(np.array([centre]))
        self.spread = Spread(centre)

    def shifts(self) -> tuple[NDArray[np.float64] | None, float] | None:
        """From what values are taken as differences; None before the first number."""
        if self.whole is None:
            return None
        return None if self.columns is None else self.columns.shift, float(self.whole.shift[0])

    # ---- one scene

    def add(self, value: Any) -> bytes:
        """Add what a scene has here, as `as_array` gives it; returns what tells its bits from others."""
        self.scenes += 1
        shape = value.shape if isinstance(value, np.ndarray) else ()
        self._add_shape(shape)
        if isinstance(value, str | bytes):
            bits = self._add_text([value], "str" if isinstance(value, str) else "bytes")
        elif value.dtype.kind in "OUST":
            texts = value.reshape(-1).tolist()
            is_bytes = value.dtype.kind == "S" or bool(texts and isinstance(texts[0], bytes))
            bits = self._add_text(texts, "bytes" if is_bytes else "str")
        else:
            bits = self._add_array(value)
        bits += repr(shape).encode()
        self._note_bits(bits)
        return bits

    def _note_bits(self, bits: bytes) -> None:
        if self._bits is None:
            self._bits = bits
        elif bits != self._bits:
            self.constant = False

    def _add_shape(self, shape: tuple[int, ...]) -> None:
        if self.shapes is not None:
            self.shapes[shape] += 1
            if len(self.shapes) > _MOST_SHAPES:
                self.shapes = None
        low, high = self.sizes.get(len(shape), (shape, shape))
        if low != shape or high != shape:
            low, high = tuple(map(min, low, shape)), tuple(map(max, high, shape))
        self.sizes[len(shape)] = low, high

    def _add_text(self, texts: list[Any], kind: str) -> bytes:
        self.dtypes[kind] += 1
        self.values += len(texts)
        crc = 0
        for text in texts:
            data = text if isinstance(text, bytes) else text.encode(errors="surrogatepass")
            crc = isal_zlib.crc32(struct.pack("<q", len(data)) + data, crc)
            self.zeros += not text
            self._add_lengths(len(text), len(text), len(text), len(text) ** 2)
            if len(text) <= _LONGEST_CLASS:
                self.few.add(text)
            else:
                self.few.forget()
        if texts:
            self.spread = self.spread or Spread(0.0)
            self.spread.add(np.array([len(text) for text in texts]), 1)
        return struct.pack("<Iq", crc, len(texts)) + kind.encode()

    def _add_lengths(self, short: int, long: int, total: int, squares: int) -> None:
        if self.lengths is not None:
            short, long = min(short, self.lengths[0]), max(long, self.lengths[1])
            total, squares = total + self.lengths[2], squares + self.lengths[3]
        self.lengths = short, long, total, squares

    def _add_array(self, array: NDArray[Any]) -> bytes:
        self.dtypes[_name_of(array.dtype)] += 1
        self.values += array.size
        columns = columns_of(array.shape)
        flat = np.ascontiguousarray(array).reshape(-1)
        crc = isal_zlib.crc32(flat.view(np.uint8)) if flat.size else 0
        bits = struct.pack("<Iq", crc, flat.size) + array.dtype.str.encode()
        numbers = _as_numbers(flat)
        if numbers is not None and numbers.size:
            bits += self._add_numbers(numbers, columns)
        return bits

    def _add_numbers(self, flat: NDArray[Any], columns: int | None) -> bytes:
        if self.whole is None:
            self._begin(*(_first_shifts(flat, columns) if self._first else (None, 0.0)))
        assert self.whole is not None and self.spread is not None
        by_column = self.columns is not None and columns == len(self.columns.shift)
        moments = self.columns if by_column and self.columns is not None else self.whole
        if by_column not in self._summers:
            self._summers[by_column] = Summer(moments.shift)
        sums = self._summers[by_column].sums(flat)
        width = len(moments.shift)
        counts: Any = flat.size // width
        if flat.dtype.kind == "f" and not is_finite(sums):
            flat, counts, sums = self._without_others(flat, self._summers[by_column], sums)
        moments.add(sums, counts)
        self.zeros += int(np.count_nonzero(flat == 0))
        if flat.size:
            self._add_range(flat, columns or 1)
        return sums.tobytes()

    def _add_range(self, flat: NDArray[Any], columns: int) -> None:
        low = flat[0].item() if flat.size == 1 else np.minimum.reduce(flat).item()
        high = low if flat.size == 1 else np.maximum.reduce(flat).item()
        self.low = low if self.low is None else min(self.low, low)
        self.high = high if self.high is None else max(self.high, high)
        assert self.spread is not None
        self.spread.add(flat, columns)
        if flat.dtype.kind not in "biu":
            self.few.forget()
        elif flat.size == 1:
            self.few.add(int(low))
        else:
            self.few.add_array(flat, int(low), int(high))

    def _without_others(
        self, flat: NDArray[Any], summer: Summer, sums: NDArray[np.float64]
    ) -> tuple[NDArray[Any], Any, NDArray[np.float64]]:
        """The finite values, how many of each column, and their sums; counts what is left out."""
        finite = np.isfinite(flat)
        if finite.all():  # their squares are too large
            return flat, flat.size // len(summer.shift), sums
        nan = int(np.count_nonzero(np.isnan(flat)))
        self.nan += nan
        self.infinite += flat.size - int(np.count_nonzero(finite)) - nan
        columns = len(summer.shift)
        neutral = np.resize(summer.shift, flat.size)
        counts = finite.reshape(-1, columns).sum(axis=0)
        return flat[finite], counts, summer.sums(np.where(finite, flat.astype(np.float64), neutral))

    # ---- several

    def merge(self, other: "FieldStatistics") -> None:
        """Add what `other` knows, of scenes behind these."""
        self.scenes += other.scenes
        self.dtypes.update(other.dtypes)
        if self.shapes is not None and other.shapes is not None:
            self.shapes.update(other.shapes)
        if other.shapes is None or (self.shapes is not None and len(self.shapes) > _MOST_SHAPES):
            self.shapes = None
        for axes, (low, high) in other.sizes.items():
            own = self.sizes.get(axes, (low, high))
            self.sizes[axes] = tuple(map(min, own[0], low)), tuple(map(max, own[1], high))
        self.values += other.values
        self.nan += other.nan
        self.infinite += other.infinite
        self.zeros += other.zeros
        self.low = _joined(min, self.low, other.low)
        self.high = _joined(max, self.high, other.high)
        self.columns = _merged(self.columns, other.columns)
        self.whole = _merged(self.whole, other.whole)
        self.spread = _merged(self.spread, other.spread)
        self.few.merge(other.few)
        if other.lengths is not None:
            self._add_lengths(*other.lengths)
        same = self._bits is None or other._bits is None or self._bits == other._bits
        self.constant = self.constant and other.constant and same
        self._bits = self._bits or other._bits

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_summers": {}}


@functools.lru_cache(maxsize=256)
def _name_of(dtype: np.dtype[Any]) -> str:
    return dtype.name if dtype.names is None else str(dtype)  # 10 us


def _joined(choose: Any, one: Any, other: Any) -> Any:
    return one if other is None else other if one is None else choose(one, other)


def _merged(one: Any, other: Any) -> Any:
    if one is not None and other is not None:
        one.merge(other)
    return other if one is None else one


def _as_numbers(flat: NDArray[Any]) -> NDArray[Any] | None:
    """Values whose statistics are taken: of complex ones the magnitude, of custom floats float32; None for others."""
    if flat.dtype.kind == "c":
        return np.asarray(np.abs(flat))
    if flat.dtype.kind in "biuf":
        return flat
    try:  # bfloat16 and its like
        return flat.astype(np.float32) if flat.dtype.names is None else None
    except (TypeError, ValueError):
        return None


def _first_shifts(flat: NDArray[Any], columns: int | None) -> tuple[NDArray[np.float64] | None, float]:
    values = flat.astype(np.float64)
    finite = np.isfinite(values)
    count = int(np.count_nonzero(finite))
    centre = float(np.where(finite, values, 0).sum() / max(1, count))
    centre = centre if np.isfinite(centre) else 0.0
    if columns is None:
        return None, centre
    by_column = np.where(finite, values, centre).reshape(-1, columns).mean(axis=0)
    return np.where(np.isfinite(by_column), by_column, centre), centre
