"""A batch in the making: its slot, the rows still missing, and what the consumer finally gets.

Invariant: the future is done exactly once, when every row has been accounted for; only then is the slot leased,
or returned, so that no worker can write into memory that somebody else holds. Of several failed scenes the one in the
lowest row is reported, whatever order the workers met them in.
"""

import itertools
import math
from concurrent.futures import Future, InvalidStateError
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.loaders.base import Job
from kerasfeed.loaders.batches.filler import MANY
from kerasfeed.loaders.batches.layout import Layout, aligned_copy, aligned_empty
from kerasfeed.loaders.batches.masking import with_weights
from kerasfeed.loaders.batches.scene_writer import Beside, pad_into
from kerasfeed.loaders.batches.slots import Held, SlotFuture, SlotPool
from kerasfeed.spec.field_forms import MASK, SPLITS, Masked, Padded, RaggedArray, common_shape, nest, stack_text


class _FieldOfBatch:
    """One field of a batch whose rows are all there."""

    def __init__(
        self, batch: "BatchInProgress", layout: Layout, number: int, memory: Any, base: int, *, copy: bool
    ) -> None:
        """Field `number`, in the slot, which stands at `base` of `memory`, or, with `copy`, in memory of its own."""
        self._batch, self._layout, self._number = batch, layout, number
        self._field, self._form, self._place = layout.spec.fields[number], layout.form(number), layout.places[number]
        self._memory, self._base, self._copy = memory, base, copy
        self._path, self._beside = layout.spec.paths[number], batch.beside.get(number, {})
        self._kept, self._empty_rows = list(range(batch.rows)), sorted(batch.empty_rows)
        if not layout.batched:  # it was made without them
            self._empty_rows = []
        elif batch.on_error == "skip":
            self._kept, self._empty_rows = [row for row in self._kept if row not in batch.empty_rows], []
        self._indices = batch.slot.view.indices[self._kept]
        table: Any = batch.slot.view.shapes[number]
        self._shapes = self._shapes_of_rows(table) if layout.batched and table is not None else table

    def _shapes_of_rows(self, table: NDArray[np.int64]) -> NDArray[np.int64]:
        shapes = table[self._kept]
        if self._empty_rows:
            full = next((row for row in self._kept if row not in self._batch.empty_rows), None)
            stacks = self._form is None and full is not None
            shapes[self._empty_rows] = shapes[full] if stacks else [size or 0 for size in self._field.shape]
        return shapes

    def leaf(self) -> Any:
        """What stands in the batch."""
        is_text, batched, form = self._field.is_text, self._layout.batched, self._form
        if not batched and self._beside:
            return self._beside[0] if is_text else aligned_copy(self._beside[0])
        if is_text:
            return self._text()
        shape = self._layout.fixed_shape(self._number)
        if not batched and shape is None:
            shape = tuple(self._shapes[0].tolist())
        array = self._joined() if shape is None else self._in_place(shape)
        if isinstance(form, Padded):
            return Masked(array, self._mask(form, array, joined=shape is None)) if form.masked else array
        if form is None:
            return array
        splits = aligned_empty((len(self._kept) + 1,), SPLITS)
        splits[0] = 0
        np.cumsum(self._shapes[:, 0], out=splits[1:])
        return RaggedArray(array, splits)

    def _text(self) -> Any:
        rows = self._beside
        if self._empty_rows:
            empty: Any = b"" if self._field.dtype.kind == "S" else ""
            shape = next(map(np.shape, rows.values()), tuple(size or 0 for size in self._field.shape))
            rows = rows | dict.fromkeys(self._empty_rows, np.full(shape, empty, object) if shape else empty)
        return stack_text(self._path, [rows[row] for row in self._kept], self._indices)

    def _in_place(self, shape: tuple[int, ...]) -> NDArray[Any]:
        """Rows that stand where the consumer finds them, or a field of a batch that was made whole."""
        rows = (self._batch.rows,) if self._layout.batched else ()
        array = self._array((*rows, *shape), self._field.dtype, self._place.offset)
        if self._empty_rows:
            value = self._form.value if isinstance(self._form, Padded) else np.zeros((), self._field.dtype)
            array[self._empty_rows] = value
        if len(self._kept) < self._batch.rows:
            return aligned_copy(array, self._kept)
        return aligned_copy(array) if self._copy else array

    def _array(self, shape: tuple[int, ...], dtype: np.dtype[Any], offset: int) -> NDArray[Any]:
        return np.ndarray(shape, dtype, buffer=self._memory, offset=self._base + offset)

    # ---- what is made anew

    def _new(self, shape: tuple[int, ...], dtype: np.dtype[Any], offset: int) -> NDArray[Any]:
        """An array to be filled: in the slot, or, where it has no room there or is to be copied, in its own memory."""
        if self._copy or prod(shape) * dtype.itemsize > self._layout.rows * self._layout.row_bytes[self._number]:
            return aligned_empty(shape, dtype)
        return self._array(shape, dtype, offset)

    def _mask(self, form: Padded, array: NDArray[Any], *, joined: bool) -> NDArray[np.bool_]:
        shape = len(array), *(array.shape[1 + axis.axis] for axis in form.axes)
        # Rows that were put together have left their own places.
        mask = self._new(shape, MASK, self._place.offset if joined else self._place.room)
        form.fill_mask(mask, self._shapes)
        return mask

    def _joined(self) -> NDArray[Any]:
        """Rows without a fixed shape, put together, each from its own place."""
        shapes, form, inner = self._shapes, self._form, [size or 0 for size in self._field.shape[1:]]
        shape: tuple[int, ...]
        if form is None:
            shape = (len(shapes), *common_shape(self._path, shapes, self._indices))
        elif not isinstance(form, Padded):
            shape = (int(shapes[:, 0].sum()), *inner)
        elif len(self._empty_rows) == len(shapes):
            shape = (len(shapes), *form.smallest(self._field.shape))
        else:
            shape = (len(shapes), *form.target(shapes))
        array = self._new(shape, self._field.dtype, self._place.room)
        stop = 0
        for place, (row, size) in enumerate(zip(self._kept, map(tuple, shapes.tolist()), strict=True)):
            values = self._row(row, size)
            if form is None:
                array[place] = values
            elif isinstance(form, Padded):
                pad_into(array[place], values, form)
            else:
                array[stop : stop + len(values)] = values
                stop += len(values)
        return array

    def _row(self, row: int, shape: tuple[int, ...]) -> NDArray[Any]:
        if row in self._batch.empty_rows:
            return np.zeros(shape, self._field.dtype)
        beside: NDArray[Any] | None = self._beside.get(row)
        place = self._batch.slot.view.sized_row
        return place(self._number, row, shape, self._field.dtype) if beside is None else beside


_TASK_SECONDS = 0.002
_serials = itertools.count(1)


class SceneTiming:
    """Running estimate of the seconds that one scene takes, and the rows that make a task of about 2 ms.

    A task costs about 50 us of messages: at 2 ms that is 3 %, and tiny scenes still travel as whole batches.
    """

    def __init__(self, *, whole: bool = False) -> None:
        """Nothing has been measured; with `whole`, every batch is one task."""
        self.seconds = 0.0
        self._whole = whole

    def note(self, seconds: float, scenes: int) -> None:
        """Take a measurement: `scenes` scenes took `seconds`."""
        measured = seconds / scenes
        self.seconds = measured if not self.seconds else 0.8 * self.seconds + 0.2 * measured

    def ranges(self, rows: int, workers: int) -> list[tuple[int, int]]:
        """Cut `rows` rows into [start, stop) ranges, one a task."""
        if self._whole:
            return [(0, rows)]
        # A task no longer than its share: with slow scenes all workers begin on the first batch at once.
        fitting = math.ceil(_TASK_SECONDS / self.seconds) if self.seconds else rows
        length = max(1, min(rows, fitting))
        if length < rows:
            length = min(length, math.ceil(rows / min(workers, rows)))
        return [(start, min(start + length, rows)) for start in range(0, rows, length)]


def scene_text(batch: "BatchInProgress | None", row: int) -> str:
    """Which scene stands in a row of a batch, in words; `MANY` where they are read at once.

    Without a batch `row` is the index of a scene that is read to infer the spec.
    """
    if batch is None:
        return f"scene {row} (to infer the spec)"
    place = f"(epoch {batch.epoch}, step {batch.step})"
    if row == MANY:
        return f"several scenes at once {place}"
    return f"scene {batch.slot.view.indices[row]} {place}"


class BatchInProgress:
    """State of one submitted batch. Not thread-safe: its loader guards it."""

    def __init__(self, job: Job, held: Held, epoch: int, step: int, indices: NDArray[np.int64]) -> None:
        """The batch of the scenes `indices`, in the slot that is held."""
        # Unique in the process, so that a cancellation that comes late cannot touch the slot's next batch.
        self.serial = next(_serials)
        self.held = held
        self.slot = slot = held[0]
        slot.view.indices[: len(indices)] = indices
        slot.view.control[2] = step * job.plan.shard_count + job.plan.shard_index
        self.epoch = epoch
        self.step = step
        self.rows = self.missing = rows = len(indices)
        self.on_error = job.policy.on_error
        self.filler = job.filler(epoch, step)
        self.is_stuck = False  # whether a thread that hangs may still write to its slot
        self.landed = False  # whether no worker can write to its slot any more, and it is being delivered
        self.empty_rows: set[int] = set()  # rows that hold no scene
        self.replaced: dict[int, tuple[int, int]] = {}  # row -> the scene that failed, stand-ins tried
        self.beside: Beside = {}
        self.failure: BaseException | None = None
        self.failure_row = rows
        self.future: Future[Any] = SlotFuture(slot, self.serial)

    @property
    def is_given_up(self) -> bool:
        """Whether nobody waits for it. The future is not asked: Ctrl-C in a thread that waits may leave it locked."""
        return bool(self.slot.view.control[0] == self.serial)

    def add(self, start: int, stop: int, beside: Beside) -> None:
        """Account for rows [start, stop)."""
        for number, values in beside.items():
            self.beside.setdefault(number, {}).update(values)
        self.missing -= stop - start

    def fail(self, start: int, stop: int, row: int, error: BaseException) -> None:
        """Account for rows [start, stop) of which `row` failed."""
        if row < self.failure_row or self.failure is None:
            self.failure, self.failure_row = error, row
        self.missing -= stop - start

    def leave_out(self, row: int) -> None:
        """Account for one row that will hold no scene."""
        self.empty_rows.add(row)
        self.missing -= 1

    def give_up(self, error: BaseException) -> None:
        """Fail the future at once and have workers skip what is left; the slot comes back when they have."""
        try:
            self.future.set_exception(error)
        except InvalidStateError:
            pass  # done or cancelled meanwhile
        self.slot.view.control[0] = self.serial

    def deliver(self, pool: SlotPool) -> bool:
        """Deliver the batch, or its failure; returns whether it had to be copied out of its slot."""
        copied = False
        try:
            try:
                delivers = self.failure is None and not self.is_given_up
                if delivers:
                    exporter = pool.lease(self.held)
                    copied = exporter is None
                    # The slot is held until leased, so at the ceiling its own memory is read, then returned.
                    memory, base = (self.slot.memory, self.slot.offset) if exporter is None else (exporter, 0)
                    result = self._assemble(pool.layout, memory, base, copy=copied)
            finally:
                pool.release(self.held)  # unless it was leased
            if delivers:
                self.future.set_result(result)
            elif self.failure is not None:
                self.future.set_exception(self.failure)
        except InvalidStateError:
            pass  # cancelled meanwhile
        except Exception as error:  # noqa: BLE001 - whatever went wrong belongs to whoever waits for the batch
            if not self.future.done():
                self.future.set_exception(error)
        return copied

    def _assemble(self, layout: Layout, memory: Any, base: int, *, copy: bool) -> Any:
        if self.on_error == "skip" and len(self.empty_rows) == self.rows:
            return None
        numbers = range(len(layout.spec.fields))
        leaves = [_FieldOfBatch(self, layout, number, memory, base, copy=copy).leaf() for number in numbers]
        batch = nest(layout.spec, layout.forms, leaves)
        if self.filler is None and self.on_error != "mask":
            return batch
        return with_weights(batch, self.rows, self.empty_rows, self.filler or 0)
