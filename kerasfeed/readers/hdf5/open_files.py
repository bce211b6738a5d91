"""The files that this process has open.

Invariant: one handle per file, driver and process, whatever the names and number of HDF5Files. A handle closes when its
last user drops it. (HDF5 1.14.6 and 2.0.0 end the process if one of several handles of a file is closed and text in
structures is read through another, even in one thread: h5py issue 2920.) If many files are open, those used longest ago
are closed, so that the process keeps descriptors for other code; the next read opens them again. After a fork, the
child ignores its parent's handles. Files without their own cache limit share one cache.
"""

import math
import os
import threading
import weakref
from typing import Any, NamedTuple

import h5py
import numpy as np

from kerasfeed.readers import read_cost
from kerasfeed.readers.file_bytes import ByteSource, OpenFile
from kerasfeed.readers.hdf5.chunked import ChunkCache, ChunkedReader
from kerasfeed.readers.hdf5.codecs import Declined
from kerasfeed.readers.hdf5.contiguous import ContiguousReader
from kerasfeed.readers.hdf5.error_messages import HDF5_ERRORS, shown_name, stored_name, unfollowed
from kerasfeed.readers.hdf5.inspection import HDF5_LOCK, examine, refusal
from kerasfeed.readers.hdf5.stats import Counters
from kerasfeed.readers.hdf5.storage import Contiguous, ReaderChoice
from kerasfeed.readers.opened_files import Identity
from kerasfeed.readers.remote import Blocks, FileObject, UrlFile, is_url
from kerasfeed.util.error_text import message_of
from kerasfeed.util.resources import cache_bytes, descriptors

Reader = ChunkedReader | ContiguousReader
_EXAMINED_AT_ONCE = 32  # datasets of a file, 0.5 ms each; further small ones are examined at their second read
_SMALL = 1 << 20  # bytes
_LEAST_CHUNK = 1 << 14  # bytes; h5py reads smaller chunks faster than the cache can take them one by one
_DIRECT = ReaderChoice("direct")
_URL_BLOCKS = 1 << 20, 8  # bytes per block, and number of blocks kept, for HDF5's own reads of a URL


class OpenOptions(NamedTuple):
    """The way to open a file.

    Attributes:
        swmr: Whether to open it in the mode "single writer, multiple readers".
        driver: h5py's name of the driver; None for the default.
        options: Options of the driver: pairs of name and value.
    """

    swmr: bool = False
    driver: str | None = None
    options: tuple[tuple[str, Any], ...] = ()


class OpenDataset:
    """A dataset of an open file, and its reader.

    Any thread may read the attributes. They change under the lock of the file, `choice` last.

    Attributes:
        handle: h5py's dataset.
        dtype: h5py's dtype.
        cache_limit: Bytes of decoded chunks to keep; None for the cache that files share.
        counters: Counters of reads.
        reader: The direct reader; None if h5py reads the dataset.
        choice: The kind of reader and the reason; None before the dataset is examined.
        was_read: Whether it was read before it was examined.
        has_sources: Whether all its sources were found, if it is virtual.
    """

    def __init__(self, handle: h5py.Dataset, cache_limit: int | None) -> None:
        self.handle = handle
        self.dtype: np.dtype[Any] = handle.dtype
        self.cache_limit = cache_limit
        self.counters = Counters()
        self.reader: Reader | None = None
        self.choice: ReaderChoice | None = None
        self.was_read = self.has_sources = False
        self._shape: tuple[int, ...] | None = None  # if it cannot change

    @property
    def shape(self) -> tuple[int, ...]:
        """Present sizes of the axes; None for a null dataset.

        The direct reader takes no lock of HDF5 for this.
        """
        return self.handle.shape if self._shape is None else self._shape

    def set_reader(self, reader: Reader, choice: ReaderChoice = _DIRECT) -> None:
        """Use `reader`."""
        self._shape, self.reader, self.choice = tuple(self.handle.shape), reader, choice


class SharedFile:
    """One open file. All methods may be called from any thread."""

    def __init__(self, path: str, how: OpenOptions, identity: Identity | None) -> None:
        """Open the file.

        Args:
            path: A path or URL.
            how: The way to open it.
            identity: Identity of the file; None if only h5py's driver can access it.
        """
        self.path = path
        self.how = how
        self.identity = identity
        self.generation = registry.generation
        self.source: ByteSource | None = None
        if how.driver is None and is_url(path):
            self.source = UrlFile(path, how.options, identity)
            self.handle = h5py.File(FileObject(Blocks(self.source, *_URL_BLOCKS)), "r")
        else:
            self.handle = _opened(path, how)
        if identity is not None and self.handle.driver == "sec2":
            # HDF5's own descriptor certainly refers to this file, and no second one is needed.
            descriptor = self.handle.id.get_vfd_handle()
            self.identity = Identity.of(os.fstat(descriptor))
            self.source = OpenFile(path, descriptor, self.identity)
        self._refusal = refusal(self.handle, how.driver or self.handle.driver)
        self.links = _link_access()
        self.used = 0  # number of the last use; the highest is the latest
        self.is_damaged = False  # as far as known: HDF5 may crash when it lists a damaged group
        self._lock = threading.Lock()
        self._datasets: dict[tuple[str, int | None], OpenDataset] = {}
        self._caches: dict[int | None, ChunkCache] = {None: registry.cache}
        self._kept: list[tuple[ChunkCache, range]] = []  # caches that may hold chunks of this file, with their keys
        finalizer = weakref.finalize(self, _release, self.handle, self._kept)
        finalizer.atexit = False  # a thread may be reading as the process ends

    def dataset(self, name: str, cache_limit: int | None) -> OpenDataset | None:
        """Return the dataset `name`, with a cache of `cache_limit` bytes, or None.

        HDF5Files with equal limits share a cache; with different limits they share only the handle. A limit of None
        means the cache that all files share.
        """
        opened = self._datasets.get((name, cache_limit))
        if opened is not None:
            return opened
        with HDF5_LOCK, self._lock:
            opened = self._datasets.get((name, cache_limit))
            if opened is None:
                handle = self.get(name)
                if not isinstance(handle, h5py.Dataset):
                    return None
                opened = OpenDataset(handle, cache_limit)
                nbytes = (handle.size or 0) * opened.dtype.itemsize
                if len(self._datasets) < _EXAMINED_AT_ONCE or nbytes > _SMALL:
                    self._examine(opened)
                self._datasets[name, cache_limit] = opened
            return opened

    def examine(self, opened: OpenDataset, *, to_read: bool = False) -> None:
        """Choose the reader of a dataset.

        With `to_read`, wait until the second read, because h5py does the first read in less time.
        """
        with HDF5_LOCK, self._lock:
            if opened.choice is None and (opened.was_read or not to_read):
                self._examine(opened)
            opened.was_read = opened.was_read or to_read

    def get(self, name: str) -> Any:
        """h5py's group or dataset `name`; None if there is none.

        Raises:
            KeyError: The name is a broken link.
            OSError: The object is damaged.
        """
        try:
            return self.handle[stored_name(name)]
        except HDF5_ERRORS:
            error = unfollowed(self.handle.id, name, self.path, self.links)
            if error is None:
                return None
            self.is_damaged = self.is_damaged or isinstance(error, OSError)
            raise error from None

    def _examine(self, opened: OpenDataset) -> None:
        if self._refusal or self.source is None:
            opened.choice = ReaderChoice("h5py", self._refusal)
            return
        try:
            layout = examine(self.handle, opened.handle, self.source)
        except Declined as reason:
            opened.choice = ReaderChoice("h5py", message_of(reason))
            return
        if isinstance(layout, Contiguous):
            opened.set_reader(ContiguousReader(layout, self.source, opened.counters))
            return
        cache = self._caches.setdefault(opened.cache_limit, ChunkCache(opened.cache_limit or 0))
        choice, refusal = _DIRECT, layout.pipeline.refusal
        if refusal:
            choice = ReaderChoice("h5py", refusal)
            has_cache = any(name.startswith("rdcc_") for name, _ in self.how.options)  # the user sized HDF5's cache
            if has_cache or not _LEAST_CHUNK <= layout.pipeline.nbytes <= cache.limit:
                opened.choice = choice
                return
        name = shown_name(opened.handle.name).lstrip("/")
        nbytes = math.prod(layout.grid.shape) * layout.dtype.itemsize
        storage = read_cost.Storage(
            name=f"{name!r} of {self.path!r}",
            short_name=name,
            block_size=layout.grid.chunks[0],
            row_bytes=max(1, nbytes // max(1, layout.grid.shape[0])),
            nbytes=nbytes,
            cache_bytes=cache.limit,
        )
        reader = ChunkedReader(layout, self.source, cache, storage, opened.counters, opened.handle)
        self._kept.append((cache, reader.keys))
        opened.set_reader(reader, choice)


def _link_access() -> Any:
    """h5py's link access properties: external files close with their datasets."""
    links, files = h5py.h5p.create(h5py.h5p.LINK_ACCESS), h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    files.set_fclose_degree(h5py.h5f.CLOSE_STRONG)
    links.set_elink_fapl(files)
    return links


def _opened(path: str, how: OpenOptions) -> h5py.File:
    options = dict(how.options)
    if how.driver is not None:
        options["driver"] = how.driver
    if how.driver == "core":
        options.setdefault("backing_store", False)
    if how.swmr:
        options["swmr"] = True
    return h5py.File(path, "r", **options)


def _release(handle: h5py.File, kept: list[tuple[ChunkCache, range]]) -> None:
    handle.close()
    for cache, keys in kept:
        cache.forget(keys)


class Registry:
    """The open files by device and inode.

    Two names of one file share a handle.

    Attributes:
        generation: Changes with a fork.
        cache: Cache of all files without their own limit.
    """

    def __init__(self) -> None:
        self.generation = 0
        self._forget()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def _forget(self) -> None:
        self.generation += 1
        self.cache = ChunkCache(cache_bytes("chunk_cache", "auto"))
        self._lock = threading.Lock()
        self._files: weakref.WeakValueDictionary[tuple[Any, ...], SharedFile] = weakref.WeakValueDictionary()
        self._holders: weakref.WeakSet[Any] = weakref.WeakSet()

    def open(self, holder: Any, path: str, how: OpenOptions, identity: Identity | None) -> SharedFile:
        """Return the open file at `path`; open it if necessary.

        Args:
            holder: The `HDF5File` that holds it, and opens it again if it was closed to save descriptors.
            path: A path or URL.
            how: The way to open it.
            identity: Identity of the present file; None if only h5py's driver can access it.
        """
        file_key: tuple[Any, ...] = (path,)
        if identity is not None:  # at a URL, another version is another file
            file_key = identity if is_url(path) else (identity.device, identity.inode)
        # Options of HDF5's default driver only tune it. One handle per set of options would mean several of a file.
        options = "" if how.driver is None and not is_url(path) else repr(how.options)
        key = (*file_key, how.swmr, how.driver, options)
        with HDF5_LOCK, self._lock:
            shared = self._files.get(key)
            if shared is None:
                self._make_room()
                shared = self._files[key] = SharedFile(path, how, identity)
            self._holders.add(holder)
            return shared

    def _make_room(self) -> None:
        """If many files are open, close the files used longest ago."""
        if len(self._files) < 3 * descriptors() // 4:
            return
        in_use = {opened for holder in self._holders if (opened := holder._opened) is not None}
        leaving = sorted(in_use, key=lambda each: each.used)[: 1 + len(in_use) // 8]
        for holder in list(self._holders):
            if holder._opened in leaving:
                holder._opened = None


registry = Registry()
