"""`HDF5Dataset`: a dataset of an `HDF5File`.

Invariant: a selection returns what h5py returns, or NumPy's result if h5py does not support it, from an unchanged file;
otherwise it raises. h5py gets selections that it supports as the user wrote them. If only NumPy supports a selection
(unsorted or repeated lists, negative steps, masks over several axes), h5py or the direct reader fills boxes, and NumPy
picks from these. Each access holds the open file until it ends, so `close()` in another thread cannot close the file.
"""

import math
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from kerasfeed.readers.hdf5.chunked import ChunkedReader
from kerasfeed.readers.hdf5.codecs import Declined
from kerasfeed.readers.hdf5.error_messages import named, note_source
from kerasfeed.readers.hdf5.inspection import check_sources, missing_filters
from kerasfeed.readers.hdf5.open_files import OpenDataset, SharedFile
from kerasfeed.readers.hdf5.selection import Box, Selection, checked_positions, plan, runs, whole_rows
from kerasfeed.readers.hdf5.stats import ReadStats
from kerasfeed.readers.hdf5.storage import ReaderChoice, plain_of
from kerasfeed.util.error_text import message_of

_PIECE_NBYTES = 1 << 24  # read at once around a selection that is not a box
_ROW_NBYTES = 1 << 26  # to read a part of a row, a whole row of up to this size is read


class HDF5Dataset:
    """One dataset of an `HDF5File`: `file["points"]`.

    It pickles with the file, and several threads may use it.

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

    def __init__(self, file: Any, name: str) -> None:
        self.file = file
        self.name = name

    def _open(self) -> tuple[SharedFile, OpenDataset]:
        try:
            shared: SharedFile = self.file._open()
            opened = shared.dataset(self.name, self.file._cache_limit)
            if opened is None:
                raise self.file._unknown(self.name)
            if shared.how.swmr:
                opened.handle.refresh()  # finds rows that the writer has added
        except Exception as error:
            note_source(error, self.name, self.file.path)
            raise
        return shared, opened

    def _examined(self) -> OpenDataset:
        """The open dataset with its reader chosen."""
        shared, opened = self._open()
        shared.examine(opened)
        return opened

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes.

        None for a null dataset, which has no data.
        """
        shape = self._open()[1].shape
        return None if shape is None else tuple(shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The stored NumPy dtype."""
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
        """Rows of axis 0 in a chunk, for `kerasfeed.BlockShuffled`; 1 if contiguous."""
        chunks = self.chunks
        return max(1, chunks[0]) if chunks else 1

    @property
    def attrs(self) -> dict[str, Any]:
        """The dataset's attributes."""
        return dict(self._open()[1].handle.attrs)

    @property
    def reader(self) -> ReaderChoice:
        """The reader of this dataset.

        `kind` is "direct" or "h5py", and `reason` says why h5py reads it. `str(reader)` shows both.
        """
        choice = self._examined().choice
        assert choice is not None
        return choice

    def stats(self) -> ReadStats:
        """Return counters of this dataset's reads since the file was opened.

        The counters only grow: the cost of one epoch is the difference between the values before and after it. Each
        process counts only its own reads, so measure with `workers=0` or with threads.

        Returns:
            A [ReadStats][kerasfeed.readers.hdf5.stats.ReadStats].
        """
        return self._open()[1].counters.snapshot()

    def __len__(self) -> int:
        shape = self._open()[1].shape
        if not shape:
            raise TypeError(f"dataset {self.name!r} has no axes, and so no length")
        return shape[0]

    def __iter__(self) -> Iterator[Any]:
        for index in range(len(self)):
            yield self[index]

    def __getitem__(self, selection: Any) -> Any:
        """Read a selection.

        Integers, slices, Ellipsis, masks, sorted lists and names of fields mean the same as in h5py. In addition, with
        NumPy's meaning: lists may be unsorted and have repeats, steps may be negative, and a mask may cover
        several axes. As in h5py, each axis is selected separately, and only one axis may have a list or mask.

        Returns:
            A writable array of the dataset's dtype; a scalar if h5py returns one.

        Raises:
            IndexError: The selection is out of range; the message names dataset, axis and size.
            OSError: The file is damaged, missing or has changed; the message names it.
        """
        shared, opened = self._open()
        try:
            return self._read(shared, opened, selection)
        except Exception as error:  # noqa: BLE001  # raised again, with the names
            self._fail(error, f"[{selection!r}]")

    def _offers(self, name: str) -> bool:
        """Whether feeds may call `name`.

        They must not call `read_into` for text and rows of variable length, whose dtype differs from the dataset's.
        """
        return name != "read_into" or not self.dtype.hasobject

    def read_into(self, selection: Any, out: NDArray[Any]) -> None:
        """Read a selection into an existing array.

        The array may be the row of a scene in a batch.

        Args:
            selection: As for `dataset[selection]`.
            out: Writable array of the selection's shape and the dataset's dtype, in either byte order. If it is
                C-contiguous, contiguous data are read straight into it.

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
            _check_out(out, opened.dtype, self.name)
            self._read(shared, opened, selection, out)
        except Exception as error:  # noqa: BLE001  # raised again, with the names
            self._fail(error, f"[{selection!r}]")

    def take(self, indices: Any, out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Read many rows of axis 0 at once.

        Each chunk is read once, and several chunks at the same time.

        Args:
            indices: Integers in one axis, in any order; repeated and negative ones are allowed.
            out: Receives the rows: a writable array [len(indices), *shape[1:]] of the dataset's dtype. None
                makes a new array.

        Returns:
            `out`, or the new array: row k is `dataset[indices[k]]`.

        Raises:
            IndexError, TypeError, ValueError, OSError: Like `read_into`.

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
            shape = opened.shape
            if not shape:
                raise TypeError(f"dataset {self.name!r} is a scalar, without rows to take")
            positions = checked_positions(indices, shape[0], 0, self.name)
            if out is not None:
                _check_out(out, opened.dtype, self.name)
            return self._read(shared, opened, positions, out)  # type: ignore[no-any-return]
        except Exception as error:  # noqa: BLE001  # raised again, with the names
            self._fail(error, ".take(...)")

    def _read(self, shared: SharedFile, opened: OpenDataset, selection: Any, out: NDArray[Any] | None = None) -> Any:
        """Read a selection, into `out` if given.

        The direct reader reads it if possible, otherwise h5py.
        """
        if opened.choice is None:
            shared.examine(opened, to_read=True)
        reader, shape, dtype = opened.reader, opened.shape, opened.dtype
        wanted: tuple[int, ...] | None = None
        planned: Selection | None = None
        lead = selection[0] if type(selection) is tuple and len(selection) == 1 else selection
        rows = whole_rows(lead, shape[0], self.name) if reader is not None and shape else None
        if rows is not None:
            wanted = (len(rows), *shape[1:]) if isinstance(lead, slice) else shape[1:]
        elif shape is not None:
            planned = plan(selection, shape, self.name)
            if planned is not None:
                wanted = planned.shape + dtype.shape  # array items add axes to the result
        if out is not None and wanted is not None and out.shape != wanted:
            raise _wrong_shape(wanted, out)
        if reader is not None and wanted is not None and (planned is None or _is_bounded(planned, dtype.itemsize)):
            result = out if out is not None and out.dtype == dtype else np.empty(wanted, dtype)
            try:
                if rows is not None:
                    plain = _as_plain(result)
                    reader.rows_into(rows, plain if isinstance(lead, slice) else plain[np.newaxis])
                elif planned is not None:
                    _gather(reader.read, planned, _as_plain(result))
            except (Declined, OSError):  # h5py gives the answer or the error, if the file has not changed
                if shared.source is not None:
                    shared.source.check(now=True)
            else:
                if out is None:
                    return result if result.ndim else result[()]
                if result is not out:
                    out[...] = result
                return out
        if reader is not None:
            opened.counters.add(fallbacks=1)
        from_h5py = _read_checked(shared, opened, selection, planned)
        if out is None:
            return from_h5py
        if wanted == () and dtype.kind == "O":  # one text, or one row of variable length
            out.fill(from_h5py)
            return out
        if np.shape(from_h5py) != out.shape:
            raise _wrong_shape(np.shape(from_h5py), out)
        _put(from_h5py, out)
        return out

    def read_ahead(self, indices: Any) -> None:
        """Begin to decode the chunks of these rows on other threads.

        Fills up to half of the cache. Returns at once and raises nothing: the later read reports a wrong index or a
        damaged chunk.

        Args:
            indices: Integers in one axis: rows that will be read soon.
        """
        try:
            shared, opened = self._open()
            if isinstance(opened.reader, ChunkedReader):  # other readers cannot decode ahead
                positions = checked_positions(indices, opened.shape[0], 0, self.name)
                opened.reader.ahead(positions, weakref.ref(shared))
        except Exception:  # noqa: BLE001  # the read itself raises it again
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
            del error  # its traceback holds this frame, and so the open file

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        if copy is False:
            raise ValueError(f"{self!r} must be read to become an array, so copy=False is impossible: leave copy out")
        return np.asarray(self[...], dtype=dtype)

    def source_files(self) -> list[str]:
        """Path or URL of the file; see `kerasfeed.Cached`."""
        files: list[str] = self.file.source_files()
        return files

    def _identity(self) -> str:
        """See `kerasfeed.sequences.view_base.identity_of`."""
        name = "/".join(filter(None, self.name.split("/")))  # file["x"] and file["/x"] are one dataset
        return f"{type(self).__qualname__} {name!r}"

    def __repr__(self) -> str:
        return f"HDF5Dataset({self.name!r}, shape={self.shape}, dtype={self.dtype}, file={self.file.path!r})"


def _read_checked(shared: SharedFile, opened: OpenDataset, selection: Any, planned: Selection | None) -> Any:
    """Return h5py's result, and check that the file is unchanged.

    h5py reads zeros beyond the end of a truncated file.
    """
    if not opened.has_sources:  # the check may have to open many files
        check_sources(opened.handle)
        opened.has_sources = not opened.handle.external
    try:
        result = _read_through_h5py(opened.handle, selection, planned)
    except OSError:
        missing = missing_filters(opened.handle)
        if missing is None:  # another cause
            raise
        if missing:
            raise OSError(
                f"HDF5 does not know its filter {' and '.join(missing)}. Run pip install hdf5plugin, which HDF5File "
                "imports if needed, or import the package that registers the filter in the module of your class"
            ) from None
        result = _read_through_h5py(opened.handle, selection, planned)
    if shared.source is not None and not shared.how.swmr:
        shared.source.check(now=True)
    return result


def _read_through_h5py(dataset: Any, selection: Any, planned: Selection | None) -> Any:
    """Read `selection` of an h5py dataset.

    Args:
        dataset: An `h5py.Dataset`.
        selection: The user's selection.
        planned: Its plan, if there is one.

    Returns:
        h5py's result, or the result that it would return for such a selection.
    """
    if planned is None or planned.suits_h5py:
        return dataset[selection]
    out = np.empty(planned.shape, dataset.dtype)
    _gather(partial(_read_box, dataset), planned, out)
    return out


def _read_box(dataset: Any, box: Box, out: NDArray[Any]) -> None:
    """Fill `out` with a box, or with rows run by run."""
    inner = [slice(positions.start, positions.stop) for positions in box[1:]]
    if isinstance(box[0], range):
        _put(dataset[(slice(box[0].start, box[0].stop), *inner)], out)
        return
    positions, inverse = np.unique(box[0], return_inverse=True)
    rows = np.empty((len(positions), *out.shape[1:]), out.dtype)
    for begin, end in runs(positions):
        _put(dataset[(slice(int(positions[begin]), int(positions[end - 1]) + 1), *inner)], rows[begin:end])
    _put(rows[inverse], out)


def _is_bounded(planned: Selection, itemsize: int) -> bool:
    """Whether `_gather` needs little memory besides the result."""
    return not planned.size or planned.is_box or planned.row_size * itemsize <= _ROW_NBYTES


def _gather(read_box: Callable[[Box, NDArray[Any]], None], planned: Selection, out: NDArray[Any]) -> None:
    """Fill `out`, of the selection's shape, from boxes that `read_box` reads."""
    if not planned.size:
        return
    items = out.shape[len(planned.shape) :]  # axes of array items
    result = out.reshape(planned.lengths + items)
    for target, box, pick in planned.blocks(_PIECE_NBYTES // max(1, out.dtype.itemsize)):
        if pick is None:
            read_box(box, result[target])
        else:
            around = np.empty((*map(len, box), *items), out.dtype)
            read_box(box, around)
            _put(around[pick], result[target])


def _put(values: Any, out: NDArray[Any]) -> None:
    """Copy `values` into `out`, which has the same shape."""
    if out.dtype == values.dtype and not out.dtype.hasobject:
        out, values = _as_plain(out), _as_plain(np.asarray(values))  # copies the padding of structures too
    out[...] = values


def _as_plain(array: NDArray[Any]) -> NDArray[Any]:
    """The same memory with the dtype for moving items."""
    return array if array.dtype.names is None else array.view(plain_of(array.dtype))


def _check_out(out: Any, dtype: np.dtype[Any], name: str) -> None:
    """Refuse an `out` that cannot hold items of the dataset.

    Raises:
        TypeError: `out` is not an array, or has another dtype.
        ValueError: `out` is read-only.
    """
    if not isinstance(out, np.ndarray):
        raise TypeError(f"out must be a NumPy array, received {type(out).__name__}")
    dtype = dtype.base
    if out.dtype != dtype and out.dtype.newbyteorder("=") != dtype.newbyteorder("="):
        raise TypeError(f"out must be of dtype {dtype}, like dataset {name!r}, received {out.dtype}")
    if not out.flags.writeable:
        raise ValueError("out is read-only; pass a writable array")


def _wrong_shape(shape: tuple[int, ...], out: NDArray[Any]) -> ValueError:
    return ValueError(f"out must have the selection's shape {shape}, received {out.shape}")
