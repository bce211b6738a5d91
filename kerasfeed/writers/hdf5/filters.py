"""Compression of a dataset that is to be written.

Invariant: every filter set here is lossless and is there: HDF5 itself, h5py, or a plugin registered in this process.
"""

import contextlib
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import h5py
import numpy as np

_GZIP_LEVEL = 4
# Filters that plugins register, with the options that make them lossless and quick.
_PLUGINS = {"blosc": (32001, (0, 0, 0, 0, 5, 1, 1)), "zstd": (32015, (3,)), "lz4": (32004, ())}


@dataclass(frozen=True)
class Filters:
    """How a new dataset is compressed.

    Attributes:
        gzip: Level of gzip, from 0 to 9; None for none.
        lzf: Whether LZF compresses.
        plugin: Code of a plugin's filter, and its options.
    """

    gzip: int | None = None
    lzf: bool = False
    plugin: tuple[int, tuple[int, ...]] | None = None

    def add_to(self, plist: Any, dtype: np.dtype[Any]) -> None:
        """Set the filters on a dataset creation property list."""
        # Bytes of objects are references to a heap, and blosc shuffles by itself.
        if (self.gzip is not None or self.lzf) and dtype.itemsize > 1 and dtype.kind != "O":
            plist.set_shuffle()
        if self.gzip is not None:
            plist.set_deflate(self.gzip)
        if self.lzf:
            plist.set_filter(h5py.h5z.FILTER_LZF, h5py.h5z.FLAG_OPTIONAL)
        if self.plugin is not None:
            plist.set_filter(self.plugin[0], h5py.h5z.FLAG_OPTIONAL, self.plugin[1])


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
    if isinstance(compression, int | np.integer) and not isinstance(compression, bool) and 0 <= compression <= 9:
        return Filters(gzip=int(compression))
    if compression == "gzip":
        return Filters(gzip=_GZIP_LEVEL)
    if compression == "lzf":
        return Filters(lzf=True)
    if isinstance(compression, str) and compression in plugins:
        return Filters(plugin=_PLUGINS[compression])
    known = ", ".join(["None", "'gzip'", "0 to 9 (gzip of that level)", "'lzf'", *map(repr, plugins)])
    more = " (blosc, zstd and lz4 need `pip install hdf5plugin`)" if len(plugins) < len(_PLUGINS) else ""
    raise ValueError(f"compression must be one of {known}{more}, received {compression!r}")
