"""Lazy, picklable HDF5 files.

Invariant: a file is opened when first read, once per process (several handles of one file crash HDF5 on some dtypes,
h5py issue 2920), and every read goes through h5py under its own lock, so any number of threads may share it. What
pickles is the path alone.
"""

import os
import threading
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray


class _SharedFile:
    """One open file; closed when the last `HDF5File` lets go of it."""

    def __init__(self, path: str) -> None:
        self.handle = h5py.File(path, "r")
        weakref.finalize(self, self.handle.close).atexit = False  # a thread may be reading as the process ends


class _Registry:
    """The open files of this process, by device and inode, so that two names of one file share a handle."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: weakref.WeakValueDictionary[tuple[int, int], _SharedFile] = weakref.WeakValueDictionary()
        self._pid = os.getpid()

    def open(self, path: str) -> _SharedFile:
        status = Path(path).stat()
        key = (status.st_dev, status.st_ino)
        with self._lock:
            if self._pid != os.getpid():  # after a fork, the handles are the parent's
                self._files = weakref.WeakValueDictionary()
                self._pid = os.getpid()
            shared = self._files.get(key)
            if shared is None:
                shared = self._files[key] = _SharedFile(path)
            return shared


_registry = _Registry()


class HDF5File:
    """An HDF5 file opened for reading when first needed.

    Safe to keep in a sequence: it pickles as its path, and each worker process opens a handle of its own. Safe to read
    from several threads.

    Args:
        path: The file. Relative paths are resolved now, so that workers find it.

    Raises:
        FileNotFoundError: There is no such file.
        OSError: On first use: it is not an HDF5 file.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = str(Path(path).absolute())
        self._opened: tuple[int, _SharedFile] | None = None
        if not Path(self.path).is_file():
            raise _missing(self.path)

    def _open(self) -> _SharedFile:
        opened = self._opened  # read once: another thread may close meanwhile
        if opened is None or opened[0] != os.getpid():
            try:
                opened = (os.getpid(), _registry.open(self.path))
            except FileNotFoundError:
                raise _missing(self.path) from None
            except OSError as error:
                raise _named(error, f"cannot open {self.path!r}: {_cause_of(self.path, error)}") from error
            self._opened = opened
        return opened[1]

    def __getitem__(self, name: str) -> "HDF5Dataset":
        """The dataset `name`; groups are reached by paths such as "group/points".

        Raises:
            KeyError: There is no such dataset; the message lists those there are.
        """
        if not isinstance(name, str):
            raise TypeError(
                f"an HDF5File is indexed by the name of a dataset, received {name!r}: write file[name][{name!r}]"
            )
        item = self._open().handle.get(name)
        if not isinstance(item, h5py.Dataset):
            kind = "a group" if isinstance(item, h5py.Group) else "not in the file"
            names = self.keys()
            shown = ", ".join(names[:_NAMES_SHOWN]) or "(none)"
            more = f" and {len(names) - _NAMES_SHOWN:,} more" if len(names) > _NAMES_SHOWN else ""
            raise KeyError(f"{name!r} is {kind}; {self.path!r} holds the datasets {shown}{more}")
        return HDF5Dataset(self, name)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and isinstance(self._open().handle.get(name), h5py.Dataset)

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __len__(self) -> int:
        return len(self.keys())

    def keys(self) -> list[str]:
        """Paths of all datasets, groups descended into."""
        names: list[str] = []

        def visit(name: str, item: Any) -> None:
            if isinstance(item, h5py.Dataset):
                names.append(name)

        self._open().handle.visititems(visit)
        return names

    def close(self) -> None:
        """Let go of this process's handle, which closes unless another HDF5File uses it; the next read opens it again.

        Idempotent. An HDF5File that is dropped unclosed lets go as well.
        """
        self._opened = None

    def __enter__(self) -> "HDF5File":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, str]:
        return {"path": self.path}

    def __setstate__(self, state: dict[str, str]) -> None:
        self.path = state["path"]
        self._opened = None

    def __repr__(self) -> str:
        return f"HDF5File({self.path!r})"


_NAMES_SHOWN = 20
_SIGNATURE = b"\x89HDF\r\n\x1a\n"


def _missing(path: str) -> FileNotFoundError:
    if Path(path).is_dir():
        return FileNotFoundError(f"{path!r} is a folder; HDF5File needs a file in it")
    folder = Path(path).parent
    where = f"in the folder {str(folder)!r}" if folder.is_dir() else f"and no folder {str(folder)!r}"
    return FileNotFoundError(
        f"there is no file {Path(path).name!r} {where}. Check the path; relative ones start at the working directory"
    )


def _named(error: OSError, message: str) -> OSError:
    # Of the same type (PermissionError, BlockingIOError); h5py's own often have no errno.
    return type(error)(error.errno, message) if error.errno is not None else type(error)(message)


def _cause_of(path: str, error: OSError) -> str:
    if isinstance(error, PermissionError | BlockingIOError):
        return str(error)
    try:
        with Path(path).open("rb") as file:
            # HDF5 looks for its signature at 0, 512, 1024, 2048, ...: before it a user block may stand.
            size = os.fstat(file.fileno()).st_size
            place = 0
            while place < size:
                file.seek(place)
                if file.read(len(_SIGNATURE)) == _SIGNATURE:
                    return f"it is a damaged HDF5 file, or one still being written ({error})"
                place = max(512, 2 * place)
    except OSError:
        return str(error)
    return f"it is not an HDF5 file ({size:,} bytes, no HDF5 signature). Was it downloaded or written to the end?"


class HDF5Dataset:
    """One dataset of an `HDF5File`; pickles with it."""

    def __init__(self, file: HDF5File, name: str) -> None:
        self.file = file
        self.name = name
        self._cached: tuple[h5py.File, h5py.Dataset] | None = None

    @property
    def _dataset(self) -> h5py.Dataset:
        return self._in(self.file._open())

    def _in(self, shared: _SharedFile) -> h5py.Dataset:
        cached = self._cached
        if cached is None or cached[0] is not shared.handle:
            cached = self._cached = (shared.handle, shared.handle[self.name])
        return cached[1]

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return tuple(self._dataset.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy dtype as stored."""
        return self._dataset.dtype  # type: ignore[no-any-return]

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def chunks(self) -> tuple[int, ...] | None:
        """Sizes of a storage chunk; None where storage is contiguous."""
        return self._dataset.chunks  # type: ignore[no-any-return]

    @property
    def attrs(self) -> dict[str, Any]:
        """The dataset's attributes."""
        return dict(self._dataset.attrs)

    def __len__(self) -> int:
        return len(self._dataset)

    def __iter__(self) -> Iterator[Any]:
        for index in range(len(self)):
            yield self[index]

    def __getitem__(self, selection: Any) -> Any:
        """Read a selection: integers, slices, Ellipsis, boolean masks, sorted lists, as h5py takes them.

        Raises:
            IndexError: The selection is out of range.
            OSError: The file is damaged or gone; the message names it.
        """
        try:
            shared = self.file._open()  # held, so that no close() in another thread ends the read
            return self._in(shared)[selection]
        except OSError as error:
            raise _named(error, f"cannot read {self.name!r}[{selection!r}] of {self.file.path!r}: {error}") from error
        except Exception as error:
            error.add_note(f"kerasfeed: reading {self.name!r}[{selection!r}] of {self.file.path!r}")
            raise

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError(f"{self!r} must be read to become an array; it cannot be had without a copy")
        return np.asarray(self[...], dtype=dtype)

    def __getstate__(self) -> dict[str, Any]:
        return {"file": self.file, "name": self.name}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["file"], state["name"])  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"HDF5Dataset({self.name!r}, shape={self.shape}, dtype={self.dtype}, file={self.file.path!r})"
