"""The position of each field in a slot.

Invariant: a layout is arithmetic on a spec, equal in parent and worker. Every field starts on a 64-byte boundary, so
that TensorFlow, JAX and PyTorch alias its memory. A slot is a whole number of pages, so that its memory can be returned
to the system separately.
"""

import mmap
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.pool.memory import ALIGNMENT, align
from kerasfeed.spec.field_forms import Form, Padded
from kerasfeed.spec.scene_spec import ArraySpec, SceneSpec

_HEADER = 64
# A field whose shape differs from scene to scene gets this multiple of the largest row seen while inferring the spec.
# Pages that are never written cost no memory. A row that is still larger is passed outside the slot.
_HEADROOM = 2
# For padded and ragged fields: lengths often have long tails, and one row that is too large makes its batch a copy.
_FORM_HEADROOM = 4
# Rows of at least this many bytes begin on a page. NumPy's large arrays begin 16 bytes after the start of a page,
# and the C library copies 256 MB to an address 64 to 512 bytes after it at a third of the speed.
_LARGE_ROW = 1 << 20


@dataclass(frozen=True)
class FieldLocation:
    """The position of one field in a slot, as byte offsets.

    Attributes:
        offset: Offset of the first row.
        row_bytes: Bytes reserved for one row; 0 for text.
        shapes: Offset of int64[rows, axes], the shape of every row; only for fields without a fixed shape.
        starts: Offset of int64[rows], where rows begin; only for rows of a run (see `RowRun`).
        mask: Offset of the mask of the whole batch, if there is one.
        mask_bytes: Bytes reserved for the mask.
    """

    offset: int
    row_bytes: int
    shapes: int
    starts: int
    mask: int
    mask_bytes: int


@dataclass(frozen=True)
class Layout:
    """Memory map of one slot: a header, the indices, then the fields.

    Attributes:
        spec: Spec of a scene, or of a batch for a collate function.
        rows: Maximum rows of a batch, at least 1.
        batched: Whether arrays get a leading axis; False if items are batches already, or a function makes batches.
        largest: Bytes of the largest row of each field seen while inferring the spec, after any padding.
        forms: The form of each field, None for stacked ones; empty if all are stacked.
        witness: Index of a scene that was read to infer the spec, and so has every size that the spec fixes; None if
            the user gave the spec.
        first: If items are batches: epoch and index of the item that each worker process reads before any other. An
            order that a class makes at its first read is then the same in all processes.
    """

    spec: SceneSpec
    rows: int
    batched: bool
    largest: tuple[int, ...]
    forms: tuple[Form | None, ...] = ()
    witness: int | None = 0
    first: tuple[int, int] | None = None

    def form(self, number: int) -> Form | None:
        """Form of a field; None if it is stacked."""
        return self.forms[number] if self.forms else None

    @property
    def rows_per_field(self) -> int:
        """Rows that every field has room for; one if not `batched`."""
        return self.rows if self.batched else 1

    def fixed_shape(self, number: int) -> tuple[int, ...] | None:
        """Shape of every row of a field in a slot.

        None if the rows may differ.
        """
        field, form = self.spec.fields[number], self.form(number)
        if isinstance(form, Padded) and form.is_static:
            return tuple(size or 0 for size in form.padded(field.shape))
        return tuple(size or 0 for size in field.shape) if field.is_fixed else None

    @cached_property
    def row_bytes(self) -> tuple[int, ...]:
        """Bytes reserved for one row of every field; 0 for text."""
        return tuple(self._row_bytes(number, field) for number, field in enumerate(self.spec.fields))

    def _row_bytes(self, number: int, field: ArraySpec) -> int:
        shape = self.fixed_shape(number)
        if shape is not None:
            return prod(shape) * field.dtype.itemsize
        if field.is_text:
            return 0
        if self.form(number) is None:
            return max(ALIGNMENT, _HEADROOM * self.largest[number])
        itemsize = max(1, field.dtype.itemsize)
        return align(max(ALIGNMENT, _FORM_HEADROOM * self.largest[number]), itemsize)

    @cached_property
    def locations(self) -> tuple[FieldLocation, ...]:
        """The position of each field."""
        return self._map[0]

    @cached_property
    def _map(self) -> tuple[tuple[FieldLocation, ...], int]:
        rows = self.rows_per_field
        cursor = align(_HEADER + 8 * self.rows)
        tables = []
        for number, field in enumerate(self.spec.fields):
            shapes, starts = cursor, cursor
            if not field.is_fixed and not field.is_text:
                cursor = align(cursor + 8 * rows * len(field.shape))
                if self.form(number) is not None and self.fixed_shape(number) is None:
                    starts, cursor = cursor, align(cursor + 8 * rows)
            tables.append((shapes, starts))
        locations = []
        for number, row_bytes in enumerate(self.row_bytes):
            offset = align(cursor, mmap.PAGESIZE) if row_bytes >= _LARGE_ROW else cursor
            cursor = align(offset + row_bytes * rows)
            mask_bytes = self._mask_bytes(number, row_bytes)
            locations.append(FieldLocation(offset, row_bytes, *tables[number], cursor, mask_bytes))
            cursor = align(cursor + mask_bytes)
        return tuple(locations), cursor

    @cached_property
    def stacked(self) -> tuple[tuple[tuple[int, ...], np.dtype[Any], int] | None, ...]:
        """Shape in a scene, dtype and offset of every field.

        None if it needs assembly.
        """
        return tuple(
            (tuple(size or 0 for size in field.shape), field.dtype, self.locations[number].offset)
            if field.is_fixed and self.form(number) is None
            else None
            for number, field in enumerate(self.spec.fields)
        )

    def _mask_bytes(self, number: int, row_bytes: int) -> int:
        form, field = self.form(number), self.spec.fields[number]
        if not isinstance(form, Padded) or not form.masked:
            return 0
        padded = {axis.axis for axis in form.axes}
        rest = prod(size or 1 for axis, size in enumerate(field.shape) if axis not in padded)
        return self.rows * (row_bytes // (max(1, field.dtype.itemsize) * rest))

    @property
    def nbytes(self) -> int:
        """Bytes of a slot, a whole number of pages."""
        return align(self._map[1], mmap.ALLOCATIONGRANULARITY)

    def view(self, memory: Any, base: int) -> "SlotView":
        """Return the views of the slot at offset `base` in `memory`."""
        return SlotView(self, memory, base)


class SlotView:
    """NumPy views of one slot's memory, for writing.

    Attributes:
        control: int64[8]. Item 0 is the serial number of the last batch that was given up in this slot; item 2 the
            number of the present batch in the epoch, over all shards; item 3 its rows.
        indices: int64[rows]; -1 for a scene that is left out of a batch of a collate function.
        shapes: int64[rows, axes] of every field without a fixed shape, else None.
        starts: int64[rows] of every field with runs, where its rows begin, in elements; else None.
        fields: dtype[rows, ...] of a field whose rows have fixed offsets; dtype[rows * capacity] of one with runs;
            else uint8[rows * row_bytes].
    """

    __slots__ = ("control", "fields", "indices", "shapes", "starts")

    def __init__(self, layout: Layout, memory: Any, base: int) -> None:
        self.control = memoryview(memory)[base : base + _HEADER].cast("q")

        def table(offset: int, *shape: int) -> NDArray[np.int64]:
            return np.ndarray(shape, np.int64, buffer=memory, offset=base + offset)

        self.indices = table(_HEADER, layout.rows)
        self.shapes: list[NDArray[np.int64] | None] = []
        self.starts: list[NDArray[np.int64] | None] = []
        self.fields: list[NDArray[Any]] = []
        rows = layout.rows_per_field
        for number, (field, location) in enumerate(zip(layout.spec.fields, layout.locations, strict=True)):
            self.fields.append(field_array(layout, number, rows, memory, base))
            has_shapes = not field.is_fixed and not field.is_text
            self.shapes.append(table(location.shapes, rows, len(field.shape)) if has_shapes else None)
            self.starts.append(table(location.starts, rows) if location.starts != location.shapes else None)


def field_array(layout: Layout, number: int, rows: int, memory: Any, base: int) -> NDArray[Any]:
    """One field of a slot's first `rows` rows, as in `SlotView.fields`."""
    field, location = layout.spec.fields[number], layout.locations[number]
    offset, shape = base + location.offset, layout.fixed_shape(number)
    if shape is not None:
        return np.ndarray((rows, *shape), field.dtype, buffer=memory, offset=offset)
    if layout.form(number) is not None:
        count = rows * (location.row_bytes // max(1, field.dtype.itemsize))
        return np.ndarray(count, field.dtype, buffer=memory, offset=offset)
    return np.ndarray(rows * location.row_bytes, np.uint8, buffer=memory, offset=offset)


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """An uninitialised array in ordinary memory that starts on a 64-byte boundary."""
    nbytes = int(np.prod(shape)) * dtype.itemsize
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes].view(dtype).reshape(shape)


def aligned_copy(array: NDArray[Any], rows: list[int] | None = None) -> NDArray[Any]:
    """Copy the array, or some of its rows, to a 64-byte boundary."""
    if rows is not None:
        return np.take(array, rows, axis=0, out=aligned_empty((len(rows), *array.shape[1:]), array.dtype))
    target = aligned_empty(array.shape, array.dtype)
    target[...] = array
    return target
