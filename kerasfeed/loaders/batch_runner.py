"""What the workers of a loader hold: the sequence, whose scenes they write into slots, or describe.

Invariant: what a task gives is a function of (sequence, seed, epoch, indices), whatever the worker; the indices stand
in the slot. Layout and slots are found when the first rows are to be loaded.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from kerasfeed.loaders.base import Job
from kerasfeed.loaders.batches.filler import MANY, Filler
from kerasfeed.loaders.batches.layout import Layout, SlotView
from kerasfeed.loaders.first_scenes import FirstOrder, FirstScenes, read_first
from kerasfeed.pool.base import Runner, WorkerContext
from kerasfeed.pool.task import FailedTaskError, Note, Record
from kerasfeed.sequences.context import SceneContext
from kerasfeed.sequences.global_random import GlobalRandomWatch, SeedingContext, frameworks
from kerasfeed.util.error_text import message_of
from kerasfeed.util.picklers import cloud_pickled
from kerasfeed.util.read_cost import ReadCost

READY, LOAD, DESCRIBE = range(3)
WATCHED = 4  # tasks of each worker process, beside the scenes that are read to infer the spec
_T = TypeVar("_T")


@dataclass(frozen=True)
class Wasteful:
    """The payload of loaded rows, and with it what the worker found that they cost. Sent once by a worker process.

    Attributes:
        payload: Values that stand beside the slot, or None.
        cost: What the worker reads wastefully.
    """

    payload: Any
    cost: ReadCost


class BatchRunner(Runner):
    """Writes scenes of a sequence into slots, or reads the first ones.

    Attributes:
        renewed: Whether the sequence was changed by a hook since it was first sent.
    """

    def __init__(self, job: Job, context: type[SceneContext] = SceneContext) -> None:
        """Load scenes of `job`, each in a `context`."""
        self.target = job.sequence
        self._maker = job.maker
        self._seed = job.plan.seed
        self._length = job.plan.length
        self._context = context
        self._watches_random = job.watches_random
        self.renewed = False
        self._begin()

    def _begin(self) -> None:
        self._layout: Layout | None = None
        self._filler: Filler | None = None
        self._views: dict[tuple[int, int], SlotView] = {}
        self._to_watch = WATCHED if self._watches_random else 0
        self._told_of_waste = False
        self._first: tuple[FirstOrder, FirstScenes] | None = None  # as long as they may be asked for again
        self._is_warm = False  # whether the first scenes were read here

    def __getstate__(self) -> dict[str, Any]:
        names = ("target", "_maker", "_seed", "_length", "_context", "_watches_random", "renewed")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    def unpicklable(self, error: Exception) -> TypeError:
        """See `Runner.unpicklable`; it may be the function given as collate."""
        try:
            cloud_pickled(self._maker)
        except Exception as found:  # noqa: BLE001 - pickling raises anything
            return TypeError(
                f"the function given as collate cannot be sent to worker processes: {message_of(found)}. Give it no "
                "state that does not pickle (open files, locks), or, if several threads may call it at once, set its "
                "attribute thread_safe = True, or use worker_type='thread'"
            )
        return super().unpicklable(error)

    def follow(self, previous: Runner) -> None:
        """See `Runner.follow`; the slots stay, and the function given as collate with its state."""
        assert isinstance(previous, BatchRunner)
        self._maker = previous._maker
        self._layout, self._views = previous._layout, previous._views
        self._to_watch, self._told_of_waste = previous._to_watch, previous._told_of_waste

    def filler(self, layout: Layout) -> Filler:
        """What writes scenes into slots."""
        if self._filler is None:
            self._filler = Filler(self.target, layout, self._length, self._maker)
        return self._filler

    def waste(self) -> ReadCost | None:
        """What reading scenes has cost wastefully in this process; None where it has not."""
        return self._filler.meter.waste() if self._filler else None

    def costs(self) -> list[ReadCost]:
        """What reading scenes has cost in this process."""
        return self._filler.meter.costs() if self._filler else []

    def run(self, record: Record, note: Note, context: WorkerContext) -> Any:
        """See `Runner.run`: the spec of a scene, or what stands beside the slot."""
        if record[0] == READY:
            return None
        if record[0] == DESCRIBE:
            return self._describe(note, context)
        kind, serial, segment_offset, segment_bytes, slot_offset, epoch, start, stop = record
        if kind != LOAD or min(record) < 0:
            raise ValueError(f"no rows of a batch are loaded by the task {record}")
        layout = self._layout
        if layout is None:
            layout = self._layout = context.posted()
            assert isinstance(layout, Layout)
            self._first = None
        filler = self._filler or self.filler(layout)
        view = self._views.get((segment_offset, slot_offset))
        if view is None:
            view = SlotView(layout, context.memory_at(segment_offset, segment_bytes), slot_offset)
            self._views[segment_offset, slot_offset] = view
        if layout.first is not None and not self._is_warm and context.worker.worker_type == "process":
            first = epoch if self.renewed else layout.first[0], layout.first[1]
            if (epoch, view.indices[start]) != first:  # else it is read now
                self._warm_up(first, note)
            self._is_warm = True
        if context.worker.worker_type != "process":
            return filler.fill(view, start, stop, serial, self._context(self._seed, epoch), note)
        if stop - start > 1:  # not the whole batch: other workers, with caches of their own, load the rest
            filler.read_ahead(view.indices[start:stop], SceneContext(self._seed, epoch))
        watched = self._to_watch > 0
        self._to_watch -= watched
        payload = load_seeded(
            lambda context_type: filler.fill(view, start, stop, serial, context_type(self._seed, epoch), note),
            context,
            watched=watched,
        )
        return self._with_waste(payload or None)

    def _describe(self, note: Note, context: WorkerContext) -> FirstScenes | None:
        order = context.posted()
        if not isinstance(order, FirstOrder):  # nobody waits for it any more
            return None
        if self._first is None or self._first[0] != order:
            seeds = context.worker.worker_type == "process"
            self._is_warm = True
            found, used = read_first(self.target, order, self._seed, self._maker, note, seeds=seeds)
            context.note_random(used)
            self._first = order, found
        return self._first[1]

    def _warm_up(self, first: tuple[int, int], note: Note) -> None:
        """Read the item (epoch, index) that another worker has read first; what it raises, it has raised there."""
        note[1] = MANY
        order = FirstOrder((first[1],), 1, first[0])
        with contextlib.suppress(FailedTaskError):
            read_first(self.target, order, self._seed, self._maker, [0, 0], seeds=True)

    def _with_waste(self, payload: Any) -> Any:
        waste = None if self._told_of_waste else self.waste()
        if waste is None:
            return payload
        self._told_of_waste = True
        return Wasteful(payload, waste)


def load_seeded(load: Callable[[type[SceneContext]], _T], context: WorkerContext, *, watched: bool) -> _T:
    """Load scenes in a worker process, seeding the global random generators for each where scenes use these.

    Args:
        load: Loads them, given the class of their context; called twice where they turn out to use the generators.
        context: The worker's.
        watched: Whether to look if they do.
    """
    if context.used_random:
        before = frameworks()
        payload = load(SeedingContext)
        # Scenes that import PyTorch or TensorFlow have drawn from a generator that was not seeded.
        return payload if frameworks() == before else load(SeedingContext)
    if not watched:
        return load(SceneContext)
    watch = GlobalRandomWatch()
    try:
        payload = load(SceneContext)
    except FailedTaskError:
        if not watch.used():
            raise
    else:
        if watch.missed():
            return load_seeded(load, context, watched=True)
        if not watch.used():
            return payload
    context.note_random(watch.used())
    return load(SeedingContext)
