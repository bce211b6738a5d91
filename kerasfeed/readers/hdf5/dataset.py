"""A dataset as users hold it.

Invariant: whatever reads it, a selection gives what h5py gives, or what NumPy gives where h5py gives up. Every access
holds the open file while it lasts, so that no `close()` in another thread ends it.
"""

import math
import weakref
from collections.abc import Iterator
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.typing import NDArray

from kerasfeed.readers.hdf5.answers import after_error, by_h5py, check_out, put, read_planned, where, wrong_shape
from kerasfeed.readers.hdf5.chunked import ChunkedReader
from kerasfeed.readers.hdf5.codecs import DecodeError
from kerasfeed.readers.hdf5.error_messages import named, note_source
from kerasfeed.readers.hdf5.open_files import OpenDataset, SharedFile
from kerasfeed.readers.hdf5.selection import checked_place, checked_places, plan, rows
from kerasfeed.readers.hdf5.stats import ReadStats
from kerasfeed.readers.hdf5.storage import ReaderChoice
from kerasfeed.util.error_text import message_of


class DatasetFile(Protocol):
    """What a dataset asks of its `HDF5File`."""

    path: str
    _cache_limit: int | None

    def _open(self) -> SharedFile: ...

    def _unknown(self, name: str) -> KeyError: ...


class HDF5Dataset:
    """One dataset of an `HDF5File`: `file["points"]`. It is pickled with the file. May be used from several threads.

    Examples:
        >>> import h5py
        >>> with h5py.File("rooms.h5", "w") as file:
        ...     data = np.zeros((100, 3), np.float32)
        ...     _ = file.create_dataset("points", data=data, chunks=(10, 3), compression="gzip")
        >>> file = kf.HDF5File("rooms.h5")
        >>> points = file["points"]
        >>> points.shape, points.chunks, points.block_size
        ((100, 3), (10, 3), 10)
        >>> print(points.reader)
        direct
        >>> points[5].shape, points[10:20, 0].shape
        ((3,), (10,))
        >>> points.stats().decoded
        2
        >>> file.close()
    """

    thread_safe = True

    def __init__(self, file: DatasetFile, name: str) -> None:
        self.file = file
        self.name = name
        self._cached: tuple[Any, OpenDataset] | None = None

    def _open(self) -> tuple[SharedFile, OpenDataset]:
        try:
            return self._opened()
        except Exception as error:
            note_source(error, self.name, self.file.path)
            raise

    def _opened(self) -> tuple[SharedFile, OpenDataset]:
        shared = self.file._open()
        cached = self._cached
        if cached is None or cached[0] is not shared.handle:
            opened = shared.dataset(self.name, self.file._cache_limit)
            if opened is None:
                raise self.file._unknown(self.name)
            cached = self._cached = (shared.handle, opened)
        elif cached[1].choice is None and cached[1].is_due:
            cached = self._cached = (shared.handle, self._examined(shared))
        if shared.how.swmr:
            cached[1].handle.refresh()  # rows that the writer added since
        return shared, cached[1]

    def _examined(self, shared: SharedFile) -> OpenDataset:
        opened = shared.dataset(self.name, self.file._cache_limit, examined=True)
        assert opened is not None
        return opened

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes; None for a null dataset, which has no data at all."""
        shape = self._open()[1].shape
        return None if shape is None else tuple(shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy dtype as stored."""
        return self._open()[1].dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape or ())

    @property
    def size(self) -> int:
        """Number of items."""
        shape = self._open()[1].shape
        return 0 if shape is None else math.prod(shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all items, decoded."""
        return self.size * self.dtype.itemsize

    @property
    def chunks(self) -> tuple[int, ...] | None:
        """Sizes of a chunk along each axis; None for contiguous storage."""
        return self._open()[1].handle.chunks  # type: ignore[no-any-return]

    @property
    def block_size(self) -> int:
        """Rows of axis 0 in one chunk; 1 for contiguous storage. For `kerasfeed.BlockShuffled`."""
        chunks = self.chunks
        return max(1, chunks[0]) if chunks else 1

    @property
    def attrs(self) -> dict[str, Any]:
        """The dataset's attributes."""
        return dict(self._open()[1].handle.attrs)

    @property
    def reader(self) -> ReaderChoice:
        """What reads this dataset: `kind` is "direct" or "h5py", and `reason` tells why h5py does; `str` gives both."""
        choice = self._examined(self._open()[0]).choice
        assert choice is not None
        return choice

    def stats(self) -> ReadStats:
        """What reading this dataset has cost this process since the file was opened.

        The counters only grow: what one epoch costs is the difference between two calls, before it and after it. Every
        process counts its own reads alone, so measure with `workers=0` or with threads.

        Returns:
            A [ReadStats][kerasfeed.readers.hdf5.stats.ReadStats].
        """
        return self._open()[1].counters.snapshot()

    def __len__(self) -> int:
        shape = self._open()[1].shape
        if not shape:
            raise TypeError(f"{where(self.name)} has no axes, and so no length")
        return shape[0]

    def __iter__(self) -> Iterator[Any]:
        for index in range(len(self)):
            yield self[index]

    def __getitem__(self, selection: Any) -> Any:
        """Read a selection.

        Integers, slices, Ellipsis, masks, sorted lists and names of fields mean what they mean to h5py. In addition,
        with NumPy's meaning: lists may be unsorted and have repeats, steps may be negative, and a mask may cover
        several axes. As in h5py, each axis is selected on its own, and only one axis may have a list or mask.

        Returns:
            A writable array of the dataset's dtype; a scalar where h5py returns one.

        Raises:
            IndexError: The selection is out of range; the message names dataset, axis and size.
            OSError: The file is damaged, missing or has changed; the message names it.
        """
        shared, opened = self._open()
        try:
            reader = opened.reader
            if reader is None:
                return by_h5py(shared, opened, selection, self.name)
            shape = opened.shape
            if type(selection) is int or isinstance(selection, np.integer):
                try:
                    return reader.row(checked_place(int(selection), shape[0], 0, where(self.name)))
                except (DecodeError, OSError):
                    return after_error(shared, opened, selection, self.name)
            planned = plan(selection, shape, where(self.name))
            if planned is None:
                opened.counters.fall_back()
                return by_h5py(shared, opened, selection, self.name)
            out = np.empty(planned.shape, opened.dtype)
            read_planned(shared, opened, selection, self.name, planned, out)
            return out if out.ndim else out[()]
        except Exception as error:  # noqa: BLE001  # raised again, with the names
            self._fail(error, f"[{selection!r}]")

    def read_into(self, selection: Any, out: NDArray[Any]) -> None:
        """Read a selection into an existing array, such as the place of a scene in a batch.

        Args:
            selection: As for `dataset[selection]`.
            out: Writable array of the selection's shape and the dataset's dtype, in either byte order. If it is
                C-contiguous, whole chunks and contiguous data are written there without a copy.

        Raises:
            TypeError: `out` is not an array, or has another dtype.
            ValueError: `out` is read-only or has another shape.
            IndexError, OSError: As `dataset[selection]`.

        Examples:
            >>> import h5py
            >>> with h5py.File("rooms.h5", "w") as file:
            ...     file["labels"] = np.arange(10)
            >>> file = kf.HDF5File("rooms.h5")
            >>> out = np.empty(3, np.int64)
            >>> file["labels"].read_into(slice(2, 5), out)
            >>> out
            array([2, 3, 4])
            >>> file.close()
        """
        shared, opened = self._open()
        try:
            dtype = opened.dtype
            check_out(out, dtype, self.name)
            shape = opened.shape
            is_row = type(selection) is int or isinstance(selection, np.integer)
            if opened.reader is not None and is_row and out.dtype == dtype:
                place = checked_place(int(selection), shape[0], 0, where(self.name))
                if out.shape != shape[1:]:
                    raise wrong_shape(shape[1:], out)
                try:
                    opened.reader.row_into(place, out)
                except (DecodeError, OSError):
                    put(after_error(shared, opened, selection, self.name), out)
                return
            planned = None if shape is None else plan(selection, shape, where(self.name))
            if planned is not None and planned.shape + dtype.shape != out.shape:
                raise wrong_shape(planned.shape + dtype.shape, out)
            if opened.reader is None or planned is None:
                put(by_h5py(shared, opened, selection, self.name, planned), out)
            else:
                read_planned(shared, opened, selection, self.name, planned, out)
        except Exception as error:  # noqa: BLE001  # raised again, with the names
            self._fail(error, f"[{selection!r}]")

    def take(self, indices: Any, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Read many rows of axis 0 at once: each chunk is read once, several chunks at the same time.

        Args:
            indices: Integers in one axis, in any order; repeated and negative ones are allowed.
            out: Where the rows are written: a writable array [len(indices), *shape[1:]] of the dataset's dtype. None
                makes a new array.

        Returns:
            `out`, or the new array: row k is `dataset[indices[k]]`.

        Raises:
            IndexError, TypeError, ValueError, OSError: As `read_into`.

        Examples:
            >>> import h5py
            >>> with h5py.File("rooms.h5", "w") as file:
            ...     file["labels"] = np.arange(10)
            >>> file = kf.HDF5File("rooms.h5")
            >>> file["labels"].take([7, -1, 7])
            array([7, 9, 7])
            >>> file.close()
        """
        shared, opened = self._open()
        try:
            shape, dtype = opened.shape, opened.dtype
            if not shape:
                raise TypeError(f"{where(self.name)} has no axis to take rows of")
            places = checked_places(indices, shape[0], 0, where(self.name))
            wanted = (len(places), *shape[1:])
            if out is not None:
                check_out(out, dtype, self.name)
                if out.shape != wanted + dtype.shape:
                    raise wrong_shape(wanted + dtype.shape, out)
            if opened.reader is None:
                found = by_h5py(shared, opened, places, self.name, rows(places, shape))
                if out is None:
                    return found  # type: ignore[no-any-return]
                put(found, out)
                return out
            result = np.empty(wanted, dtype) if out is None else out
            read_planned(shared, opened, places, self.name, rows(places, shape), result)
            return result
        except Exception as error:  # noqa: BLE001  # raised again, with the names
            self._fail(error, ".take(...)")

    def read_ahead(self, indices: Any) -> None:
        """Begin to decode the chunks of these rows on other threads, as far as half of the cache holds them.

        Returns at once and raises nothing: what is wrong with an index or a chunk shows when it is read.

        Args:
            indices: Integers in one axis: rows that will be read soon.
        """
        try:
            shared, opened = self._open()
            if isinstance(opened.reader, ChunkedReader):  # others have nothing to decode, or h5py does
                places = checked_places(indices, opened.shape[0], 0, where(self.name))
                opened.reader.ahead(places, weakref.ref(shared))
        except Exception:  # noqa: BLE001  # the read itself will tell, where it can be handled
            return

    def _fail(self, error: Exception, what: str) -> NoReturn:
        try:
            if isinstance(error, OSError):
                raise named(
                    error, f"cannot read {self.name!r}{what} of {self.file.path!r}: {message_of(error)}"
                ) from error
            note_source(error, self.name, self.file.path, what)
            raise error
        finally:
            del error  # its traceback holds this frame, and that the open file

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError(f"{self!r} must be read to become an array; it cannot be had without a copy")
        return np.asarray(self[...], dtype=dtype)

    def __getstate__(self) -> dict[str, Any]:
        return {"file": self.file, "name": self.name}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.file, self.name, self._cached = state["file"], state["name"], None

    def __repr__(self) -> str:
        return f"HDF5Dataset({self.name!r}, shape={self.shape}, dtype={self.dtype}, file={self.file.path!r})"
