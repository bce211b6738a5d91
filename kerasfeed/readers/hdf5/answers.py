"""What a selection of a dataset reads: by the direct reader, or by h5py where that reads the dataset, or must help.

Invariant: h5py answers from a file that did not change, or not at all; what is written into `out` fits it.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.readers.hdf5 import via_h5py
from kerasfeed.readers.hdf5.codecs import DecodeError
from kerasfeed.readers.hdf5.inspection import missing_filters
from kerasfeed.readers.hdf5.open_files import OpenDataset, SharedFile
from kerasfeed.readers.hdf5.selection import Selection, plan


def where(name: str) -> str:
    """A dataset, as messages name it."""
    return f"dataset {name!r}"


def read_planned(
    shared: SharedFile, opened: OpenDataset, selection: Any, name: str, planned: Selection, out: NDArray[Any]
) -> None:
    """Read `selection`, which is `planned`, of a dataset with a direct reader into `out`."""
    if not planned.size:
        return
    assert opened.reader is not None
    is_exact = out.dtype == opened.dtype
    native = out if is_exact else np.empty(out.shape, opened.dtype)
    try:
        opened.reader.read(planned, native)
    except (DecodeError, OSError):
        put(after_error(shared, opened, selection, name), out)
        return
    if not is_exact:
        out[...] = native


def by_h5py(
    shared: SharedFile, opened: OpenDataset, selection: Any, name: str, planned: Selection | None = None
) -> Any:
    """h5py's answer, from a file that did not change: it reads as zeros what has been cut off."""
    shape = opened.shape
    if planned is None and shape:
        planned = plan(selection, shape, where(name))
    shared.check_sources(opened)
    try:
        found = via_h5py.read(opened.handle, selection, planned)
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
        found = via_h5py.read(opened.handle, selection, planned)
    if shared.source is not None and not shared.how.swmr:
        shared.source.check(now=True)
    return found


def after_error(shared: SharedFile, opened: OpenDataset, selection: Any, name: str) -> Any:
    """h5py's answer, or its error, where the direct reader failed on a file that did not change."""
    if shared.source is not None:
        shared.source.check(now=True)
    opened.counters.fall_back()
    return by_h5py(shared, opened, selection, name)


def check_out(out: Any, dtype: np.dtype[Any], name: str) -> None:
    """Refuse an `out` into which no item of a dataset can be written.

    Raises:
        TypeError: It is not an array, or has another dtype.
        ValueError: It is read-only.
    """
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out must be a NumPy array, received {type(out).__name__}")
    if dtype.subdtype is not None:
        dtype = dtype.base  # items that are arrays are axes of the result
    if out.dtype != dtype and out.dtype.newbyteorder("=") != dtype.newbyteorder("="):
        raise TypeError(f"out must be of dtype {dtype}, as {where(name)} is, received {out.dtype}")
    if not out.flags.writeable:
        raise ValueError("out is read-only; pass an array that may be written")


def wrong_shape(shape: tuple[int, ...], out: NDArray[Any]) -> ValueError:
    """What is wrong with an `out` of another shape than that of what is read."""
    return ValueError(f"out must have the shape {shape} of what is read, received {out.shape}")


def put(found: Any, out: NDArray[Any]) -> None:
    """Write what h5py has given into `out`.

    Raises:
        ValueError: It has another shape.
    """
    if np.shape(found) != out.shape:
        raise wrong_shape(np.shape(found), out)
    via_h5py.put(found, out)
