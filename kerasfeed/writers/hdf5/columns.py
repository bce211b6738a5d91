"""The layout of an HDF5 file: a dataset per field, scenes first.

Invariant: a chunk holds whole scenes, and their number divides the scenes of a segment, so that segments and the file
have the same chunks. Values that HDF5 cannot hold are refused before anything is written. Every filter is lossless and
available: in HDF5 itself, in h5py, or in a plugin registered in this process.
"""

import contextlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import h5py
import numpy as np

from kerasfeed.errors import SpecError
from kerasfeed.readers.hdf5.scenes import SPEC_ATTRIBUTE
from kerasfeed.spec.field_values import coerce
from kerasfeed.spec.scene_spec import BYTES, TEXT, ArraySpec, SceneSpec
from kerasfeed.spec.spec_json import spec_to_json
from kerasfeed.util.error_text import message_of

CHUNK_LIMIT = (1 << 32) - 1  # bytes; HDF5's own
LEAST_CHUNK_BYTES = 1 << 14  # by default: 100,000 chunks of 8 bytes take 5 MB, and are read 300 times as slowly
_GZIP_LEVEL = 4
# Filters that plugins register, with the options that make them lossless and quick.
_PLUGINS = {"blosc": (32001, (0, 0, 0, 0, 5, 1, 1)), "zstd": (32015, (3,)), "lz4": (32004, ())}
_CHUNK_BYTES = 1 << 16  # of fields whose single scenes are too small for a chunk
_SMALL_ROW = 1 << 12
_TEXT_BYTES = 64  # assumed size of a string
_BUFFER_BYTES = 1 << 20
_SEGMENT_BYTES = 1 << 26
_LEAST_SEGMENTS = 16  # so that several workers can share a small file


@dataclass(frozen=True)
class Filters:
    """The compression of a new dataset.

    Attributes:
        code: HDF5's number of the compression filter; None without compression.
        options: The filter's options.
        shuffles: Whether bytes are shuffled first.
    """

    code: int | None = None
    options: tuple[int, ...] = ()
    shuffles: bool = True

    def add_to(self, plist: Any, dtype: np.dtype[Any]) -> None:
        """Set the filters on a dataset creation property list."""
        if self.code is None:
            return
        if self.shuffles and dtype.itemsize > 1 and dtype.kind != "O":  # objects are stored as references to a heap
            plist.set_shuffle()
        plist.set_filter(self.code, h5py.h5z.FLAG_OPTIONAL, self.options)


def filters_for(compression: Any) -> Filters:
    """Return the filters for a user's `compression`; see `write_hdf5`.

    Raises:
        ValueError: It is unknown or unavailable here; the message lists the valid values.
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
        return Filters(*_PLUGINS[compression], shuffles=False)  # blosc shuffles itself
    known = ", ".join(["None", "'gzip'", "0 to 9 (gzip of that level)", "'lzf'", *map(repr, plugins)])
    more = " (blosc, zstd and lz4 need `pip install hdf5plugin`)" if len(plugins) < len(_PLUGINS) else ""
    raise ValueError(f"compression must be one of {known}{more}, received {compression!r}")


@dataclass(frozen=True)
class Column:
    """One field and its dataset.

    Attributes:
        name: Path of the dataset.
        path: Name of the field.
        field: Its spec; all axes have fixed sizes.
        chunk: Scenes in a chunk; None if the dataset is contiguous.
    """

    name: str
    path: str
    field: ArraySpec
    chunk: int | None

    @property
    def dtype(self) -> Any:
        """The dtype of the dataset."""
        if self.field.dtype == TEXT:
            return h5py.string_dtype()
        return h5py.vlen_dtype(np.uint8) if self.field.dtype == BYTES else self.field.dtype

    @property
    def row_shape(self) -> tuple[int, ...]:
        """Shape of one scene's row."""
        return tuple(size or 0 for size in self.field.shape)

    @property
    def buffered(self) -> int:
        """Number of scenes that are written at a time."""
        return self.chunk or max(1, _BUFFER_BYTES // max(1, self.field.nbytes or _TEXT_BYTES))

    def create(self, file: h5py.File, scenes: int, compression: Any) -> h5py.Dataset:
        """Make the dataset for a number of scenes."""
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        links = h5py.h5p.create(h5py.h5p.LINK_CREATE)
        links.set_char_encoding(h5py.h5t.CSET_UTF8)
        links.set_create_intermediate_group(True)
        shape = most = (scenes, *self.row_shape)
        if self.chunk is not None:
            plist.set_chunk((self.chunk, *self.row_shape))
            filters_for(compression).add_to(plist, np.dtype(self.dtype))
            most = (h5py.h5s.UNLIMITED, *self.row_shape)  # so that a short segment may be smaller than a chunk
        space = h5py.h5s.create_simple(shape, most)
        stored = h5py.h5t.py_create(np.dtype(self.dtype), logical=True)
        return h5py.Dataset(h5py.h5d.create(file.id, self.name.encode(), stored, space, plist, links))

    def encoded(self, leaf: Any) -> Any:
        """Return a value as it is written.

        Raises:
            SpecError: It does not match the spec, or HDF5 cannot hold it.
        """
        value = coerce(leaf, self.field, self.path)
        if not self.field.is_text:
            return value
        values = [value] if isinstance(value, str | bytes) else value.ravel().tolist()
        row = np.empty(len(values), object)
        for number, text in enumerate(values):
            if isinstance(text, str):
                self._check_text(text)
            row[number] = text if isinstance(text, str) else np.frombuffer(text, np.uint8)
        return row.reshape(self.row_shape) if self.row_shape else row[0]

    def _check_text(self, text: str) -> None:
        if "\0" in text:
            raise SpecError(f"field {self.path!r} holds text with a NUL, which ends a string in HDF5: return bytes")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise SpecError(
                f"field {self.path!r} holds text that UTF-8 cannot encode: {message_of(error)}. Return bytes: "
                "text.encode(errors='surrogateescape')"
            ) from None


@dataclass(frozen=True)
class Columns:
    """All fields of a spec.

    Attributes:
        spec: Spec of a scene.
        columns: One per field, in the spec's order.
        compression: As in `write_hdf5`.
    """

    spec: SceneSpec
    columns: tuple[Column, ...]
    compression: Any

    def segments(self, length: int) -> list[range]:
        """Return the scenes of each segment: whole chunks, up to 64 MiB."""
        unit = max(column.chunk or 1 for column in self.columns)
        step = -(-_most_scenes(self.spec, length) // unit) * unit
        return [range(start, min(start + step, length)) for start in range(0, length, step)]

    def create(self, file: h5py.File, scenes: int) -> list[h5py.Dataset]:
        """Make all datasets."""
        return [column.create(file, scenes, self.compression) for column in self.columns]

    def describe(self, file: h5py.File) -> None:
        """Write the spec into the file."""
        file.attrs[SPEC_ATTRIBUTE] = json.dumps(spec_to_json(self.spec))


def columns_for(spec: SceneSpec, scenes_per_chunk: int | None, compression: Any, length: int) -> Columns:
    """Return the layout for scenes of a spec.

    Args:
        spec: Spec of a scene.
        scenes_per_chunk: Scenes in a chunk. None means about 64 KiB of scenes, and contiguous storage if there is no
            compression or a chunk would be less than 16 KiB.
        compression: As in `write_hdf5`.
        length: Number of all scenes.

    Raises:
        SpecError: A field has no fixed shape or a dtype that HDF5 lacks, or two fields have one name.
        ValueError: A chunk would be too large, or the compression is unknown.
    """
    filters_for(compression)
    names = [path.replace(".", "/") for path in spec.paths]
    columns = []
    most = _most_scenes(spec, length)
    for name, path, field in zip(names, spec.paths, spec.fields, strict=True):
        _check(path, field)
        clash = next(
            (other for other in names if other.startswith(f"{name}/")), name if names.count(name) > 1 else None
        )
        if clash is not None:
            raise SpecError(f"two fields need the datasets {name!r} and {clash!r}: rename one of the fields")
        scenes = _chunk(field, scenes_per_chunk, length, most)
        is_small = compression is None or scenes * (field.nbytes or _TEXT_BYTES) < LEAST_CHUNK_BYTES
        chunk = None if (scenes_per_chunk is None and is_small) or 0 in field.shape else scenes
        if chunk is not None and chunk * field.nbytes > CHUNK_LIMIT:
            raise ValueError(
                f"a chunk of {chunk:,} scenes of field {path!r} would take {chunk * field.nbytes:,} bytes, but HDF5 "
                f"allows {CHUNK_LIMIT:,}: use a smaller scenes_per_chunk"
            )
        columns.append(Column(name, path, field, chunk))
    return Columns(spec, tuple(columns), compression)


def _most_scenes(spec: SceneSpec, length: int) -> int:
    """Return the most scenes that a segment holds.

    A chunk may hold more; the segment is then one chunk.
    """
    scene_bytes = sum(field.nbytes or _TEXT_BYTES for field in spec.fields)
    return max(1, min(_SEGMENT_BYTES // scene_bytes, -(-length // _LEAST_SEGMENTS)))


def _chunk(field: ArraySpec, scenes_per_chunk: int | None, length: int, most: int) -> int:
    """Return the number of scenes in a chunk, larger for small fields."""
    row = field.nbytes or _TEXT_BYTES
    chunk = min(scenes_per_chunk or 1, length)
    while 2 * chunk <= most and 2 * chunk * row <= _CHUNK_BYTES and (scenes_per_chunk is None or row < _SMALL_ROW):
        chunk *= 2
    return chunk


def _check(path: str, field: ArraySpec) -> None:
    if None in field.shape:
        raise SpecError(
            f"field {path!r} is {field}, but all rows of an HDF5 dataset have one shape. Pad, crop or resample it in "
            "__getitem__, or use kf.write_tfrecords, which allows shapes to vary"
        )
    # h5py would store NumPy's extensions (bfloat16, float8) as plain bytes.
    if field.dtype.kind == "V" and field.dtype.type is not np.void:
        raise SpecError(f"field {path!r} is {field}, a dtype that HDF5 lacks: return it as another, such as float32")


def write_rows(dataset: h5py.Dataset, start: int, rows: Any) -> None:
    """Write rows of a dataset from `start` on.

    h5py's own assignment would join rows of variable length into one array if they happen to be equally long. For items
    that are arrays of text, this function uses that assignment.
    """
    if not dataset.dtype.hasobject or dataset.dtype.subdtype is not None:
        dataset[start : start + len(rows)] = rows
        return
    rest = (0,) * (dataset.ndim - 1)
    space = dataset.id.get_space()
    space.select_hyperslab((start, *rest), rows.shape)
    dataset.id.write(h5py.h5s.create_simple(rows.shape), space, np.ascontiguousarray(rows).astype(dataset.dtype))


class ColumnWriter:
    """Fills a dataset row by row, a chunk at a time."""

    def __init__(self, column: Column, dataset: h5py.Dataset, check: Callable[[], None]) -> None:
        """Write to `dataset`.

        `check` raises if the file can no longer be written.
        """
        self._dataset = dataset
        self._check = check
        dtype = object if column.field.is_text else column.field.dtype
        self._buffer: Any = np.empty((min(column.buffered, max(1, len(dataset))), *column.row_shape), dtype)
        self._buffered = self._written = 0

    def add(self, row: Any) -> None:
        """Append one scene's value."""
        self._buffer[self._buffered] = row
        self._buffered += 1
        if self._buffered == len(self._buffer):
            self.flush()

    def flush(self) -> None:
        """Write the buffered rows."""
        if self._buffered:
            write_rows(self._dataset, self._written, self._buffer[: self._buffered])
            self._written += self._buffered
            self._buffered = 0
            self._check()
