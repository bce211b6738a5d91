"""Examine whether a dataset can be read without HDF5.

Invariant: `examine` returns a layout only if it understands the storage completely and has compared bytes and values
with h5py's; otherwise h5py reads the dataset, for a stated reason. It holds HDF5's lock while it calls HDF5. Its result
needs neither HDF5 nor a lock.
"""

import contextlib
import math
import os
import re
from array import array
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from h5py._objects import phil
from numpy.typing import NDArray

from kerasfeed.readers.file_bytes import ByteSource
from kerasfeed.readers.hdf5.codecs import Declined, DecodeError, Filter, Pipeline, optional
from kerasfeed.readers.hdf5.storage import Chunked, ChunkIndex, Contiguous, Grid, plain_of
from kerasfeed.util.array_bits import is_padded
from kerasfeed.util.error_text import message_of, summary

HDF5_LOCK = phil
URL_DRIVER = "fileobj"  # h5py's name of the driver that reads a URL from a stream
_BLOCK_NUMBER = re.compile(r"%\d*b")  # in the names of numbered sources
_UNSHIFTED = (1, 14, 4)  # before this version of HDF5, chunk addresses do not count the user block


def refusal(file: h5py.File, driver: str) -> str:
    """Why HDF5 must read all datasets of an open file, or "".

    Args:
        file: The open file.
        driver: h5py's name of the driver that opened the file.
    """
    if file.driver not in ("sec2", URL_DRIVER):
        return f"driver {driver!r}"
    intent = file.id.get_intent()
    if intent & h5py.h5f.ACC_SWMR_READ:
        return "single writer, multiple readers: the file may grow"
    if intent:
        return "the file is open for writing in this process"
    if not hasattr(os, "preadv"):
        return "no preadv on this system"
    return ""


def examine(file: h5py.File, dataset: h5py.Dataset, source: ByteSource) -> Chunked | Contiguous:
    """Return the layout of `dataset`, if it can be read without HDF5.

    Args:
        file: The open file, which has no `refusal`.
        dataset: One of its datasets.
        source: The bytes of the file.

    Raises:
        Declined: h5py must read the dataset; the message is the reason.
    """
    try:
        with phil:
            layout = _layout(file, dataset, source.identity.size)
        if isinstance(layout, Chunked):
            _check_chunks(source, dataset, layout)
        else:
            _check_items(source, dataset, layout)
    except Declined:
        raise
    except Exception as error:  # h5py may still read it
        raise Declined(summary(error).splitlines()[0]) from error
    return layout


def _check_chunks(source: ByteSource, dataset: Any, layout: Chunked) -> None:
    """Compare the first and the last chunk with h5py's.

    The bytes of both are compared. The values of one are compared, or of both if one is at an edge.
    """
    index, grid = layout.index, layout.grid
    if not len(index):
        return
    first, last = index.stored(0), index.stored(len(index) - 1)
    for number in {first, last}:
        location = index.find(number)
        assert location is not None
        corner = tuple(part.start for part in grid.region(number))
        with phil:  # h5py before 3.16 does not take its lock here
            mask, data = dataset.id.read_direct_chunk(corner)
        if (mask, data) != (location.mask, _bytes(source, location.address, location.size)):
            raise Declined("self-check: HDF5 finds other bytes")
    _check_chunk(source, dataset, layout, first)
    if grid.is_edge(first) != grid.is_edge(last):
        _check_chunk(source, dataset, layout, last)


def _check_chunk(source: ByteSource, dataset: Any, layout: Chunked, number: int) -> None:
    if layout.pipeline.refusal:  # h5py decodes it
        return
    location, region = layout.index.find(number), layout.grid.region(number)
    assert location is not None
    try:
        expected = dataset[region]
    except OSError:
        return  # damaged: each read reports it
    try:
        data = layout.pipeline.decode(_bytes(source, location.address, location.size), location.mask)
    except DecodeError as error:
        raise Declined(f"self-check: {message_of(error)}") from None
    ours = np.frombuffer(data, layout.dtype).reshape(layout.grid.chunks)
    if ours[tuple(slice(0, part.stop - part.start) for part in region)].tobytes() != expected.tobytes():
        raise Declined("self-check: h5py reads other values")


def _check_items(source: ByteSource, dataset: Any, layout: Contiguous) -> None:
    """Compare the first and the last item with h5py's."""
    if not math.prod(layout.shape):
        return
    itemsize = layout.dtype.itemsize
    for corner, index in (((0,) * len(layout.shape), 0), (tuple(n - 1 for n in layout.shape), -1)):
        expected = np.empty((), layout.dtype)
        expected[()] = dataset[corner]
        position = layout.address + (index % math.prod(layout.shape)) * itemsize
        if _bytes(source, position, itemsize) != expected.tobytes():
            raise Declined("self-check: h5py reads other values")


def _bytes(source: ByteSource, address: int, size: int) -> bytes:
    """Bytes of the file, read without HDF5.

    Empty if they cannot be read.
    """
    try:
        return source.read(address, size)
    except OSError:
        return b""


def filters_of(dataset: h5py.Dataset) -> tuple[Filter, ...]:
    """The filters of a dataset, in the order of writing."""
    properties = dataset.id.get_create_plist()
    found = (properties.get_filter(number) for number in range(properties.get_nfilters()))
    return tuple(Filter(code, tuple(values)) for code, _, values, _ in found)


def missing_filters(dataset: h5py.Dataset) -> list[str] | None:
    """Import `hdf5plugin`, if installed; return names of filters that HDF5 still lacks.

    None if HDF5 knew all of them before. Worker processes need this, because they do not run a script's imports.
    """
    filters = filters_of(dataset)
    if all(h5py.h5z.filter_avail(each.code) for each in filters):
        return None
    optional("hdf5plugin")
    return [each.name for each in filters if not h5py.h5z.filter_avail(each.code)]


def _layout(file: h5py.File, dataset: h5py.Dataset, size: int) -> Chunked | Contiguous:
    if h5py.h5o.get_info(dataset.id).fileno != h5py.h5o.get_info(file.id).fileno:
        raise Declined("stored in another file, by an external link")
    if dataset.shape is None:
        raise Declined("no data")
    if dataset.shape == ():
        raise Declined("a scalar")
    dtype = dataset.dtype
    if dtype.hasobject:
        raise Declined("text or arrays of variable length, or references")
    if dtype.subdtype is not None:
        raise Declined("items that are arrays")
    if is_padded(dtype):  # HDF5 need not store the padding, so no check could compare it
        raise Declined("items with padding")
    try:
        same = dataset.id.get_type().equal(h5py.h5t.py_create(dtype))
    except TypeError:
        same = False
    if not same:
        raise Declined("a type that HDF5 has to convert")
    properties = dataset.id.get_create_plist()
    if properties.get_external_count():
        raise Declined("external storage")
    kind = properties.get_layout()
    if kind == h5py.h5d.CONTIGUOUS:
        return _contiguous(dataset, size)
    if kind == h5py.h5d.CHUNKED:
        return _chunked(file, dataset, properties, size)
    name = {h5py.h5d.COMPACT: "compact storage", h5py.h5d.VIRTUAL: "a virtual dataset"}
    raise Declined(name.get(kind, f"layout {kind}"))


def _contiguous(dataset: h5py.Dataset, size: int) -> Contiguous:
    address = dataset.id.get_offset()
    nbytes = math.prod(dataset.shape) * dataset.dtype.itemsize
    if address is None:
        raise Declined("storage not allocated")
    if address + nbytes > size:
        raise Declined("storage beyond the end of the file")
    return Contiguous(tuple(dataset.shape), plain_of(dataset.dtype), address)


def _chunked(file: h5py.File, dataset: h5py.Dataset, properties: Any, size: int) -> Chunked:
    shape, chunks, dtype = tuple(dataset.shape), tuple(dataset.chunks), dataset.dtype
    grid = Grid(shape, chunks)
    nbytes = math.prod(chunks) * dtype.itemsize
    pipeline = Pipeline(filters_of(dataset), nbytes)
    shift = file.userblock_size if h5py.version.hdf5_version_tuple < _UNSHIFTED else 0
    index = _index(dataset, grid, shift)
    undefined = properties.fill_value_defined() == h5py.h5d.FILL_VALUE_UNDEFINED
    if len(index) < grid.count and (undefined or properties.get_fill_time() == h5py.h5d.FILL_TIME_NEVER):
        raise Declined("missing chunks without a fill value")
    _check_index(index, grid, pipeline, size)
    fill = np.empty((), dtype)
    fill[()] = dataset.fillvalue
    plain = plain_of(dtype)
    return Chunked(grid, plain, index, pipeline, fill.view(plain))


def _index(dataset: h5py.Dataset, grid: Grid, shift: int) -> ChunkIndex:
    """Return where the chunks are stored.

    HDF5 calls back for each chunk: a million chunks take 1.3 s, including 0.8 s in HDF5. The results go into plain
    arrays, because a list of tuples would take 300 MB, and more time for the garbage collector.
    """
    corners, addresses, sizes, masks = array("q"), array("Q"), array("I"), array("I")
    add_corner, add_address, add_size, add_mask = corners.extend, addresses.append, sizes.append, masks.append

    def add(chunk: Any) -> None:
        corner, mask, address, stored = chunk
        add_corner(corner)
        add_mask(mask)
        add_address(address)
        add_size(stored)

    if grid.count >= 1 << 62:
        raise Declined("too many chunks to number")
    if grid.count:
        dataset.id.chunk_iter(add)
    table = np.asarray(corners).reshape(-1, len(grid.shape))
    _check_order(table, grid, dataset.maxshape)
    numbers: NDArray[np.int64] = table // grid.chunks @ np.array(grid.strides)
    where = np.array(addresses, np.uint64) + np.uint64(shift)
    return ChunkIndex(numbers, where, np.array(sizes, np.uint32), np.array(masks, np.uint32), grid.count)


def _check_order(corners: NDArray[np.int64], grid: Grid, maxshape: tuple[int | None, ...]) -> None:
    """Decline a damaged index, which lists chunks in an impossible order.

    HDF5 searches old indexes (B-trees of version 1, which have no checksum) by order, and would not find such chunks.
    Every index lists its chunks row-major, except that the index of one unlimited axis puts this axis first.

    HDF5 1.14.6 and 2.0.0 list wrong offsets for one unlimited axis that is not the first, in file format v110 and
    later. Some of these are outside the dataset, or HDF5 finds no chunk at the last of them (`_check_chunks`).
    """
    if (corners >= grid.shape).any():
        raise Declined("HDF5 lists chunks outside the dataset")
    scaled, odd = np.divmod(corners, np.array(grid.chunks))
    if odd.any() or (scaled < 0).any():
        raise Declined("a damaged index: chunks that are not on the grid")
    unlimited = [axis for axis, most in enumerate(maxshape) if most is None]
    orders = [list(range(len(grid.chunks)))]
    if len(unlimited) == 1:
        orders.append(sorted(orders[0], key=lambda axis: axis != unlimited[0]))
    in_place = np.arange(len(scaled))
    if not any((np.lexsort(scaled[:, order[::-1]].T) == in_place).all() for order in orders):
        raise Declined("a damaged index: chunks out of order")
    if (scaled[1:] == scaled[:-1]).all(axis=1).any():
        raise Declined("a damaged index: a chunk listed twice")


def _check_index(index: ChunkIndex, grid: Grid, pipeline: Pipeline, size: int) -> None:
    if not len(index):
        return
    order = np.argsort(index.addresses)
    begins, ends = index.addresses[order], (index.addresses + index.sizes)[order]
    if begins[-1] > size or ends.max() > size:  # the sum of a damaged address may overflow
        raise Declined("chunks beyond the end of the file")
    if (ends[:-1] > begins[1:]).any():
        raise Declined("a damaged index: chunks that overlap")
    if not pipeline.filters:
        if (index.sizes != pipeline.nbytes).any():
            raise Declined("chunks whose stored size does not match their shape")
        return
    # HDF5 may store edge chunks unfiltered (H5Pset_chunk_opts). Only their size shows it.
    if not any(size % chunk for size, chunk in zip(grid.shape, grid.chunks, strict=True)):
        return
    full = index.sizes == pipeline.nbytes
    if index.masks is not None:
        full &= index.masks == 0
    if any(grid.is_edge(index.stored(position)) for position in np.flatnonzero(full).tolist()):
        raise Declined("chunks at the edge that may be stored unfiltered")


def check_sources(dataset: h5py.Dataset) -> None:
    """Refuse a dataset with missing external data.

    HDF5 would return fill values instead.

    Raises:
        OSError: A source of a virtual dataset is missing, or a file of external storage is truncated.
    """
    if not (dataset.is_virtual or dataset.external):
        return
    left, folder = dataset.nbytes, os.path.dirname(os.path.abspath(dataset.file.filename))  # noqa: PTH100, PTH120
    for name, offset, size in dataset.external or ():
        needed = offset + min(size, left)
        left -= min(size, left)
        prefix = os.environ.get("HDF5_EXTFILE_PREFIX", "").replace("${ORIGIN}", folder)
        path = Path(prefix, name)
        if path.is_file() and (found := path.stat().st_size) < needed:  # HDF5 itself raises if the file is missing
            raise OSError(f"its external file {str(path)!r} is truncated: it has {found:,} bytes and needs {needed:,}")
    for source in dataset.virtual_sources() if dataset.is_virtual else ():
        if not _BLOCK_NUMBER.search(source.file_name + source.dset_name):  # any number of these may exist
            _check_source(dataset, folder, source.file_name.replace("%%", "%"), source.dset_name.replace("%%", "%"))


def _check_source(dataset: h5py.Dataset, folder: str, file_name: str, name: str) -> None:
    if file_name == ".":
        opened: Any = contextlib.nullcontext(dataset.file)
    else:
        prefixes = os.environ.get("HDF5_VDS_PREFIX", "").replace("${ORIGIN}", folder).split(os.pathsep)
        names = (file_name, os.path.basename(file_name))  # noqa: PTH119 - HDF5 tries both
        paths = [Path(parent, each) for each in names for parent in (*filter(None, prefixes), folder, "")]
        path = next((path for path in paths if path.is_file()), None)
        if path is None:
            raise FileNotFoundError(f"its source {name!r} is in {file_name!r}, which does not exist")
        opened = h5py.File(path, "r")
    with opened as file:
        source = file.get(name)
        if not isinstance(source, h5py.Dataset):
            raise OSError(f"its source {name!r} is not in {file.filename!r}")
        check_sources(source)
