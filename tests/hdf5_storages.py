"""The files of the matrix that are about storage, dtypes and names rather than filters.

Invariant: as in `hdf5_files`: a file is a pure function of its case, written with h5py alone.
"""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from hdf5_files import (
    Case,
    _compact,
    _created,
    _early,
    _external,
    _filled,
    _masked,
    _resized,
    _rows,
    _undefined_fill,
    _virtual,
    _whole_edges,
    filtered,
    values,
)

_GZIP = {"chunks": (4, 3), "compression": 4}


def _keyed(path: Path, shape: Any, dtype: Any, libver: str | None = None, userblock: int = 0, **keywords: Any) -> None:
    with h5py.File(path, "w", libver=libver, userblock_size=userblock) as file:
        file.create_dataset("data", data=values(shape, dtype), **keywords)


def _layouts() -> Iterator[Case]:
    rows = values((21, 10), "f4")
    yield Case("contiguous", partial(_keyed, shape=(21, 10), dtype="f4"), "direct")
    yield Case("contiguous-latest", partial(_keyed, shape=(21, 10), dtype="f4", libver="latest"), "direct")
    yield Case("contiguous-one-axis", partial(_keyed, shape=(300,), dtype="i8"), "direct")
    yield Case("contiguous-four-axes", partial(_keyed, shape=(5, 4, 3, 2), dtype="u2"), "direct")
    yield Case("contiguous-large-rows", partial(_keyed, shape=(6, 70, 50), dtype="f8"), "direct")
    yield Case("contiguous-early", lambda path: _created(path, (21, 10), "f4", rows, prepare=_early), "direct")
    yield Case("compact", lambda path: _created(path, (21, 10), "f4", rows, prepare=_compact), "h5py")
    yield Case("compact-latest", lambda path: _created(
        path, (21, 10), "f4", rows, prepare=_compact, libver="latest"), "h5py")  # fmt: skip
    yield Case("unallocated", lambda path: _created(path, (21, 10), "f4"), "direct or h5py")
    yield Case("unallocated-filled", lambda path: _created(
        path, (21, 10), "f4", prepare=partial(_filled, np.float32(2.5))), "direct or h5py")  # fmt: skip
    yield Case("unallocated-undefined-fill", lambda path: _created(
        path, (21, 10), "f4", prepare=_undefined_fill), "h5py", needs=("libhdf5",))  # fmt: skip
    yield Case("implicit-index", lambda path: _created(
        path, (21, 10), "f4", rows, prepare=_early, chunks=(4, 3), libver="latest"), "direct")  # fmt: skip
    yield Case("early-chunks-unwritten", lambda path: _created(
        path, (21, 10), "f4", prepare=_early, chunks=(4, 3)), "direct")  # fmt: skip
    for pieces in (1, 3):
        yield Case(f"external-{pieces}", partial(_external, pieces=pieces), "h5py")
    for missing in (False, True):
        yield Case("virtual-missing" if missing else "virtual", partial(_virtual, missing=missing), "h5py")
    for block, libver in ((512, "earliest"), (1024, "latest"), (4096, "earliest"), (2048, "v110")):
        for name, keywords in {"contiguous": {}, "chunked": {"chunks": (4, 3)}, "gzip": _GZIP}.items():
            make = partial(_keyed, shape=(21, 10), dtype="i4", userblock=block, libver=libver, **keywords)
            yield Case(f"userblock-{block}-{libver}-{name}", make, "direct")
    for shape in ((0,), (0, 3), (3, 0), (4, 0, 2)):
        name = "x".join(map(str, shape))
        yield Case(f"empty-{name}", partial(_keyed, shape=shape, dtype="f4"), "direct or h5py")
        chunks = tuple(max(size, 1) for size in shape)
        growing = partial(_keyed, shape=shape, dtype="f4", chunks=chunks, maxshape=(None,) * len(shape), compression=1)
        yield Case(f"empty-{name}-chunked", growing, "direct or h5py")


def _chunks() -> Iterator[Case]:
    for libver in ("earliest", "v108", "v110", "latest"):
        yield Case(f"libver-{libver}", partial(_keyed, shape=(21, 10), dtype="f4", libver=libver, **_GZIP), "direct")
        missing = partial(
            _created, shape=(40, 6), dtype="i4", chunks=(4, 4), maxshape=(None, 6), libver=libver,
            fill=_rows(np.s_[5:9], np.s_[30:31]),
        )  # fmt: skip
        yield Case(f"missing-chunks-{libver}", missing, "direct")
        filled = partial(missing, prepare=partial(_filled, np.int32(-7)))
        yield Case(f"missing-chunks-filled-{libver}", filled, "direct")
        for sizes in ((23,), (3,), (3, 21), (1, 9, 5, 30)):
            name = "-".join(map(str, sizes))
            for keywords in ({}, {"compression": 4, "fillvalue": 11}):
                make = partial(_resized, sizes=sizes, libver=libver, **keywords)
                yield Case(f"resized-{name}-{libver}-{'gzip' if keywords else 'plain'}", make, "direct")
    yield Case("missing-all", lambda path: _created(path, (21, 10), ">f4", chunks=(4, 3)), "direct")
    yield Case("missing-undefined-fill", lambda path: _created(
        path, (40, 6), "f4", chunks=(4, 4), prepare=_undefined_fill, fill=_rows(np.s_[5:9])
    ), "h5py", needs=("libhdf5",))  # fmt: skip
    for shape, chunks in (
        ((100,), (7,)), ((5, 4, 3), (2, 3, 2)), ((5, 4, 3, 2), (2, 3, 2, 2)), ((9, 9), (1, 9)), ((9, 9), (9, 1)),
        ((6, 5, 2, 2, 3), (1, 5, 2, 1, 3)), ((17,), (1,)),
    ):  # fmt: skip
        name = f"{'x'.join(map(str, shape))}-{'x'.join(map(str, chunks))}"
        for libver in ("earliest", "latest"):
            make = partial(_keyed, shape=shape, dtype="f4", chunks=chunks, libver=libver)
            yield Case(f"chunks-{name}-{libver}", make, "direct")
            make = partial(make, compression=4, shuffle=True)
            yield Case(f"chunks-{name}-{libver}-gzip", make, "direct")
    for libver in ("earliest", "latest"):
        many = partial(_keyed, shape=(1200, 3), dtype="i2", chunks=(1, 3), libver=libver)
        yield Case(f"many-chunks-{libver}", many, "direct")  # deep B-trees, paged fixed arrays (over 1,024 chunks)
        growing = partial(many, maxshape=(None, 3), compression=1)
        yield Case(f"many-chunks-growing-{libver}", growing, "direct")
    larger = partial(_keyed, shape=(5, 4), dtype="f4", chunks=(16, 8), maxshape=(None, None))
    yield Case("chunk-larger-than-data", larger, "direct")
    yield Case("chunk-larger-than-data-gzip", partial(larger, compression=4), "direct")
    for masks in ((0,), (1,), (2,), (3,), (0, 1, 2, 3)):
        for libver in ("earliest", "latest"):
            name = f"masks-{'-'.join(map(str, masks))}-{libver}"
            yield Case(name, partial(_masked, masks=masks, libver=libver), "direct")
    for shape, level in (((21, 10), 4), ((20, 10), 1), ((21, 9), 0), ((20, 9), 4)):
        rows = values(shape, "f4")
        make = partial(
            _created, shape=shape, dtype="f4", data=rows, chunks=(4, 3), libver="latest", maxshape=shape,
            prepare=partial(_whole_edges, level),
        )  # fmt: skip
        reader = "h5py" if shape[0] % 4 or shape[1] % 3 else "direct"
        yield Case(f"unfiltered-edges-{shape[0]}x{shape[1]}-{level}", make, reader, needs=("libhdf5",))


def _dtypes() -> dict[str, tuple[Any, str]]:
    """NumPy dtypes h5py stores, with the reader due to them."""
    found: dict[str, tuple[Any, str]] = {}
    for code in ("i1", "u1", "<i2", ">i2", "<u2", ">u2", "<i4", ">i4", "<u4", ">u4", "<i8", ">i8", "<u8", ">u8",
                 "<f2", ">f2", "<f4", ">f4", "<f8", ">f8", "?", "<c8", ">c8", "<c16", ">c16"):  # fmt: skip
        found[code.replace("<", "little-").replace(">", "big-").replace("?", "bool")] = (np.dtype(code), "direct")
    packed = np.dtype([("a", "<i2"), ("b", ">f8"), ("flag", "?"), ("z", "<c8")])
    return found | {
        "long-double": (np.dtype("g"), "direct or h5py"),
        "bytes": (np.dtype("S7"), "direct"),
        "utf8-fixed": (h5py.string_dtype("utf-8", 9), "direct or h5py"),
        "utf8-vlen": (h5py.string_dtype(), "h5py"),
        "ascii-vlen": (h5py.string_dtype("ascii"), "h5py"),
        "ragged": (h5py.vlen_dtype("<i4"), "h5py"),
        "ragged-big": (h5py.vlen_dtype(">f4"), "h5py"),
        "enum": (h5py.enum_dtype({"RED": 0, "GREEN": 1, "BLUE": 42}, "i1"), "h5py"),
        "enum-big": (h5py.enum_dtype({"LOW": 1, "HIGH": 700}, ">i4"), "h5py"),
        "opaque": (np.dtype("V5"), "direct or h5py"),
        "datetime": (h5py.opaque_dtype(np.dtype("<M8[us]")), "direct or h5py"),
        "compound": (packed, "direct"),
        "compound-padded": (np.dtype([("a", "i1"), ("b", "f8"), ("c", "i2")], align=True), "direct or h5py"),
        "compound-out-of-order": (
            np.dtype({"names": ["b", "a"], "formats": ["<i4", "<f8"], "offsets": [8, 0], "itemsize": 16}),
            "direct or h5py",
        ),
        "compound-nested": (np.dtype([("in", packed), ("xyz", "<f4", (3,))]), "direct or h5py"),
        "compound-bytes": (np.dtype([("name", "S5"), ("n", "<u4")]), "direct"),
        "compound-text": (np.dtype([("name", h5py.string_dtype()), ("n", "<u4")]), "h5py"),
        "compound-ragged": (np.dtype([("parts", h5py.vlen_dtype("i2")), ("n", "<u4")]), "h5py"),
        "array": (np.dtype(("<f4", (2, 3))), "direct or h5py"),
        "reference": (h5py.ref_dtype, "h5py"),
        "region-reference": (h5py.regionref_dtype, "h5py"),
    }  # fmt: skip


def _of_dtype(dtype: np.dtype[Any], name: str, count: int, file: Any) -> Any:
    """`count` values of any dtype."""
    kind = h5py.check_string_dtype(dtype)
    if dtype.names is not None:
        rows = np.zeros(count, dtype)
        for field in dtype.names:
            rows[field] = _of_dtype(dtype.fields[field][0], name, count, file)
        return rows
    if kind is not None and kind.length is None:
        word = "w\u00f6rt " if kind.encoding == "utf-8" else "word "
        return np.array([word * (number % 4) + str(number) for number in range(count)], object)
    if kind is not None:
        return np.array([f"n{number}".encode() for number in range(count)], dtype)
    if (base := h5py.check_vlen_dtype(dtype)) is not None:
        rows = np.empty(count, object)
        rows[:] = [values((number % 4,), base) for number in range(count)]
        return rows
    if choices := h5py.check_enum_dtype(dtype):
        return np.resize(list(choices.values()), count).astype(dtype)
    if h5py.check_ref_dtype(dtype) is h5py.Reference:
        return np.array([file.ref if number % 2 else h5py.Reference() for number in range(count)], dtype)
    if h5py.check_ref_dtype(dtype) is h5py.RegionReference:
        target = file.require_dataset("target", (4,), "i4")
        return np.array([target.regionref[number % 3 :] for number in range(count)], dtype)
    if dtype.subdtype is not None:
        return values((count, *dtype.shape), dtype.base)
    if dtype.kind in "VM":
        return np.frombuffer(values((count * dtype.itemsize,), "u1").tobytes(), dtype)
    return values((count,), dtype)


def _typed(path: Path, name: str, chunks: tuple[int, ...] | None, compression: int | None) -> None:
    dtype = _dtypes()[name][0]
    with h5py.File(path, "w") as file:
        data = _of_dtype(dtype, name, 11, file)
        dataset = file.create_dataset("data", (11,), dtype, chunks=chunks, compression=compression)
        dataset[...] = data
        file.create_dataset("scalar", (), dtype)[()] = data[3]


def _typed_cases() -> Iterator[Case]:
    for name, (_, reader) in _dtypes().items():
        yield Case(f"dtype-{name}", partial(_typed, name=name, chunks=None, compression=None), reader)
        yield Case(f"dtype-{name}-gzip", partial(_typed, name=name, chunks=(4,), compression=4), reader)
        scalar = "h5py" if reader == "h5py" else "direct or h5py"
        yield Case(
            f"dtype-{name}-scalar", partial(_typed, name=name, chunks=(4,), compression=None), scalar, ("scalar",)
        )
    yield Case("null", _null, "h5py")
    for name, make_type, data in (
        ("bitfield", h5py.h5t.STD_B16LE.copy, "u2"), ("bitfield-big", h5py.h5t.STD_B32BE.copy, ">u4"),
        ("twelve-bits", _twelve_bits, "i2"), ("named-type", h5py.h5t.STD_I32BE.copy, ">i4"),
        ("null-terminated", partial(_padded, h5py.h5t.STR_NULLTERM), "S6"),
        ("space-padded", partial(_padded, h5py.h5t.STR_SPACEPAD), "S6"),
    ):  # fmt: skip
        rows = _of_dtype(np.dtype(data), name, 13, None)
        reader = "direct" if name == "named-type" else "h5py"
        for chunks in (None, (4,)):
            make = partial(_native, make_type=make_type, data=rows, chunks=chunks)
            yield Case(f"type-{name}{'-chunked' if chunks else ''}", make, reader)


def _native(path: Path, make_type: Any, data: Any, chunks: Any) -> None:
    _created(path, data.shape, data.dtype, data, type=make_type(), chunks=chunks)


def _twelve_bits() -> Any:
    found = h5py.h5t.STD_I16LE.copy()
    found.set_precision(12)
    return found


def _padded(padding: int) -> Any:
    found = h5py.h5t.C_S1.copy()
    found.set_size(6)
    found.set_strpad(padding)
    return found


def _null(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["data"] = h5py.Empty("f4")


def _linked(path: Path) -> None:
    with h5py.File(path.with_name(f"{path.stem}-other.h5"), "w") as other:
        other.create_dataset("there", data=values((9, 4), "f4"), **_GZIP)
    with h5py.File(path, "w", track_order=True) as file:
        data = file.create_dataset("data", data=values((21, 10), "f4"), **_GZIP)
        file["deep/deeper/d\u00e9pth \u6df1\u5ea6"] = values((5, 4), "i2")
        file["hard"] = data
        file["soft"] = h5py.SoftLink("/deep/deeper/d\u00e9pth \u6df1\u5ea6")
        file["elsewhere"] = h5py.ExternalLink(f"{path.stem}-other.h5", "/there")
        file["dangling"] = h5py.SoftLink("/nowhere")
        file["deep/scale"] = np.arange(21.0)
        file["deep/scale"].make_scale("row")
        data.dims[0].attach_scale(file["deep/scale"])
        data.attrs["unit"] = "m\u00e8tre"


def _unwritable(path: Path) -> None:
    _keyed(path, (21, 10), "f4", **_GZIP)
    path.chmod(0o444)


def _renamed(path: Path) -> None:
    real = path.with_name(f"{path.stem}-real.h5")
    _keyed(real, (21, 10), "f4", **_GZIP)
    os.link(real, path.with_name(f"{path.stem}-hard.h5"))
    path.symlink_to(real.name)


def _spaced(path: Path, strategy: str) -> None:
    with h5py.File(path, "w", libver="latest", fs_strategy=strategy, fs_persist=True, fs_page_size=4096) as file:
        file.create_dataset("data", data=values((21, 10), "f4"), **_GZIP)
        file.create_dataset("gone", data=values((210, 10), "f4"))
        del file["gone"]
        file.create_dataset("raw", data=values((21, 10), "f4"))


def _named() -> Iterator[Case]:
    names = ("data", "deep/deeper/d\u00e9pth \u6df1\u5ea6", "hard", "soft", "deep/scale")
    yield Case("links", _linked, "direct", names)
    yield Case("external-link", _linked, "direct or h5py", ("elsewhere",))
    yield Case("read-only", _unwritable, "direct")
    yield Case("symlink", _renamed, "direct")
    for strategy in ("page", "fsm", "aggregate", "none"):
        if strategy not in ("aggregate", "none"):
            yield Case(f"space-{strategy}", partial(_spaced, strategy=strategy), "direct", ("data", "raw"))


def cases() -> tuple[Case, ...]:
    """Every file of the matrix."""
    return (*filtered(), *_layouts(), *_chunks(), *_typed_cases(), *_named())
