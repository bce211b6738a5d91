"""Small HDF5 files of every storage and filter, each with the reader that is due to it.

Invariant: a file is a pure function of its case (values come from its shape and dtype), and is written with h5py alone:
nothing here imports kerasfeed, so a defect of the reader cannot hide in the files it is tested on.
"""

import ctypes
import importlib.util
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import h5py
import numpy as np

PLUGIN = importlib.util.find_spec("hdf5plugin")
if PLUGIN is not None:
    import hdf5plugin


@dataclass(frozen=True)
class Case:
    """One file of the matrix.

    Attributes:
        name: A name for test ids.
        make: Writes the file; may write others beside it, whose names begin with its stem.
        reader: Kind of reader due to `datasets`: "direct", "h5py", or "direct with <module>" where an optional codec
            decides.
        datasets: Paths of the datasets to compare.
        needs: Modules without which the file cannot be written.
        libhdf5: Whether libhdf5 itself must be reachable, for calls that h5py does not wrap.
    """

    name: str
    make: Callable[[Path], None] = field(repr=False)
    reader: str
    datasets: tuple[str, ...] = ("data",)
    needs: tuple[str, ...] = ()
    libhdf5: bool = False


def values(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Values that compress somewhat and differ from row to row."""
    dtype = np.dtype(dtype)
    count = int(np.prod(shape))
    base = (np.arange(count) * 7 + np.arange(count) ** 2 // 3) % 251
    if dtype.kind == "b":
        return (base % 3 == 0).reshape(shape)
    if dtype.kind == "f":
        base = base / 4 - 20
    if dtype.kind == "c":
        base = base / 4 - 1j * base
    if dtype.kind == "i":
        base = base - 120
    return base.astype(dtype).reshape(shape)


@cache
def library() -> Any:
    """The libhdf5 that h5py uses, for the calls that h5py does not wrap; None where it is not found."""
    try:
        maps = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    paths = {line.split()[-1] for line in maps if "/libhdf5-" in line or "/libhdf5.so" in line}
    return ctypes.CDLL(paths.pop()) if len(paths) == 1 else None


def call(name: str, *arguments: Any) -> None:
    """Call a property setter of libhdf5 by name; the first argument is an identifier."""
    function = getattr(library(), name)
    if function(ctypes.c_int64(arguments[0]), *arguments[1:]) < 0:
        raise OSError(f"{name} failed")


# Every pipeline h5py, or h5py with hdf5plugin, writes: keywords of create_dataset, dtype, due reader, needed modules.
PIPELINES: dict[str, tuple[dict[str, Any], str, str, tuple[str, ...]]] = {
    "none": ({}, "f4", "direct", ()),
    "gzip1": ({"compression": 1}, "f4", "direct", ()),
    "gzip4": ({"compression": 4}, ">f8", "direct", ()),
    "gzip9": ({"compression": 9}, "i2", "direct", ()),
    "shuffle": ({"shuffle": True}, "f4", "direct", ()),
    "shuffle-gzip4": ({"shuffle": True, "compression": 4}, "f4", "direct", ()),
    "shuffle-gzip9-u1": ({"shuffle": True, "compression": 9}, "u1", "direct", ()),
    "lzf": ({"compression": "lzf"}, "f4", "direct with imagecodecs", ()),
    "shuffle-lzf": ({"compression": "lzf", "shuffle": True}, "i8", "direct with imagecodecs", ()),
    "fletcher32": ({"fletcher32": True}, "f4", "h5py", ()),
    "shuffle-gzip-fletcher32": ({"fletcher32": True, "shuffle": True, "compression": 4}, "i4", "h5py", ()),
    "scaleoffset": ({"scaleoffset": 0}, "i4", "h5py", ()),
    "scaleoffset-float": ({"scaleoffset": 2}, "f4", "h5py", ()),
    "scaleoffset-gzip": ({"scaleoffset": 0, "compression": 4}, "i4", "h5py", ()),
    "szip": ({"compression": "szip"}, "f4", "h5py", ()),
}
if PLUGIN is not None:
    _PLUGIN = ("hdf5plugin",)
    PIPELINES |= {
        "blosc-lz4-shuffle": (dict(hdf5plugin.Blosc(cname="lz4", shuffle=1)), "f4", "direct with numcodecs", _PLUGIN),
        "blosc-zstd-bitshuffle": (
            dict(hdf5plugin.Blosc(cname="zstd", shuffle=2)), "f8", "direct with numcodecs", _PLUGIN,
        ),
        "blosc-zlib": (dict(hdf5plugin.Blosc(cname="zlib", shuffle=0)), "i4", "direct with numcodecs", _PLUGIN),
        "zstd": (dict(hdf5plugin.Zstd()), "f4", "direct with numcodecs", _PLUGIN),
        "shuffle-zstd": ({**hdf5plugin.Zstd(clevel=9), "shuffle": True}, "f4", "direct with numcodecs", _PLUGIN),
        "bitshuffle-lz4": (dict(hdf5plugin.Bitshuffle(cname="lz4")), "f4", "direct with imagecodecs", _PLUGIN),
        "bitshuffle-none": (dict(hdf5plugin.Bitshuffle(cname="none")), "i2", "direct with imagecodecs", _PLUGIN),
        "bitshuffle-zstd": (dict(hdf5plugin.Bitshuffle(cname="zstd")), "i4", "h5py", _PLUGIN),
        "lz4": (dict(hdf5plugin.LZ4()), "f4", "h5py", _PLUGIN),
        "blosc2": (dict(hdf5plugin.Blosc2()), "f4", "h5py", _PLUGIN),
        "bzip2": (dict(hdf5plugin.BZip2()), "f4", "h5py", _PLUGIN),
    }  # fmt: skip

# Each makes HDF5 choose another index of chunks: libver, chunks and maxshape for a dataset of (21, 10).
INDEXES: dict[str, tuple[str, tuple[int, int], tuple[int | None, int | None] | None]] = {
    "btree1": ("earliest", (4, 3), (None, 30)),
    "single": ("latest", (21, 10), None),
    "fixed": ("latest", (4, 3), None),
    "extensible": ("latest", (4, 3), (None, 10)),
    "btree2": ("latest", (4, 3), (None, None)),
}
SHAPE = (21, 10)  # neither axis is a multiple of its chunks: edge chunks on both


def _filtered(pipeline: str, index: str, path: Path) -> None:
    keywords, dtype, _, _ = PIPELINES[pipeline]
    libver, chunks, maxshape = INDEXES[index]
    with h5py.File(path, "w", libver=libver) as file:
        file.create_dataset("data", data=values(SHAPE, dtype), chunks=chunks, maxshape=maxshape, **keywords)


def filtered() -> Iterator[Case]:
    for pipeline, index in product(PIPELINES, INDEXES):
        _, _, reader, needs = PIPELINES[pipeline]
        yield Case(f"{pipeline}-{index}", partial(_filtered, pipeline, index), reader, needs=needs)


def _created(path: Path, shape: tuple[int, ...], dtype: Any, data: Any = None, **options: Any) -> None:
    """One dataset "data" written through the low-level interface, for properties that h5py's keywords do not reach.

    Options: `libver`, `userblock`, `chunks`, `maxshape`, `prepare(plist)`, `fill(dataset)`, `type` (an h5py TypeID).
    """
    opened = {"libver": options.get("libver"), "userblock_size": options.get("userblock")}
    with h5py.File(path, "w", **opened) as file:
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        if chunks := options.get("chunks"):
            plist.set_chunk(chunks)
        if prepare := options.get("prepare"):
            prepare(plist)
        maxshape = tuple(h5py.h5s.UNLIMITED if size is None else size for size in options.get("maxshape", shape))
        type_id = options.get("type") or h5py.h5t.py_create(np.dtype(dtype), logical=True)
        space = h5py.h5s.create_simple(shape, maxshape)
        dataset = h5py.Dataset(h5py.h5d.create(file.id, b"data", type_id, space, plist))
        if data is not None:
            dataset[...] = data
        if fill := options.get("fill"):
            fill(dataset)


def _early(plist: Any) -> None:
    plist.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)


def _compact(plist: Any) -> None:
    plist.set_layout(h5py.h5d.COMPACT)


def _filled(value: Any, plist: Any) -> None:
    plist.set_fill_value(np.array(value))


def _undefined_fill(plist: Any) -> None:
    call("H5Pset_fill_value", plist.id, ctypes.c_int64(h5py.h5t.NATIVE_FLOAT.id), None)
    plist.set_fill_time(h5py.h5d.FILL_TIME_NEVER)


def _whole_edges(level: int, plist: Any) -> None:
    """Leave chunks that stick out of the dataset unfiltered (H5D_CHUNK_DONT_FILTER_PARTIAL_CHUNKS)."""
    plist.set_shuffle()
    plist.set_deflate(level)
    call("H5Pset_chunk_opts", plist.id, ctypes.c_uint(2))


def _rows(*where: slice) -> Callable[[Any], None]:
    """Writes those rows only; the chunks of the others stay missing."""

    def fill(dataset: Any) -> None:
        data = values(dataset.shape, dataset.dtype)
        for rows in where:
            dataset[rows] = data[rows]

    return fill


def _masked(path: Path, masks: tuple[int, ...], libver: str) -> None:
    """Chunks whose filter masks say which filters were skipped, written as such writers do."""
    data = values((24, 6), "f4")
    with h5py.File(path, "w", libver=libver) as file:
        dataset = file.create_dataset("data", (24, 6), "f4", chunks=(4, 6), shuffle=True, compression=4)
        for number in range(6):
            raw = data[4 * number : 4 * number + 4].tobytes()
            mask = masks[number % len(masks)]
            if not mask & 1:
                raw = np.frombuffer(raw, "u1").reshape(-1, 4).T.tobytes()
            if not mask & 2:
                raw = zlib.compress(raw)
            dataset.id.write_direct_chunk((4 * number, 0), raw, mask)


def _resized(path: Path, sizes: tuple[int, ...], libver: str, **keywords: Any) -> None:
    """Rows are written, then the dataset takes each size in turn; rows that come back are fill values."""
    with h5py.File(path, "w", libver=libver) as file:
        dataset = file.create_dataset("data", (10, 7), "i4", maxshape=(None, 7), chunks=(4, 3), **keywords)
        dataset[...] = values((10, 7), "i4")
        for size in sizes:
            dataset.resize(size, axis=0)
        dataset[-1:] = 99


def _external(path: Path, pieces: int) -> None:
    data = values((12, 5), "i4")
    size = data.nbytes // pieces
    parts = []
    for number in range(pieces):
        part = path.with_name(f"{path.stem}-{number}.raw")
        part.write_bytes(bytes(16) + data.tobytes()[number * size : (number + 1) * size])
        parts.append((part, 16, size))
    with h5py.File(path, "w") as file:
        file.create_dataset("data", (12, 5), "i4", external=parts)


def _virtual(path: Path, missing: bool) -> None:
    layout = h5py.VirtualLayout((10, 6), "f4")
    for number in range(2):
        source = path.with_name(f"{path.stem}-source-{number}.h5")
        if number == 0 or not missing:
            with h5py.File(source, "w") as file:
                file["part"] = values((5, 6), "f4") + number
        layout[5 * number : 5 * number + 5] = h5py.VirtualSource(source, "part", (5, 6))
    with h5py.File(path, "w", libver="latest") as file:
        file.create_virtual_dataset("data", layout, fillvalue=-1)
