"""Rows of padded and ragged fields on their way into a slot.

Invariant: the rows of one run, those that one task loads, stand one behind the other from where the run's first row
has its place, and never beyond the place of its last. So rows of a run need no room of their own, what is short lends
room to what is long, and ragged rows of a batch loaded by one task stand as the consumer wants them. Rows of a fixed
padded shape stand, padded, where the consumer finds them.
"""

from abc import ABC, abstractmethod
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.errors import SpecError
from kerasfeed.loaders.batches.layout import Layout, SlotView
from kerasfeed.spec.field_forms import Form, Padded


class RowRun(ABC):
    """Rows [start, stop) of one field of one slot, written in rising order."""

    def __init__(self, layout: Layout, view: SlotView, number: int, form: Form, start: int, stop: int) -> None:
        field, shapes = layout.spec.fields[number], view.shapes[number]
        assert shapes is not None
        self._path, self._dtype, self._shape = layout.spec.paths[number], field.dtype, field.shape
        self._axes = len(field.shape)
        self._form, self._start, self._stop = form, start, stop
        self._target, self._shapes, self._starts = view.fields[number], shapes, view.starts[number]
        self._indices = view.indices
        self._written: list[tuple[int, ...]] = []  # shapes

    def takes(self, value: Any) -> bool:
        """Whether `value` is an array as the field needs it."""
        if type(value) is not np.ndarray or value.dtype != self._dtype or value.ndim != self._axes:
            return False
        return all(want is None or want == size for want, size in zip(self._shape, value.shape, strict=True))

    def check(self, row: int, shape: tuple[int, ...]) -> None:
        """Refuse a row that is longer than the length to which rows are padded.

        Raises:
            SpecError: It is.
        """
        axis = self._form.too_long(shape) if isinstance(self._form, Padded) else None
        if axis is not None:
            raise SpecError(
                f"scene {self._indices[row]}: field {self._path!r} has shape {shape}, longer on axis {axis.axis} than "
                f"the length {axis.length} to which kf.Pad pads it. Crop it in __getitem__, or use a larger length "
                "(or none)"
            )

    @abstractmethod
    def write(self, row: int, array: NDArray[Any]) -> bool:
        """Write one row; False where there is no room for it.

        Raises:
            SpecError: It is longer than the length to which rows are padded.
        """

    @abstractmethod
    def finish(self) -> None:
        """Note what was written."""


class FixedRun(RowRun):
    """Rows that are padded to one shape in all batches."""

    def __init__(self, layout: Layout, view: SlotView, number: int, form: Padded, start: int, stop: int) -> None:
        super().__init__(layout, view, number, form, start, stop)
        self._padding = form

    def write(self, row: int, array: NDArray[Any]) -> bool:
        """See `RowRun.write`; there is always room."""
        self.check(row, array.shape)
        pad_into(self._target[row], array, self._padding)
        self._written.append(array.shape)
        return True

    def finish(self) -> None:
        """See `RowRun.finish`."""
        self._shapes[self._start : self._stop] = self._written


class DenseRun(RowRun):
    """Rows that stand one behind the other."""

    def __init__(self, layout: Layout, view: SlotView, number: int, form: Form, start: int, stop: int) -> None:
        super().__init__(layout, view, number, form, start, stop)
        capacity = layout.row_bytes[number] // max(1, self._dtype.itemsize)
        self._cursor, self._end = start * capacity, stop * capacity
        self._begun: list[int] = []

    def write(self, row: int, array: NDArray[Any]) -> bool:
        """See `RowRun.write`."""
        self.check(row, array.shape)
        start, stop = self._cursor, self._cursor + array.size
        self._written.append(array.shape)
        self._begun.append(start)
        if stop > self._end:
            return False
        self._target[start:stop].reshape(array.shape)[...] = array
        self._cursor = stop
        return True

    def finish(self) -> None:
        """See `RowRun.finish`."""
        assert self._starts is not None
        rows = slice(self._start, self._stop)
        self._shapes[rows], self._starts[rows] = self._written, self._begun


class Runs:
    """The runs of one task, one for each field that is padded or ragged."""

    def __init__(self, layout: Layout, view: SlotView, start: int, stop: int) -> None:
        self._runs = [
            None if form is None else _run(layout, view, number, form, start, stop)
            for number, form in enumerate(layout.forms)
        ]

    def of(self, number: int) -> RowRun | None:
        """The run of a field; None where it is stacked."""
        return self._runs[number]

    def finish(self) -> None:
        """Note what was written."""
        for run in self._runs:
            if run is not None:
                run.finish()


def _run(layout: Layout, view: SlotView, number: int, form: Form, start: int, stop: int) -> RowRun:
    if isinstance(form, Padded) and form.is_static:
        return FixedRun(layout, view, number, form, start, stop)
    return DenseRun(layout, view, number, form, start, stop)


def pad_into(target: NDArray[Any], array: NDArray[Any], form: Padded) -> None:
    """Write one row, padded to the shape of `target`."""
    if form.is_prefix:
        target[: len(array)] = array
        target[len(array) :] = form.value
        return
    target[...] = form.value
    target[tuple(map(slice, array.shape))] = array


def expand(
    items: NDArray[Any], starts: NDArray[np.int64], shapes: NDArray[np.int64], shape: tuple[int, ...], form: Padded
) -> None:
    """Pad rows that stand one behind the other, from the first element on, in the memory in which they stand.

    They go from the last to the first: where a row goes there is none before it, for no row is larger than when
    padded. (NumPy copies one-dimensional arrays that overlap as memmove does.)

    Args:
        items: dtype[at least B * size of a padded row].
        starts: int64[B], the first element of every row.
        shapes: int64[B, axes], the shape of every row.
        shape: The shape of a padded row.
        form: How it is padded.
    """
    stride, value, prefix = prod(shape), form.value, form.is_prefix
    sizes = np.prod(shapes, axis=1)
    for row, start, size in zip(reversed(range(len(shapes))), starts[::-1].tolist(), sizes[::-1].tolist(), strict=True):
        place = row * stride
        if prefix:
            if start != place:
                items[place : place + size] = items[start : start + size]
            if size < stride:
                items[place + size : place + stride] = value
            continue
        array = items[start : start + size].reshape(shapes[row])
        pad_into(items[place : place + stride].reshape(shape), array.copy(), form)
