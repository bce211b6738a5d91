"""The files of the matrix for storage and names.

Invariant: as in `hdf5_files`: a file is a pure function of its case, written only with h5py.
"""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from hdf5_dtypes import typed
from hdf5_files import (
    PIPELINES,
    Case,
    compact,
    created,
    early,
    external,
    filled,
    filtered,
    masked,
    resized,
    some_rows,
    undefined_fill,
    values,
    virtual,
    whole_edges,
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
    yield Case("contiguous-early", lambda path: created(path, (21, 10), "f4", rows, prepare=early), "direct")
    yield Case("compact", lambda path: created(path, (21, 10), "f4", rows, prepare=compact), "h5py")
    yield Case("compact-latest", lambda path: created(
        path, (21, 10), "f4", rows, prepare=compact, libver="latest"), "h5py")  # fmt: skip
    yield Case("unallocated", lambda path: created(path, (21, 10), "f4"), "h5py")
    yield Case("unallocated-filled", lambda path: created(
        path, (21, 10), "f4", prepare=partial(filled, np.float32(2.5))), "h5py")  # fmt: skip
    yield Case("unallocated-undefined-fill", lambda path: created(
        path, (21, 10), "f4", prepare=undefined_fill), "h5py", needs=("libhdf5",))  # fmt: skip
    yield Case("implicit-index", lambda path: created(
        path, (21, 10), "f4", rows, prepare=early, chunks=(4, 3), libver="latest"), "direct")  # fmt: skip
    yield Case("early-chunks-unwritten", lambda path: created(
        path, (21, 10), "f4", prepare=early, chunks=(4, 3)), "direct")  # fmt: skip
    for pieces in (1, 3):
        yield Case(f"external-{pieces}", partial(external, pieces=pieces), "h5py")
    yield Case("virtual", virtual, "h5py")
    for block, libver in ((512, "earliest"), (1024, "latest"), (4096, "earliest"), (2048, "v110")):
        for name, keywords in {"contiguous": {}, "chunked": {"chunks": (4, 3)}, "gzip": _GZIP}.items():
            make = partial(_keyed, shape=(21, 10), dtype="i4", userblock=block, libver=libver, **keywords)
            yield Case(f"userblock-{block}-{libver}-{name}", make, "direct")
    for shape in ((0,), (0, 3), (3, 0), (4, 0, 2)):
        name = "x".join(map(str, shape))
        yield Case(f"empty-{name}", partial(_keyed, shape=shape, dtype="f4"), "h5py")
        chunks = tuple(max(size, 1) for size in shape)
        growing = partial(_keyed, shape=shape, dtype="f4", chunks=chunks, maxshape=(None,) * len(shape), compression=1)
        yield Case(f"empty-{name}-chunked", growing, "direct")


def _chunks() -> Iterator[Case]:
    for libver in ("earliest", "v108", "v110", "latest"):
        yield Case(f"libver-{libver}", partial(_keyed, shape=(21, 10), dtype="f4", libver=libver, **_GZIP), "direct")
        missing = partial(
            created, shape=(40, 6), dtype="i4", chunks=(4, 4), maxshape=(None, 6), libver=libver,
            fill=some_rows(np.s_[5:9], np.s_[30:31]),
        )  # fmt: skip
        yield Case(f"missing-chunks-{libver}", missing, "direct")
        with_fill = partial(missing, prepare=partial(filled, np.int32(-7)))
        yield Case(f"missing-chunks-filled-{libver}", with_fill, "direct")
        for sizes in ((23,), (3,), (3, 21), (1, 9, 5, 30)):
            name = "-".join(map(str, sizes))
            for keywords in ({}, {"compression": 4, "fillvalue": 11}):
                make = partial(resized, sizes=sizes, libver=libver, **keywords)
                yield Case(f"resized-{name}-{libver}-{'gzip' if keywords else 'plain'}", make, "direct")
    yield Case("missing-all", lambda path: created(path, (21, 10), ">f4", chunks=(4, 3)), "direct")
    yield Case("missing-undefined-fill", lambda path: created(
        path, (40, 6), "f4", chunks=(4, 4), prepare=undefined_fill, fill=some_rows(np.s_[5:9])
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
            yield Case(name, partial(masked, masks=masks, libver=libver), "direct")
    for shape, level in (((21, 10), 4), ((20, 10), 1), ((21, 9), 0), ((20, 9), 4)):
        rows = values(shape, "f4")
        make = partial(
            created, shape=shape, dtype="f4", data=rows, chunks=(4, 3), libver="latest", maxshape=shape,
            prepare=partial(whole_edges, level),
        )  # fmt: skip
        reader = "h5py" if shape[0] % 4 or shape[1] % 3 else "direct"
        yield Case(f"unfiltered-edges-{shape[0]}x{shape[1]}-{level}", make, reader, needs=("libhdf5",))


def _filters(path: Path, *names: str) -> None:
    """Filters in an order that h5py's keywords do not support."""

    def prepare(plist: Any) -> None:
        for name in names:
            plist.set_deflate(4) if name == "gzip" else getattr(plist, f"set_{name}")()

    created(path, (21, 10), "f8", values((21, 10), "f8"), chunks=(4, 3), prepare=prepare)


def _noise(path: Path, pipeline: str) -> None:
    """Incompressible values: writers then skip the filter, chunk by chunk, and set its mask."""
    filters = PIPELINES[pipeline]
    noise = np.random.default_rng(0).integers(0, 256, (21, 10 * 8), "u1").view("f8")
    noise[5:9] = 1.5
    with h5py.File(path, "w") as file:
        file.create_dataset("data", data=noise, chunks=(4, 3), **filters.arguments())


def _odd_filters() -> Iterator[Case]:
    for names, reader in (
        (("gzip", "shuffle"), "direct"), (("gzip", "gzip"), "direct"),
        (("shuffle", "gzip", "shuffle"), "h5py"), (("fletcher32", "gzip"), "direct with imagecodecs"),
        (("shuffle", "fletcher32", "gzip"), "direct with imagecodecs"), (("shuffle", "shuffle"), "h5py"),
    ):  # fmt: skip
        yield Case("-then-".join(names), lambda path, names=names: _filters(path, *names), reader)
    for pipeline in ("gzip4", "shuffle-gzip4", "lzf", "blosc-lz4-shuffle", "zstd", "bitshuffle-lz4", "fletcher32"):
        filters = PIPELINES[pipeline]
        yield Case(f"noise-{pipeline}", partial(_noise, pipeline=pipeline), filters.reader, needs=filters.needs)


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
    yield Case("external-link", _linked, "h5py", ("elsewhere",))
    yield Case("read-only", _unwritable, "direct")
    yield Case("symlink", _renamed, "direct")
    for strategy in ("page", "fsm", "aggregate", "none"):
        if strategy not in ("aggregate", "none"):
            yield Case(f"space-{strategy}", partial(_spaced, strategy=strategy), "direct", ("data", "raw"))


def cases() -> tuple[Case, ...]:
    """Every file of the matrix."""
    return (*filtered(), *_layouts(), *_chunks(), *_odd_filters(), *typed(), *_named())
