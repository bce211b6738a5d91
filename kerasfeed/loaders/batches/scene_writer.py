"""One scene into its row of a slot, or many at once into theirs.

Invariant: a row is written once, straight from the arrays of the scene. Values without a place (text, rows too large
for theirs) are returned beside.

Rows of a field without a fixed shape stand each at its own place, and are put together when all are there
(`kerasfeed.loaders.batches.pending_batch`). Rows of a fixed padded shape stand, padded, where the consumer finds them.
"""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.errors import SpecError
from kerasfeed.loaders.batches.layout import Layout, SlotView
from kerasfeed.spec.field_forms import Padded, unequal_text
from kerasfeed.spec.field_values import as_array, coerce, remedy_of
from kerasfeed.spec.inference import describe
from kerasfeed.spec.nesting import flatten, is_nested, structure_text
from kerasfeed.spec.scene_spec import ArraySpec
from kerasfeed.util.error_text import message_of


def pad_into(target: NDArray[Any], array: NDArray[Any], form: Padded) -> None:
    """Write one row, padded to the shape of `target`."""
    if form.is_prefix:
        target[: len(array)] = array
        target[len(array) :] = form.value
        return
    target[...] = form.value
    target[tuple(map(slice, array.shape))] = array


# Values that stand beside the slot: field number -> row -> value.
Beside = dict[int, dict[int, Any]]
_PYTHON_TYPE = {"b": bool, "i": int, "f": float, "c": complex}


class SceneWriter:
    """Writes scenes of one layout."""

    def __init__(self, layout: Layout, *, whole: bool = False) -> None:
        """Write scenes, or, with `whole`, batches that the user's function made, as if each were one scene."""
        self._layout = layout
        self._spec = layout.spec
        self._whole = whole
        self._any_size = layout.first is not None  # batches as they are, of which perhaps one was read so far
        # Raises a ValueError where the nesting differs; five times faster than flattening and comparing.
        self._leaves_of = layout.spec.treespec.flatten_up_to
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

    def write(self, view: SlotView, row: int, scene: Any, places: list[Any], beside: Beside) -> None:
        """Write one scene.

        Args:
            view: The slot.
            row: Where in it.
            scene: What the sequence returned.
            places: What `places(view)` gave.
            beside: Where values go that have no place.

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
                self._write_other(view, row, number, field, leaf, beside)
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
        elif field.is_fixed:
            view.fields[number][row] = array
        else:
            self._write_sized(view, row, number, array, beside)

    def _coerced(self, view: SlotView, row: int, number: int, field: ArraySpec, leaf: Any) -> Any:
        def remedy(same_kind: bool, field: ArraySpec, found: ArraySpec) -> str:
            if same_kind and self._whole and _has_fewer_rows(found, field):
                return (
                    ". A collate function is given all scenes of a batch, and returns a row for each. Raise an "
                    'exception in __getitem__ for those to leave out, with on_error="skip"'
                )
            if not (same_kind and self._layout.batched and field.is_fixed and len(found.shape) == len(field.shape)):
                return remedy_of(same_kind, field, found)
            one, other = (self._layout.witness, field.shape), (int(view.indices[row]), found.shape)
            return f"; {unequal_text(self._spec.paths[number], one, other, rare=True)}"

        if self._any_size and not field.is_fixed:
            field = replace(field, shape=(None,) * len(field.shape))
        try:
            return coerce(leaf, field, self._spec.paths[number], remedy)
        except SpecError as error:
            raise SpecError(f"{self._who(view, row)}: {message_of(error)}") from None

    def _who(self, view: SlotView, row: int) -> str:
        return f"scene {view.indices[row]}" if not self._whole else "the batch that collate returned"

    def _write_sized(self, view: SlotView, row: int, number: int, array: NDArray[Any], beside: Beside) -> None:
        shapes, form = view.shapes[number], self._layout.form(number)
        assert shapes is not None
        shapes[row] = array.shape
        if isinstance(form, Padded) and (axis := form.too_long(array.shape)) is not None:
            raise SpecError(
                f"{self._who(view, row)}: field {self._spec.paths[number]!r} has shape {array.shape}, longer on axis "
                f"{axis.axis} than the length {axis.length} to which kf.Pad pads it. Crop it in __getitem__, or use a "
                "larger length (or none)"
            )
        if isinstance(form, Padded) and form.is_static:
            pad_into(view.fields[number][row], array, form)
        elif array.nbytes > self._layout.row_bytes[number]:
            beside.setdefault(number, {})[row] = array.copy()  # the sequence may reuse its array for the next scene
        else:
            view.sized_row(number, row, array.shape, array.dtype)[...] = array

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
        for leaf, (_, _, number, field, _) in zip(leaves, self._checks, strict=True):
            if written is not None and leaf is written[number]:
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
        )


def _has_fewer_rows(found: ArraySpec, field: ArraySpec) -> bool:
    if not (found.shape and field.shape and found.shape[0] is not None and field.shape[0] is not None):
        return False
    return found.shape[0] < field.shape[0] and found.shape[1:] == field.shape[1:]


def _weakened(value: Any, field: ArraySpec) -> Any:
    # A column of Python numbers comes back from get_batch as an array; its scalars may be promoted like the numbers.
    return value.item() if field.weak and isinstance(value, np.generic) else value
