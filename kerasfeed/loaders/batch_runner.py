"""The runner of a loader: writes scenes into slots, or describes them.

Invariant: the result of a task is a function of (sequence, seed, epoch, indices), whatever the worker. The slot holds
the indices. A runner receives the layout, and makes the views, when it loads rows. The first scenes are read as in
epoch 0, or in the epoch whose `on_epoch_begin` has been called.
"""

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from kerasfeed.loaders.base import Job
from kerasfeed.loaders.batches.layout import Layout, SlotView
from kerasfeed.loaders.batches.row_loader import ALL_AT_ONCE, RowLoader, probe
from kerasfeed.pool.base import Runner, WorkerContext
from kerasfeed.pool.task import FailedTaskError, Record, TaskProgress, UnseededTaskError
from kerasfeed.readers.read_cost import Meter, ReadCost
from kerasfeed.sequences.context import MakeContext, SceneContext
from kerasfeed.sequences.global_random import RandomWatch, SeedingContext, seeding
from kerasfeed.sequences.held_random import HELD, Held
from kerasfeed.sequences.view_base import part_reader
from kerasfeed.spec.collation import Custom, Stack
from kerasfeed.spec.field_values import as_array
from kerasfeed.spec.nesting import field_paths, flatten
from kerasfeed.spec.scene_spec import SceneSpec
from kerasfeed.util.error_text import message_of
from kerasfeed.util.picklers import cloud_pickled, unpickled
from kerasfeed.util.thread_times import ThreadWatch

# The first scenes are read until this time is over, but at least `SpecRequest.least`. Each scene counts with the time
# of the quickest one, so that other programs hardly change the number of scenes.
_SECONDS, _MOST_SECONDS = 0.1, 1.0
# Scenes quicker than this, s, are read again, for about 4 ms, to measure their time. Slower ones may come from a cache.
_QUICK, _WARM_SECONDS, _MOST_WARM = 3e-4, 4e-3, 400
_MOST_COMPARED, _MOST_FIELDS, _MOST_TEXT = 16 << 20, 1000, 100_000  # bytes, fields and characters to compare


@dataclass(frozen=True)
class SpecRequest:
    """The posted request to read the first scenes.

    Attributes:
        indices: Indices of the scenes. The worker reads as many as fit into 100 ms.
        least: Minimum number of scenes to read.
        epoch: The scenes are read as in this epoch.
        keeps: Whether the worker keeps the first item, which is a batch, until it is to be loaded.
        compares: Whether to read the first scene again at the end, if time permits, to check that it is the same.
    """

    indices: tuple[int, ...]
    least: int = 2
    epoch: int = 0
    keeps: bool = False
    compares: bool = False


@dataclass(frozen=True)
class FirstScenes:
    """The first scenes that a worker has read.

    Attributes:
        specs: Index and spec of each scene.
        seconds: Time of `__getitem__` for the median scene, s, without the time that other programs took. It is the
            median because the first scene also opens files, and some scenes may come from a cache.
        cpu_seconds: Processor time of that scene, s.
        is_reused: Whether reading another scene changed the arrays of the first.
        differing: A field of the first scene that differed when the scene was read again; empty if none did.
    """

    specs: tuple[tuple[int, SceneSpec], ...]
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    is_reused: bool = False
    differing: str = ""

    @property
    def trouble(self) -> str:
        """Why scenes are not reproducible, in words, or ""."""
        first, last = self.specs[0][0], self.specs[-1][0]
        if self.is_reused:
            return (
                f"scene {first} changed when scene {last} was read, because the class returns the same array for both: "
                "return a copy, array.copy()"
            )
        if self.differing:
            return (
                f"scene {first} differed in field {self.differing!r} when it was read again: use the index, not a "
                "counter or an iterator; draw random numbers from self.rng, or from kf.current_rng() in a class that "
                "is not a kf.SceneSequence; and return copies, array.copy(), of arrays that are reused"
            )
        return ""


def read_first(
    sequence: Any,
    request: SpecRequest,
    seed: int,
    maker: Custom | None,
    progress: TaskProgress,
    held: Held,
    *,
    seeds: bool,
    owned: bool,
    reader: Callable[..., Any] | None = None,
) -> tuple[FirstScenes, int, bytes | None]:
    """Read the first scenes.

    Args:
        sequence: The sequence.
        request: The request.
        seed: Seed of the feed.
        maker: The function that makes whole batches, if there is one.
        progress: Item 1 is set to the index of each scene before it is read.
        held: The random generators that the sequence keeps.
        seeds: Whether `held` and the global generators are seeded for each scene.
        owned: Whether the sequence is a copy that no other code in this process reads.
        reader: The sequence's `get_batch`, if batches are read with it; else None.

    Returns:
        The scenes; the random generators that they use (see `RandomWatch`); and the first scene, pickled, if it is to
        be kept and pickles, else None.

    Raises:
        FailedTaskError: The cause is the sequence's exception, or a SpecError that names index and field.
    """
    context = SeedingContext(seed, request.epoch, held) if seeds else SceneContext(seed, request.epoch)
    specs: list[tuple[int, SceneSpec]] = []
    times: list[tuple[float, float]] = []
    first: list[Any] = []  # the first scene, and its content when it had been read
    kept: bytes | None = None
    is_reused, differing, used = False, "", 0
    clock = ThreadWatch(whole_process=owned)
    begun = time.perf_counter()

    def add_time() -> None:
        took = clock.look()
        times.append((took.own_seconds, took.cpu_seconds))

    def read(index: int) -> Any:
        nonlocal used
        progress[1] = index
        while True:
            context.move_to(index)
            random = RandomWatch(held)
            clock.restart()
            scene, spec = probe(sequence, index, context, maker, add_time)
            if not random.missed():
                used |= random.used()
                return scene, spec

    for index in request.indices:
        quickest = min(times)[0] if times else 0.0
        late = len(specs) * quickest > _SECONDS or time.perf_counter() - begun > _MOST_SECONDS
        if late and len(specs) >= request.least:
            break
        scene, spec = read(index)
        specs.append((index, spec))
        if not first:
            first = [scene, _content(scene)]
            with contextlib.suppress(Exception):  # pickling raises anything; the scene is read again in this case
                kept = cloud_pickled(scene) if request.keeps else None
    if first[1]:
        is_reused = _content(first[0]) != first[1]
        is_quick = len(specs) > 1 and min(times)[0] * (len(times) + 1) < _SECONDS
        may_read = seeds or (not used and (owned or is_quick))  # reading a copy may take any time
        if request.compares and not is_reused and may_read:
            again = _content(read(request.indices[0])[0])
            differing = next((field[1] for field in again | first[1] if again.get(field) != first[1].get(field)), "")
    middle = sorted(times)[(len(times) - 1) // 2]  # of two middle values, the smaller one
    if owned and not (used or request.keeps) and middle[0] < _QUICK:
        with contextlib.suppress(Exception):  # the scene fails again when it is loaded
            count = min(_MOST_WARM, int(_WARM_SECONDS / middle[0]))
            warm = np.resize(np.array(request.indices[: len(specs)], np.int64), count)
            middle = min(_warm_times(sequence, warm, context, clock, reader) for _ in range(3))
    return FirstScenes(tuple(specs), *middle, is_reused=is_reused, differing=differing), used, kept


def _warm_times(
    sequence: Any,
    indices: NDArray[np.int64],
    context: SceneContext,
    clock: ThreadWatch,
    reader: Callable[..., Any] | None,
) -> tuple[float, float]:
    """Mean time and processor time per scene, in seconds.

    Reading the clock takes 40 us, so single scenes are not measured.
    """
    clock.restart()
    with context:
        if reader is None:
            for index in indices.tolist():
                context.move_to(index)
                sequence[index]
        else:
            context.move_to(None)
            reader(indices.copy())
    took = clock.look()
    return took.own_seconds / len(indices), took.cpu_seconds / len(indices)


def _content(scene: Any) -> dict[tuple[int, str], bytes]:
    """Return the first bytes of the values of a scene, by field.

    A key is number and name of the field. Fields that cannot be compared are left out.
    """
    left, content = _MOST_COMPARED, {}
    leaves, treespec = flatten(scene)
    for field, leaf in zip(enumerate(field_paths(treespec)[:_MOST_FIELDS]), leaves, strict=False):
        with contextlib.suppress(Exception):  # no batch can hold it; the spec reports this
            value = as_array(leaf, "")
            if isinstance(value, str | bytes):
                content[field] = repr(value[:_MOST_TEXT]).encode()
            elif value.dtype.kind in "OUST":  # text
                content[field] = repr(value.flat[:_MOST_FIELDS].tolist()).encode()
            elif value.dtype.char not in "gGV":  # padding bytes may differ
                content[field] = np.ascontiguousarray(value).reshape(-1).view(np.uint8)[:left].tobytes()
                left -= len(content[field])
    return content


@dataclass(frozen=True)
class FailedFirst:
    """The failure of one of the first scenes.

    Attributes:
        index: Its index; None if unknown.
        error: The exception to raise.
    """

    index: int | None
    error: BaseException


LOAD, DESCRIBE = 1, 2
_T = TypeVar("_T")


@dataclass(frozen=True)
class WithCost:
    """The payload of loaded rows with the worker's measured cost; sent once.

    Attributes:
        payload: Values outside the slot, or None.
        cost: The wasteful reads of the worker.
    """

    payload: Any
    cost: ReadCost


class BatchRunner(Runner):
    """Write scenes of a sequence into slots, or read the first scenes.

    Attributes:
        held: The random generators that the sequence and the collate function keep.
        renewed: Whether the sequence has changed since it was first sent.
        meter: The cost of reading scenes in this process.
    """

    def __init__(self, job: Job, context: MakeContext = SceneContext) -> None:
        """Load scenes of `job`, each in a `context`."""
        self.target = job.sequence
        self._maker = job.maker
        self.held = Held()
        self._seed = job.plan.seed
        self._length = job.plan.length
        self._context = context
        self._watches_random = job.watches_random
        self._stacks = isinstance(job.collate, Stack) and job.plan.batch_size is not None
        self.renewed = False
        self._begin()

    def _begin(self) -> None:
        self.meter = Meter(self._length)
        self._layout: Layout | None = None
        self._row_loader: RowLoader | None = None
        self._views: dict[tuple[int, int], SlotView] = {}
        self._reported_waste = False
        self._first: tuple[SpecRequest, FirstScenes] | None = None  # while the same request may come again
        self._is_warm = False  # whether this worker has read the first scenes, or need not
        self._kept: tuple[int, int, bytes] | None = None  # epoch, index and pickle of a batch that was read early

    def __getstate__(self) -> dict[str, Any]:
        names = ("target", "_maker", "held", "_seed", "_length", "_context", "_watches_random", "_stacks", "renewed")
        return {name: getattr(self, name) for name in names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()

    @property
    def objects(self) -> tuple[Any, ...]:
        """See `Runner.objects`."""
        return (self.target, *([self._maker.function] if self._maker else []))

    def unpicklable(self, error: Exception) -> TypeError:
        """See `Runner.unpicklable`. The cause may be the collate function."""
        try:
            cloud_pickled(self._maker)
        except Exception as cause:  # noqa: BLE001 - pickling raises anything
            return TypeError(
                f"the collate function cannot be sent to worker processes: {message_of(cause)}. Remove state that does "
                "not pickle (open files, locks). If several threads may call it at once, use worker_type='thread' "
                "instead"
            )
        return super().unpicklable(error)

    def follow(self, previous: Runner) -> None:
        """See `Runner.follow`; the slots and the collate function stay valid."""
        assert isinstance(previous, BatchRunner)
        self._maker = previous._maker
        self._layout, self._views = previous._layout, previous._views
        self._reported_waste = previous._reported_waste

    def row_loader(self, layout: Layout) -> RowLoader:
        """The object that writes scenes into slots."""
        if self._row_loader is None:
            self._row_loader = RowLoader(self.target, layout, self.meter, self._maker)
        return self._row_loader

    def is_kept(self, epoch: int, index: int) -> bool:
        """Whether this batch was read early and is still here."""
        return self._kept is not None and self._kept[:2] == (epoch, index)

    def change(self) -> None:
        """Prepare for a change of the sequence."""
        self.renewed, self._kept = True, None

    def run(self, record: Record, progress: TaskProgress, context: WorkerContext) -> Any:
        """See `Runner.run`. Returns the first scenes, or values outside the slot."""
        if record[0] == DESCRIBE:
            return self._describe(progress, context)
        kind, serial, segment_offset, segment_bytes, slot_offset, epoch, start, stop = record
        if kind != LOAD or min(record) < 0:
            raise ValueError(f"the task {record} is unknown")
        layout = self._layout
        if layout is None:
            layout = self._layout = context.posted()
            assert isinstance(layout, Layout)
            self._first = None
        row_loader = self._row_loader or self.row_loader(layout)
        view = self._views.get((segment_offset, slot_offset))
        if view is None:
            view = SlotView(layout, context.memory_at(segment_offset, segment_bytes), slot_offset)
            self._views[segment_offset, slot_offset] = view
        if layout.first is not None and not self._is_warm and context.has_copy:
            first = epoch if self.renewed else layout.first[0], layout.first[1]
            if (epoch, view.indices[start]) != first:  # else this task reads it
                self._warm_up(first, progress, seeds=context.worker.worker_type == "process")
            self._is_warm = True
        kept = self._kept if self.is_kept(epoch, view.indices[start]) else None
        self._kept = None
        if kept is not None:
            with contextlib.suppress(Exception):  # the item does not fit the layout: it is read again, and fails then
                return row_loader.put(view, unpickled(kept[2])) or None
        if not context.has_copy:
            return row_loader.fill(view, start, stop, serial, self._context(self._seed, epoch), progress)
        if stop - start > 1:  # not the whole batch, because other workers, with their own caches, load the rest
            row_loader.read_ahead(view.indices[start:stop], SceneContext(self._seed, epoch))
        payload = load_seeded(
            lambda make: row_loader.fill(view, start, stop, serial, make(self._seed, epoch), progress),
            context,
            self.held,
            watched=self._watches_random and context.watches_globals,
        )
        if self._reported_waste or (waste := self.meter.waste()) is None:
            return payload or None
        self._reported_waste = True
        return WithCost(payload or None, waste)

    def _describe(self, progress: TaskProgress, context: WorkerContext) -> FirstScenes | None:
        request = context.posted()
        if not isinstance(request, SpecRequest):  # the consumer no longer waits for it
            return None
        if self._first is None or self._first[0] != request:
            seeds = context.worker.worker_type == "process"
            self._is_warm = True
            # Do not keep early batches of the user's object: the user may change it before they are loaded.
            owned = context.has_copy
            own_request = replace(request, keeps=request.keeps and (owned or request.least == 1))
            scenes, used, kept = read_first(
                self.target, own_request, self._seed, self._maker, progress, self.held, seeds=seeds, owned=owned,
                reader=part_reader(self.target) if self._stacks else None,
            )  # fmt: skip
            self._kept = None if kept is None else (request.epoch, request.indices[0], kept)
            context.record_random(used)
            self._first = request, scenes
        return self._first[1]

    def _warm_up(self, first: tuple[int, int], progress: TaskProgress, *, seeds: bool) -> None:
        """Read the item (epoch, index) that another worker has read first.

        Errors are ignored, because that worker has reported them.
        """
        progress[1] = ALL_AT_ONCE
        request = SpecRequest((first[1],), 1, first[0])
        with contextlib.suppress(FailedTaskError):
            read_first(self.target, request, self._seed, self._maker, [0, 0], self.held, seeds=seeds, owned=True)


def load_seeded(load: Callable[[MakeContext], _T], context: WorkerContext, held: Held, *, watched: bool) -> _T:
    """Load scenes in a worker with a copy of the runner.

    The random generators that scenes use are seeded for each scene.

    Args:
        load: Function that loads the scenes in contexts made by its argument. It is called again if scenes turn out to
            use other generators.
        context: The worker's context.
        held: The generators that the user's object keeps. They are watched until scenes use them.
        watched: Whether to watch the global generators.

    Raises:
        FailedTaskError: A scene has failed.
        UnseededTaskError: Scenes use generators, and the worker is a thread, which cannot seed them.
    """
    used = context.used_random
    watches_globals = watched and not used % HELD
    watch = RandomWatch(held if used < HELD else None, watches_globals=watches_globals)
    try:
        payload = load(seeding(used, held))
    except FailedTaskError:
        newly_used = watch.used()
        if not newly_used:
            raise
    else:
        newly_used = watch.used()
        # Scenes that import PyTorch or TensorFlow have drawn from an unseeded generator.
        if not newly_used and not (watch.missed() and (used % HELD or watches_globals)):
            return payload
    context.record_random(newly_used)
    if context.worker.worker_type != "process":
        raise UnseededTaskError
    return load_seeded(load, context, held, watched=watched)
