"""Compression of a dataset that is to be written.

Invariant: every filter set here is lossless and is there: HDF5 itself, h5py, or a plugin registered in this process.
"""

import contextlib
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import h5py
import numpy as np

CHUNK_LIMIT = (1 << 32) - 1  # bytes; HDF5's own
LEAST_CHUNK_BYTES = 1 << 14  # of those nobody asked for: 100,000 of 8 bytes take 5 MB, and are read 300 times as slowly
_GZIP_LEVEL = 4
# Filters that plugins register, with the options that make them lossless and quick.
_PLUGINS = {"blosc": (32001, (0, 0, 0, 0, 5, 1, 1)), "zstd": (32015, (3,)), "lz4": (32004, ())}


@dataclass(frozen=True)
class Filters:
    """How a new dataset is compressed.

    Attributes:
        code: HDF5's number of the filter that compresses; None for none.
        options: What it takes.
        shuffles: Whether bytes are shuffled before.
    """

    code: int | None = None
    options: tuple[int, ...] = ()
    shuffles: bool = True

    def add_to(self, plist: Any, dtype: np.dtype[Any]) -> None:
        """Set the filters on a dataset creation property list."""
        if self.code is None:
            return
        if self.shuffles and dtype.itemsize > 1 and dtype.kind != "O":  # bytes of objects are references to a heap
            plist.set_shuffle()
        plist.set_filter(self.code, h5py.h5z.FLAG_OPTIONAL, self.options)


def filters_for(compression: Any) -> Filters:
    """The filters that a user's `compression` asks for; see `rechunk`.

    Raises:
        ValueError: It is unknown here; the message lists what is known.
    """
    if isinstance(compression, str) and compression in _PLUGINS:
        with contextlib.suppress(ImportError):
            import_module("hdf5plugin")  # registers its filters
    plugins = [name for name, (code, _) in _PLUGINS.items() if h5py.h5z.filter_avail(code)]
    if compression is None:
        return Filters()
    level = _GZIP_LEVEL if isinstance(compression, str) and compression == "gzip" else compression
    if isinstance(level, int | np.integer) and not isinstance(level, bool) and 0 <= level <= 9:
        return Filters(h5py.h5z.FILTER_DEFLATE, (int(level),))
    if compression == "lzf":
        return Filters(h5py.h5z.FILTER_LZF)
    if isinstance(compression, str) and compression in plugins:
        return Filters(*_PLUGINS[compression], shuffles=False)  # blosc shuffles by itself
    known = ", ".join(["None", "'gzip'", "0 to 9 (gzip of that level)", "'lzf'", *map(repr, plugins)])
    more = " (blosc, zstd and lz4 need `pip install hdf5plugin`)" if len(plugins) < len(_PLUGINS) else ""
    raise ValueError(f"compression must be one of {known}{more}, received {compression!r}")
