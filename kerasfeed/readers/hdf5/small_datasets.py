"""Small datasets of files that have very many, such as one for each scene: read whole, by h5py.

Invariant: what is kept of such a dataset came from h5py, out of the file that was opened. To understand how a dataset
lies in its file, and to compare that with h5py, costs several times what h5py takes to read a small one. So it is done
for one that has been read from the file several times, because the cache does not hold it; then it pays.
"""

import math
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

from kerasfeed.readers.hdf5.chunk_cache import ChunkCache
from kerasfeed.readers.hdf5.contiguous import index_of
from kerasfeed.readers.hdf5.selection import Box
from kerasfeed.readers.hdf5.stats import Counters
from kerasfeed.util.file_bytes import ByteSource

Known = tuple[tuple[int, ...], np.dtype[Any]]
_MOST_NBYTES = 1 << 20
_MOST_LOADS = 3  # an examination takes what h5py takes for about three
_PLAIN = (h5py.h5d.CONTIGUOUS, h5py.h5d.CHUNKED)


def small(dataset: h5py.Dataset, file_number: int) -> Known | None:
    """Shape and dtype of a small dataset of plain numbers, stored in the file of this number alone; else None."""
    own = dataset.id
    dtype, shape = own.dtype, own.shape  # asked for once: each takes 10 us, and h5py reads such a dataset in 200
    if not shape or dtype.kind not in "biufc" or dtype.itemsize > 8 * (1 + (dtype.kind == "c")):
        return None
    if not 0 < math.prod(shape) * dtype.itemsize <= _MOST_NBYTES:
        return None
    properties = own.get_create_plist()
    if properties.get_layout() not in _PLAIN or properties.get_external_count():
        return None
    return (shape, dtype) if h5py.h5o.get_info(own).fileno == file_number else None


class WholeReader:
    """Reads one small dataset. All methods may be called from any thread."""

    def __init__(
        self, dataset: h5py.Dataset, known: Known, source: ByteSource, cache: ChunkCache, counters: Counters
    ) -> None:
        """Keep `dataset`, of the open file behind `source`, in `cache`."""
        self.counters = counters
        self._id = dataset.id
        self._shape, self._dtype = known
        self._source, self._cache, self.keys = source, cache, cache.reserve(1)
        self._loads = 0

    @property
    def is_spent(self) -> bool:
        """Whether it is time to examine the dataset."""
        return self._loads >= _MOST_LOADS

    def row_into(self, place: int, out: NDArray[Any]) -> None:
        """Row `place` of axis 0 into `out`, of a row's shape; else as `read`."""
        out[...] = self._all()[place]

    def read(self, box: Box, out: NDArray[Any]) -> None:
        """Fill `out`, of the box's shape.

        Raises:
            OSError: The file is damaged, or changed.
        """
        out[...] = self._all()[index_of(box)]

    def _all(self) -> NDArray[Any]:
        found, was_there = self._cache.get_or_load(self.keys.start, self._loaded)
        if was_there:
            self.counters.hit()
        return found

    def _loaded(self) -> NDArray[Any]:
        self._loads += 1
        array = np.zeros(self._shape, self._dtype)  # as h5py: HDF5 leaves what has no fill value as it is
        try:
            self._id.read(h5py.h5s.ALL, h5py.h5s.ALL, array)
        except Exception:
            self._loads = _MOST_LOADS  # parts of it may be whole
            raise
        self._source.check(now=True)
        self.counters.read(array.nbytes)
        return array
