"""Selections as arithmetic: what an index of a dataset means, axis by axis, before anything is read.

Invariant: pure. A selection that h5py takes means here what it means there (outer indexing: every axis is selected on
its own, and the result's axes keep the dataset's order); beyond h5py, lists may be unsorted and repeat, numbers in them
may be negative, slices may step backwards and a mask may cover several axes, all with NumPy's meaning. Whatever is not
planned here is left to h5py, errors included.
"""

import math
import operator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Span:
    """Places `start`, `start + step`, ... of one axis.

    Attributes:
        start: First place; within the axis when `count` > 0.
        count: Number of places, at least 0.
        step: Distance of neighbours, not 0; negative runs backwards.
        dropped: Whether the axis is missing from the result: it was selected by an integer.
    """

    start: int
    count: int
    step: int = 1
    dropped: bool = False


@dataclass(frozen=True, eq=False)
class Listed:
    """Places int64[n] of one axis in any order, repeats allowed, each within the axis."""

    places: NDArray[np.int64]

    @property
    def count(self) -> int:
        """Number of places."""
        return len(self.places)


@dataclass(frozen=True, eq=False)
class Points:
    """Points of k neighbouring axes selected jointly: k arrays of int64[n]. They become one axis of the result."""

    coordinates: tuple[NDArray[np.int64], ...]

    @property
    def count(self) -> int:
        """Number of points."""
        return len(self.coordinates[0])


Axis = Span | Listed | Points


@dataclass(frozen=True, eq=False)
class Selection:
    """A selection, normalised.

    Attributes:
        axes: One entry an axis of the dataset, in order; `Points` stands for several.
        kept: Size of each entry of `axes`, dropped ones (size 1) included: the result's shape with them kept.
        shape: Shape of the result.
        plain: Whether h5py takes the selection as the user wrote it.
    """

    axes: tuple[Axis, ...]
    kept: tuple[int, ...]
    shape: tuple[int, ...]
    plain: bool

    @property
    def size(self) -> int:
        """Number of elements selected."""
        return math.prod(self.kept)


def plan(selection: Any, shape: tuple[int, ...], where: str) -> Selection | None:
    """What `selection` means for a dataset of `shape`.

    Args:
        selection: What stands between the brackets.
        shape: Sizes of the dataset's axes.
        where: The dataset for messages, such as "dataset 'points' of 'rooms.h5'".

    Returns:
        The plan; None for what is left to h5py (names of fields, two lists at once, bad masks, ...).

    Raises:
        IndexError: A place is outside its axis; names the axis and its size.
    """
    parts = _expanded(selection if isinstance(selection, tuple) else (selection,), len(shape))
    if parts is None:
        return None
    axes: list[Axis] = []
    place, plain, lists = 0, True, 0
    for part in parts:
        axis, as_h5py, taken = _axis(part, shape, place, where)
        if axis is None:
            return None
        if not isinstance(axis, Span):
            lists += 1
        plain = plain and as_h5py
        axes.append(axis)
        place += taken
    if lists > 1 or place != len(shape):
        return None
    return of_axes(tuple(axes), plain=plain)


def of_axes(axes: tuple[Axis, ...], *, plain: bool) -> Selection:
    """The selection made of `axes`."""
    kept = tuple(axis.count for axis in axes)
    shape = tuple(axis.count for axis in axes if not (isinstance(axis, Span) and axis.dropped))
    return Selection(axes, kept, shape, plain)


def rows(places: NDArray[np.int64], shape: tuple[int, ...]) -> Selection:
    """The selection of whole rows of axis 0: `places` int64[n], each within the axis."""
    return of_axes((Listed(places), *(Span(0, size) for size in shape[1:])), plain=False)


def row(place: int, shape: tuple[int, ...]) -> Selection:
    """The selection of one whole row of axis 0; the axis is dropped."""
    return of_axes((Span(place, 1, dropped=True), *(Span(0, size) for size in shape[1:])), plain=True)


def checked_places(indices: Any, size: int, axis: int, where: str) -> NDArray[np.int64]:
    """Places int64[n] of integers that may be negative.

    Raises:
        IndexError: One is out of range.
        TypeError: They are not integers in one axis.
    """
    array = np.asarray(indices)
    if array.size == 0 and array.ndim == 1:
        return np.empty(0, np.int64)
    if array.dtype == np.int64 and array.ndim == 1 and int(array.view(np.uint64).max()) < size:
        return array  # one pass: as unsigned numbers, negative ones are large
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise TypeError(
            f"indices must be integers in one axis, received {array.dtype}{list(array.shape)} "
            f"for axis {axis} of {where}"
        )
    if array.dtype.kind == "u" and int(array.max()) >= size:
        raise _out_of_range(int(array.max()), size, axis, where)
    places = array.astype(np.int64)
    low, high = int(places.min()), int(places.max())
    if high >= size or low < -size:
        raise _out_of_range(high if high >= size else low, size, axis, where)
    if low < 0:
        places[places < 0] += size
    return places


def checked_place(index: int, size: int, axis: int, where: str) -> int:
    """The place that an integer means, negative ones counted from the end.

    Raises:
        IndexError: It is out of range.
    """
    if not -size <= index < size:
        raise _out_of_range(index, size, axis, where)
    return index + size if index < 0 else index


def _out_of_range(index: int, size: int, axis: int, where: str) -> IndexError:
    allowed = f"choose {-size} to {size - 1}" if size else "the axis is empty"
    return IndexError(f"index {index} is out of range for axis {axis} of {where}, of size {size}: {allowed}")


def _expanded(parts: tuple[Any, ...], rank: int) -> list[Any] | None:
    """One entry an axis, or per group of axes that a mask covers: Ellipsis and missing axes become whole slices."""
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
    if isinstance(part, list):
        part = _array(part)
    if isinstance(part, np.ndarray) and part.dtype == np.bool_ and part.ndim > 1:
        return part.ndim
    return 1


def _array(part: Any) -> NDArray[Any] | None:
    try:
        return np.asarray(part)
    except (ValueError, TypeError):  # a ragged list
        return None


def _axis(part: Any, shape: tuple[int, ...], place: int, where: str) -> tuple[Axis | None, bool, int]:
    """The meaning of `part`, whether h5py takes it as it is, and how many axes it covers."""
    size = shape[place]
    if isinstance(part, slice):
        try:
            start, stop, step = part.indices(size)
        except (TypeError, ValueError):
            return None, True, 1
        count = len(range(start, stop, step))
        return Span(start if count else 0, count, step), step > 0, 1
    if isinstance(part, bool | np.bool_ | str | bytes) or part is None:
        return None, True, 1
    if isinstance(part, list | tuple | range | np.ndarray):
        array = _array(part)
        if array is None:
            return None, True, 1
        if array.ndim:
            return _listed(array, shape, place, where)
        part = array[()]
    try:
        index = operator.index(part)
    except TypeError:
        return None, True, 1
    return Span(checked_place(index, size, place, where), 1, dropped=True), True, 1


def _listed(array: NDArray[Any], shape: tuple[int, ...], place: int, where: str) -> tuple[Axis | None, bool, int]:
    if array.dtype == np.bool_:
        if array.shape != shape[place : place + array.ndim]:
            return None, True, array.ndim
        coordinates = np.nonzero(array)
        if array.ndim == 1:
            return Listed(coordinates[0]), True, 1
        return Points(coordinates), array.shape == shape, array.ndim
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        return None, True, 1
    places = checked_places(array, shape[place], place, where)
    increasing = bool((np.diff(places) > 0).all())
    return Listed(places), increasing and not (array.size and int(array.min()) < 0), 1
