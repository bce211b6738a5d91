"""Read contiguous datasets straight into the destination.

Invariant: the result equals h5py's bit for bit; otherwise `Declined` or OSError is raised, and the caller asks h5py.
`preadv` reads runs of bytes, straight into the result if the run fills it. The file is never mapped, because truncating
a mapped file kills the process. The caller holds the open file.
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

_ROW_NBYTES = 16384  # HDF5 reads shorter parts of neighbouring rows, because a system call for each takes longer


class ContiguousReader:
    """Read one contiguous dataset. All methods may be called from any thread."""

    def __init__(self, layout: Contiguous, source: ByteSource, counters: Counters) -> None:
        """Read through `source`."""
        self.counters = counters
        self._dtype, self._address, self._source = layout.dtype, layout.address, source
        self._row_shape, itemsize = layout.shape[1:], layout.dtype.itemsize
        self._row_nbytes = math.prod(self._row_shape) * itemsize
        self._strides = tuple(math.prod(layout.shape[axis + 1 :]) * itemsize for axis in range(1, len(layout.shape)))

    def read(self, box: Box, out: NDArray[Any]) -> None:
        """Fill `out`, which has the box's shape and plain items.

        Raises:
            Declined: HDF5 is faster.
            OSError: The file ended or changed.
        """
        if out.shape[1:] == self._row_shape:
            self.rows_into(box[0], out)
        else:
            self._parts(box[0], box[1:], out)

    def rows_into(self, positions: Any, out: NDArray[Any]) -> None:
        """Read whole rows into `out`, each run of neighbours at once.

        Raises the errors of `read`.
        """
        into = out if out.flags.c_contiguous else np.empty(out.shape, out.dtype)
        for begin, end in runs(positions):
            self._source.read_into(self._address + int(positions[begin]) * self._row_nbytes, into[begin:end])
        self.counters.add(nbytes=out.nbytes)
        if into is not out:
            out[...] = into

    def _parts(self, positions: Any, inner: tuple[range, ...], out: NDArray[Any]) -> None:
        """Read the same part of several rows.

        The file is read from each part's first to its last byte.
        """
        if isinstance(positions, range) and len(positions) > 1 and self._row_nbytes < _ROW_NBYTES:
            raise Declined("parts of many short rows")
        first = sum(part.start * stride for part, stride in zip(inner, self._strides, strict=True))
        last = sum((part.stop - 1) * stride for part, stride in zip(inner, self._strides, strict=True))
        data = np.empty(last - first + self._dtype.itemsize, np.uint8)
        part: NDArray[Any] = np.ndarray(out.shape[1:], self._dtype, data.data, strides=self._strides)
        for target, position in zip(out, positions, strict=True):
            into = target if target.nbytes == data.nbytes and target.flags.c_contiguous else data
            self._source.read_into(self._address + int(position) * self._row_nbytes + first, into)
            if into is data:
                target[...] = part
        self.counters.add(nbytes=data.nbytes * len(positions))
