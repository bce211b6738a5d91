"""Contiguous datasets, read straight into the destination.

Invariant: equal to h5py bit for bit, or OSError. Runs of bytes are read with `preadv` into the result; small pieces are
picked out of larger reads, and out of the cache once it is clear that much of the dataset is wanted. The file is never
mapped: a mapped file that someone truncates kills the process. Whoever calls holds the open file.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.readers.hdf5.chunk_cache import ChunkCache
from kerasfeed.readers.hdf5.selection import Box, runs
from kerasfeed.readers.hdf5.stats import Counters
from kerasfeed.readers.hdf5.storage import Contiguous
from kerasfeed.util.file_bytes import ByteSource

_RUN_NBYTES = 16384  # a gap of less is read along: that costs less than another system call
_SPAN_NBYTES = 1 << 22
_WANTED_SHARE = 8  # once pieces of 1/8 of the dataset have been read, the whole of it is read and kept


class ContiguousReader:
    """Reads one contiguous dataset. All methods may be called from any thread."""

    def __init__(self, layout: Contiguous, source: ByteSource, cache: ChunkCache, counters: Counters) -> None:
        """Read through `source`, keep the dataset in `cache` where it fits and pays."""
        self.counters = counters
        self._shape, self._dtype, self._address = layout.shape, layout.dtype, layout.address
        self._source, self._cache, self.keys = source, cache, cache.reserve(1)
        self._key = self.keys.start
        self._row_shape = layout.shape[1:]
        self._row_nbytes = math.prod(self._row_shape) * layout.dtype.itemsize
        self._nbytes = self._row_nbytes * layout.shape[0]
        self._wanted = 0  # bytes of small pieces read since the dataset was last read whole

    def row_into(self, place: int, out: NDArray[Any]) -> None:
        """Row `place` of axis 0 into `out`, of a row's shape; else as `read`."""
        if out.flags.c_contiguous:
            self._read(self._address + place * self._row_nbytes, out)
        else:
            self.read((range(place, place + 1), *map(range, self._row_shape)), out[np.newaxis])

    def read(self, box: Box, out: NDArray[Any]) -> None:
        """Fill `out`, of the box's shape, of plain items.

        Raises:
            OSError: The file ended or changed.
        """
        rows = box[0]
        if out.flags.c_contiguous:
            first = _run(box, self._shape)
            if first is not None:
                self._read(self._address + first * self._dtype.itemsize, out.reshape(-1).view(np.uint8))
                return
            if isinstance(rows, np.ndarray) and out.shape[1:] == self._row_shape:
                self._take(rows, out)
                return
        array = self._all(out.nbytes)
        if array is None:
            self._gather(np.array(rows), box[1:], out)
        else:
            out[...] = array[index_of(box)]

    def _take(self, places: NDArray[np.int64], out: NDArray[Any]) -> None:
        """Rows `places` into `out`, C-contiguous."""
        nbytes = self._row_nbytes
        table = out.reshape(-1).view(np.uint8).reshape(-1, nbytes)
        array = self._all(out.nbytes) if nbytes < _RUN_NBYTES else None
        if array is None:
            self._rows(places, table)
        else:
            # The places are known to be good; to check them again, NumPy would go through a copy of the result. As
            # bytes, for items that are not aligned would be copied all.
            array.reshape(-1).view(np.uint8).reshape(-1, nbytes).take(places, 0, table, "clip")

    def _read(self, address: int, out: NDArray[Any]) -> None:
        self._source.read_into(address, out)
        self.counters.read(out.nbytes)

    def _rows(self, places: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
        """Rows, each run of neighbours at once, into uint8[n, bytes of a row]."""
        bounds = runs(places)
        firsts = (places[[begin for begin, _ in bounds]] * self._row_nbytes + self._address).tolist()
        for address, (begin, end) in zip(firsts, bounds, strict=True):
            self._source.read_into(address, out[begin:end])
        self.counters.read(out.nbytes)

    def _all(self, nbytes: int) -> NDArray[Any] | None:
        """The whole dataset, in its shape, from the cache; None while it is not worth it.

        Args:
            nbytes: What is wanted of it now.
        """
        if self._nbytes > self._cache.limit:
            return None
        found = self._cache.get(self._key)
        if found is not None:
            self.counters.hit()
            return found
        self._wanted += nbytes  # of two threads at once, one may be lost: it is a rule of thumb
        if self._wanted * _WANTED_SHARE < self._nbytes:
            return None
        self._wanted = 0
        return self._cache.get_or_load(self._key, self._loaded)[0]

    def _loaded(self) -> NDArray[Any]:
        out = np.empty(self._nbytes, np.uint8)
        self._read(self._address, out)
        return out.view(self._dtype).reshape(self._shape)

    def _gather(self, places: NDArray[np.int64], inner: Box, out: NDArray[Any]) -> None:
        """Pick the same part out of each of these rows, of several rows that are neighbours at once."""
        step = math.prod(self._row_shape[1:]) * self._dtype.itemsize  # from a place of axis 1 to the next
        low, high = (inner[0].start, inner[0].stop) if inner else (0, 1)
        shape = (high - low, *self._row_shape[1:]) if inner else ()
        strides = tuple(math.prod(shape[axis + 1 :]) * self._dtype.itemsize for axis in range(len(shape)))
        part = (slice(None), *index_of(inner[1:])) if inner else ()
        for members in _groups(places, self._row_nbytes, (high - low) * step):
            here = places[members]
            first = int(here.min())
            count = int(here.max()) - first + 1
            data = np.empty((count - 1) * self._row_nbytes + (high - low) * step, np.uint8)
            self._read(self._address + first * self._row_nbytes + low * step, data)
            # Rows lie further apart than they are long, for the last is read no further than it is wanted.
            rows = np.ndarray((count, *shape), self._dtype, data.data, strides=(self._row_nbytes, *strides))
            out[members] = rows[(here - first, *part)]


def _groups(places: NDArray[np.int64], stride: int, length: int) -> list[NDArray[np.int64]]:
    """Which places to read together: positions in `places`, grouped by neighbourhood in the file.

    Args:
        places: int64[n], any order.
        stride: Bytes from one place to the next.
        length: Bytes wanted of each.
    """
    order = np.argsort(places, kind="stable")
    sorted_places = places[order]
    gaps = np.diff(sorted_places) * stride - length
    blocks = sorted_places * stride // _SPAN_NBYTES
    return np.split(order, np.flatnonzero((gaps > _RUN_NBYTES) | (np.diff(blocks) != 0)) + 1)


def _run(box: Box, shape: tuple[int, ...]) -> int | None:
    """The first item of the one run that a box is; None when it is several."""
    first, stride, is_closed = 0, 1, False
    for places, size in zip(reversed(box), reversed(shape), strict=True):
        if not isinstance(places, range) or (is_closed and len(places) != 1):
            return None
        is_closed = is_closed or len(places) != size  # the axes before may only choose, not repeat
        first += places.start * stride
        stride *= size
    return first


def index_of(box: Box) -> tuple[Any, ...]:
    """What selects a box of an array."""
    return tuple(slice(places.start, places.stop) if isinstance(places, range) else places for places in box)
