"""Fill rows of a slot from a sequence: the one function that every loader runs, in whatever thread or process.

Invariant: rows are written once, straight from what `__getitem__` returned, or by the sequence itself where it can;
nothing is read twice but one scene of such a sequence, and nothing but the rows asked for is touched. Values without a
fixed place (text, rows too large for their place) are returned beside.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed import costs
from kerasfeed.errors import SpecError
from kerasfeed.loaders.direct import (
    ahead_reader,
    batch_reader,
    check_row,
    is_direct,
    row_of,
    rows_of,
    scene_writer,
    soil,
    takes_out,
)
from kerasfeed.loaders.layout import Layout, SlotView
from kerasfeed.scene import SceneContext, enter_context
from kerasfeed.spec import ArraySpec, SceneSpec, as_array, coerce, describe, flatten, structure_text

# Values that stand beside the slot: field number -> row -> value.
Beside = dict[int, dict[int, Any]]
# Item 1 is the row that is being loaded: a list, or a worker's line on the bulletin. An item costs 15 ns, a call 70.
RowNote = list[int] | memoryview
MANY = -1
_PYTHON_TYPE = {"b": bool, "i": int, "f": float, "c": complex}


class FailedSceneError(Exception):
    """Internal carrier: which scene failed, or which method given many; the user's exception is its cause."""

    def __init__(self, index: int | None, row: int | None, method: str = "get_batch") -> None:
        super().__init__(index, row, method)
        self.index = index
        self.row = row
        self.method = method


class Cancelled(Exception):
    """Internal: the consumer has given the batch up."""


class Filler:
    """Writes scenes of one sequence into slots of one layout.

    Attributes:
        meter: What reading these scenes has cost.
    """

    def __init__(self, sequence: Any, layout: Layout, length: int) -> None:
        """Load scenes of `sequence`, which has `length` of them."""
        self.meter = costs.Meter(length)
        self._sequence = sequence
        self._spec = layout.spec
        self._row_bytes = layout.row_bytes
        self._get_batch = batch_reader(sequence) if layout.batched else None
        direct = is_direct(layout.spec)
        self._takes_out = self._get_batch is not None and direct and takes_out(self._get_batch)
        self._read_into = scene_writer(sequence) if direct else None
        self._read_ahead = ahead_reader(sequence)
        self._checked = False  # whether a scene that the sequence wrote has been compared with __getitem__
        # Raises a ValueError where the nesting differs; five times faster than flattening and comparing.
        self._leaves_of = layout.spec.treespec.flatten_up_to
        self._checks = [
            (
                number,
                field,
                field.dtype if field.is_fixed else None,  # None matches no array: text and sized rows go another way
                field.shape,
                _PYTHON_TYPE.get(field.dtype.kind) if field.weak else None,
            )
            for number, field in enumerate(layout.spec.fields)
        ]

    def fill(
        self,
        view: SlotView,
        start: int,
        stop: int,
        serial: int,
        context: SceneContext,
        note: RowNote,
    ) -> Beside:
        """Load the scenes of rows [start, stop) of a slot.

        Args:
            view: The slot; `view.indices` says which scenes.
            start: First row, inclusive.
            stop: Last row, exclusive.
            serial: Number of the batch; `view.control[0]` holds it once the batch is given up.
            context: The thread's context; its seed and epoch are set.
            note: Where each row is noted before its scene is read; `MANY` where they are read at once.

        Raises:
            FailedSceneError: The cause is the sequence's exception, or a SpecError that names index and field.
            Cancelled: The batch was given up.
        """
        beside: Beside = {}
        indices = view.indices[start:stop].tolist()
        previous, previous_meter = enter_context(context), costs.enter(self.meter)
        row, index = start, None
        try:
            if self._get_batch is not None and view.control[0] != serial:
                context.move_to(None)
                note[1] = MANY
                self._load_batch(view, start, stop, context, beside)
                return beside
            control, sequence, read_into = view.control, self._sequence, self._read_into
            places = [(view.fields[check[0]], *check) for check in self._checks]
            for row, index in enumerate(indices, start):
                if control[0] == serial:
                    raise Cancelled
                context.move_to(index)
                note[1] = row
                if read_into is None:
                    self._write_scene(view, row, sequence[index], places, beside)
                    continue
                if not self._checked:
                    soil(view, row, row + 1)
                read_into(index, row_of(self._spec, view, row))
                if not self._checked:
                    self._check(view, row, context, "read_into")
        except Cancelled:
            raise
        except BaseException as error:
            raise FailedSceneError(index, None if index is None else row) from error
        finally:
            enter_context(previous)
            costs.enter(previous_meter)
            self.meter.note_scenes(stop - start)
        return beside

    def read_ahead(self, indices: NDArray[np.int64]) -> None:
        """Tell the sequence, if it cares, which scenes will be loaded soon.

        Raises:
            FailedSceneError: The cause is the sequence's exception.
        """
        if self._read_ahead is None:
            return
        previous = costs.enter(self.meter)
        try:
            self._read_ahead(indices.copy())
        except BaseException as error:
            raise FailedSceneError(None, None, "read_ahead") from error
        finally:
            costs.enter(previous)

    def _check(self, view: SlotView, row: int, context: SceneContext, method: str) -> None:
        index = int(view.indices[row])
        context.move_to(index)  # the scene's random numbers from their beginning
        scene = self._sequence[index]
        check_row(self._spec, view, row, scene, method)
        self._checked = True

    def _load_batch(self, view: SlotView, start: int, stop: int, context: SceneContext, beside: Beside) -> None:
        assert self._get_batch is not None
        indices = view.indices[start:stop].copy()
        if not self._takes_out:
            self._write_batch(view, start, stop, self._get_batch(indices), None, beside)
            return
        out = rows_of(self._spec, view, start, stop)
        if not self._checked:
            soil(view, start, stop)
        batch = self._get_batch(indices, out=out)
        if batch is not None:
            self._write_batch(view, start, stop, batch, flatten(out)[0], beside)
        if not self._checked:
            self._check(view, start, context, "get_batch")

    def _write_scene(self, view: SlotView, row: int, scene: Any, places: list[Any], beside: Beside) -> None:
        try:
            leaves = self._leaves_of(scene)
        except ValueError:
            raise self._wrong_structure(view, row, scene) from None
        for leaf, (target, number, field, dtype, shape, python_type) in zip(leaves, places, strict=True):
            kind = type(leaf)
            if kind is np.ndarray or isinstance(leaf, np.generic):
                exact = leaf.shape == shape and leaf.dtype == dtype
            else:
                exact = kind is python_type
                if not exact and flatten(leaf)[1].num_nodes > 1:
                    raise self._wrong_structure(view, row, scene)
            if not exact:
                self._write_other(view, row, number, field, leaf, beside)
                continue
            try:
                target[row] = leaf
            except OverflowError as error:
                path = self._spec.paths[number]
                raise SpecError(f"scene {view.indices[row]}: field {path!r} is {leaf}, too large: {error}") from None

    def _write_other(self, view: SlotView, row: int, number: int, field: ArraySpec, leaf: Any, beside: Beside) -> None:
        try:
            array = coerce(leaf, field, self._spec.paths[number])
        except SpecError as error:
            raise SpecError(f"scene {view.indices[row]}: {error}") from None
        if field.is_text:
            beside.setdefault(number, {})[row] = array  # text is immutable, and arrays of it were copied by coerce
        elif field.is_fixed:
            view.fields[number][row] = array
        else:
            self._write_sized(view, row, number, array, beside)

    def _write_sized(self, view: SlotView, row: int, number: int, array: NDArray[Any], beside: Beside) -> None:
        shapes = view.shapes[number]
        assert shapes is not None
        shapes[row] = array.shape
        if array.nbytes > self._row_bytes[number]:
            beside.setdefault(number, {})[row] = array.copy()  # the sequence may reuse its array for the next scene
            return
        # Rows of one batch must agree in shape, so each stands at its number times its own size, with no gaps.
        target = np.ndarray(array.shape, array.dtype, buffer=view.fields[number].data, offset=row * array.nbytes)
        target[...] = array

    def _write_batch(
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
        for leaf, (number, field, _, _, _) in zip(leaves, self._checks, strict=True):
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
        index = view.indices[row]
        try:
            found = describe(scene)
        except SpecError as error:
            return SpecError(f"scene {index}: {error}")
        received = ", ".join(f"{path}: {field}" for path, field in zip(found.paths, found.fields, strict=True))
        return SpecError(
            f"scene {index}: expected the structure {structure_text(self._spec.treespec)}, received "
            f"{structure_text(found.treespec)} ({received}). Return the same nesting for every index"
        )


def _weakened(value: Any, field: ArraySpec) -> Any:
    # A column of Python numbers comes back from get_batch as an array; its scalars may be promoted like the numbers.
    return value.item() if field.weak and isinstance(value, np.generic) else value


def probe(sequence: Any, index: int, seed: int) -> SceneSpec:
    """The spec of one scene, read as epoch 0 would read it.

    Raises:
        FailedSceneError: The cause is the sequence's exception, or a SpecError that names index and field.
    """
    context = SceneContext(seed, 0)
    context.move_to(index)
    previous = enter_context(context)
    try:
        try:
            return describe(sequence[index])
        except SpecError as error:
            raise SpecError(f"scene {index}: {error}") from None
    except BaseException as error:
        raise FailedSceneError(index, None) from error
    finally:
        enter_context(previous)
