"""Convert slices, masks, integers or a number of scenes to indices.

Invariant: pure. The result is a `range` for a slice or a range whose indices all have one sign, a `Permuted` for a
`Permuted`, otherwise an int64 array. All indices are in [0, length).
"""

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.orders.permutation import permute, permute_one
from kerasfeed.sequences.frames import as_sequence
from kerasfeed.spec.inference import probe_indices
from kerasfeed.util.array_bits import frozen
from kerasfeed.util.error_text import pluralize
from kerasfeed.util.fingerprint import digest
from kerasfeed.util.validate import check_integer


@dataclass(frozen=True)
class Permuted(Sequence[int]):
    """Part of a computed permutation: distinct indices that take no memory.

    `np.asarray` makes an array of them.

    Attributes:
        length: Size of the permutation, at most 2**62; indices are in [0, length).
        keys: See `kerasfeed.orders.permutation.stream_keys`.
        positions: Positions in the permutation.
    """

    length: int
    keys: tuple[int, ...]
    positions: range

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, position: Any) -> Any:
        chosen = self.positions[position]
        if isinstance(chosen, range):
            return Permuted(self.length, self.keys, chosen)
        return permute_one(chosen, self.length, self.keys)

    def at(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the indices at `positions`, int64[B] in [0, len(self))."""
        return permute(picked(self.positions, positions), self.length, np.array(self.keys, np.uint64))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return self.at(np.arange(len(self))).astype(dtype or np.int64)

    def __str__(self) -> str:
        return f"{self.positions} of a permutation of {self.length} by {digest(self.keys)}"


Picks = range | NDArray[np.int64] | Permuted


def means_many(index: Any) -> bool:
    """Whether `index` selects several scenes: a slice, range, list or array."""
    if isinstance(index, slice | range | list):
        return True
    return hasattr(type(index), "__len__") and getattr(index, "ndim", 0) > 0


def picks_of(indices: Any, length: int, name: str) -> Picks:
    """Return the normalised indices that `indices` selects.

    Args:
        indices: A slice, a range, integers in one axis (negative ones count from the end), or one bool per scene.
        length: Number of scenes in the sequence.
        name: Name of the sequence in messages.

    Raises:
        TypeError: `indices` is none of these.
        ValueError: A mask has another length, or an array has several axes.
        IndexError: An index is out of range; the message has its position.
    """
    indices = as_sequence(indices)
    if isinstance(indices, Permuted) and indices.length <= length:
        return indices
    if isinstance(indices, slice):
        return range(*indices.indices(length))
    if isinstance(indices, range):
        chosen = _range_in(indices, length)
        if chosen is not None:
            return chosen
    if not hasattr(type(indices), "__len__") or isinstance(indices, str | bytes | dict | set | frozenset):
        raise TypeError(
            f"indices must be integers in a list or array, a slice, a range or a mask of bools, received "
            f"{indices!r:.60} of type {type(indices).__name__}"
        )
    array: Any = np.asarray(indices)
    if array.ndim != 1:
        raise ValueError(f"indices must have one axis, received shape {array.shape}")
    if array.dtype == np.bool_:
        if len(array) != length:
            raise ValueError(
                f"the mask has {pluralize(len(array), 'value')}, but {name} has {pluralize(length, 'scene')}: pass one "
                "bool per scene"
            )
        return frozen(np.flatnonzero(array))
    is_integers = array.dtype.kind in "iu" or all(type(index) is int for index in array)  # also huge Python integers
    if array.size and not is_integers:
        raise TypeError(
            f"indices must be integers or bools, received dtype {array.dtype}; np.flatnonzero(...) turns a condition "
            "into indices"
        )
    bad: Any = np.flatnonzero((array >= length) | (array < -length)) if array.size else ()
    if len(bad):
        first = int(bad[0])
        raise IndexError(f"indices[{first}] is {array[first]}, out of range: {name} has {pluralize(length, 'scene')}")
    chosen_array = array.astype(np.int64)  # a copy, because the caller may change the array
    chosen_array[chosen_array < 0] += length
    return frozen(chosen_array)


def chosen_indices(scenes: Any, length: int, name: str) -> Picks:
    """Return the indices that `scenes` selects, at least one.

    Args:
        scenes: A number of scenes, which are spread over the sequence; or a list, an array or a slice of indices, or a
            mask.
        length: Number of scenes in the sequence, at least 1.
        name: Its class, for messages.

    Raises:
        TypeError: `scenes` is none of these.
        ValueError: It is below 1, or selects no scene.
        IndexError: An index is out of range.
    """
    if isinstance(scenes, bool | float | str | bytes):
        raise TypeError(
            f"scenes must be a number of scenes, or indices, received {scenes!r} of type {type(scenes).__name__}"
        )
    if isinstance(scenes, int | np.integer):
        count = min(length, check_integer("scenes", scenes, 1))
        return np.array(probe_indices(length, count), np.int64)
    picks: Picks = picks_of(scenes, length, name)
    if not len(picks):
        raise ValueError("scenes selects no scene: pass at least one index")
    return picks


def _range_in(indices: range, length: int) -> range | None:
    """Return the range with its ends in [0, length).

    None if only part of it is negative, or if it is out of range.
    """
    if not indices:
        return range(0)
    least, most = sorted((indices[0], indices[-1]))
    if least >= 0 and most < length:
        return indices
    if most < 0 and least >= -length:
        return range(indices.start + length, indices.stop + length, indices.step)
    return None


def picked(picks: Picks, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the picks at `positions`, int64[B] in [0, len(picks))."""
    if isinstance(picks, range):
        return positions * picks.step + picks.start
    return picks.at(positions) if isinstance(picks, Permuted) else picks[positions]


def chosen_again(inner: Picks, outer: Picks) -> Picks | None:
    """Return the picks of `inner` at the positions `outer`.

    None if `outer` is computed, because the result would be an array of all indices.
    """
    if isinstance(outer, Permuted):
        return None
    if isinstance(outer, range) and not isinstance(inner, np.ndarray):
        chosen = inner.positions if isinstance(inner, Permuted) else inner
        start, stop = (chosen.start + chosen.step * end for end in (outer.start, outer.stop))
        chosen = range(start, stop, chosen.step * outer.step)
        return Permuted(inner.length, inner.keys, chosen) if isinstance(inner, Permuted) else chosen
    return frozen(picked(inner, picked(outer, np.arange(len(outer)))))


def position_in(index: Any, view: Any) -> int:
    """Return `index` as an int in [0, len(view)).

    Negative ones count from the end.

    Raises:
        TypeError: It is not an integer.
        IndexError: It is out of range.
    """
    try:
        position = operator.index(index)
    except TypeError:
        many = "; kf.Subset(sequence, indices) selects many" if hasattr(type(index), "__len__") else ""
        raise TypeError(
            f"a {type(view).__name__} is indexed by an integer, a slice, a list or an array, received {index!r:.60} of "
            f"type {type(index).__name__}{many}"
        ) from None
    length = len(view)
    if position < 0:
        position += length
    if not 0 <= position < length:
        raise IndexError(f"index {index} is out of range: {view!r} has {length} scenes")
    return position
