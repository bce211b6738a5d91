"""Contiguous datasets read past HDF5, straight into the destination.

Invariant: equal to h5py bit for bit, or OSError. Runs of bytes are read with `preadv` into the result; small pieces are
picked out of larger reads, and out of the cache once it is clear that much of the dataset is wanted. The file is never
mapped: a mapped file that someone truncates kills the process. Whoever calls holds the open file.
"""

import math
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.readers.hdf5.chunk_cache import ChunkCache
from kerasfeed.readers.hdf5.chunked import plain_of
from kerasfeed.readers.hdf5.selection import Axis, Listed, Points, Selection, Span, row
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
        self._plain = plain_of(layout.dtype)
        self._source, self._cache, self.keys = source, cache, cache.reserve(1)
        self._key = self.keys.start
        self._row_shape = layout.shape[1:]
        self._row_nbytes = math.prod(self._row_shape) * layout.dtype.itemsize
        self._nbytes = self._row_nbytes * layout.shape[0]
        self._step_nbytes = math.prod(layout.shape[2:]) * layout.dtype.itemsize  # from a place of axis 1 to the next
        self._wanted = 0  # bytes of small pieces read since the dataset was last read whole

    def row(self, place: int) -> Any:
        """Row `place` of axis 0: an array, or a scalar where the dataset has one axis."""
        out = np.empty(self._row_shape, self._dtype)
        self._source.read_into(self._address + place * self._row_nbytes, out)
        self.counters.read(self._row_nbytes)
        return out if self._row_shape else out[()]

    def row_into(self, place: int, out: NDArray[Any]) -> None:
        """Row `place` of axis 0 into `out`, of a row's shape; else as `read`."""
        if not out.flags.c_contiguous:
            self.read(row(place, self._shape), out)
            return
        self._source.read_into(self._address + place * self._row_nbytes, out)
        self.counters.read(self._row_nbytes)

    def read(self, selection: Selection, out: NDArray[Any]) -> None:
        """Fill `out`, of the selection's shape, of the dataset's dtype.

        Raises:
            OSError: The file ended or changed.
        """
        kept = out.reshape(selection.kept)
        if self._plain is not self._dtype:
            kept = kept.view(self._plain)
        direct = kept.flags.c_contiguous
        if direct:
            run = _run(selection.axes, self._shape)
            if run is not None:
                self._read(self._address + run * self._dtype.itemsize, kept.reshape(-1).view(np.uint8))
                return
        first = selection.axes[0]
        if direct and isinstance(first, Listed) and all(map(_whole, selection.axes[1:], self._row_shape)):
            self._take(first.places, out)
            return
        array = self._all(selection.size * self._dtype.itemsize)
        if array is None:
            self._gather(selection.axes, kept)
        else:
            kept[...] = array[index_of(selection.axes)]

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
        begins = [0, *(np.flatnonzero(np.diff(places) != 1) + 1).tolist(), len(places)]
        firsts = (places[begins[:-1]] * self._row_nbytes + self._address).tolist()
        for address, (begin, end) in zip(firsts, pairwise(begins), strict=True):
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
        return out.view(self._plain).reshape(self._shape)

    def _gather(self, axes: tuple[Axis, ...], kept: NDArray[Any]) -> None:
        """Pick pieces out of spans of rows, each span read at once."""
        first = axes[0]
        inner = [index for axis in axes[1:] for index in _index(axis)]
        joint = 0  # further axes whose places belong to the first's one by one
        if isinstance(first, Points):
            places, joint = first.coordinates[0], len(first.coordinates) - 1
            inner = [*first.coordinates[1:], *inner]
        elif isinstance(first, Listed):
            places = first.places
        else:
            places = first.start + np.arange(first.count) * first.step
        low, high = _bounds(inner[0], self._row_shape[0]) if inner else (0, 1)
        if inner:
            inner[0] = _shifted(inner[0], low)
        listed = any(isinstance(index, np.ndarray) for index in inner[joint:])
        for members in _spans(places, self._row_nbytes, (high - low) * self._step_nbytes):
            here = places[members]
            lowest = int(here.min())
            rows = self._span(lowest, int(here.max()), low, high)
            if listed:  # two lists at once would be paired by NumPy
                kept[members] = rows[here - lowest][(slice(None), *inner)]
            else:
                jointly = [index[members] for index in inner[:joint]]
                kept[members] = rows[(here - lowest, *jointly, *inner[joint:])]

    def _span(self, first: int, last: int, low: int, high: int) -> NDArray[Any]:
        """Rows `first` to `last`, both included, of which places `low` to `high` - 1 of axis 1: the rest is left out.

        The last row is read no further than wanted, so that what comes out is no ordinary array: its rows overlap in
        nothing but lie further apart than they are long.
        """
        step = self._step_nbytes
        data = np.empty((last - first) * self._row_nbytes + (high - low) * step, np.uint8)
        self._read(self._address + first * self._row_nbytes + low * step, data)
        shape = (high - low, *self._row_shape[1:]) if self._row_shape else ()
        inner = tuple(math.prod(shape[axis + 1 :]) * self._plain.itemsize for axis in range(len(shape)))
        return np.ndarray((last - first + 1, *shape), self._plain, data.data, strides=(self._row_nbytes, *inner))


def _spans(places: NDArray[np.int64], stride: int, length: int) -> list[NDArray[np.int64]]:
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


def _bounds(index: Any, size: int) -> tuple[int, int]:
    """The first place that an index of an axis touches, and the one after the last."""
    if isinstance(index, slice):
        touched = range(size)[index]
        return min(touched), max(touched) + 1
    return int(index.min()), int(index.max()) + 1


def _shifted(index: Any, by: int) -> Any:
    if not isinstance(index, slice):
        return index - by
    stop = None if index.stop is None else index.stop - by
    return slice(index.start - by, stop if stop is None or stop >= 0 else None, index.step)


def _whole(axis: Axis, size: int) -> bool:
    return isinstance(axis, Span) and axis.count == size and axis.step == 1


def _run(axes: tuple[Axis, ...], shape: tuple[int, ...]) -> int | None:
    """The first item of the one run that a selection is; None when it is several."""
    first, stride, closed = 0, 1, False
    for axis, size in zip(reversed(axes), reversed(shape), strict=False):
        if not isinstance(axis, Span) or (axis.step != 1 and axis.count > 1) or (closed and axis.count != 1):
            return None
        closed = closed or axis.count != size  # the axes before may only choose, not repeat
        first += axis.start * stride
        stride *= size
    return first


def index_of(axes: tuple[Axis, ...]) -> tuple[Any, ...]:
    """What selects `axes` of an array; each axis is kept."""
    return tuple(index for axis in axes for index in _index(axis))


def _index(axis: Axis) -> tuple[Any, ...]:
    if isinstance(axis, Points):
        return axis.coordinates
    if isinstance(axis, Listed):
        return (axis.places,)
    end = axis.start + axis.count * axis.step
    return (slice(axis.start, end if end >= 0 else None, axis.step),)
