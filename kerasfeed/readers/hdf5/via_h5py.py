"""Selections read by h5py, under its lock.

Invariant: what h5py takes goes to it as the user wrote it; what only NumPy knows (lists unsorted or with repeats, steps
backwards, masks over several axes) is read as what h5py takes and put in order afterwards.
"""

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.readers.hdf5.selection import Listed, Points, Selection, Span

_LISTED_RUNS = 16  # above, h5py's own lists (quadratic) are slower than one read each run of neighbours


def read(dataset: Any, selection: Any, planned: Selection | None) -> Any:
    """Read `selection` of an h5py dataset.

    Args:
        dataset: An `h5py.Dataset`.
        selection: As the user wrote it.
        planned: Its meaning, where it has been planned.

    Returns:
        What h5py returns, or would for such a selection.
    """
    if planned is None or (planned.plain and not _long(planned)):
        return dataset[selection]
    index: list[Any] = []
    after: list[Any] = []
    for axis in planned.axes:
        if isinstance(axis, Span):
            index.append(_forward(axis))
            after.append(slice(None, None, -1) if axis.step < 0 else slice(None))
        elif isinstance(axis, Listed):
            places, inverse = np.unique(axis.places, return_inverse=True)
            index.append(places)
            after.append(inverse)
        else:
            box, coordinates = _box(axis)
            index.extend(box)
            after.extend(coordinates)
    found = _gathered(dataset, index)
    items = found.shape[len(index) :]  # of dtypes whose items are arrays
    return found[tuple(after)].reshape(planned.shape + items)


def _long(planned: Selection) -> bool:
    return any(isinstance(axis, Listed) and axis.count > _LISTED_RUNS for axis in planned.axes)


def _forward(span: Span) -> slice:
    first, step = span.start, span.step
    if step < 0:
        first, step = first + (span.count - 1) * step, -step
    return slice(first, first + max(0, span.count - 1) * step + 1, step) if span.count else slice(0, 0)


def _box(points: Points) -> tuple[list[slice], list[NDArray[np.int64]]]:
    """The smallest box around some points, and the points within it."""
    if not points.count:
        return [slice(0, 0)] * len(points.coordinates), list(points.coordinates)
    lows = [int(places.min()) for places in points.coordinates]
    box = [slice(low, int(places.max()) + 1) for low, places in zip(lows, points.coordinates, strict=True)]
    return box, [places - low for low, places in zip(lows, points.coordinates, strict=True)]


def _gathered(dataset: Any, index: list[Any]) -> NDArray[Any]:
    """Read slices, and at most one sorted list without repeats, the list run by run."""
    listed = next((axis for axis, part in enumerate(index) if isinstance(part, np.ndarray)), None)
    if listed is None:
        return np.asarray(dataset[tuple(index)])
    places = index[listed]
    if not len(places):
        index[listed] = slice(0, 0)
        return np.asarray(dataset[tuple(index)])
    begins = [0, *(np.flatnonzero(np.diff(places) != 1) + 1).tolist(), len(places)]
    out: NDArray[Any] | None = None
    for begin, end in pairwise(begins):
        index[listed] = slice(int(places[begin]), int(places[end - 1]) + 1)
        part = dataset[tuple(index)]
        if out is None:  # np.concatenate would lose byte order, padding and what h5py notes in a dtype
            shape = (*part.shape[:listed], len(places), *part.shape[listed + 1 :])
            out = np.empty(shape, part.dtype)
        put(part, out[(*[slice(None)] * listed, slice(begin, end))])
    assert out is not None
    return out


def put(found: Any, out: NDArray[Any]) -> None:
    """Copy what was read into `out`, of its shape."""
    if out.dtype == found.dtype and out.dtype.names and not out.dtype.hasobject:
        opaque = np.dtype((np.void, out.dtype.itemsize))  # so the padding of structures moves along
        out.view(opaque)[...] = np.asarray(found).view(opaque)
    else:
        out[...] = found
