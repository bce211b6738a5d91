"""Where in a slot each field stands.

Invariant: a layout is arithmetic on a spec, equal in parent and worker. Every field starts on a 64-byte boundary, so
that TensorFlow, JAX and PyTorch alias its memory; a slot is a whole number of pages, so that it can be given back to
the system alone.
"""

import mmap
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.spec import SceneSpec

ALIGNMENT = 64
_HEADER = 64
# A field whose shape differs from scene to scene gets this multiple of the largest row seen while inferring the spec.
# Pages never written cost nothing; a row that is larger still travels beside the slot.
_HEADROOM = 2


def align(nbytes: int, boundary: int = ALIGNMENT) -> int:
    """`nbytes` rounded up to a multiple of `boundary`."""
    return -(-nbytes // boundary) * boundary


@dataclass(frozen=True)
class Layout:
    """Memory map of one slot: a header, the indices, then the fields.

    Attributes:
        spec: Spec of a scene.
        rows: Most rows of a batch, at least 1.
        batched: Whether arrays get a leading axis; False where each scene is a batch already (then `rows` is 1).
        largest: Largest row of every field seen while inferring the spec, bytes.
    """

    spec: SceneSpec
    rows: int
    batched: bool
    largest: tuple[int, ...]

    @cached_property
    def row_bytes(self) -> tuple[int, ...]:
        """Bytes reserved for one row of every field; 0 for text."""
        return tuple(
            field.nbytes if field.is_fixed else 0 if field.is_text else max(ALIGNMENT, _HEADROOM * largest)
            for field, largest in zip(self.spec.fields, self.largest, strict=True)
        )

    @cached_property
    def _offsets(self) -> tuple[int, tuple[int, ...], tuple[int, ...], int]:
        cursor = _HEADER
        indices = cursor
        cursor = align(cursor + 8 * self.rows)
        shapes, fields = [], []
        for field in self.spec.fields:
            shapes.append(cursor)
            if not field.is_fixed and not field.is_text:
                cursor = align(cursor + 8 * self.rows * len(field.shape))
        for nbytes in self.row_bytes:
            fields.append(cursor)
            cursor = align(cursor + nbytes * self.rows)
        return indices, tuple(shapes), tuple(fields), cursor

    @property
    def indices_offset(self) -> int:
        """Offset of int64[rows], the indices of the batch."""
        return self._offsets[0]

    @property
    def shape_offsets(self) -> tuple[int, ...]:
        """Offsets of int64[rows, axes], the shape of every row, for fields whose shape is not fixed."""
        return self._offsets[1]

    @property
    def field_offsets(self) -> tuple[int, ...]:
        """Offset of the first row of every field."""
        return self._offsets[2]

    @property
    def nbytes(self) -> int:
        """Bytes of a slot, a whole number of pages."""
        return align(self._offsets[3], mmap.ALLOCATIONGRANULARITY)


class SlotView:
    """NumPy views of one slot's memory, for whoever fills it.

    Attributes:
        control: int64[8]; the first value is the number of the last batch given up while in this slot.
        indices: int64[rows].
        shapes: int64[rows, axes] of every field without a fixed shape, else None.
        fields: For a field of fixed shape dtype[rows, ...]; else uint8[rows * row_bytes].
    """

    __slots__ = ("control", "fields", "indices", "shapes")

    def __init__(self, layout: Layout, memory: Any, base: int) -> None:
        self.control = memoryview(memory)[base : base + _HEADER].cast("q")
        self.indices: NDArray[np.int64] = np.ndarray(
            layout.rows, np.int64, buffer=memory, offset=base + layout.indices_offset
        )
        self.shapes: list[NDArray[np.int64] | None] = []
        self.fields: list[NDArray[Any]] = []
        places = zip(layout.spec.fields, layout.shape_offsets, layout.field_offsets, layout.row_bytes, strict=True)
        for field, shape_offset, offset, row_bytes in places:
            if field.is_fixed:
                shape: tuple[int, ...] = (layout.rows, *(size or 0 for size in field.shape))
                array: NDArray[Any] = np.ndarray(shape, field.dtype, buffer=memory, offset=base + offset)
            else:
                array = np.ndarray(layout.rows * row_bytes, np.uint8, buffer=memory, offset=base + offset)
            self.fields.append(array)
            has_shapes = not field.is_fixed and not field.is_text
            self.shapes.append(
                np.ndarray((layout.rows, len(field.shape)), np.int64, buffer=memory, offset=base + shape_offset)
                if has_shapes
                else None
            )


def aligned_empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """An uninitialised array in ordinary memory that starts on a 64-byte boundary."""
    nbytes = int(np.prod(shape)) * dtype.itemsize
    raw = np.empty(nbytes + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + nbytes].view(dtype).reshape(shape)
