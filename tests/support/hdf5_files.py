"""Small HDF5 files of every storage and filter, each with its expected reader.

Invariant: a file is a pure function of its case (values follow from its shape and dtype), and is written only with
h5py. This module does not import kerasfeed, so a defect of the reader cannot hide in the files that test it.
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

try:
    import hdf5plugin
except ImportError:
    hdf5plugin = None


@dataclass(frozen=True)
class Case:
    """One file of the matrix.

    Attributes:
        name: A name for test ids.
        make: Writes the file; may write others next to it, whose names begin with its stem.
        reader: Expected kind of reader of `datasets`: "direct", "h5py", or "direct with <module>" if an optional codec
            decides.
        datasets: Paths of the datasets to compare.
        needs: Modules that writing the file needs; also "szip", for HDF5's encoder, and "libhdf5", for calls that
            h5py does not wrap.
    """

    name: str
    make: Callable[[Path], None] = field(repr=False)
    reader: str
    datasets: tuple[str, ...] = ("data",)
    needs: tuple[str, ...] = ()


def lacking(needs: tuple[str, ...]) -> str | None:
    """Why a file with these needs cannot be written here; None if it can."""
    for need in needs:
        if need == "libhdf5" and library() is None:
            return "the libhdf5 that h5py uses cannot be reached through ctypes"
        if need == "szip" and "szip" not in h5py.filters.encode:
            return "this HDF5 has no encoder for szip"
        if need not in ("libhdf5", "szip") and importlib.util.find_spec(need) is None:
            return f"{need} is not installed: pip install {need}"
    return None


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


def write_values(path: Path, shape: tuple[int, ...], dtype: Any, **keywords: Any) -> np.ndarray:
    """Write the dataset "data" of `values` and return them; `keywords` are passed to `create_dataset`."""
    whole = values(shape, dtype)
    with h5py.File(path, "w") as file:
        file.create_dataset("data", data=whole, **keywords)
    return whole


@cache
def library() -> Any:
    """The libhdf5 of h5py, for calls that h5py does not wrap; None if it is not found."""
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


@dataclass(frozen=True)
class Pipeline:
    """Filters of a dataset.

    Attributes:
        keywords: Keywords of `create_dataset`.
        dtype: A dtype that the filters support.
        reader: As in `Case`; "direct (edges h5py)" if edge chunks cannot be distinguished from chunks that HDF5 left
            unfiltered: only their size would show it, and these filters keep it.
        plugin: Name of a class of hdf5plugin, and its keywords, if the compression is one of its filters.
        needs: As in `Case`.
    """

    keywords: dict[str, Any]
    dtype: str
    reader: str
    plugin: tuple[str, dict[str, Any]] | None = None
    needs: tuple[str, ...] = ()

    def arguments(self) -> dict[str, Any]:
        """All keywords of `create_dataset`."""
        if self.plugin is None:
            return self.keywords
        name, options = self.plugin
        return {**self.keywords, **getattr(hdf5plugin, name)(**options)}


def _plugin(name: str, dtype: str, reader: str, filters: dict[str, Any] | None = None, **options: Any) -> Pipeline:
    return Pipeline(filters or {}, dtype, reader, (name, options), ("hdf5plugin",))


PIPELINES: dict[str, Pipeline] = {
    "none": Pipeline({}, "f4", "direct"),
    "gzip1": Pipeline({"compression": 1}, "f4", "direct"),
    "gzip4": Pipeline({"compression": 4}, ">f8", "direct"),
    "gzip9": Pipeline({"compression": 9}, "i2", "direct"),
    "shuffle": Pipeline({"shuffle": True}, "f4", "direct (edges h5py)"),
    "shuffle-gzip4": Pipeline({"shuffle": True, "compression": 4}, "f4", "direct"),
    "shuffle-gzip9-u1": Pipeline({"shuffle": True, "compression": 9}, "u1", "direct"),
    "lzf": Pipeline({"compression": "lzf"}, "f4", "direct with imagecodecs"),
    "shuffle-lzf": Pipeline({"compression": "lzf", "shuffle": True}, "i8", "direct with imagecodecs"),
    "fletcher32": Pipeline({"fletcher32": True}, "f4", "direct with imagecodecs"),
    "shuffle-gzip-fletcher32": Pipeline(
        {"fletcher32": True, "shuffle": True, "compression": 4}, "i4", "direct with imagecodecs"
    ),
    "scaleoffset": Pipeline({"scaleoffset": 0}, "i4", "h5py"),
    "scaleoffset-float": Pipeline({"scaleoffset": 2}, "f4", "h5py"),
    "scaleoffset-gzip": Pipeline({"scaleoffset": 0, "compression": 4}, "i4", "h5py"),
    "szip": Pipeline({"compression": "szip"}, "f4", "h5py", needs=("szip",)),
    "blosc-lz4-shuffle": _plugin("Blosc", "f4", "direct with imagecodecs", cname="lz4"),
    "blosc-zstd-bitshuffle": _plugin("Blosc", "f8", "direct with imagecodecs", cname="zstd", shuffle=2),
    "blosc-zlib": _plugin("Blosc", "i4", "direct with imagecodecs", cname="zlib", shuffle=0),
    "zstd": _plugin("Zstd", "f4", "direct with imagecodecs"),
    "shuffle-zstd": _plugin("Zstd", "f4", "direct with imagecodecs", filters={"shuffle": True}, clevel=9),
    "bitshuffle-lz4": _plugin("Bitshuffle", "f4", "direct with imagecodecs", cname="lz4"),
    "bitshuffle-none": _plugin("Bitshuffle", "i2", "direct (edges h5py) with imagecodecs", cname="none"),
    "bitshuffle-zstd": _plugin("Bitshuffle", "i4", "h5py", cname="zstd"),
    "lz4": _plugin("LZ4", "f4", "h5py"),
    "blosc2": _plugin("Blosc2", "f4", "h5py"),
    "bzip2": _plugin("BZip2", "f4", "h5py"),
}

# For each, HDF5 chooses another chunk index: libver, chunks and maxshape for a dataset of (21, 10).
INDEXES: dict[str, tuple[str, tuple[int, int], tuple[int | None, int | None] | None]] = {
    "btree1": ("earliest", (8, 4), (None, 30)),
    "single": ("latest", (21, 10), None),
    "fixed": ("latest", (8, 4), None),
    "extensible": ("latest", (8, 4), (None, 10)),
    "btree2": ("latest", (8, 4), (None, None)),
}
SHAPE = (21, 10)  # neither axis is a multiple of its chunks: edge chunks on both


def _filtered(pipeline: str, index: str, path: Path) -> None:
    filters = PIPELINES[pipeline]
    libver, chunks, maxshape = INDEXES[index]
    data = values(SHAPE, filters.dtype)
    with h5py.File(path, "w", libver=libver) as file:
        file.create_dataset("data", data=data, chunks=chunks, maxshape=maxshape, **filters.arguments())


def filtered() -> Iterator[Case]:
    for pipeline, index in product(PIPELINES, INDEXES):
        filters = PIPELINES[pipeline]
        make = partial(_filtered, pipeline, index)
        kind = "direct" if index == "single" else "h5py"
        reader = filters.reader.replace("direct (edges h5py)", kind)
        yield Case(f"{pipeline}-{index}", make, reader, needs=filters.needs)


def created(path: Path, shape: tuple[int, ...], dtype: Any, data: Any = None, **options: Any) -> None:
    """Write one dataset "data" through the low-level interface, for properties without keywords in h5py.

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


def early(plist: Any) -> None:
    plist.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)


def compact(plist: Any) -> None:
    plist.set_layout(h5py.h5d.COMPACT)


def filled(value: Any, plist: Any) -> None:
    plist.set_fill_value(np.array(value))


def undefined_fill(plist: Any) -> None:
    call("H5Pset_fill_value", plist.id, ctypes.c_int64(h5py.h5t.NATIVE_FLOAT.id), None)
    plist.set_fill_time(h5py.h5d.FILL_TIME_NEVER)


def whole_edges(level: int, plist: Any) -> None:
    """Leave edge chunks unfiltered (H5D_CHUNK_DONT_FILTER_PARTIAL_CHUNKS)."""
    plist.set_shuffle()
    plist.set_deflate(level)
    call("H5Pset_chunk_opts", plist.id, ctypes.c_uint(2))


def some_rows(*where: slice) -> Callable[[Any], None]:
    """Write only these rows; the chunks of the others stay missing."""

    def fill(dataset: Any) -> None:
        data = values(dataset.shape, dataset.dtype)
        for rows in where:
            dataset[rows] = data[rows]

    return fill


def masked(path: Path, masks: tuple[int, ...], libver: str) -> None:
    """Write chunks whose filter masks say which filters were skipped, as some writers do."""
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


def resized(path: Path, sizes: tuple[int, ...], libver: str, **keywords: Any) -> None:
    """Write rows, then give the dataset each size in turn; rows that come back are fill values."""
    with h5py.File(path, "w", libver=libver) as file:
        dataset = file.create_dataset("data", (10, 7), "i4", maxshape=(None, 7), chunks=(8, 4), **keywords)
        dataset[...] = values((10, 7), "i4")
        for size in sizes:
            dataset.resize(size, axis=0)
        dataset[-1:] = 99


def external(path: Path, pieces: int) -> None:
    data = values((12, 5), "i4")
    size = data.nbytes // pieces
    parts = []
    for number in range(pieces):
        part = path.with_name(f"{path.stem}-{number}.raw")
        part.write_bytes(bytes(16) + data.tobytes()[number * size : (number + 1) * size])
        parts.append((part, 16, size))
    with h5py.File(path, "w") as file:
        file.create_dataset("data", (12, 5), "i4", external=parts)


def virtual(path: Path) -> None:
    layout = h5py.VirtualLayout((10, 6), "f4")
    for number in range(2):
        source = path.with_name(f"{path.stem}-source-{number}.h5")
        with h5py.File(source, "w") as file:
            file["part"] = values((5, 6), "f4") + number
        layout[5 * number : 5 * number + 5] = h5py.VirtualSource(source, "part", (5, 6))
    with h5py.File(path, "w", libver="latest") as file:
        file.create_virtual_dataset("data", layout, fillvalue=-1)
