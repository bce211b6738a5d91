"""The parts of a stream feed put together: a source, a plan of batches that are announced, and a loader for its items.

Invariant: a batch that was announced does not change: it has the same indices for every loader.
"""

import dataclasses
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.feeds.options import FeedOptions
from kerasfeed.feeds.sharding import Shard
from kerasfeed.feeds.stream_items import FileStore, ItemStore, MemoryStore
from kerasfeed.feeds.stream_merge import Dealer, Shuffler, StreamPosition, Take
from kerasfeed.feeds.stream_source import GeneratorSource, SourceRun
from kerasfeed.loaders.base import LoaderStats
from kerasfeed.loaders.failures.table import FailureTable
from kerasfeed.loaders.loader import make_loader
from kerasfeed.orders.base import Order, Sequential
from kerasfeed.orders.buffered import BufferShuffled
from kerasfeed.orders.plan import Plan
from kerasfeed.pool.processes.pool import processes_supported
from kerasfeed.sequences.context import current_context
from kerasfeed.spec.collation import Collation
from kerasfeed.spec.inference import probe_indices
from kerasfeed.spec.scene_spec import SceneSpec
from kerasfeed.util.error_text import add_note, guarded, shown

Function = Callable[[Any], Any]


@dataclass(frozen=True, eq=False)
class StreamPlan(Plan):
    """Batches of a stream: an epoch is a repetition, an index the number of an item in it. Thread-safe.

    Where there are shards, item k of shard s has the number `k * shard_count + s`, so that no two have the same random
    numbers.

    Attributes:
        length: 0: nobody knows it.
        batch_size: Most scenes in a batch.
        seed: Seed of each scene's `rng`, at least 0.
        pad_remainder: Whether short batches are filled up with their own scenes again.
        readable: Items that are read to infer the spec; at least one before a loader is asked for its spec.
        others: Items that may be read in place of those that fail.
    """

    length: int = 0
    batch_size: int | None = 1
    order: Order = field(default_factory=Sequential)
    # A copy by `dataclasses.replace` has none of these yet.
    readable: list[int] = field(init=False, default_factory=list)
    others: list[int] = field(init=False, default_factory=list)
    _announced: dict[tuple[int, int], NDArray[np.int64]] = field(init=False, default_factory=dict)

    def numbered(self, step: int, items: int) -> NDArray[np.int64]:
        """Indices of the items of a batch, int64[items]."""
        first = step * self.rows
        return np.arange(first, first + items, dtype=np.int64) * self.shard_count + self.shard_index

    def announce(self, epoch: int, step: int, indices: NDArray[np.int64]) -> None:
        """Say which items, int64[B] with 1 <= B <= rows, are batch `step` of a repetition. It may be submitted then."""
        self._announced[epoch, step] = indices

    def forget(self, epoch: int, step: int) -> None:
        """The batch will not be submitted (again)."""
        self._announced.pop((epoch, step), None)

    @property
    def rows(self) -> int:
        """Most rows a batch can have."""
        return self.batch_size or 1

    @property
    def is_uniform(self) -> bool:
        """Whether every batch has exactly `rows` rows."""
        return self.drop_remainder or self.pad_remainder

    def sizes(self) -> tuple[int, ...]:
        """Numbers of rows that batches may have, as far as that can be known."""
        return (self.rows,) if self.is_uniform else (1, self.rows)

    def indices(self, epoch: int, step: int) -> NDArray[np.int64]:
        """Indices of the items of a batch that was announced, int64[B]; filled up where the plan does so."""
        found = self._announced[epoch, step]
        return np.resize(found, self.rows) if self.pad_remainder and len(found) < self.rows else found

    def filler(self, epoch: int, step: int) -> int:
        """How many of the last rows of a batch repeat scenes only to fill it; 0 without `pad_remainder`."""
        return self.rows - self.scenes_of(epoch, step) if self.pad_remainder else 0

    def scenes_of(self, epoch: int, step: int) -> int:
        """How many scenes a batch that was announced has, filler not counted."""
        return len(self._announced[epoch, step])

    def probe_indices(self) -> list[int]:
        """Indices of the items that are read to infer the spec."""
        return list(self.readable)

    def other_probes(self) -> list[int]:
        """Indices of the items that are read in place of those that fail."""
        return list(self.others)


class StreamItems:
    """What the loader takes for a sequence: the items of a batch, or what functions make of them in turn.

    Attributes:
        present: Without functions, the items of the batch that is being made in this thread.
        first: Index of the first of these.
    """

    def __init__(self, store: ItemStore, functions: tuple[Function, ...], shard_count: int) -> None:
        self.present: Sequence[Any] = ()
        self.first = 0
        self._store = store
        self._functions = functions
        self._shard_count = shard_count

    def __getitem__(self, index: int) -> Any:
        if not self._functions:
            return self.present[(index - self.first) // self._shard_count]
        context = current_context()
        assert context is not None
        made = item = self._store.item(context.epoch, index // self._shard_count)
        try:
            for function in self._functions:
                made = function(made)
            return made
        except Exception as error:
            add_note(error, f"kerasfeed: the item was {shown(item)}; call the function with it to reproduce")
            raise


class StreamLoader:
    """A source, and the loader of its items.

    Attributes:
        source: Where items come from.
        plan: Which items each batch has.
        job: What the loader was given.
        loader: Makes batches of the items.
        ahead: How many batches a thread reads ahead of the consumer; 0 if the consumer reads.
        inferred: Whether the spec of a scene is known.
    """

    def __init__(
        self,
        options: FeedOptions,
        plan: StreamPlan,
        collation: Collation,
        source: GeneratorSource,
        functions: tuple[Function, ...],
        spec: SceneSpec | None,
        dealt: Shard | None,
    ) -> None:
        """Start the workers that make batches of the items.

        Args:
            options: What the user has asked for.
            plan: Used by this loader alone.
            collation: How scenes become a batch.
            source: The source of the items; closed with this, or if this fails.
            functions: Applied to every item one after the other, by workers.
            spec: Spec of a scene, if it is known.
            dealt: The shard, if all shards run the same generators.

        Raises:
            TypeError: Something cannot be sent to worker processes.
            OSError: There can be no worker processes.
        """
        workers = options.workers if functions else 0
        processes = workers > 0 and options.worker_type != "thread" and processes_supported()
        self.source, self.plan, self._dealt = source, plan, dealt
        with ExitStack() as undo:
            undo.callback(source.close)
            store: ItemStore = FileStore(plan.rows, options.ahead) if processes else MemoryStore(plan.rows)
            self._store = store
            undo.callback(store.close)
            self._items = StreamItems(store, functions, plan.shard_count)
            text = partial(_item_text, store, plan.shard_count) if functions else None
            self.job = options.job(
                self._items, plan, collation, workers=workers, spec=spec, inherit=store.fds, item_text=text,
                watches_random=bool(functions),  # without functions, no code of the user runs here
            )  # fmt: skip
            self.loader = make_loader(self.job, options.worker_type)
            undo.pop_all()
        self._has_functions = bool(functions)
        self.ahead = self.job.look_ahead if options.workers else 0
        self.inferred = spec is not None

    def begin(self, position: StreamPosition) -> tuple[SourceRun, Take]:
        """Begin a repetition at a position: the run of the source, and what gives the items."""
        plan, warnings = self.plan, self.source.failure_log.deferred_warnings
        first, shuffler = position.step * plan.rows, None
        if isinstance(plan.order, BufferShuffled):
            shuffler = Shuffler(plan.order, plan.seed, position.repetition, first, warnings)
            first = shuffler.first
        joined = first * (1 if self._dealt is None else self._dealt.count)
        run = self.source.begin(position.repetition, joined, position.ended)
        take: Take = run.take
        if self._dealt is not None:
            take = Dealer(take, self._dealt, plan.rows, first, warnings, whole_batches=plan.drop_remainder).take
        return run, take if shuffler is None else shuffler.shuffled(take)

    def submit(self, epoch: int, step: int, items: list[Any]) -> Future[Any]:
        """Promise the batch of these items; the spec must be known."""
        numbers = self.plan.numbered(step, len(items))
        try:
            self._put(epoch, step, items)
            self.plan.announce(epoch, step, numbers)
            promised = [self.loader.submit(epoch, step)]
        except BaseException:
            self._drop(epoch, step)
            raise
        if self._has_functions:
            promised[0].add_done_callback(lambda _: self._drop(epoch, step))
        else:
            self._drop(epoch, step)
        return promised.pop()  # of a scene read in this thread it holds an error whose traceback holds this frame

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
            self._put(0, step, items)
            self.inferred = isinstance(self.loader.spec, SceneSpec)
        finally:
            self._drop(0, step)

    def _put(self, epoch: int, step: int, items: list[Any]) -> None:
        if self._has_functions:
            self._store.put(epoch, step, items)
        else:
            self._items.present, self._items.first = items, step * self.plan.rows * self.plan.shard_count

    def _drop(self, epoch: int, step: int) -> None:
        self._items.present = ()
        self._store.drop(epoch, step)
        self.plan.forget(epoch, step)

    def failures(self) -> FailureTable:
        """The scenes that have failed, in the loader or in the source."""
        table = self.loader.failure_log.table()
        return FailureTable([*table, *self.source.failure_log.table()], table.forgotten)

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
        self._store.close()


def _item_text(store: ItemStore, shard_count: int, epoch: int, index: int) -> str:
    # Its batch may have been cancelled meanwhile, or it may not unpickle.
    item = partial(store.item, epoch, index // shard_count)
    return guarded(lambda: shown(item()), lambda _: f"number {index} of repetition {epoch}")
