"""The fastest way of each library to fill rows of a batch with scenes of a file.

Invariant: a fill writes the scenes of the given indices, in their order, and may be called from several threads.
A library is imported when its fill is made, because most machines lack some.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.hdf5 import files
from benchmarks.hdf5.scenes import DirectScenes, StoredScenes

Fill = Callable[[NDArray[np.int64], NDArray[Any]], None]


def _each(read: Callable[[int], Any]) -> Fill:
    """Row by row: copies the result of `read` into its row."""

    def fill(indices: NDArray[np.int64], out: NDArray[Any]) -> None:
        for place, index in enumerate(indices.tolist()):
            out[place] = read(index)

    return fill


def h5py(scenes: StoredScenes) -> Fill:
    """`out[k] = dataset[index]`, on one handle: faster than `read_direct`, which builds two selections."""
    return _each(scenes.points.__getitem__)


def h5py_cached(scenes: StoredScenes) -> Fill:
    """The same with a chunk cache of HDF5 that holds the chunks of a window and one more."""
    scenes.close(cache_bytes=5 * files.CHUNK_SCENES * scenes.points[0].nbytes)
    return h5py(scenes)


def h5py_list(scenes: StoredScenes) -> Fill:
    """One read of the whole batch; h5py only takes sorted lists."""
    dataset = scenes.points

    def fill(indices: NDArray[np.int64], out: NDArray[Any]) -> None:
        places = np.argsort(indices)
        out[places] = dataset[indices[places]]

    return fill


def hidefix(scenes: StoredScenes) -> Fill:
    """An index of the file, read in Rust."""
    import hidefix as package

    dataset = package.Index(scenes.path)["points"]
    return _each(lambda index: dataset[(index,)])


def pyfive(scenes: StoredScenes) -> Fill:
    """HDF5 in Python."""
    import pyfive as package

    return _each(package.File(scenes.path)["points"].__getitem__)


def zarr(_: StoredScenes) -> Fill:
    """`zarr.Array` of zarr 3 over the same scenes, chunks and filters in its own store."""
    import zarr as package

    return _each(package.open_array(str(files.ZARR.path()), mode="r").__getitem__)


def kerasfeed(scenes: DirectScenes) -> Fill:
    """`read_into`, scene by scene, as a feed calls it."""
    points = scenes.points

    def fill(indices: NDArray[np.int64], out: NDArray[Any]) -> None:
        for place, index in enumerate(indices.tolist()):
            points.read_into(index, out[place])

    return fill


def take(scenes: DirectScenes) -> Fill:
    """`take`, a batch at once."""
    points = scenes.points

    def fill(indices: NDArray[np.int64], out: NDArray[Any]) -> None:
        points.take(indices, out)

    return fill


def memcpy(scenes: StoredScenes) -> Fill:
    """Copies from memory: the limit."""
    memory = scenes.points[:]

    def fill(indices: NDArray[np.int64], out: NDArray[Any]) -> None:
        for place, index in enumerate(indices.tolist()):
            np.copyto(out[place], memory[index])

    return fill
