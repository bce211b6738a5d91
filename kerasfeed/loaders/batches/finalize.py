"""Padded and ragged fields of a batch whose rows have all been loaded.

Invariant: what is made is a function of the rows alone, not of where the workers left them. It is made in the slot,
except where rows had no room there.
"""

from collections.abc import Collection, Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.loaders.batches.layout import Layout, SlotView, aligned_copy, aligned_empty, field_array
from kerasfeed.loaders.batches.variable_rows import EXPANDED, expand, pad_into
from kerasfeed.spec.field_forms import MASK, SPLITS, Form, Masked, Padded, RaggedArray


class FormedField:
    """One field of one batch, being assembled."""

    def __init__(
        self,
        layout: Layout,
        number: int,
        form: Form,
        view: SlotView,
        rows: int,
        beside: Mapping[int, NDArray[Any]],
        empty_rows: Collection[int],
        memory: Any,
        base: int,
    ) -> None:
        """Assemble field `number` from the slot at `base` of `memory`.

        Args:
            layout: Memory map of the slot.
            number: Number of the field.
            form: What becomes of it.
            view: Views of the slot.
            rows: Rows of the batch, at least 1.
            beside: Rows that had no room in the slot.
            empty_rows: Rows that hold no scene: of length 0, all padding.
            memory: What the batch's arrays refer to.
            base: Offset of the slot in `memory`, bytes.
        """
        shapes, starts = view.shapes[number], view.starts[number]
        assert shapes is not None
        self._layout, self._number, self._form = layout, number, form
        self._dtype = layout.spec.fields[number].dtype
        self._rows, self._beside, self._empty_rows = rows, beside, empty_rows
        self._memory, self._base = memory, base
        self._shapes = shapes[:rows]
        self._starts = None if starts is None else starts[:rows]
        if empty_rows:
            self._shape_empty_rows()

    def _shape_empty_rows(self) -> None:
        field = self._layout.spec.fields[self._number]
        self._shapes[list(self._empty_rows)] = [size or 0 for size in field.shape]
        if isinstance(self._form, Padded):
            for axis in self._form.axes:
                self._shapes[list(self._empty_rows), axis.axis] = 0
        else:
            self._shapes[list(self._empty_rows), 0] = 0
        if self._starts is not None:
            self._starts[list(self._empty_rows)] = 0

    def leaf(self, kept: list[int] | None, *, copy: bool) -> Any:
        """What stands in the batch for the field.

        Args:
            kept: The rows that the batch keeps; None for all.
            copy: Whether it must not refer to the slot.
        """
        form = self._form
        if not isinstance(form, Padded):
            values = self._joined()
            lengths = self._shapes[:, 0] if kept is None else self._shapes[kept, 0]
            splits = aligned_empty((len(lengths) + 1,), SPLITS)
            splits[0] = 0
            np.cumsum(lengths, out=splits[1:])
            return RaggedArray(aligned_copy(values) if copy or kept is not None else values, splits)
        array, shapes = self._padded(form), self._shapes
        if copy or kept is not None:
            array, shapes, copy = aligned_copy(array, kept), shapes if kept is None else shapes[kept], True
        return Masked(array, self._mask(form, array, shapes, copy)) if form.masked else array

    # ---- padded

    def _padded(self, form: Padded) -> NDArray[Any]:
        items = field_array(self._layout, self._number, self._rows, self._memory, self._base)
        if self._starts is None:
            if self._empty_rows:
                items[list(self._empty_rows)] = form.value
            return items
        shape = form.target(self._shapes)
        if len(self._empty_rows) == self._rows:
            shape = form.smallest(self._layout.spec.fields[self._number].shape)
        count = self._rows * prod(shape)
        if self._beside or count > items.size:
            padded = aligned_empty((self._rows, *shape), self._dtype)
            for row in range(self._rows):
                pad_into(padded[row], self._row(items, row), form)
            return padded
        if self._starts[0] != EXPANDED:
            self._join(items)
            expand(items, self._starts, self._shapes, shape, form)
        return items[:count].reshape(self._rows, *shape)

    def _mask(self, form: Padded, array: NDArray[Any], shapes: NDArray[np.int64], copy: bool) -> NDArray[np.bool_]:
        shape = tuple(size or 0 for size in form.mask_shape(array.shape[1:]))
        place = self._layout.places[self._number]
        if copy or len(array) * prod(shape) > place.mask_bytes:
            mask = aligned_empty((len(array), *shape), MASK)
        else:
            mask = np.ndarray((len(array), *shape), MASK, buffer=self._memory, offset=self._base + place.mask)
        form.fill_mask(mask, shapes)
        return mask

    # ---- ragged

    def _joined(self) -> NDArray[Any]:
        items = field_array(self._layout, self._number, self._rows, self._memory, self._base)
        inner = tuple(size or 0 for size in self._layout.spec.fields[self._number].shape[1:])
        total = int(self._shapes[:, 0].sum())
        if not self._beside:
            self._join(items)
            return items[: total * prod(inner)].reshape(total, *inner)
        joined = aligned_empty((total, *inner), self._dtype)
        stop = 0
        for row, length in enumerate(self._shapes[:, 0].tolist()):
            joined[stop : stop + length] = self._row(items, row)
            stop += length
        return joined

    # ---- rows

    def _row(self, items: NDArray[Any], row: int) -> NDArray[Any]:
        if row in self._beside and row not in self._empty_rows:
            return self._beside[row]
        assert self._starts is not None
        start, shape = int(self._starts[row]), tuple(self._shapes[row].tolist())
        return items[start : start + prod(shape)].reshape(shape)

    def _join(self, items: NDArray[Any]) -> None:
        """Move runs of rows towards the first, until all rows stand one behind the other.

        From the first run to the last: none is moved over one that is still to be moved, for no run is larger than
        the room that its rows have.
        """
        assert self._starts is not None
        sizes = np.prod(self._shapes, axis=1)
        wanted = np.cumsum(sizes) - sizes
        shifts = self._starts - wanted
        if not shifts[sizes > 0].any():
            self._starts[:] = wanted
            return
        moved = np.flatnonzero(sizes)  # where an empty row stands is of no matter
        firsts = moved[np.flatnonzero(np.diff(shifts[moved], prepend=-1))]
        for first, after in zip(firsts.tolist(), [*firsts[1:].tolist(), self._rows], strict=True):
            start, place = int(self._starts[first]), int(wanted[first])
            if start != place:
                size = int(sizes[first:after].sum())
                items[place : place + size] = items[start : start + size]
        self._starts[:] = wanted
