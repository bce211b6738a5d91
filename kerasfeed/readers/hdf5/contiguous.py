"""Contiguous datasets, read straight into the destination.

Invariant: equal to h5py bit for bit, or `Declined` or OSError; then the caller asks h5py. Runs of bytes are read with
`preadv`, into the result where they are as long as what is wanted of them. The file is never mapped: a mapped file that
someone truncates kills the process. Whoever calls holds the open file.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.readers.file_bytes import ByteSource
from kerasfeed.readers.hdf5.codecs import Declined
from kerasfeed.readers.hdf5.selection import Box, runs
from kerasfeed.readers.hdf5.stats import Counters
from kerasfeed.readers.hdf5.storage import Contiguous

_ROW_NBYTES = 16384  # parts of neighbouring rows that are shorter are read by HDF5: a system call for each takes longer


class ContiguousReader:
    """Reads one contiguous dataset. All methods may be called from any thread."""

    def __init__(self, layout: Contiguous, source: ByteSource, counters: Counters) -> None:
        """Read through `source`."""
        self.counters = counters
        self._dtype, self._address, self._source = layout.dtype, layout.address, source
        self._row_shape, itemsize = layout.shape[1:], layout.dtype.itemsize
        self._row_nbytes = math.prod(self._row_shape) * itemsize
        self._strides = tuple(math.prod(layout.shape[axis + 1 :]) * itemsize for axis in range(1, len(layout.shape)))

    def row_into(self, place: int, out: NDArray[Any]) -> None:
        """Row `place` of axis 0 into `out`, of a row's shape; else as `read`."""
        if not out.flags.c_contiguous:
            self._rows(range(place, place + 1), out[np.newaxis])
            return
        self._source.read_into(self._address + place * self._row_nbytes, out)
        self.counters.add(nbytes=self._row_nbytes)

    def read(self, box: Box, out: NDArray[Any]) -> None:
        """Fill `out`, of the box's shape, of plain items.

        Raises:
            Declined: HDF5 is the quicker one.
            OSError: The file ended or changed.
        """
        if out.shape[1:] == self._row_shape:
            self._rows(box[0], out)
        else:
            self._parts(box[0], box[1:], out)

    def _rows(self, places: Any, out: NDArray[Any]) -> None:
        """Whole rows, each run of neighbours at once."""
        into = out if out.flags.c_contiguous else np.empty(out.shape, out.dtype)
        for begin, end in runs(places):
            self._source.read_into(self._address + int(places[begin]) * self._row_nbytes, into[begin:end])
        self.counters.add(nbytes=out.nbytes)
        if into is not out:
            out[...] = into

    def _parts(self, places: Any, inner: tuple[range, ...], out: NDArray[Any]) -> None:
        """The same part of each of some rows: all from its first to its last byte is read."""
        if isinstance(places, range) and len(places) > 1 and self._row_nbytes < _ROW_NBYTES:
            raise Declined("parts of many short rows")
        first = sum(part.start * stride for part, stride in zip(inner, self._strides, strict=True))
        last = sum((part.stop - 1) * stride for part, stride in zip(inner, self._strides, strict=True))
        data = np.empty(last - first + self._dtype.itemsize, np.uint8)
        part: NDArray[Any] = np.ndarray(out.shape[1:], self._dtype, data.data, strides=self._strides)
        for target, place in zip(out, places, strict=True):
            into = target if target.nbytes == data.nbytes and target.flags.c_contiguous else data
            self._source.read_into(self._address + int(place) * self._row_nbytes + first, into)
            if into is data:
                target[...] = part
        self.counters.add(nbytes=data.nbytes * len(places))
