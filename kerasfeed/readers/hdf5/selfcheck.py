"""What the direct reader would read, compared with what h5py reads, before it is trusted.

Invariant: raises `Declined` when in doubt. Bytes tell that the places are right, values that the decoding is. HDF5's
lock is held where HDF5 is called, and not while a source reads, which may wait for other threads.
"""

import math
from typing import Any

import numpy as np
from h5py._objects import phil

from kerasfeed.readers.hdf5.codecs import DecodeError
from kerasfeed.readers.hdf5.storage import Chunked, Contiguous, Declined
from kerasfeed.util.error_text import message_of
from kerasfeed.util.file_bytes import ByteSource


def check_chunks(source: ByteSource, dataset: Any, layout: Chunked) -> None:
    """Compare the first and the last chunk's bytes, and one full and one edge chunk's values, with h5py's."""
    index, grid = layout.index, layout.grid
    if not len(index):
        return
    for number in {index.stored(0), index.stored(len(index) - 1)}:
        place = index.find(number)
        assert place is not None
        corner = tuple(part.start for part in grid.region(number))
        with phil:  # which h5py before 3.16 does not take here
            mask, data = dataset.id.read_direct_chunk(corner)
        if (mask, data) != (place.mask, _bytes(source, place.address, place.size)):
            raise Declined("self-check: HDF5 finds other bytes")
    checked: set[bool] = set()
    for position in (0, len(index) - 1, *range(1, min(len(index) - 1, 1000))):
        number = index.stored(position)
        edge = grid.is_edge(number)
        if edge not in checked:
            checked.add(edge)
            _check_chunk(source, dataset, layout, number)
        if len(checked) == 1 + grid.has_edges:
            return


def _check_chunk(source: ByteSource, dataset: Any, layout: Chunked, number: int) -> None:
    place, region = layout.index.find(number), layout.grid.region(number)
    assert place is not None
    try:
        expected = dataset[region]
    except OSError:
        return  # damaged: each read tells
    try:
        data = layout.pipeline.decode(_bytes(source, place.address, place.size), place.mask)
    except DecodeError as error:
        raise Declined(f"self-check: {message_of(error)}") from None
    ours = np.frombuffer(data, layout.dtype).reshape(layout.grid.chunks)
    if ours[tuple(slice(0, part.stop - part.start) for part in region)].tobytes() != expected.tobytes():
        raise Declined("self-check: h5py reads other values")


def check_items(source: ByteSource, dataset: Any, layout: Contiguous) -> None:
    """Compare the first and the last item with h5py's."""
    if not math.prod(layout.shape):
        return
    itemsize = layout.dtype.itemsize
    for corner, place in (((0,) * len(layout.shape), 0), (tuple(n - 1 for n in layout.shape), -1)):
        expected = np.empty((), layout.dtype)
        expected[()] = dataset[corner]
        position = layout.address + (place % math.prod(layout.shape)) * itemsize
        if _bytes(source, position, itemsize) != expected.tobytes():
            raise Declined("self-check: h5py reads other values")


def _bytes(source: ByteSource, address: int, size: int) -> bytes:
    """What stands in the file, past HDF5; nothing where it cannot be read."""
    try:
        return source.read(address, size)
    except OSError:
        return b""
