"""A batch in progress: its slot, the missing rows, and its future.

Invariant: the future is resolved once: when every row has been counted, or earlier if the batch is given up. The slot
is leased or released only when every row has been counted, so that no worker can write into memory that the consumer
holds. If several scenes fail, the scene in the lowest row is reported, in whatever order they failed.
"""

import itertools
import math
from collections.abc import Mapping
from concurrent.futures import Future, InvalidStateError
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.loaders.base import Job
from kerasfeed.loaders.batches.layout import Layout, aligned_copy, aligned_empty, field_array
from kerasfeed.loaders.batches.masking import fill_empty_rows, with_weights
from kerasfeed.loaders.batches.row_loader import ALL_AT_ONCE
from kerasfeed.loaders.batches.scene_writer import COMPLETE, Overflow, pad_into
from kerasfeed.loaders.batches.slots import Slot, SlotFuture, SlotPool
from kerasfeed.spec.field_forms import MASK, SPLITS, Form, Masked, Padded, RaggedArray, common_shape, nest, stack_text
from kerasfeed.spec.scene_spec import ArraySpec


class FormedField:
    """One padded or ragged field of a batch, to be assembled."""

    def __init__(
        self, batch: "BatchInProgress", layout: Layout, number: int, form: Form, memory: Any, base: int
    ) -> None:
        """Assemble field `number` of a batch from its slot.

        The slot begins at `base` of `memory`. Rows without a scene count as empty. Rows outside the slot were too large
        for their run.
        """
        view, self._rows = batch.slot.view, batch.rows
        starts, shapes = view.starts[number], view.shapes[number]
        assert shapes is not None
        self._layout, self._number, self._form = layout, number, form
        self._dtype = layout.spec.fields[number].dtype
        self._overflow, self._empty_rows = batch.overflow.get(number, {}), batch.empty_rows
        self._memory, self._base = memory, base
        self._shapes = shapes[: self._rows]
        self._starts = None if starts is None else starts[: self._rows]
        if self._empty_rows:
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
        """Return the field's value in the batch.

        Args:
            kept: The rows that the batch keeps; None for all.
            copy: Whether the result must not refer to the slot.
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
        shape = (self._rows, *form.target(self._shapes))
        if len(self._empty_rows) == self._rows:
            shape = (self._rows, *form.smallest(self._layout.spec.fields[self._number].shape))
        if self._starts[0] == COMPLETE:
            return items[: prod(shape)].reshape(shape)
        padded = aligned_empty(shape, self._dtype)
        for row in range(self._rows):
            pad_into(padded[row], self._row(items, row), form)
        return padded

    def _mask(self, form: Padded, array: NDArray[Any], shapes: NDArray[np.int64], copy: bool) -> NDArray[np.bool_]:
        shape = tuple(size or 0 for size in form.mask_shape(array.shape[1:]))
        location = self._layout.locations[self._number]
        if copy or len(array) * prod(shape) > location.mask_bytes:
            mask = aligned_empty((len(array), *shape), MASK)
        else:
            mask = np.ndarray((len(array), *shape), MASK, buffer=self._memory, offset=self._base + location.mask)
        form.fill_mask(mask, shapes)
        return mask

    # ---- ragged

    def _joined(self) -> NDArray[Any]:
        assert self._starts is not None
        items = field_array(self._layout, self._number, self._rows, self._memory, self._base)
        inner = tuple(size or 0 for size in self._layout.spec.fields[self._number].shape[1:])
        shape = (int(self._shapes[:, 0].sum()), *inner)
        if self._starts[0] == COMPLETE:
            return items[: prod(shape)].reshape(shape)
        rows = [self._row(items, row) for row in range(self._rows)]
        return np.concatenate(rows, out=aligned_empty(shape, self._dtype))

    # ---- rows

    def _row(self, items: NDArray[Any], row: int) -> NDArray[Any]:
        if row in self._overflow and row not in self._empty_rows:
            overflow: NDArray[Any] = self._overflow[row]
            return overflow
        assert self._starts is not None
        start, shape = int(self._starts[row]), tuple(self._shapes[row].tolist())
        return items[start : start + prod(shape)].reshape(shape)


_TASK_SECONDS = 0.002
_serials = itertools.count(1)


class SceneTiming:
    """Estimate the seconds per scene and the rows per task.

    Small tasks of about 2 ms let all workers share the first and last batches of an epoch. Each costs 50 us of
    messages, and in threads more waits for the GIL, so with enough batches in flight a task is a whole batch.
    """

    def __init__(self, *, whole: bool = False) -> None:
        """Begin without measurements; with `whole`, every batch is one task."""
        self.seconds = 0.0
        self._whole = whole

    def add(self, seconds: float, scenes: int) -> None:
        """Add a measurement: `scenes` scenes took `seconds`."""
        measured = seconds / scenes
        self.seconds = measured if not self.seconds else 0.8 * self.seconds + 0.2 * measured

    def ranges(self, rows: int, workers: int, ahead: int) -> list[tuple[int, int]]:
        """Split `rows` rows into [start, stop) ranges, one per task.

        Args:
            rows: Rows of the batch, at least 1.
            workers: Workers that share it, at least 1.
            ahead: Number of other batches that keep them busy, at least 0.
        """
        if self._whole:
            return [(0, rows)]
        fitting = math.ceil(_TASK_SECONDS / self.seconds) if self.seconds else rows
        if fitting < rows:
            fitting = min(fitting, math.ceil(rows / workers))  # all workers begin on the first batch at once
        length = max(1, min(rows, max(fitting, rows * ahead // (2 * workers))))
        return [(start, min(start + length, rows)) for start in range(0, rows, length)]


class BatchInProgress:
    """State of one submitted batch. Not thread-safe: the session's lock guards it."""

    def __init__(self, job: Job, slot: Slot, epoch: int, step: int, indices: NDArray[np.int64]) -> None:
        """Begin the batch of the scenes `indices` in `slot`."""
        # Unique in the process, so that a late cancellation cannot affect the slot's next batch.
        self.serial = next(_serials)
        self.slot = slot
        slot.view.indices[: len(indices)] = indices
        slot.view.control[2] = step * job.plan.shard_count + job.plan.shard_index
        slot.view.control[3] = len(indices)
        self.epoch = epoch
        self.step = step
        self.rows = self.missing = rows = len(indices)
        self.on_error = job.policy.on_error
        self.padding_rows = job.padding_rows(epoch, step)
        self.is_stuck = False  # whether a thread that hangs may still write to its slot
        self.is_complete = False  # whether no worker can write to its slot any more, so that it can be delivered
        self.empty_rows: set[int] = set()  # rows without a scene
        self.replaced: dict[int, tuple[int, int]] = {}  # row -> the scene that failed, number of stand-ins tried
        self.overflow: Overflow = {}
        self.failure: BaseException | None = None
        self.failure_row = rows
        self.future: Future[Any] = SlotFuture(slot, self.serial)

    def scene_text(self, row: int) -> str:
        """The scene in a row, in words; for `ALL_AT_ONCE`, several scenes."""
        scenes = "several scenes at once" if row == ALL_AT_ONCE else f"scene {self.slot.view.indices[row]}"
        return f"{scenes} (epoch {self.epoch}, step {self.step})"

    @property
    def is_given_up(self) -> bool:
        """Whether the consumer has given it up.

        This does not ask the future, because Ctrl-C may have left its lock held.
        """
        return bool(self.slot.view.control[0] == self.serial)

    def add(self, start: int, stop: int, overflow: Overflow) -> None:
        """Count rows [start, stop) as done."""
        for number, values in overflow.items():
            self.overflow.setdefault(number, {}).update(values)
        self.missing -= stop - start

    def fail(self, start: int, stop: int, row: int, error: BaseException) -> None:
        """Count rows [start, stop) as done; `row` failed."""
        if row < self.failure_row or self.failure is None:
            self.failure, self.failure_row = error, row
        self.missing -= stop - start

    def leave_out(self, row: int) -> None:
        """Count one row as done that will hold no scene."""
        self.empty_rows.add(row)
        self.missing -= 1

    def give_up(self, error: BaseException) -> None:
        """Fail the future now, and let workers skip the remaining rows."""
        try:
            self.future.set_exception(error)
        except InvalidStateError:
            pass  # resolved or cancelled meanwhile
        self.slot.view.control[0] = self.serial

    def deliver(self, pool: SlotPool) -> bool:
        """Deliver the batch or its failure; return whether the batch was copied."""
        copied, exporter = False, None
        try:
            try:
                delivers = self.failure is None and not self.is_given_up
                if delivers:
                    exporter = pool.lease(self.slot)
                    copied = exporter is None
                    # Without a lease, copy from the slot's memory and then release it.
                    memory, base = (self.slot.memory, self.slot.offset) if exporter is None else (exporter, 0)
                    result = self._assemble(pool.layout, memory, base, copy=copied)
            finally:
                if exporter is None:
                    pool.release(self.slot)
            if delivers:
                self.future.set_result(result)
            elif self.failure is not None:
                self.future.set_exception(self.failure)
        except InvalidStateError:
            pass  # cancelled meanwhile
        except Exception as error:  # noqa: BLE001 - the consumer waits for an outcome
            if not self.future.done():
                self.future.set_exception(error)
        return copied

    def _assemble(self, layout: Layout, memory: Any, base: int, *, copy: bool) -> Any:
        kept: list[int] | None = None  # all
        if self.empty_rows:
            if self.on_error == "skip" and len(self.empty_rows) == self.rows:
                return None
            if layout.batched:  # else the batch was made without these rows
                fill_empty_rows(self.slot.view, layout, self.overflow, self.rows, self.empty_rows)
                if self.on_error == "skip":
                    kept = [row for row in range(self.rows) if row not in self.empty_rows]
        leaves: list[Any] = []
        for number, stacked in enumerate(layout.stacked):
            if stacked is not None and number not in self.overflow:
                shape, dtype, offset = stacked
                whole = (self.rows, *shape) if layout.batched else shape
                leaf = np.ndarray(whole, dtype, buffer=memory, offset=base + offset)
            elif (form := layout.form(number)) is not None:
                leaves.append(FormedField(self, layout, number, form, memory, base).leaf(kept, copy=copy))
                continue
            else:
                field = layout.spec.fields[number]
                leaf = self._field(number, field, self.overflow.get(number, {}), layout, memory, base)
                if field.is_text:
                    leaves.append(leaf if kept is None else leaf[kept])
                    continue
            leaves.append(aligned_copy(leaf, kept) if copy or kept is not None else leaf)
        batch = nest(layout.spec, leaves)
        if self.padding_rows is None and self.on_error != "mask":
            return batch
        return with_weights(batch, self.rows, self.empty_rows, self.padding_rows or 0)

    def _field(
        self, number: int, field: ArraySpec, overflow: Mapping[int, Any], layout: Layout, memory: Any, base: int
    ) -> Any:
        path, view = layout.spec.paths[number], self.slot.view
        if field.is_text:
            if not layout.batched:
                return overflow[0]
            return stack_text(path, [overflow[row] for row in range(self.rows)], view.indices)
        if overflow and not layout.batched:
            return aligned_copy(overflow[0])
        shapes = view.shapes[number]
        assert shapes is not None
        shape = common_shape(path, shapes[: self.rows if layout.batched else 1], view.indices)
        if overflow:
            stacked = aligned_empty((self.rows, *shape), field.dtype)
            for row, value in overflow.items():
                stacked[row] = value
            return stacked
        whole = (self.rows, *shape) if layout.batched else shape
        return np.ndarray(whole, field.dtype, buffer=memory, offset=base + layout.locations[number].offset)
