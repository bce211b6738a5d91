"""The files of the matrix for dtypes: every dtype that h5py stores, in several storages.

Invariant: as in `hdf5_files`: a file is a pure function of its case, written only with h5py.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from hdf5_files import Case, created, values


def _dtypes() -> dict[str, tuple[Any, str]]:
    """NumPy dtypes that h5py stores, with their expected readers."""
    found: dict[str, tuple[Any, str]] = {}
    for code in ("i1", "u1", "<i2", ">i2", "<u2", ">u2", "<i4", ">i4", "<u4", ">u4", "<i8", ">i8", "<u8", ">u8",
                 "<f2", ">f2", "<f4", ">f4", "<f8", ">f8", "?", "<c8", ">c8", "<c16", ">c16"):  # fmt: skip
        found[code.replace("<", "little-").replace(">", "big-").replace("?", "bool")] = (np.dtype(code), "direct")
    packed = np.dtype([("a", "<i2"), ("b", ">f8"), ("flag", "?"), ("z", "<c8")])
    return found | {
        "long-double": (np.dtype("g"), "h5py"),
        "bytes": (np.dtype("S7"), "direct"),
        "utf8-fixed": (h5py.string_dtype("utf-8", 9), "direct"),
        "utf8-vlen": (h5py.string_dtype(), "h5py"),
        "ascii-vlen": (h5py.string_dtype("ascii"), "h5py"),
        "ragged": (h5py.vlen_dtype("<i4"), "h5py"),
        "ragged-big": (h5py.vlen_dtype(">f4"), "h5py"),
        "enum": (h5py.enum_dtype({"RED": 0, "GREEN": 1, "BLUE": 42}, "i1"), "h5py"),
        "enum-big": (h5py.enum_dtype({"LOW": 1, "HIGH": 700}, ">i4"), "h5py"),
        "opaque": (np.dtype("V5"), "direct"),
        "datetime": (h5py.opaque_dtype(np.dtype("<M8[us]")), "direct"),
        "compound": (packed, "direct"),
        "compound-padded": (np.dtype([("a", "i1"), ("b", "f8"), ("c", "i2")], align=True), "h5py"),
        "compound-out-of-order": (
            np.dtype({"names": ["b", "a"], "formats": ["<i4", "<f8"], "offsets": [8, 0], "itemsize": 16}),
            "h5py",
        ),
        "compound-nested": (np.dtype([("in", packed), ("xyz", "<f4", (3,))]), "direct"),
        "compound-bytes": (np.dtype([("name", "S5"), ("n", "<u4")]), "direct"),
        "compound-text": (np.dtype([("name", h5py.string_dtype()), ("n", "<u4")]), "h5py"),
        "compound-ragged": (np.dtype([("parts", h5py.vlen_dtype("i2")), ("n", "<u4")]), "h5py"),
        "array": (np.dtype(("<f4", (2, 3))), "h5py"),
        "reference": (h5py.ref_dtype, "h5py"),
        "region-reference": (h5py.regionref_dtype, "h5py"),
    }  # fmt: skip


def _of_dtype(dtype: np.dtype[Any], count: int, file: Any) -> Any:
    """`count` values of any dtype."""
    kind = h5py.check_string_dtype(dtype)
    if dtype.names is not None:
        rows = np.zeros(count, dtype)
        for field in dtype.names:
            rows[field] = _of_dtype(dtype.fields[field][0], count, file)
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
        data = _of_dtype(dtype, 11, file)
        # Shuffled too, because shuffling depends on the size of an element, odd or large.
        shuffle = compression is not None
        dataset = file.create_dataset("data", (11,), dtype, chunks=chunks, compression=compression, shuffle=shuffle)
        dataset[...] = data
        file.create_dataset("scalar", (), dtype)[()] = data[3]


def typed() -> Iterator[Case]:
    for name, (_, reader) in _dtypes().items():
        yield Case(f"dtype-{name}", partial(_typed, name=name, chunks=None, compression=None), reader)
        yield Case(f"dtype-{name}-gzip", partial(_typed, name=name, chunks=(4,), compression=4), reader)
        yield Case(
            f"dtype-{name}-scalar", partial(_typed, name=name, chunks=(4,), compression=None), "h5py", ("scalar",)
        )
    for name, (dtype, reader) in _dtypes().items():
        if reader == "direct":
            make = partial(
                created, shape=(30,), dtype=dtype, chunks=(4,), prepare=partial(_filled_and_packed, name),
                fill=_some_rows,
            )  # fmt: skip
            yield Case(f"missing-filled-{name}", make, reader)
    yield Case("null", _null, "h5py")
    for name, make_type, data in (
        ("bitfield", h5py.h5t.STD_B16LE.copy, "u2"), ("bitfield-big", h5py.h5t.STD_B32BE.copy, ">u4"),
        ("twelve-bits", _twelve_bits, "i2"), ("named-type", h5py.h5t.STD_I32BE.copy, ">i4"),
        ("null-terminated", partial(_padded, h5py.h5t.STR_NULLTERM), "S6"),
        ("space-padded", partial(_padded, h5py.h5t.STR_SPACEPAD), "S6"),
    ):  # fmt: skip
        rows = _of_dtype(np.dtype(data), 13, None)
        reader = "direct" if name == "named-type" else "h5py"
        for chunks in (None, (4,)):
            make = partial(_native, make_type=make_type, data=rows, chunks=chunks)
            yield Case(f"type-{name}{'-chunked' if chunks else ''}", make, reader)


def _native(path: Path, make_type: Any, data: Any, chunks: Any) -> None:
    created(path, data.shape, data.dtype, data, type=make_type(), chunks=chunks)


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


def _filled_and_packed(name: str, plist: Any) -> None:
    plist.set_fill_value(_of_dtype(_dtypes()[name][0], 3, None)[2:].reshape(()))
    plist.set_deflate(1)


def _some_rows(dataset: Any) -> None:
    dataset[9:14] = _of_dtype(dataset.dtype, 5, None)
