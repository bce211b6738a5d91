"""One scene into its row of a slot, or many at once into theirs.

Invariant: a row is written once, straight from the arrays of the scene. Values without a place (text, rows too large
for theirs) are returned beside.

Rows of a padded or ragged field come in runs: those that one task loads stand one behind the other from where the run's
first row has its place, and never beyond the place of its last. So rows of a run need no room of their own, what is
short lends room to what is long, and ragged rows of a batch loaded by one task stand as the consumer wants them. Rows
of a fixed padded shape stand, padded, where the consumer finds them.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
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


class RowRun:
    """Rows [start, stop) of one field of one slot, written in rising order."""

    def __init__(self, layout: Layout, view: SlotView, number: int, form: Form, start: int, stop: int) -> None:
        field, shapes = layout.spec.fields[number], view.shapes[number]
        assert shapes is not None
        self._path, self._field, self._dtype = layout.spec.paths[number], field, field.dtype
        self._rest = None if None in field.shape[1:] else field.shape[1:]  # of a shape whose first size is free
        padded = form if isinstance(form, Padded) else None
        self._static = padded if padded is not None and padded.is_static else None
        self._bounded = padded if padded is not None and any(axis.length for axis in padded.axes) else None
        self._start, self._stop = start, stop
        self._target, self._shapes, self._starts = view.fields[number], shapes, view.starts[number]
        self._indices = view.indices
        capacity = layout.row_bytes[number] // max(1, field.dtype.itemsize)
        self._cursor, self._end = start * capacity, stop * capacity
        self._written: list[tuple[int, ...]] = []  # shapes
        self._begun: list[int] = []  # where rows begin

    def takes(self, value: Any) -> bool:
        """Whether `value` is an array as the field needs it."""
        if type(value) is not np.ndarray or value.dtype != self._dtype:
            return False
        shape = value.shape
        return shape[1:] == self._rest and bool(shape) if self._rest is not None else self._field.fits(shape)

    def write(self, row: int, array: NDArray[Any]) -> bool:
        """Write one row; False where there is no room for it.

        Raises:
            SpecError: It is longer than the length to which rows are padded.
        """
        start, stop = self._cursor, self._cursor + array.size
        axis = None if self._bounded is None else self._bounded.too_long(array.shape)
        if axis is not None:
            raise SpecError(
                f"scene {self._indices[row]}: field {self._path!r} has shape {array.shape}, longer on axis {axis.axis} "
                f"than the length {axis.length} to which kf.Pad pads it. Crop it in __getitem__, or use a larger "
                "length (or none)"
            )
        self._written.append(array.shape)
        self._begun.append(start)
        if self._static is not None:
            pad_into(self._target[row], array, self._static)
            return True
        if stop > self._end:
            return False
        self._target[start:stop] = array if array.ndim == 1 else array.reshape(-1)
        self._cursor = stop
        return True

    def finish(self) -> None:
        """Note what was written."""
        self._shapes[self._start : self._stop] = self._written
        if self._starts is not None:
            self._starts[self._start : self._stop] = self._begun


def runs_of(layout: Layout, view: SlotView, start: int, stop: int) -> list[RowRun | None]:
    """The runs of one task: one for each field that is padded or ragged, and none for others."""
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


# Values that stand beside the slot: field number -> row -> value.
Beside = dict[int, dict[int, Any]]
_PYTHON_TYPE = {"b": bool, "i": int, "f": float, "c": complex}


class SceneWriter:
    """Writes scenes of one layout."""

    def __init__(self, layout: Layout, *, whole: bool = False) -> None:
        """Write scenes, or, with `whole`, batches that the user's function made, as if each were one scene."""
        self._layout, self._spec = layout, layout.spec
        self._whole = whole
        self._is_given = layout.witness is None
        self._are_batches = not (layout.batched or whole or self._is_given)  # items that are batches already
        # Raises a ValueError where the nesting differs; five times faster than flattening and comparing.
        self._leaves_of = partial(flatten_as, layout.spec.treespec)
        self._checks = [
            (
                field.dtype if field.is_fixed else None,  # None matches no array: text and sized rows go another way
                field.shape,
                number,
                field,
                _PYTHON_TYPE.get(field.dtype.kind) if field.weak and field.shape == () else None,
            )
            for number, field in enumerate(layout.spec.fields)
        ]

    def places(self, view: SlotView) -> list[Any]:
        """What `write` needs to know of the fields of one slot."""
        return [(target, *check) for target, check in zip(view.fields, self._checks, strict=True)]

    def write(
        self, view: SlotView, row: int, scene: Any, places: list[Any], beside: Beside, runs: Sequence[RowRun | None]
    ) -> None:
        """Write one scene.

        Args:
            view: The slot.
            row: Where in it.
            scene: What the sequence returned.
            places: What `places(view)` gave.
            beside: Where values go that have no place.
            runs: What `runs_of` gave; empty for a batch that the user's function made.

        Raises:
            SpecError: The scene is not as the layout's spec says.
        """
        try:
            leaves = self._leaves_of(scene)
        except ValueError:
            raise self._wrong_structure(view, row, scene) from None
        for leaf, (target, dtype, shape, number, field, python_type) in zip(leaves, places):  # noqa: B905 - 1 us
            kind = type(leaf)
            if kind is np.ndarray and leaf.dtype is dtype and leaf.shape == shape:  # as nearly always
                target[row] = leaf
                continue
            if kind is np.ndarray or isinstance(leaf, np.generic):
                exact = leaf.shape == shape and leaf.dtype == dtype
            else:
                exact = kind is python_type
                if not exact and is_nested(leaf, self._spec.treespec):
                    raise self._wrong_structure(view, row, scene)
            if not exact:
                run = runs[number] if runs else None
                if run is None:
                    self._write_other(view, row, number, field, leaf, beside)
                    continue
                array: Any = leaf if run.takes(leaf) else self._coerced(view, row, number, field, leaf)
                if not run.write(row, array):
                    beside.setdefault(number, {})[row] = array.copy()
                continue
            try:
                target[row] = leaf
            except OverflowError as error:
                path = self._spec.paths[number]
                raise SpecError(
                    f"{self._who(view, row)}: field {path!r} is {leaf}, too large: {message_of(error)}"
                ) from None

    def _write_other(self, view: SlotView, row: int, number: int, field: ArraySpec, leaf: Any, beside: Beside) -> None:
        array = self._coerced(view, row, number, field, leaf)
        if field.is_text:
            beside.setdefault(number, {})[row] = array  # text is immutable, and arrays of it were copied by coerce
            return
        if field.is_fixed and (array.shape == field.shape or not self._are_batches):
            view.fields[number][row] = array
            return
        shapes = view.shapes[number]
        if shapes is not None:
            shapes[row] = array.shape
        if shapes is None or array.nbytes > self._layout.row_bytes[number]:
            beside.setdefault(number, {})[row] = array.copy()  # the sequence may reuse its array for the next scene
            return
        # Rows of one batch must agree in shape, so each stands at its number times its own size, with no gaps.
        target = np.ndarray(array.shape, array.dtype, buffer=view.fields[number].data, offset=row * array.nbytes)
        target[...] = array

    def _coerced(self, view: SlotView, row: int, number: int, field: ArraySpec, leaf: Any) -> Any:
        def remedy(same_kind: bool, field: ArraySpec, found: ArraySpec) -> str:
            if same_kind and self._are_batches:
                return ". Return arrays with the same number of axes for every index"
            if same_kind and self._whole and _has_fewer_rows(found, field):
                return (
                    ". A collate function is given all scenes of a batch, and returns a row for each. Raise an "
                    'exception in __getitem__ for those to leave out, with on_error="skip"'
                )
            if not (same_kind and self._layout.batched and field.is_fixed and len(found.shape) == len(field.shape)):
                return remedy_of(same_kind, field, found)
            assert self._layout.witness is not None
            one, other = (self._layout.witness, field.shape), (int(view.indices[row]), found.shape)
            return f"; {rare_shape_text(self._spec.paths[number], one, other)}"

        path = self._spec.paths[number]
        if self._are_batches:  # which are not stacked, so that sizes need not agree
            field = replace(field, shape=(None,) * len(field.shape))
        try:
            if self._is_given:
                return conformed(leaf, field, path, self._spec, copy=False)
            return coerce(leaf, field, path, remedy)
        except SpecError as error:
            raise SpecError(f"{self._who(view, row)}: {message_of(error)}") from None

    def _who(self, view: SlotView, row: int) -> str:
        return f"scene {view.indices[row]}" if not self._whole else "the batch that collate returned"

    def write_batch(
        self, view: SlotView, start: int, stop: int, batch: Any, written: list[Any] | None, beside: Beside
    ) -> None:
        """Copy what `get_batch` returned, save the leaves that are the arrays `written`, which it was given."""
        count = stop - start
        leaves, treespec = flatten(batch)
        if treespec != self._spec.treespec:
            raise SpecError(
                f"get_batch returned the structure {structure_text(treespec)}, __getitem__ "
                f"{structure_text(self._spec.treespec)}. Return the same nesting from both"
            )
        for leaf, (dtype, shape, number, field, _) in zip(leaves, self._checks, strict=True):
            if written is not None and leaf is written[number]:
                continue
            if type(leaf) is np.ndarray and leaf.dtype is dtype and leaf.shape == (count, *shape):  # as nearly always
                view.fields[number][start:stop] = leaf
                continue
            path = self._spec.paths[number]
            array = as_array(leaf, path)
            if isinstance(array, str | bytes) or array.ndim == 0 or len(array) != count:
                found = describe(leaf).fields[0]
                raise SpecError(
                    f"get_batch, field {path!r}: expected a leading axis of {count}, one row an index, received {found}"
                )
            if field.is_fixed and array.shape[1:] == field.shape and array.dtype == field.dtype:
                view.fields[number][start:stop] = array
                continue
            for row in range(start, stop):
                self._write_other(view, row, number, field, _weakened(array[row - start], field), beside)

    def _wrong_structure(self, view: SlotView, row: int, scene: Any) -> SpecError:
        who = self._who(view, row)
        try:
            found = describe(scene)
        except SpecError as error:
            return SpecError(f"{who}: {message_of(error)}")
        received = ", ".join(f"{path}: {field}" for path, field in zip(found.paths, found.fields, strict=True))
        return SpecError(
            f"{who}: expected the structure {structure_text(self._spec.treespec)}, received "
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
