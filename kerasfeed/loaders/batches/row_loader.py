"""Load scenes into the rows of a slot.

This runs in any thread or process. Invariant: each row is written once, from the result of `__getitem__`, or by the
sequence itself if it can do that. Each scene is read once, except that one scene of such a sequence is read again to
compare the two. Only the given rows are changed. Values without room in the slot (text, large rows) are returned.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.errors import SpecError
from kerasfeed.loaders.batches.layout import Layout, SlotView
from kerasfeed.loaders.batches.scene_writer import Overflow, SceneWriter, runs_of
from kerasfeed.pool.task import CancelledTaskError, FailedTaskError, FailurePosition, TaskProgress
from kerasfeed.readers import read_cost
from kerasfeed.sequences.base import SceneContext
from kerasfeed.sequences.global_random import SeedingContext
from kerasfeed.sequences.optional_methods import note_once, optional_method, scene_writer, takes_out
from kerasfeed.sequences.view_base import kept_copier, part_reader
from kerasfeed.spec.collation import Custom
from kerasfeed.spec.inference import describe, difference_text
from kerasfeed.spec.nesting import flatten, structure_text
from kerasfeed.spec.scene_spec import SceneSpec
from kerasfeed.spec.spec_json import coerced_leaves
from kerasfeed.util.array_bits import comparable
from kerasfeed.util.error_text import message_of

_UNWRITTEN = 0xA5  # not 0, because new slots and many scenes contain zeros


def rows_of(spec: SceneSpec, view: SlotView, rows: int | slice) -> Any:
    """Rows of a slot as writable arrays, nested like the scene.

    In one row, the array of a single number is 0-d.
    """
    return spec.unflatten([field[rows, ...] for field in view.fields])


def mark_unwritten(view: SlotView, start: int, stop: int) -> None:
    """Fill rows [start, stop) with a rare byte, to detect unwritten elements."""
    for field in view.fields:
        field[start:stop].reshape(-1).view(np.uint8)[...] = _UNWRITTEN


def _short(array: NDArray[Any]) -> str:
    text = np.array2string(array.ravel()[:6], separator=", ", threshold=6)
    return text if array.size <= 6 else text.removesuffix("]") + ", ...]"


ALL_AT_ONCE = -1  # the position in a task while all its scenes are loaded at once


def failed(scene: int | None, row: int | None, method: str = "get_batch") -> FailedTaskError:
    """The error of one scene, or of one call for many scenes.

    `method` names the call.
    """
    return FailedTaskError(FailurePosition(scene, row, method if scene is None else ""))


class RowLoader:
    """Write scenes of one sequence into slots of one layout."""

    def __init__(self, sequence: Any, layout: Layout, meter: read_cost.Meter, collate: Custom | None = None) -> None:
        """Load scenes of `sequence` and add their cost to `meter`.

        `collate`, if given, makes batches of them.
        """
        self._meter = meter
        self._sequence = sequence
        self._layout, self._spec = layout, layout.spec
        self._collate = collate
        # Results of get_batch are stacked, so they have one shape. Batches of a collate function are not `batched`.
        self._get_batch = part_reader(sequence) if layout.batched and not layout.forms else None
        # Only these sequences can write into views of a row.
        direct = all(field.is_fixed for field in layout.spec.fields) and collate is None
        self._copy_kept = kept_copier(sequence) if layout.batched and not layout.forms and direct else None
        self._structure = structure_text(layout.spec.treespec)
        self._takes_out = self._get_batch is not None and direct and takes_out(self._get_batch)
        self._read_into = scene_writer(sequence) if direct else None
        self._read_ahead = optional_method(sequence, "read_ahead")
        self._checked = False  # whether a scene written by the sequence was compared with __getitem__
        self._writer = SceneWriter(layout, whole=collate is not None)

    def fill(
        self,
        view: SlotView,
        start: int,
        stop: int,
        serial: int,
        context: SceneContext,
        progress: TaskProgress,
    ) -> Overflow:
        """Load the scenes of rows [start, stop) of a slot.

        Args:
            view: The slot; `view.indices` holds the indices of the scenes.
            start: First row, inclusive.
            stop: Last row, exclusive.
            serial: Number of the batch; `view.control[0]` holds it once the batch is given up.
            context: The thread's context; its seed and epoch are set.
            progress: Item 1 is set to each row before its scene is read; `ALL_AT_ONCE` if they are read at once.

        Raises:
            FailedTaskError: The cause is the sequence's exception, or a SpecError that names index and field.
            CancelledTaskError: The batch was given up.
        """
        overflow: Overflow = {}
        previous = read_cost.enter(self._meter)
        row, index = start, None
        try:
            with context:
                if self._copy_kept is not None and view.control[0] != serial:
                    out = [field[start:stop] for field in view.fields]
                    if self._copy_kept(view.indices[start:stop], self._structure, out):
                        return overflow
                if self._get_batch is not None and view.control[0] != serial:
                    progress[1] = ALL_AT_ONCE
                    self._load_batch(view, start, stop, context, overflow)
                    return overflow
                control, move_to, sequence, read_into = view.control, context.move_to, self._sequence, self._read_into
                runs = runs_of(self._layout, view, start, stop)
                write, destinations, collate = self._writer.write, self._writer.destinations(view, runs), self._collate
                take = runs[0].takes if len(runs) == 1 and runs[0] is not None else None  # 1 us of 7 for a list
                scenes = []
                for row, index in enumerate(view.indices[start:stop].tolist(), start):
                    if control[0] == serial:
                        raise CancelledTaskError
                    if index < 0:  # left out of a batch of a collate function
                        continue
                    move_to(index)
                    progress[1] = row
                    if collate is not None:
                        scenes.append(sequence[index])
                        continue
                    if read_into is None:
                        scene = sequence[index]
                        if take is None or not take(row, scene):
                            write(view, row, scene, destinations, overflow)
                        continue
                    if not self._checked:
                        mark_unwritten(view, row, row + 1)
                    read_into(index, rows_of(self._spec, view, row))
                    if not self._checked:
                        self._check(view, row, context, "read_into")
                for number, run in enumerate(runs):
                    if run is not None and (left := run.finish()):
                        overflow[number] = left
                if collate is not None:
                    self._collate_all(collate, scenes, view, context, progress, overflow)
        except (CancelledTaskError, FailedTaskError):
            raise
        except BaseException as error:
            raise failed(index, None if index is None else row) from error
        finally:
            read_cost.enter(previous)
            self._meter.record_scenes(stop - start)
        return overflow

    def put(self, view: SlotView, scene: Any) -> Overflow:
        """Write a batch that was read early into a slot.

        Return the values without room in the slot.
        """
        overflow: Overflow = {}
        self._writer.write(view, 0, scene, self._writer.destinations(view), overflow)
        return overflow

    @property
    def reads_ahead(self) -> bool:
        """Whether the sequence has `read_ahead`."""
        return self._read_ahead is not None

    def read_ahead(self, indices: NDArray[np.int64], context: SceneContext) -> None:
        """Announce the next scenes to a sequence that has `read_ahead`.

        Raises:
            FailedTaskError: The cause is the sequence's exception.
        """
        if self._read_ahead is None:
            return
        previous = read_cost.enter(self._meter)
        try:
            with context:
                self._read_ahead(indices.copy() if self._collate is None else indices[indices >= 0])
        except BaseException as error:
            raise failed(None, None, "read_ahead") from error
        finally:
            read_cost.enter(previous)

    def _check(self, view: SlotView, row: int, context: SceneContext, method: str) -> None:
        """Compare a row written by `method` with the same scene from `__getitem__`.

        Raises:
            SpecError: They differ. The message names index and field.
        """
        index = int(view.indices[row])
        context.move_to(index)  # restarts the scene's random numbers
        scene = self._sequence[index]
        try:
            leaves = coerced_leaves(self._spec, scene)
        except SpecError as error:
            raise SpecError(f"scene {index}: {message_of(error)}") from None
        for path, leaf, target in zip(self._spec.paths, leaves, view.fields, strict=True):
            expected = np.asarray(leaf)
            if comparable(expected).tobytes() != comparable(target[row, ...]).tobytes():
                raise SpecError(
                    f"scene {index}, field {path!r}: {method} wrote {_short(target[row, ...])}, __getitem__ returns "
                    f"{_short(expected)}. Both must give the same bits for every index: write every element of `out`, "
                    "and draw random numbers from self.rng in the same order"
                )
        self._checked = True

    def _load_batch(self, view: SlotView, start: int, stop: int, context: SceneContext, overflow: Overflow) -> None:
        """Load rows [start, stop) with `get_batch`."""
        assert self._get_batch is not None
        if isinstance(context, SeedingContext):
            # Task sizes depend on scene times. Scenes are loaded one by one, so that their random numbers do not.
            if stop - start > 1:
                for row in range(start, stop):
                    self._load_batch(view, row, row + 1, context, overflow)
                return
            context.move_to(int(view.indices[start]))
        context.move_to(None)
        indices = view.indices[start:stop].copy()
        if not self._takes_out:
            self._writer.write_batch(view, start, stop, self._get_batch(indices), None, overflow)
            return
        out = rows_of(self._spec, view, slice(start, stop))
        if not self._checked:
            mark_unwritten(view, start, stop)
        batch = self._get_batch(indices, out=out)
        if batch is not None:
            self._writer.write_batch(view, start, stop, batch, flatten(out)[0], overflow)
        if not self._checked:
            self._check(view, start, context, "get_batch")

    def _collate_all(
        self,
        collate: Custom,
        scenes: list[Any],
        view: SlotView,
        context: SceneContext,
        progress: TaskProgress,
        overflow: Overflow,
    ) -> None:
        context.begin_collate(view.control[2])
        progress[1] = ALL_AT_ONCE
        try:
            batch = collate.function(scenes.copy())  # the function may change the list
            self._writer.write(view, 0, batch, self._writer.destinations(view), overflow)
        except BaseException as error:
            read = [index for index in view.indices.tolist() if index >= 0]
            if isinstance(error, Exception) and (difference := difference_text(list(zip(read, scenes, strict=False)))):
                note_once(error, f"kerasfeed: the scenes given to collate differ (after the call): {difference}")
            raise failed(None, None, "collate") from error


def probe(
    sequence: Any,
    index: int,
    context: SceneContext,
    collate: Custom | None = None,
    was_read: Callable[[], object] = int,
) -> tuple[Any, SceneSpec]:
    """Read and describe one scene, or with `collate` a batch of it.

    Return the scene, and the spec of the scene or the batch. The context has moved to the scene. `was_read`
    is called after `__getitem__`.

    Raises:
        FailedTaskError: The cause is the sequence's exception, or a SpecError that names index and field.
    """
    try:
        with context:
            scene = sequence[index]
            was_read()
            if collate is not None:
                context.begin_collate(0)
                return scene, collate.describe(scene)
            try:
                return scene, describe(scene)
            except SpecError as error:
                raise SpecError(f"scene {index}: {message_of(error)}") from None
    except BaseException as error:
        raise failed(index, None) from error
