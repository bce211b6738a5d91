"""Selections read by h5py, under its lock.

Invariant: h5py answers from a file that did not change, or not at all. What it takes goes to it as the user wrote it;
what only NumPy knows (lists unsorted or with repeats, steps backwards, masks over several axes) is read as what h5py
takes and put in order afterwards.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.readers.hdf5.inspection import missing_filters
from kerasfeed.readers.hdf5.open_files import OpenDataset, SharedFile
from kerasfeed.readers.hdf5.selection import Selection, around, runs
from kerasfeed.readers.hdf5.storage import plain_of

_LISTED_RUNS = 16  # above, h5py's own lists (quadratic) are slower than one read each run of neighbours


def read_checked(shared: SharedFile, opened: OpenDataset, selection: Any, planned: Selection | None) -> Any:
    """h5py's answer, from a file that did not change: it reads as zeros what has been cut off."""
    shared.check_sources(opened)
    try:
        found = read(opened.handle, selection, planned)
    except OSError:
        missing = missing_filters(opened.handle)
        if missing is None:  # there is another reason
            raise
        if missing:
            raise OSError(
                f"its filter {' and '.join(missing)} is missing: HDF5 does not know it. pip install hdf5plugin, which "
                "HDF5File imports by itself where it is needed, or import the package that registers the filter in "
                "the module of your class"
            ) from None
        found = read(opened.handle, selection, planned)
    if shared.source is not None and not shared.how.swmr:
        shared.source.check(now=True)
    return found


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
    if not planned.size:
        return np.empty(planned.shape, dataset.dtype)
    index: list[Any] = []
    picks: list[Any] = []
    for axis in planned.axes:
        if isinstance(axis, range):
            forward = axis if axis.step > 0 else axis[::-1]
            index.append(slice(forward.start, forward.stop, forward.step))
            picks.append(slice(None, None, 1 if axis.step > 0 else -1))
        elif isinstance(axis, np.ndarray):
            places, inverse = np.unique(axis, return_inverse=True)
            index.append(places)
            picks.append(inverse)
        else:
            for places, pick in around(axis):
                index.append(slice(places.start, places.stop))
                picks.append(pick)
    found = _gathered(dataset, index)
    items = found.shape[len(index) :]  # of dtypes whose items are arrays
    return found[tuple(picks)].reshape(planned.shape + items)


def _long(planned: Selection) -> bool:
    return any(isinstance(axis, np.ndarray) and len(axis) > _LISTED_RUNS for axis in planned.axes)


def _gathered(dataset: Any, index: list[Any]) -> NDArray[Any]:
    """Read slices, and at most one sorted list without repeats, the list run by run."""
    listed = next((axis for axis, part in enumerate(index) if isinstance(part, np.ndarray)), None)
    if listed is None:
        return np.asarray(dataset[tuple(index)])
    places = index[listed]
    out: NDArray[Any] | None = None
    for begin, end in runs(places):
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
        opaque = plain_of(out.dtype)  # so the padding of structures moves along
        out.view(opaque)[...] = np.asarray(found).view(opaque)
    else:
        out[...] = found
