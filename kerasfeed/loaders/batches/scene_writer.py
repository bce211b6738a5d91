"""Write scenes into their rows of a slot, one or many.

Invariant: a scene is copied before the next is read, because the sequence may reuse its arrays. A row of a stacked
field, or of a field padded to a fixed length, is written straight into the slot. Rows of other padded and ragged fields
are collected, and written when a task has read all its rows. Values without room (text, rows too large) are returned.

If a task loads a whole batch, it writes these fields as the consumer gets them (`COMPLETE`). Otherwise it writes its
rows one after another, from the offset of its first row on, and the batch is assembled in ordinary memory.
"""

import itertools
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.errors import SpecError
from kerasfeed.loaders.batches.layout import Layout, SlotView
from kerasfeed.spec.conformance import conformed
from kerasfeed.spec.field_forms import Form, Padded, rare_shape_text
from kerasfeed.spec.field_values import as_array, coerce, remedy_of
from kerasfeed.spec.inference import describe
from kerasfeed.spec.nesting import flatten, flatten_as, is_nested, structure_text
from kerasfeed.spec.scene_spec import ArraySpec
from kerasfeed.util.error_text import message_of

COMPLETE = -1  # replaces the start of row 0: the field is stored as the consumer gets it


class RowRun:
    """Rows [start, stop) of one field of a slot, in rising order."""

    def __init__(self, layout: Layout, view: SlotView, number: int, form: Form, start: int, stop: int) -> None:
        field, shapes = layout.spec.fields[number], view.shapes[number]
        assert shapes is not None
        self._path, self._field, self._dtype = layout.spec.paths[number], field, field.dtype
        self._is_flat = len(field.shape) == 1
        self._padded = padded = form if isinstance(form, Padded) else None
        self._static = padded if padded is not None and padded.is_static else None
        self._bounded = padded if padded is not None and any(axis.length for axis in padded.axes) else None
        self._start, self._stop = start, stop
        self._is_whole = stop - start == view.control[3]
        self._target, self._shapes, self._starts = view.fields[number], shapes[start:stop], view.starts[number]
        self._indices = view.indices
        self._capacity = layout.row_bytes[number] // max(1, field.dtype.itemsize)
        self._arrays: list[NDArray[Any]] = []

    def takes(self, row: int, value: Any) -> bool:
        """Copy the row `value` if it is an array that fits.

        Return whether it is.

        Raises:
            SpecError: The row is longer than the `length` of its `Pad`.
        """
        if type(value) is not np.ndarray or value.dtype != self._dtype:
            return False
        if not (value.ndim == 1 if self._is_flat else self._field.fits(value.shape)):
            return False
        if self._bounded is None:
            self._arrays.append(value.copy())
        else:
            self.add(row, value)
        return True

    def add(self, row: int, array: NDArray[Any]) -> None:
        """Copy one row, which has the field's dtype and number of axes.

        Raises:
            SpecError: The row is longer than the `length` of its `Pad`.
        """
        axis = None if self._bounded is None else self._bounded.too_long(array.shape)
        if axis is not None:
            raise SpecError(
                f"scene {self._indices[row]}: field {self._path!r} has shape {array.shape}, longer on axis {axis.axis} "
                f"than the length {axis.length} to which kf.Pad pads it. Crop it in __getitem__, or use a larger "
                "length (or none)"
            )
        if self._static is None:
            self._arrays.append(array.copy())
        else:
            pad_into(self._target[row], array, self._static)
            self._shapes[row - self._start] = array.shape

    def finish(self) -> dict[int, NDArray[Any]]:
        """Write the collected rows; return those without room, by row."""
        if self._starts is None:
            return {}
        self._shapes.reshape(-1)[:] = [size for array in self._arrays for size in array.shape]
        if self._is_whole and self._write_whole(self._starts):
            return {}
        sizes = [array.size for array in self._arrays]
        starts = list(itertools.accumulate(sizes, initial=self._start * self._capacity))
        self._starts[self._start : self._stop] = starts[:-1]
        count = bisect_right(starts, self._stop * self._capacity) - 1
        if count:
            flat = [array.reshape(-1) for array in self._arrays[:count]]
            np.concatenate(flat, out=self._target[starts[0] : starts[count]])
        return dict(enumerate(self._arrays[count:], self._start + count))

    def _write_whole(self, starts: NDArray[np.int64]) -> bool:
        """Write a whole batch in its final form.

        Return False if there is no room.
        """
        arrays, form = self._arrays, self._padded
        if form is None:
            shape: tuple[int, ...] = (sum(map(len, arrays)), *arrays[0].shape[1:])
        else:
            shape = (len(arrays), *form.target(self._shapes))
        if prod(shape) > self._stop * self._capacity:
            return False
        target = self._target[: prod(shape)].reshape(shape)
        if form is None:
            np.concatenate(arrays, out=target)
        elif form.is_prefix:
            target[...] = form.value
            rows = target.reshape(shape[0] * shape[1], *shape[2:])
            for number, array in enumerate(arrays):
                first = number * shape[1]
                rows[first : first + len(array)] = array
        else:
            for row, array in zip(target, arrays, strict=True):
                pad_into(row, array, form)
        starts[0] = COMPLETE
        return True


def runs_of(layout: Layout, view: SlotView, start: int, stop: int) -> list[RowRun | None]:
    """One run per padded or ragged field, None for other fields."""
    return [
        None if form is None else RowRun(layout, view, number, form, start, stop)
        for number, form in enumerate(layout.forms)
    ]


def pad_into(target: NDArray[Any], array: NDArray[Any], form: Padded) -> None:
    """Write one row, padded to the shape of `target`."""
    if form.is_prefix:
        target[: len(array)] = array
        target[len(array) :] = form.value
        return
    target[...] = form.value
    target[tuple(map(slice, array.shape))] = array


# Values outside the slot: field number -> row -> value.
Overflow = dict[int, dict[int, Any]]
_PYTHON_TYPE = {"b": bool, "i": int, "f": float, "c": complex}


class SceneWriter:
    """Write scenes of one layout."""

    def __init__(self, layout: Layout, *, whole: bool = False) -> None:
        """Write scenes; with `whole`, batches of a collate function.

        Each such batch is written like one scene.
        """
        self._layout, self._spec = layout, layout.spec
        self._whole = whole
        self._is_given = layout.witness is None
        self._are_batches = not (layout.batched or whole or self._is_given)  # items that are batches already
        # Raises a ValueError if the nesting differs; five times faster than flattening and comparing.
        self._flatten = layout.spec.treespec.flatten_up_to
        self._is_leaf = layout.spec.treespec.is_leaf()
        self._checks = [
            (
                field.dtype if field.is_fixed else None,  # None matches no array: text and sized rows are written later
                field.shape,
                number,
                field,
                _PYTHON_TYPE.get(field.dtype.kind) if field.weak and field.shape == () else None,
            )
            for number, field in enumerate(layout.spec.fields)
        ]

    def destinations(self, view: SlotView, runs: Sequence[RowRun | None] = ()) -> list[Any]:
        """Return the targets and checks of the fields of one slot.

        `runs` is the result of `runs_of`.
        """
        runs = runs or [None] * len(self._checks)
        return [(target, run, *check) for target, run, check in zip(view.fields, runs, self._checks, strict=True)]

    def write(self, view: SlotView, row: int, scene: Any, destinations: list[Any], overflow: Overflow) -> None:
        """Write one scene.

        Args:
            view: The slot.
            row: Row of the slot.
            scene: The scene.
            destinations: The result of `destinations(view)`.
            overflow: Receives values without room in the slot.

        Raises:
            SpecError: The scene does not match the layout's spec.
        """
        try:
            leaves = [scene] if self._is_leaf else self._flatten(scene)
        except ValueError:
            leaves = self._other_leaves(view, row, scene)
        for leaf, (target, run, dtype, shape, number, field, python_type) in zip(leaves, destinations):  # noqa: B905 - 1 us
            kind = type(leaf)
            if kind is np.ndarray and leaf.dtype is dtype and leaf.shape == shape:  # the usual case
                target[row] = leaf
                continue
            if run is not None and run.takes(row, leaf):
                continue
            if kind is np.ndarray or isinstance(leaf, np.generic):
                exact = leaf.shape == shape and leaf.dtype == dtype
            else:
                exact = kind is python_type
                if not exact and is_nested(leaf, self._spec.treespec):
                    raise self._wrong_structure(view, row, scene)
            if not exact:
                if run is None:
                    self._write_other(view, row, number, field, leaf, overflow)
                else:
                    run.add(row, self._coerced(view, row, number, field, leaf))
                continue
            try:
                target[row] = leaf
            except OverflowError as error:
                path = self._spec.paths[number]
                raise SpecError(
                    f"{self._scene_text(view, row)}: field {path!r} is {leaf}, too large: {message_of(error)}"
                ) from None

    def _other_leaves(self, view: SlotView, row: int, scene: Any) -> list[Any]:
        try:
            return flatten_as(self._spec.treespec, scene)
        except ValueError:
            raise self._wrong_structure(view, row, scene) from None

    def _write_other(
        self, view: SlotView, row: int, number: int, field: ArraySpec, leaf: Any, overflow: Overflow
    ) -> None:
        array = self._coerced(view, row, number, field, leaf)
        if field.is_text:
            overflow.setdefault(number, {})[row] = array  # text is immutable, and arrays of it were copied by coerce
            return
        if field.is_fixed and (array.shape == field.shape or not self._are_batches):
            view.fields[number][row] = array
            return
        shapes = view.shapes[number]
        if shapes is not None:
            shapes[row] = array.shape
        if shapes is None or array.nbytes > self._layout.row_bytes[number]:
            overflow.setdefault(number, {})[row] = array.copy()  # the sequence may reuse its array for the next scene
            return
        # Rows of one batch must agree in shape, so each begins at its number times its size, without gaps.
        target = np.ndarray(array.shape, array.dtype, buffer=view.fields[number].data, offset=row * array.nbytes)
        target[...] = array

    def _coerced(self, view: SlotView, row: int, number: int, field: ArraySpec, leaf: Any) -> Any:
        def remedy(same_kind: bool, field: ArraySpec, found: ArraySpec) -> str:
            if same_kind and self._are_batches:
                return ". Return arrays with the same number of axes for every index"
            if same_kind and self._whole and _has_fewer_rows(found, field):
                return (
                    ". A collate function gets all scenes of a batch, and must return a row for each. To leave scenes "
                    'out, raise an exception in __getitem__ and pass on_error="skip"'
                )
            if not (same_kind and self._layout.batched and field.is_fixed and len(found.shape) == len(field.shape)):
                return remedy_of(same_kind, field, found)
            assert self._layout.witness is not None
            one, other = (self._layout.witness, field.shape), (int(view.indices[row]), found.shape)
            return f"; {rare_shape_text(self._spec.paths[number], one, other)}"

        path = self._spec.paths[number]
        if self._are_batches:  # not stacked, so sizes need not agree
            field = replace(field, shape=(None,) * len(field.shape))
        try:
            if self._is_given:
                return conformed(leaf, field, path, self._spec, copy=False)
            return coerce(leaf, field, path, remedy)
        except SpecError as error:
            raise SpecError(f"{self._scene_text(view, row)}: {message_of(error)}") from None

    def _scene_text(self, view: SlotView, row: int) -> str:
        return f"scene {view.indices[row]}" if not self._whole else "the batch that collate returned"

    def write_batch(
        self, view: SlotView, start: int, stop: int, batch: Any, written: list[Any] | None, overflow: Overflow
    ) -> None:
        """Copy the result of `get_batch`, except the arrays it filled itself.

        `written` holds those arrays, which `get_batch` received as `out`.

        Raises:
            SpecError: The result does not match the layout's spec, or has another number of rows.
        """
        count = stop - start
        try:
            leaves = [batch] if self._is_leaf else flatten_as(self._spec.treespec, batch)
        except ValueError:
            raise self._wrong_batch(batch) from None
        for leaf, (dtype, shape, number, field, _) in zip(leaves, self._checks, strict=True):
            if written is not None and leaf is written[number]:
                continue
            if type(leaf) is np.ndarray and leaf.dtype is dtype and leaf.shape == (count, *shape):  # the usual case
                view.fields[number][start:stop] = leaf
                continue
            if is_nested(leaf, self._spec.treespec):
                raise self._wrong_batch(batch)
            path = self._spec.paths[number]
            array = as_array(leaf, path)
            if isinstance(array, str | bytes) or array.ndim == 0 or len(array) != count:
                found = describe(leaf).fields[0]
                raise SpecError(
                    f"get_batch, field {path!r}: expected a leading axis of {count}, one row per index, received "
                    f"{found}"
                )
            if field.is_fixed and array.shape[1:] == field.shape and array.dtype == field.dtype:
                view.fields[number][start:stop] = array
                continue
            for row in range(start, stop):
                self._write_other(view, row, number, field, _weakened(array[row - start], field), overflow)

    def _wrong_batch(self, batch: Any) -> SpecError:
        return SpecError(
            f"get_batch returned the structure {structure_text(flatten(batch)[1])}, but __getitem__ returns "
            f"{structure_text(self._spec.treespec)}. Return the same nesting from both"
        )

    def _wrong_structure(self, view: SlotView, row: int, scene: Any) -> SpecError:
        where = self._scene_text(view, row)
        try:
            found = describe(scene)
        except SpecError as error:
            return SpecError(f"{where}: {message_of(error)}")
        received = ", ".join(f"{path}: {field}" for path, field in zip(found.paths, found.fields, strict=True))
        return SpecError(
            f"{where}: expected the structure {structure_text(self._spec.treespec)}, received "
            f"{structure_text(found.treespec)} ({received}). Return the same nesting for every index"
            f"{', the one of output_signature' if self._is_given else ''}"
        )


def _has_fewer_rows(found: ArraySpec, field: ArraySpec) -> bool:
    if not (found.shape and field.shape and found.shape[0] is not None and field.shape[0] is not None):
        return False
    return found.shape[0] < field.shape[0] and found.shape[1:] == field.shape[1:]


def _weakened(value: Any, field: ArraySpec) -> Any:
    # A column of Python numbers comes back from get_batch as an array; its scalars may be promoted like the numbers.
    return value.item() if field.weak and isinstance(value, np.generic) else value
