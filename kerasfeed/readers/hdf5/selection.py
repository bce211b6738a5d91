"""Plan selections: the meaning of an index, before any read.

Invariant: pure functions. A selection that h5py supports has h5py's meaning (outer indexing: every axis is selected
separately, and the result's axes keep the dataset's order). In addition, with NumPy's meaning, lists may be unsorted
and hold repeated and negative numbers; steps may be negative; and a mask may cover several axes. Everything else is
left to h5py, including errors. Readers read boxes, and NumPy picks the selection from them.
"""

import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_LISTED_RUNS = 16  # for longer lists, h5py takes longer than one read per run of neighbours
Positions = NDArray[np.int64]
Axis = range | Positions | tuple[Positions, ...]
"""The selection of one axis: a range, or int64[n] in any order. For k neighbouring axes, points: k of int64[n]."""
Box = tuple[Any, ...]
"""Rows, or the same part of each: axis 0 a range of step 1 or int64[n] in any order; other axes ranges of step 1."""


class Block(NamedTuple):
    """A piece of a selection.

    Attributes:
        target: Slice of the first axis of the result.
        box: The box to read.
        pick: Index of the selection in the box; None for the whole box.
    """

    target: slice
    box: Box
    pick: tuple[Any, ...] | None


@dataclass(frozen=True, eq=False)
class Selection:
    """A normalised selection.

    Attributes:
        axes: One entry per axis of the dataset, in order; points are one entry for several axes. All indices are in
            range.
        shape: Shape of the result.
    """

    axes: tuple[Axis, ...]
    shape: tuple[int, ...]

    @property
    def suits_h5py(self) -> bool:
        """Whether h5py reads the selection, as the user wrote it, quickly.

        h5py's time for lists is quadratic.
        """
        return all(
            axis.step > 0
            if isinstance(axis, range)
            else isinstance(axis, np.ndarray) and len(axis) <= _LISTED_RUNS and bool((np.diff(axis) > 0).all())
            for axis in self.axes
        )

    @property
    def size(self) -> int:
        """Number of elements selected."""
        return math.prod(self.shape)

    @property
    def lengths(self) -> tuple[int, ...]:
        """Like `shape`, with an axis of one for each integer."""
        return tuple(len(axis[0]) if isinstance(axis, tuple) else len(axis) for axis in self.axes)

    @cached_property
    def inner(self) -> list[tuple[Any, Any]]:
        """`around` each axis except the first.

        The selection is not empty.
        """
        lead = self.axes[0]
        points = lead[1:] if isinstance(lead, tuple) else ()
        return [pair for axis in (*points, *self.axes[1:]) for pair in around(axis)]

    @property
    def is_box(self) -> bool:
        """Whether the selection is a box, without other elements."""
        lead, *others = self.axes
        return not isinstance(lead, tuple) and all(isinstance(axis, range) and axis.step == 1 for axis in others)

    @property
    def row_size(self) -> int:
        """Number of elements in the box around the selection of one row."""
        return math.prod(len(positions) for positions, _ in self.inner)

    def blocks(self, most: int) -> Iterator[Block]:
        """Split a selection that is not empty into pieces.

        A box is one piece.

        Args:
            most: Maximum elements of a piece's box; more only if one row has more.
        """
        lead = self.axes[0]
        rows = np.array(lead) if isinstance(lead, range) and lead.step != 1 else lead
        if self.is_box:
            yield Block(slice(0, len(rows)), (rows, *self.axes[1:]), None)
            return
        step = max(1, most // self.row_size)
        if isinstance(lead, tuple):
            begin = 0
            while begin < len(lead[0]):  # rows are in order, because they come from a mask
                end = int(np.searchsorted(lead[0], lead[0][begin] + step))
                points = tuple(positions[begin:end] for positions in lead)
                inner = Selection((points, *self.axes[1:]), ()).inner
                yield Block(slice(begin, end), *zip(*around(points[0]), *inner, strict=True))
                begin = end
            return
        boxes, picks = [positions for positions, _ in self.inner], [pick for _, pick in self.inner]
        for begin in range(0, len(rows), step):
            end = begin + step
            yield Block(slice(begin, end), (rows[begin:end], *boxes), (slice(None), *picks))


def plan(selection: Any, shape: tuple[int, ...], name: str) -> Selection | None:
    """Plan `selection` for a dataset of `shape`.

    Args:
        selection: The index.
        shape: Sizes of the dataset's axes.
        name: The dataset's name, for messages.

    Returns:
        The plan; None for selections left to h5py (names of fields, two lists at once, bad masks, ...).

    Raises:
        IndexError: An index is out of range; the message names the axis and its size.
    """
    try:
        parts = _expanded(selection if isinstance(selection, tuple) else (selection,), len(shape))
    except (ValueError, TypeError):  # a ragged list
        return None
    if parts is None:
        return None
    axes: list[Axis] = []
    sizes: list[int] = []
    axis_number = lists = 0
    for part in parts:
        axis = _axis(part, shape, axis_number, name)
        if axis is None:
            return None
        if isinstance(axis, int):
            axes.append(range(axis, axis + 1))
        else:
            lists += not isinstance(axis, range)
            axes.append(axis)
            sizes.append(len(axis[0]) if isinstance(axis, tuple) else len(axis))
        axis_number += _width(part)
    return None if lists > 1 or axis_number != len(shape) else Selection(tuple(axes), tuple(sizes))


def whole_rows(selection: Any, size: int, name: str) -> range | None:
    """Return the rows that an integer or slice of step 1 selects.

    The rows are on axis 0. Return None for any other selection, and for one without rows.

    Raises:
        IndexError: The integer is out of range.
    """
    if type(selection) is int or isinstance(selection, np.integer):
        row = checked_position(int(selection), size, 0, name)
        return range(row, row + 1)
    if not isinstance(selection, slice):
        return None
    try:
        rows = range(size)[selection]
    except (TypeError, ValueError):
        return None
    return rows if rows and rows.step == 1 else None


def runs(positions: range | Positions) -> list[tuple[int, int]]:
    """Return (begin, end) of the runs of neighbours in `positions`.

    `positions` is not empty. A range has step 1, and is one run.
    """
    if isinstance(positions, range):
        return [(0, len(positions))]
    begins = (np.flatnonzero(np.diff(positions) != 1) + 1).tolist()
    return [*pairwise([0, *begins, len(positions)])]


def around(axis: Axis) -> list[tuple[Any, Any]]:
    """Return each axis's range around the selection, and a pick.

    The ranges have step 1. The pick is the index of the selection in that range.
    """
    if isinstance(axis, tuple):
        return [pair for positions in axis for pair in around(positions)]
    if isinstance(axis, range):
        return [(range(min(axis[0], axis[-1]), max(axis[0], axis[-1]) + 1), slice(None, None, axis.step))]
    low = int(axis.min())
    return [(range(low, int(axis.max()) + 1), axis - low)]


def checked_positions(indices: Any, size: int, axis: int, name: str) -> NDArray[np.int64]:
    """Convert integers, which may be negative, to int64[n] from 0.

    Raises:
        IndexError: One is out of range.
        TypeError: The indices are not integers in one axis.
    """
    array = np.asarray(indices)
    if array.size == 0 and array.ndim == 1:
        return np.empty(0, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise TypeError(
            f"indices must be integers in one axis, received {array.dtype}{list(array.shape)} "
            f"for axis {axis} of dataset {name!r}"
        )
    low, high = int(array.min()), int(array.max())
    if high >= size or low < -size:
        raise _out_of_range(high if high >= size else low, size, axis, name)
    positions = array.astype(np.int64, copy=False)
    return positions if low >= 0 else np.where(positions < 0, positions + size, positions)


def checked_position(index: int, size: int, axis: int, name: str) -> int:
    """Convert an integer, which may be negative, to an index from 0.

    Raises:
        IndexError: It is out of range.
    """
    if not -size <= index < size:
        raise _out_of_range(index, size, axis, name)
    return index + size if index < 0 else index


def _out_of_range(index: int, size: int, axis: int, name: str) -> IndexError:
    allowed = f"choose {-size} to {size - 1}" if size else "the axis is empty"
    return IndexError(f"index {index} is out of range for axis {axis} of dataset {name!r}, of size {size}: {allowed}")


def _expanded(parts: tuple[Any, ...], rank: int) -> list[Any] | None:
    """Return one entry per axis.

    A mask that covers several axes has one entry for them. Ellipsis and missing axes become slices; lists become
    arrays.
    """
    parts = tuple(np.asarray(part) if isinstance(part, list | tuple | range) else part for part in parts)
    dots = [number for number, part in enumerate(parts) if part is Ellipsis]
    if len(dots) > 1:
        return None
    taken = sum(_width(part) for part in parts if part is not Ellipsis)
    if taken > rank:
        return None
    whole = [slice(None)] * (rank - taken)
    if not dots:
        return [*parts, *whole]
    return [*parts[: dots[0]], *whole, *parts[dots[0] + 1 :]]


def _width(part: Any) -> int:
    return part.ndim if isinstance(part, np.ndarray) and part.dtype == np.bool_ and part.ndim > 1 else 1


def _axis(part: Any, shape: tuple[int, ...], axis_number: int, name: str) -> Axis | int | None:
    """Return the selection of one axis by `part`, or an integer.

    Return None to leave the selection to h5py.
    """
    size = shape[axis_number]
    if isinstance(part, slice):
        try:
            return range(size)[part]
        except (TypeError, ValueError):
            return None
    if isinstance(part, bool | np.bool_ | str | bytes) or part is None:
        return None
    if isinstance(part, np.ndarray) and part.ndim:
        return _listed(part, shape, axis_number, name)
    try:
        index = operator.index(part)
    except TypeError:
        return None
    return checked_position(index, size, axis_number, name)


def _listed(array: NDArray[Any], shape: tuple[int, ...], axis_number: int, name: str) -> Axis | None:
    if array.dtype == np.bool_:
        if array.shape != shape[axis_number : axis_number + array.ndim]:
            return None
        coordinates = np.nonzero(array)
        return coordinates[0] if array.ndim == 1 else coordinates
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        return None
    return checked_positions(array, shape[axis_number], axis_number, name)
