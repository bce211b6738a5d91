"""Contiguous datasets read past HDF5, straight into the destination.

Invariant: equal to h5py bit for bit, or OSError. Runs of bytes are read with `preadv` into the result; many small ones
are gathered in one NumPy call from the mapped file. Whoever calls holds the open file.
"""

import math
import weakref
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.readers.direct import plain_of
from kerasfeed.readers.layout import Contiguous
from kerasfeed.readers.selection import Axis, Listed, Points, Selection, Span
from kerasfeed.readers.source import Source
from kerasfeed.readers.stats import Counters

_RUN_NBYTES = 16384  # a read of less costs more in system calls than its copy from the mapped file


class ContiguousReader:
    """Reads one contiguous dataset. All methods may be called from any thread."""

    index_nbytes = 0

    def __init__(self, layout: Contiguous, source: Source) -> None:
        """Read through `source`."""
        self.counters = Counters()
        self._shape, self._dtype, self._address = layout.shape, layout.dtype, layout.address
        self._plain = plain_of(layout.dtype)
        self._source = source
        self._row_shape = layout.shape[1:]
        self._row_nbytes = math.prod(self._row_shape) * layout.dtype.itemsize
        self._nbytes = self._row_nbytes * layout.shape[0]

    def row(self, place: int) -> Any:
        """Row `place` of axis 0: an array, or a scalar where the dataset has one axis."""
        out = np.empty(self._row_shape, self._dtype)
        self._source.read_into(self._address + place * self._row_nbytes, out)
        self.counters.read(self._row_nbytes)
        return out if self._row_shape else out[()]

    def read(self, selection: Selection, out: NDArray[Any]) -> None:
        """Fill `out`, of the selection's shape, of the dataset's dtype or its other byte order.

        Raises:
            OSError: The file ended or changed.
        """
        exact = out.dtype == self._dtype
        kept = out.reshape(selection.kept)
        if exact and self._plain is not self._dtype:
            kept = kept.view(self._plain)
        self.counters.read(selection.size * self._dtype.itemsize)
        if exact and kept.flags.c_contiguous:
            flat = kept.reshape(-1).view(np.uint8)
            run = _run(selection.axes, self._shape)
            if run is not None:
                self._source.read_into(self._address + run * self._dtype.itemsize, flat)
                return
            first = selection.axes[0]
            if isinstance(first, Listed) and all(map(_whole, selection.axes[1:], self._shape[1:])):
                self._rows(first.places, flat.reshape(-1, self._row_nbytes))
                return
        mapped = np.frombuffer(self._source.mapped(), np.uint8, self._nbytes, self._address)
        array = mapped.view(self._plain).reshape(self._shape)
        kept[...] = array[tuple(index for axis in selection.axes for index in _index(axis))]

    def _rows(self, places: NDArray[np.int64], out: NDArray[np.uint8]) -> None:
        nbytes = self._row_nbytes
        if nbytes < _RUN_NBYTES:
            mapped = np.frombuffer(self._source.mapped(), np.uint8, self._nbytes, self._address)
            # The places are known to be good; to check them again, NumPy would go through a copy of the result.
            np.take(mapped.reshape(-1, nbytes), places, axis=0, out=out, mode="clip")
            return
        begins = [0, *(np.flatnonzero(np.diff(places) != 1) + 1).tolist(), len(places)]
        for begin, end in pairwise(begins):
            self._source.read_into(self._address + int(places[begin]) * nbytes, out[begin:end])

    def ahead(self, places: NDArray[np.int64], owner: "weakref.ref[Any]") -> None:
        """Nothing: there is nothing to decode, and the system reads ahead by itself."""


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


def _index(axis: Axis) -> tuple[Any, ...]:
    if isinstance(axis, Points):
        return axis.coordinates
    if isinstance(axis, Listed):
        return (axis.places,)
    end = axis.start + axis.count * axis.step
    return (slice(axis.start, end if end >= 0 else None, axis.step),)
