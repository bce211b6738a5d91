"""The parts of a stream feed put together: a source, and a loader for its items.

Invariant: batches are submitted and delivered in the order of their items. How many wait for the consumer is bounded,
so a source never runs away from it.
"""

import dataclasses
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from kerasfeed.feeds.options import FeedOptions
from kerasfeed.feeds.streams.item_store import FileStore, ItemStore, MemoryStore
from kerasfeed.feeds.streams.plan import StreamPlan
from kerasfeed.feeds.streams.source import Source
from kerasfeed.loaders.base import Job, LoaderStats
from kerasfeed.loaders.failures.table import FailureTable
from kerasfeed.loaders.loader import Loader, make_loader
from kerasfeed.pool.processes.pool import processes_supported
from kerasfeed.sequences.context import current_context
from kerasfeed.spec.collation import Collation
from kerasfeed.spec.inference import probe_indices
from kerasfeed.spec.scene_spec import SceneSpec
from kerasfeed.util.error_text import add_note, guarded, shown

Function = Callable[[Any], Any]


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
    """A source, and the loader of its items."""

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
            ahead: As `job.look_ahead`; 0 where no thread reads ahead.
            inferred: Whether the spec of a scene is known.
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
        self.source.close()
        self.loader.close()
        self._item_store.close()


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
