"""The parts of a stream feed put together: a source, a loader for its items, and which repetition comes next.

Invariant: one thread at a time reads the source, that of the running repetition. Batches are submitted and delivered in
the order of their items. How many wait for the consumer is bounded, so a source never runs away from it.
Of a repetition that was left, each batch comes again once, or never: it is given to one taker, or closed.
"""

import dataclasses
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from kerasfeed.errors import FeedClosedError
from kerasfeed.feeds.options import FeedOptions
from kerasfeed.feeds.streams.item_store import FileStore, ItemStore, MemoryStore
from kerasfeed.feeds.streams.place import StreamPlace
from kerasfeed.feeds.streams.plan import StreamPlan
from kerasfeed.feeds.streams.repetition import Repetition, RepetitionLog
from kerasfeed.feeds.streams.source import Source
from kerasfeed.loaders.base import Job, LoaderStats
from kerasfeed.loaders.failures.table import FailureTable
from kerasfeed.loaders.loader import Loader, make_loader
from kerasfeed.pool.base import CLOSED
from kerasfeed.pool.processes.pool import processes_supported
from kerasfeed.sequences.context import current_context
from kerasfeed.spec.collation import Collation
from kerasfeed.spec.inference import probe_indices
from kerasfeed.spec.scene_spec import SceneSpec
from kerasfeed.util.error_text import add_note, guarded, shown

Function = Callable[[Any], Any]
_KNOWN = 8  # repetitions, of which places can be told


class StoredItems:
    """What the loader takes for a sequence: the items of the item store, or what functions make of them in turn."""

    def __init__(self, item_store: Any, functions: tuple[Function, ...], shard_count: int) -> None:
        self._item_store = item_store
        self._functions = functions
        self._shard_count = shard_count

    def __getitem__(self, index: int) -> Any:
        context = current_context()
        assert context is not None
        made = item = self._item_store.item(context.epoch, index // self._shard_count)
        try:
            for function in self._functions:
                made = function(made)
            return made
        except Exception as error:
            add_note(error, f"kerasfeed: the item was {shown(item)}; call the function with it to reproduce")
            raise


class StreamLoader:
    """A source, its loader, and the repetition that runs."""

    def __init__(self, source: Source, item_store: ItemStore, loader: Loader, job: Job, *, threaded: bool) -> None:
        """Put them together.

        Args:
            source: Where items come from.
            item_store: How they reach the loader's workers.
            loader: Makes batches of them.
            job: The loader's.
            threaded: Whether a thread reads the source ahead of the consumer, up to `job.look_ahead` batches.

        Attributes:
            job: As it was given.
            inferred: Whether the spec of a scene is known.
            logs: What is known of the last repetitions.
        """
        plan = job.plan
        assert isinstance(plan, StreamPlan)
        self.source = source
        self.job = job
        self.loader = loader
        self.plan = plan
        self.ahead = job.look_ahead if threaded else 0
        self._item_store = item_store
        self.inferred = job.spec is not None
        self.logs: deque[RepetitionLog] = deque(maxlen=_KNOWN)
        self._repetition: Repetition | None = None
        self._lock = threading.RLock()
        self._closed = False

    def begin(self, place: StreamPlace) -> Repetition:
        """Begin a repetition at `place`; the one that runs ends.

        Raises:
            FeedClosedError: The feed is closed.
        """
        with self._lock:
            if self._closed:
                raise FeedClosedError(CLOSED)
            if self._repetition is not None:
                self._repetition.close()
                if self._repetition.is_stuck:
                    raise RuntimeError(
                        "the stream cannot begin anew: what was left of the repetition before still waits for its "
                        "source, which does not return. Give generators a timeout, or make a new feed"
                    )
            self._repetition = Repetition(self, place)
            self.logs.append(self._repetition.log)
            self._repetition.start()
            return self._repetition

    def submit(self, epoch: int, step: int, items: list[Any]) -> Future[Any]:
        """Promise the batch of these items; the spec must be known."""
        try:
            self._item_store.put(epoch, step, items)
            self.plan.announce(epoch, step, self.plan.numbered(step, len(items)))
            future = self.loader.submit(epoch, step)
        except BaseException:
            self._drop(epoch, step)
            raise
        future.add_done_callback(lambda _: self._drop(epoch, step))
        try:
            return future
        finally:
            del future  # of a scene read in this thread it holds an error whose traceback holds this frame

    def infer(self, step: int, items: list[Any]) -> None:
        """Have the loader read a few items of a batch, as those of the first repetition, if the spec is not known yet.

        Raises:
            NothingReadError: Each of them failed, which `on_error` bears; the cause is the first failure.
            Exception: What went wrong; TooManyFailuresError.
        """
        if self.inferred:
            return
        numbers = self.plan.numbered(step, len(items)).tolist()
        rows = probe_indices(len(items))
        self.plan.readable[:] = [numbers[row] for row in rows]
        self.plan.others[:] = [number for row, number in enumerate(numbers) if row not in rows]
        try:
            self._item_store.put(0, step, items)
            self.inferred = isinstance(self.loader.spec, SceneSpec)
        finally:
            self._item_store.drop(0, step)

    def _drop(self, epoch: int, step: int) -> None:
        self._item_store.drop(epoch, step)
        self.plan.forget(epoch, step)

    def failures(self) -> FailureTable:
        """The scenes that have failed, in the loader or in the source."""
        table = self.loader.failure_log.table()
        return FailureTable([*table, *self.source.failures()], table.forgotten)

    def stats(self) -> LoaderStats:
        """Counters of the loader; of the source's workers, where it has some."""
        stats, workers = self.loader.stats(), self.source.stats()
        if workers is None:
            return stats
        return dataclasses.replace(
            stats, worker_type=workers.worker_type, workers=workers.workers, pids=workers.pids,
            respawns=workers.respawns, failed=stats.failed + workers.failed,
        )  # fmt: skip

    def close(self) -> None:
        """End threads and processes; idempotent. Batches already delivered stay valid."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            repetition, self._repetition = self._repetition, None
        if repetition is not None:
            repetition.close()
        self.source.close()
        self.loader.close()
        self._item_store.close()


class UpcomingRepetition:
    """The repetition that whoever comes next takes from: one that was left, one that is resumed, or a new one."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._kept: Repetition | None = None
        self.is_chained = False
        self._next = 0
        self._resumed: StreamPlace | None = None  # where the next repetition that is asked for begins
        self._closed = False

    @property
    def resumed_number(self) -> int | None:
        """Number of the repetition that is gone on with by a state; None where none is."""
        return None if self._resumed is None else self._resumed.repetition

    def begin(self, core: StreamLoader, *, chained: bool, timeout: float | None) -> Repetition:
        """What is kept of a repetition, or the next one; see `kerasfeed.feeds.stream_base.BaseStream`.

        Args:
            core: Begins repetitions.
            chained: Whether what is kept is wanted, also of one of which something was used.
            timeout: How long to wait for the source to tell whether anything is left of it, s; None is for ever.

        Raises:
            NotYet: What is kept of one has told nothing for so long.
        """
        with self._lock:
            place = self._resumed
            if place is not None:
                self._kept, self.is_chained, self._next = core.begin(place), False, place.repetition + 1
                self._resumed = None
            kept, self._kept = self._kept, None
            wanted = kept is not None and (chained or not self.is_chained)
        try:
            goes_on = kept is not None and core.source.afresh and not kept.is_resumed
            if kept is not None and wanted and (goes_on or not kept.is_used_up(timeout)):
                return kept
        except BaseException:  # NotYet, or Ctrl-C while it waited for the source
            self._kept = kept
            raise
        with self._lock:
            number, self._next = self._next, self._next + 1
        return core.begin(StreamPlace(number))

    def keep(self, repetition: Repetition, *, chained: bool, untouched: bool, goes_on: bool) -> None:
        """Keep a repetition that was left, for whoever comes next, or close it.

        Args:
            repetition: It.
            chained: Whether it is gone on with later by who asks for that.
            untouched: Whether nothing of it was used.
            goes_on: Whether every loop goes on with what another one has left, as those over a queue do.
        """
        with self._lock:
            again = not self._closed and (chained or untouched or goes_on)
            if again:
                self._kept, self.is_chained = repetition, not untouched and not goes_on
        if not again:
            repetition.close()

    def resume(self, place: StreamPlace) -> None:
        """The next repetition begins at `place`; what is kept of one is closed."""
        with self._lock:
            kept, self._kept = self._kept, None
            self._resumed = place
        if kept is not None:
            kept.close()

    def close(self) -> None:
        """Nothing more is kept; what was, is the loader's to close. Idempotent."""
        with self._lock:
            self._closed = True
            self._kept = None


def make_stream_loader(
    options: FeedOptions,
    plan: StreamPlan,
    collation: Collation,
    make_source: Callable[[], Source],
    functions: tuple[Function, ...],
    spec: SceneSpec | None,
) -> StreamLoader:
    """Start what makes batches of a source's items.

    Args:
        options: What the user has asked for.
        plan: Nobody else's.
        collation: How scenes become a batch.
        make_source: Makes the source.
        functions: Applied to every item one after the other, by workers.
        spec: Spec of what they return, where it is known.

    Raises:
        TypeError: Something cannot be sent to worker processes.
        OSError: There can be no worker processes.
    """
    workers = options.workers if functions else 0
    processes = workers > 0 and options.worker_type != "thread" and processes_supported()
    source = make_source()
    item_store: ItemStore = FileStore(plan.rows, options.ahead) if processes else MemoryStore(plan.rows)
    job = options.job(
        StoredItems(item_store, functions, plan.shard_count), plan, collation, workers=workers, spec=spec,
        inherit=item_store.fds, item_text=partial(_item_text, item_store, plan.shard_count) if functions else None,
        # Threads that fill a queue may use the global random generators just then; without functions nothing does.
        watches_random=bool(functions) and (processes or source.afresh),
    )  # fmt: skip
    try:
        loader = make_loader(job, options.worker_type)
    except BaseException:
        source.close()
        item_store.close()
        raise
    return StreamLoader(source, item_store, loader, job, threaded=options.workers > 0)


def _item_text(item_store: ItemStore, shard_count: int, epoch: int, index: int) -> str:
    # Its batch may have been cancelled meanwhile, or it may not unpickle.
    item = partial(item_store.item, epoch, index // shard_count)
    return guarded(lambda: shown(item()), lambda _: f"number {index} of repetition {epoch}")
