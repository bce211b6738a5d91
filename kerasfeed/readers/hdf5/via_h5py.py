"""Selections read by h5py, under its lock, and selections of any kind read as boxes.

Invariant: h5py answers from a file that did not change, or not at all. What it takes goes to it as the user wrote it;
what only NumPy knows (lists unsorted or with repeats, steps backwards, masks over several axes) is picked by NumPy from
boxes, which h5py or the direct reader fills.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.readers.hdf5.inspection import missing_filters
from kerasfeed.readers.hdf5.open_files import OpenDataset, SharedFile
from kerasfeed.readers.hdf5.selection import Box, Selection, runs
from kerasfeed.readers.hdf5.storage import plain_of

_PIECE_NBYTES = 1 << 24  # of what is read at once around a selection that is no box
_ROW_NBYTES = 1 << 26  # the most of a row that is read for a part of it
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
    out = np.empty(planned.shape, dataset.dtype)
    gather(partial(_read_box, dataset), planned, out)
    return out


def _long(planned: Selection) -> bool:
    return any(isinstance(axis, np.ndarray) and len(axis) > _LISTED_RUNS for axis in planned.axes)


def _read_box(dataset: Any, box: Box, out: NDArray[Any]) -> None:
    """Fill `out` with a box, rows that are no range run by run."""
    inner = [slice(places.start, places.stop) for places in box[1:]]
    if isinstance(box[0], range):
        put(dataset[(slice(box[0].start, box[0].stop), *inner)], out)
        return
    places, inverse = np.unique(box[0], return_inverse=True)
    found = np.empty((len(places), *out.shape[1:]), out.dtype)
    for begin, end in runs(places):
        put(dataset[(slice(int(places[begin]), int(places[end - 1]) + 1), *inner)], found[begin:end])
    put(found[inverse], out)


def is_bounded(planned: Selection, itemsize: int) -> bool:
    """Whether `gather` takes little memory beside the result."""
    return not planned.size or planned.is_box or planned.row_size * itemsize <= _ROW_NBYTES


def gather(read_box: Callable[[Box, NDArray[Any]], None], planned: Selection, out: NDArray[Any]) -> None:
    """Fill `out`, of the selection's shape, with what `read_box` reads of boxes."""
    if not planned.size:
        return
    items = out.shape[len(planned.shape) :]  # of dtypes whose items are arrays
    result = out.reshape(planned.lengths + items)
    for target, box, pick in planned.blocks(_PIECE_NBYTES // max(1, out.dtype.itemsize)):
        if pick is None:
            read_box(box, result[target])
        else:
            around = np.empty((*map(len, box), *items), out.dtype)
            read_box(box, around)
            put(around[pick], result[target])


def put(found: Any, out: NDArray[Any]) -> None:
    """Copy what was read into `out`, of its shape."""
    if out.dtype == found.dtype and out.dtype.names and not out.dtype.hasobject:
        opaque = plain_of(out.dtype)  # so the padding of structures moves along
        out.view(opaque)[...] = np.asarray(found).view(opaque)
    else:
        out[...] = found
