"""Lazy, picklable HDF5 files.

Invariant: a file is opened at its first read, once per process, and any number of threads may share it. The pickle
holds the path, the arguments and, if the file has been opened, its identity at that time. A later opening, in a worker
or in this process, gives the same file or an error.
"""

import inspect
import itertools
import os
from abc import ABC, abstractmethod
from collections.abc import ItemsView, Iterator, KeysView, ValuesView
from pathlib import Path
from typing import Any, Literal

import h5py

from kerasfeed.readers.hdf5 import describe
from kerasfeed.readers.hdf5.dataset import HDF5Dataset
from kerasfeed.readers.hdf5.error_messages import cause, listing, missing, named, note_source, shown_name, stored_name
from kerasfeed.readers.hdf5.open_files import OpenDataset, OpenOptions, SharedFile, registry
from kerasfeed.readers.opened_files import Identity
from kerasfeed.readers.remote import identity_at, is_url
from kerasfeed.util.error_text import message_of
from kerasfeed.util.resources import cache_bytes

_MOST_NAMES = 1000  # read for a message
_uses = itertools.count(1)


class Members(ABC):
    """Datasets and groups by name, like h5py's groups.

    Most methods do not look into groups below, so a file of a million groups answers as fast as one of three. Only
    `dataset_paths` and `tree` descend into groups.
    """

    @property
    @abstractmethod
    def _in_file(self) -> "tuple[HDF5File, str]":
        """The file, and the path of this object in it."""

    def _group(self) -> Any:
        """h5py's group in the open file."""
        file, name = self._in_file
        return file._open().handle[stored_name(name)]

    def _entries(self) -> list[describe.Entry]:
        file, _ = self._in_file
        return describe.entries(self._group(), file.path, file._open().links)

    def _stored(self, name: str) -> OpenDataset:
        dataset: HDF5Dataset = self[name]
        return dataset._examined()

    @abstractmethod
    def __getitem__(self, name: str) -> Any:
        """The dataset or group `name`."""

    def _no_name(self, name: object) -> TypeError:
        kind = type(self).__name__
        code = kind.removeprefix("HDF5").lower()
        return TypeError(
            f"an {kind} is indexed by the name of a dataset, received {name!r}: write {code}[name][{name!r}]"
        )

    @property
    def attrs(self) -> dict[str, Any]:
        """The attributes of the file or group, as a dict."""
        return dict(self._group().attrs)

    @abstractmethod
    def __contains__(self, name: object) -> bool:
        """Whether there is an object `name`, which may be a path."""

    def __iter__(self) -> Iterator[str]:
        """The names of the objects directly in this file or group."""
        for name in self._group():
            yield shown_name(name)

    def __len__(self) -> int:
        return len(self._group())

    def get(self, name: str, default: Any = None) -> Any:
        """The dataset or group `name`, or `default` if there is none.

        Args:
            name: A name, or a path such as "group/points".
            default: The result if there is no such dataset or group.

        Examples:
            >>> import h5py
            >>> h5py.File("rooms.h5", "w").close()
            >>> file = kf.HDF5File("rooms.h5")
            >>> print(file.get("colours"))
            None
            >>> file.close()
        """
        return self[name] if name in self else default  # noqa: SIM401  # dict.get would call this method

    def keys(self) -> KeysView[str]:
        """The names of the direct members, in h5py's order."""
        return KeysView(self)

    def values(self) -> ValuesView[Any]:
        """The datasets and groups directly in this file or group.

        Anything else, such as a broken link, is None.
        """
        return _Values(self)

    def items(self) -> ItemsView[str, Any]:
        """Pairs of name and object, as in `keys` and `values`."""
        return _Items(self)

    def dataset_paths(self) -> list[str]:
        """Paths of all datasets, including nested groups and external links.

        Returns:
            Paths relative to this file or group, such as "scene_7/points", one per dataset. The path of a link is
            listed only if the dataset has no other. Broken links are left out; `tree()` shows them.

        Raises:
            OSError: The file is damaged.

        Examples:
            >>> import h5py
            >>> with h5py.File("rooms.h5", "w") as file:
            ...     file["scene_0/points"] = np.zeros((5, 3))
            ...     file["scene_1/points"] = np.zeros((7, 3))
            >>> file = kf.HDF5File("rooms.h5")
            >>> file.dataset_paths()
            ['scene_0/points', 'scene_1/points']
            >>> file.close()
        """
        return [entry.path for entry in self._entries() if entry.is_dataset]

    def tree(self) -> str:
        """Groups and datasets as indented text.

        For each dataset: shape, dtype, chunks, filters, and its reader, with the reason if it is h5py. For each soft or
        external link: its target, and whether the target exists.

        Examples:
            >>> import h5py
            >>> with h5py.File("rooms.h5", "w") as file:
            ...     file["labels"] = np.arange(10)
            >>> file = kf.HDF5File("rooms.h5")
            >>> print(file.tree())
            rooms.h5
              labels  int64 (10,)  contiguous  none  [direct]
            >>> file.close()
        """
        file, name = self._in_file
        title = Path(file.path).name + ("" if name == "/" else f": {name}")
        return describe.tree(title, self._entries(), self._stored)

    def _repr_html_(self) -> str:
        return describe.table(repr(self), self.dataset_paths(), self._stored)

    def _ipython_key_completions_(self) -> list[str]:
        return list(self)


class _Values(ValuesView[Any]):
    _mapping: Members

    def __iter__(self) -> Iterator[Any]:
        return map(self._mapping.get, self._mapping)


class _Items(ItemsView[str, Any]):
    _mapping: Members

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return ((name, self._mapping.get(name)) for name in self._mapping)


class HDF5File(Members):
    """An HDF5 file for reading, which is opened at first use.

    It is a mapping from names to datasets and groups, like h5py's files: `file["points"]`, `file["scene_7/points"]`,
    `for name in file`, `len(file)`, `keys()`, `values()`, `items()`. `dataset_paths()` lists the datasets of all
    groups. A dataset is an [HDF5Dataset][kerasfeed.readers.hdf5.dataset.HDF5Dataset].

    A sequence may hold it: it is pickled as its path, and each worker process opens the file itself. Several threads
    may read it, and then decode several chunks at the same time. h5py reads virtual and external datasets,
    text, rare filters and files that are being written: `file[name].reader` names the reader of a
    dataset and the reason. `pip install ".[hdf5]"` adds faster decompressors, and those for lzf, blosc, zstd,
    bitshuffle and fletcher32.

    If the file changes during use, a read raises an error. A process checks the file at most five times a second, and a
    URL only when it opens the URL.

    Args:
        path: The file. The constructor makes a relative path absolute, so that workers find it. A URL such as
            "s3://bucket/rooms.h5" is read through fsspec: several chunks or rows at the same time, as from a disk.
        mode: "r": an HDF5File only reads.
        chunk_cache: Memory limit for decoded chunks of this file in each process, bytes; 0 keeps
            none. Several HDF5Files of one file with the same limit share one cache. "auto" is 1/16 of the memory that
            the process may use, at most 1 GiB, in one cache for all files of the process that use "auto".
        swmr: Whether another process extends the file during use (single writer, multiple readers). h5py then reads it,
            and every access sees the rows written so far.
        driver: h5py's name of a driver ("core", "stdio", "ros3", ...). h5py then reads the file.
        **driver_options: Options of the driver and of `h5py.File` (`locking`, ...); for a URL without a driver, options
            of fsspec's file system. With `rdcc_nbytes`, HDF5's own cache keeps the chunks that h5py decodes.

    Raises:
        FileNotFoundError: There is no such file; for a URL, on first use.
        OSError: On first use: the file is not an HDF5 file, or it has changed since it was first opened; or a URL
            cannot be read at the third try.
        ImportError: On first use of a URL: fsspec is missing, or the package of the protocol.
        ValueError, TypeError: `mode` is not "r"; `chunk_cache` is neither an integer >= 0 nor "auto"; h5py has no such
            option; or `swmr` is set for a URL, or, on first use, fsspec does not know its protocol.

    Examples:
        >>> import h5py
        >>> with h5py.File("rooms.h5", "w") as file:
        ...     file["points"] = np.zeros((10, 1024, 3), np.float32)
        ...     file["labels"] = np.arange(10)
        >>> file = kf.HDF5File("rooms.h5")
        >>> list(file)
        ['labels', 'points']
        >>> file["points"].shape, file["points"][3].shape
        ((10, 1024, 3), (1024, 3))
        >>> file["labels"].take([7, 3, 3])
        array([7, 3, 3])
        >>> file.close()
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        mode: Literal["r"] = "r",
        *,
        chunk_cache: int | str = "auto",
        swmr: bool = False,
        driver: str | None = None,
        **driver_options: Any,
    ) -> None:
        if mode != "r":
            raise ValueError(
                f'mode must be "r", received {mode!r}: an HDF5File only reads. Write with kf.write_hdf5 or h5py.File'
            )
        self.path = str(path)
        self._remote = driver is None and is_url(path)
        self._local = not self._remote and "://" not in self.path and driver != "ros3"
        if self._remote and swmr:
            raise ValueError(f"swmr=True needs a file on a local disk, received {self.path!r}")
        if self._local:
            self.path = str(Path(path).absolute())
        if self._local and driver is None:
            _refuse_unknown(driver_options)
        limit = cache_bytes("chunk_cache", chunk_cache)
        self._cache_limit = None if isinstance(chunk_cache, str) else limit
        self._how = OpenOptions(swmr, driver, tuple(sorted(driver_options.items())))
        self._identity: Identity | None = None
        self._opened: SharedFile | None = None
        self._check_there()

    def _check_there(self) -> None:
        if self._local and self._how.driver != "family" and not Path(self.path).is_file():
            raise missing(self.path)

    def _open(self) -> SharedFile:
        opened = self._opened  # read once, because another thread may close meanwhile
        if opened is None or opened.generation != registry.generation:
            opened = self._opened = self._reopened()
        opened.used = next(_uses)
        return opened

    def _reopened(self) -> SharedFile:
        known = self._identity
        try:
            has_identity = self._remote or (self._local and self._how.driver != "family")
            present = identity_at(self.path, self._how.options) if has_identity else None
        except FileNotFoundError:
            if not self._local:
                raise
            raise missing(self.path) from None
        if present is not None:
            known = known or present  # another HDF5File of this process may hold an older version of the file
            known.refuse(present, self.path, may_grow=self._how.swmr)
        try:
            opened = registry.open(self, self.path, self._how, present)
        except FileNotFoundError as error:
            if not self._local:
                raise named(error, f"cannot open {self.path!r}: {message_of(error)}") from error
            raise missing(self.path) from None
        except OSError as error:
            if self._remote and repr(self.path) in message_of(error):
                raise
            why = cause(self.path, error) if self._local else message_of(error)
            raise named(error, f"cannot open {self.path!r}: {why}") from error
        if known is not None and opened.identity is not None:
            known.refuse(opened.identity, self.path, may_grow=self._how.swmr)
        self._identity = opened.identity
        return opened

    def __getitem__(self, name: str) -> Any:
        """The dataset or group `name`.

        Args:
            name: A name, or a path such as "group/points"; or an object reference from a dataset.

        Returns:
            An [HDF5Dataset][kerasfeed.readers.hdf5.dataset.HDF5Dataset]; or a group, a mapping like the file.

        Raises:
            TypeError: `name` is neither text nor a reference.
            KeyError: There is no such dataset or group; the message lists the existing datasets, or the target of a
                broken link.
            OSError: The object is damaged.

        Examples:
            >>> import h5py
            >>> with h5py.File("rooms.h5", "w") as file:
            ...     file["scene_0/points"] = np.zeros((5, 3))
            >>> file = kf.HDF5File("rooms.h5")
            >>> file["scene_0"]["points"].shape, file["scene_0/points"].shape
            ((5, 3), (5, 3))
            >>> file.close()
        """
        if isinstance(name, h5py.Reference):
            name = self._referred(name)
        if not isinstance(name, str):
            raise self._no_name(name)
        try:
            opened = self._open()
            if opened.dataset(name, self._cache_limit) is not None:
                return HDF5Dataset(self, name)
            if isinstance(opened.get(name), h5py.Group):
                return HDF5Group(self, name)
        except Exception as error:
            note_source(error, name, self.path)
            raise
        raise self._unknown(name)

    def _referred(self, reference: Any) -> str:
        """The name of the object that a reference points to."""
        name = h5py.h5r.get_name(reference, self._open().handle.id) if reference else None
        if name is None:
            what = "an object without a name" if reference else "nothing: it is empty"
            raise KeyError(f"the reference points to {what} in {self.path!r}")
        return shown_name(name)

    def _unknown(self, name: str) -> KeyError:
        opened = self._open()
        if isinstance(opened.get(name), h5py.Datatype):
            return KeyError(f"{str(name)!r} in {self.path!r} is a datatype, which holds no data")
        if opened.is_damaged:
            return KeyError(
                f"{str(name)!r} is not in {self.path!r}. The file is damaged, so its datasets are not listed"
            )
        seen = describe.entries(opened.handle, self.path, opened.links, _MOST_NAMES)
        names = listing([entry.path for entry in seen if entry.is_dataset], is_all=len(seen) < _MOST_NAMES)
        return KeyError(f"{str(name)!r} is not in the file; {self.path!r} holds the datasets {names}")

    def __contains__(self, name: object) -> bool:
        try:
            return isinstance(name, str) and isinstance(self._open().get(name), h5py.Dataset | h5py.Group)
        except KeyError:  # a broken link
            return False

    @property
    def _in_file(self) -> "tuple[HDF5File, str]":
        return self, "/"

    def close(self) -> None:
        """Close this process's handle of the file; idempotent.

        The next read opens the file again.

        The handle stays open while another HDF5File of this process uses it. After `close`, a rewritten file is read in
        its new state. If a sequence calls `close` in `on_epoch_begin` or `on_epoch_end`, this applies to all workers of
        its feed. Garbage collection of an HDF5File closes its handle too.

        Examples:
            >>> import h5py
            >>> h5py.File("rooms.h5", "w").close()
            >>> file = kf.HDF5File("rooms.h5")
            >>> len(file)
            0
            >>> file.close()
        """
        self._opened = None
        self._identity = None

    def __enter__(self) -> "HDF5File":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._check_there()

    def source_files(self) -> list[str]:
        """Path or URL of the file; see `kerasfeed.Cached`."""
        return [self.path]

    def __repr__(self) -> str:
        return f"HDF5File({self.path!r})"


class HDF5Group(Members):
    """A group of an `HDF5File`: maps names to datasets and groups.

    It pickles with the file.
    """

    def __init__(self, file: HDF5File, name: str) -> None:
        self.file = file
        self.name = name

    @property
    def _in_file(self) -> "tuple[HDF5File, str]":
        return self.file, self.name

    def _path(self, name: str) -> str:
        return name if name.startswith("/") else f"{self.name.rstrip('/')}/{name}"

    def __getitem__(self, name: str) -> Any:
        """The dataset or group `name` below this one.

        Raises:
            KeyError: There is no such dataset or group; the message lists the datasets of the file.
        """
        if isinstance(name, h5py.Reference):
            return self.file[name]
        if not isinstance(name, str):
            raise self._no_name(name)
        return self.file[self._path(name)]

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._path(name) in self.file

    def __repr__(self) -> str:
        return repr(self.file) if self.name == "/" else f"HDF5Group({self.name!r}, file={self.file.path!r})"


def _refuse_unknown(options: dict[str, Any]) -> None:
    """Refuse local options that h5py would refuse at the first read.

    That read may be in a worker.

    Raises:
        TypeError: An option is unknown.
    """
    known = inspect.signature(h5py.File.__init__).parameters.keys() - {"self", "name", "mode", "kwds"}
    for name in options.keys() - known:
        raise TypeError(
            f"HDF5File() has no argument {name!r}: a file is opened only for reading, with chunk_cache, swmr, driver "
            "and the options of h5py.File"
        )
