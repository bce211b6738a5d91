"""`StreamLoader`: a `Loader` whose plan holds the items of the batches in flight.

Invariant: the items of a batch in flight do not change, and stay until the batch is dropped. If a worker does not find
an item, its batch was cancelled, and the worker skips it.
"""

import dataclasses
import mmap
import os
import pickle
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.errors import FeedWarning
from kerasfeed.feeds.options import FeedOptions
from kerasfeed.feeds.sharding import Shard
from kerasfeed.feeds.stream_merge import Shuffler, SourceRun, StreamPosition, dealt
from kerasfeed.loaders.base import LoaderStats
from kerasfeed.loaders.batches.spec_inference import NothingReadError
from kerasfeed.loaders.failures.failure_log import FailureLog
from kerasfeed.loaders.generator_pool import GeneratorPool
from kerasfeed.loaders.generators import Generators
from kerasfeed.loaders.loader import make_loader
from kerasfeed.orders.base import Order, Sequential
from kerasfeed.orders.buffered import BufferShuffled
from kerasfeed.orders.plan import Plan
from kerasfeed.pool.base import Sessions
from kerasfeed.pool.memory import anonymous_file
from kerasfeed.pool.processes.pool import processes_supported
from kerasfeed.pool.resource_errors import DESCRIPTORS, naming_descriptors, naming_memory
from kerasfeed.pool.task import CancelledTaskError
from kerasfeed.sequences.context import current_context
from kerasfeed.spec.collation import Collation
from kerasfeed.spec.inference import probe_indices
from kerasfeed.spec.scene_spec import SceneSpec
from kerasfeed.util.error_text import add_note, guarded, message_of, pluralize, shown
from kerasfeed.util.picklers import cloud_pickled

_MORE = 64  # spare entries, for batches not yet released after Ctrl-C
_ENTRY = struct.Struct("=5q")  # epoch + 1 (0 if empty), step, offset, bytes, number of the `put`
_NO_ENTRY = bytes(_ENTRY.size)

_REMEDY = "To change it there too, set it in make_generator, which the workers call, or make a new feed"

Function = Callable[[Any], Any]


@dataclass(frozen=True, eq=False)
class StreamPlan(Plan):
    """Batches of a stream, and the items of batches in flight. Thread-safe.

    An epoch is a repetition; an index is the number of an item in the repetition.

    Item k of shard s has the number `k * shard_count + s`, so that no two items share random numbers.

    Attributes:
        length: 0, because the length is unknown.
        batch_size: Most scenes in a batch.
        seed: Seed of each scene's `rng`, at least 0.
        pad_remainder: Whether a short batch repeats its scenes until it is full.
        items: The items of each batch in flight, by epoch and step; at most `rows`.
    """

    length: int = 0
    batch_size: int | None = 1
    order: Order = field(default_factory=Sequential)
    # Empty in a copy by `dataclasses.replace`.
    items: dict[tuple[int, int], Sequence[Any]] = field(init=False, repr=False, default_factory=dict)

    @property
    def rows(self) -> int:
        """Most rows a batch can have."""
        return self.batch_size or 1

    @property
    def is_uniform(self) -> bool:
        """Whether every batch has exactly `rows` rows."""
        return self.drop_remainder or self.pad_remainder

    def sizes(self) -> tuple[int, ...]:
        """Smallest and largest possible number of rows, or the only one."""
        return (self.rows,) if self.is_uniform else (1, self.rows)

    def indices(self, epoch: int, step: int) -> NDArray[np.int64]:
        """Indices of the items of a batch in flight, int64[B], with padding."""
        first, count = step * self.rows, len(self.items[epoch, step])
        indices = np.arange(first, first + count, dtype=np.int64) * self.shard_count + self.shard_index
        return np.resize(indices, self.rows) if self.pad_remainder else indices

    def padding_rows(self, epoch: int, step: int) -> int:
        """Number of padding rows of a batch; 0 without `pad_remainder`."""
        return self.rows - len(self.items[epoch, step]) if self.pad_remainder else 0

    def probe_indices(self) -> list[int]:
        """Indices of a few items to infer the spec from.

        They belong to the only batch in flight.
        """
        indices = self._in_flight()
        return [indices[row] for row in probe_indices(len(indices))]

    def other_probes(self) -> list[int]:
        """Indices of the other items of the only batch in flight.

        They replace failed ones of `probe_indices`.
        """
        return sorted({*self._in_flight()}.difference(self.probe_indices()))

    def _in_flight(self) -> list[int]:
        """Indices of the items of the only batch in flight, without padding."""
        ((epoch, step),) = self.items
        return sorted({*self.indices(epoch, step).tolist()})

    def item(self, epoch: int, number: int) -> Any:
        """Return an item by its number in the epoch on this shard.

        Raises:
            CancelledTaskError: Its batch is not in flight.
        """
        step, row = divmod(number, self.rows)
        items = self.items.get((epoch, step))
        if items is None:
            raise CancelledTaskError
        return items[row]


class ItemFile:
    """Items of batches in flight, for worker processes.

    Workers inherit a file without a path, which holds the items.

    A table of the batches in flight comes first in the file, then the pickled batches. The step of a batch determines
    its table entry. A worker reads the entry, then the batch, then the entry again: if the entry is unchanged, the
    batch was not overwritten.
    """

    def __init__(self, rows: int, batches: int) -> None:
        """`rows`: items in a batch; `batches`: maximum number in flight."""
        self._rows = rows
        self._table_bytes = _ENTRY.size * (batches + _MORE)
        with naming_descriptors("a stream feed with worker processes", DESCRIPTORS):
            self._fd = anonymous_file("kerasfeed-items")
        self.fds: tuple[int, ...] = (self._fd,)  # descriptors that worker processes must inherit
        os.ftruncate(self._fd, self._table_bytes)
        self._lock = threading.Lock()
        self._puts = 0
        self._last: tuple[bytes, list[bytes]] = b"", []  # in a worker: the last entry read, and its pickled items

    def put(self, epoch: int, step: int, items: Sequence[Any]) -> None:
        """Keep the items of a batch.

        All batches of an epoch except the last have the same size.

        Raises:
            TypeError: An item cannot be pickled.
        """
        pickled = [_pickled(item, number) for number, item in enumerate(items, step * self._rows)]
        blob = memoryview(pickle.dumps(pickled, protocol=5))
        with self._lock:
            if not self.fds:  # closed
                return
            self._write(step, _NO_ENTRY)
            table = _ENTRY.iter_unpack(os.pread(self._fd, self._table_bytes, 0))
            offset, done = self._table_bytes, 0
            for start, nbytes in sorted((start, nbytes) for begun, _, start, nbytes, _ in table if begun):
                if start - offset >= len(blob):  # the first gap that is large enough
                    break
                offset = start + nbytes
            with naming_memory("the stream feed", len(blob), offset, what="items on their way to workers"):
                while done < len(blob):  # the system limits the size of a write
                    done += os.pwrite(self._fd, blob[done:], offset + done)
            self._puts += 1
            self._write(step, _ENTRY.pack(epoch + 1, step, offset, len(blob), self._puts))

    def drop(self, epoch: int, step: int) -> None:
        """Forget the items of a batch; idempotent."""
        with self._lock:
            if self.fds and _ENTRY.unpack(self._read(step))[:2] == (epoch + 1, step):
                self._write(step, _NO_ENTRY)

    def item(self, epoch: int, number: int) -> Any:
        """See `StreamPlan.item`."""
        step, row = divmod(number, self._rows)
        entry = self._read(step)
        if self._last[0] != entry:
            _, _, offset, nbytes, _ = _ENTRY.unpack(entry)
            with mmap.mmap(self._fd, 0, access=mmap.ACCESS_READ) as memory:
                blob = memory[offset : offset + nbytes]
            if self._read(step) == entry != _NO_ENTRY:
                self._last = entry, pickle.loads(blob)
        if self._last[0] != entry or _ENTRY.unpack(entry)[:2] != (epoch + 1, step):
            raise CancelledTaskError
        return pickle.loads(self._last[1][row])

    def _read(self, step: int) -> bytes:
        return os.pread(self._fd, _ENTRY.size, _ENTRY.size * step % self._table_bytes)

    def _write(self, step: int, entry: bytes) -> None:
        os.pwrite(self._fd, entry, _ENTRY.size * step % self._table_bytes)

    def close(self) -> None:
        """Free everything; idempotent."""
        with self._lock:
            fds, self.fds = self.fds, ()
            for fd in fds:
                os.close(fd)

    def __getstate__(self) -> dict[str, Any]:
        """Return only the attributes that a worker needs to read items."""
        return {name: self.__dict__[name] for name in ("_fd", "_rows", "_table_bytes", "_last")}


def _pickled(item: Any, number: int) -> bytes:
    try:
        return cloud_pickled(item)
    except Exception as error:
        raise TypeError(
            f"item {number} of the stream, of type {type(item).__name__}, cannot be sent to worker processes: "
            f"{message_of(error)}. Yield what pickles (names, numbers, arrays), or use worker_type='thread'"
        ) from error


class StreamItems:
    """The items as a sequence, after the functions of `map`."""

    _parts = ()  # see `View`

    def __init__(self, store: StreamPlan | ItemFile, functions: tuple[Function, ...], shard_count: int) -> None:
        self._store = store
        self._calls = functions
        self._shard_count = shard_count

    def __getitem__(self, index: int) -> Any:
        context = current_context()
        assert context is not None
        value = item = self._store.item(context.epoch, index // self._shard_count)
        try:
            for function in self._calls:
                value = function(value)
            return value
        except Exception as error:
            add_note(error, f"kerasfeed: the item was {shown(item)}; call the function with it to reproduce")
            raise

    def _functions(self) -> tuple[Function, ...]:
        """See `View`."""
        return self._calls


class StreamLoader:
    """The generators, their workers, and the loader of their items.

    Attributes:
        plan: Which items each batch has.
        failure_log: The failures and warnings of generators and functions.
        job: The job of `batch_loader`.
        batch_loader: Makes batches of the items.
        ahead: Number of batches that a thread reads ahead; 0 if the consumer reads.
        inferred: Whether the spec of a scene is known.
    """

    def __init__(
        self,
        options: FeedOptions,
        plan: StreamPlan,
        collation: Collation,
        generators: Generators,
        functions: tuple[Function, ...],
        spec: SceneSpec | None,
        shard: Shard | None,
        failure_log: FailureLog,
    ) -> None:
        """Start the workers, without waiting for them.

        Args:
            options: The user's options.
            plan: The plan, which no other loader uses.
            collation: How scenes become a batch.
            generators: The generators of this shard.
            functions: Workers apply them in turn to every item; the generators then run in a thread.
            spec: Spec of a scene, if known.
            shard: The shard, if all shards run the same generators.
            failure_log: Receives the failures and warnings of generators and functions.

        Raises:
            TypeError: An object cannot be sent to worker processes.
            OSError: Worker processes cannot start.
        """
        workers = options.workers if functions else 0
        self.plan, self._options, self._generators, self._shard = plan, options, generators, shard
        self.failure_log = failure_log
        self._pools: Sessions[GeneratorPool] = Sessions(self, forks=False)
        self._has_pool = options.workers > 0 and not functions
        self._store: ItemFile | None = None
        with ExitStack() as undo:
            undo.callback(self._pools.close)
            if self._has_pool:
                self._pools.current(self._start_pool)
            if workers and options.worker_type != "thread" and processes_supported():
                self._store = ItemFile(plan.rows, options.ahead)
                undo.callback(self._store.close)
            self.job = options.job(
                StreamItems(self._store or plan, functions, plan.shard_count), plan, collation, workers=workers,
                spec=spec, inherit=self._store.fds if self._store else (),
                item_text=partial(_item_text, plan) if functions else None,
                watches_random=bool(functions),  # without functions, this loader runs no user code
            )  # fmt: skip
            self.batch_loader = make_loader(self.job, options.worker_type, failure_log)
            undo.pop_all()
        self.ahead = self.job.look_ahead if options.workers else 0
        self.inferred = spec is not None

    def _start_pool(self) -> GeneratorPool:
        options, numbers = self._options, self._generators.numbers
        return GeneratorPool(
            self._generators, self.failure_log, max_memory=options.max_memory, environment=options.environment,
            workers=len(numbers) if options.given["workers"] == "auto" else options.workers,
            worker_type=options.worker_type,
        )  # fmt: skip

    def begin(self, position: StreamPosition) -> tuple[SourceRun, Iterator[Any]]:
        """Begin a repetition; return its run, and its items in order."""
        plan, warnings = self.plan, self.failure_log.deferred_warnings
        first, shuffler = position.step * plan.rows, None
        if isinstance(plan.order, BufferShuffled):
            shuffler = Shuffler(plan.order, plan.seed, position.repetition, first)
            first = shuffler.first
        pool = self._pools.current(self._start_pool) if self._has_pool else None
        if pool is not None and pool.pool.settings is not None:
            pool.pool.settings.warn_of_changes(warnings, _REMEDY)
        self.batch_loader.warn_of_settings(_REMEDY)
        run = SourceRun(
            self._generators, pool, self.failure_log,
            position.repetition, first * (self._shard.count if self._shard else 1), position.ended,
            in_turn=self._options.given["deterministic"],
        )  # fmt: skip
        items = dealt(run.items(), self._shard, warnings) if self._shard else run.items()
        return run, shuffler.shuffled(items) if shuffler else items

    def submit(self, items: list[Any], step: int, position: StreamPosition) -> tuple[Future[Any], StreamPosition]:
        """Return a future of the batch, and the position to resume at.

        The spec must be known.
        """
        epoch = position.repetition
        try:
            self._put(epoch, step, items)
            promised = [self.batch_loader.submit(epoch, step)]
        except BaseException:
            self._drop(epoch, step)
            raise
        promised[0].add_done_callback(lambda _: self._drop(epoch, step))  # runs at once if the batch is done
        return promised.pop(), position  # pop: the traceback of its error may hold this frame

    def infer(self, step: int, items: list[Any]) -> list[BaseException]:
        """Infer the spec from a few of `items`, unless it is known.

        The items are read as items of repetition 0. No other batch is in flight, because it would need the spec.

        Returns:
            The first failure, if each item failed and `on_error` tolerates failures.

        Raises:
            SpecError: The items have no common spec, or cannot be part of a batch.
            TooManyFailuresError: More items failed than `max_failures` allows.
            Exception: An item failed, and `on_error` does not tolerate failures.
        """
        if self.inferred:
            return []
        try:
            self._put(0, step, items)
            self.inferred = isinstance(self.batch_loader.spec, SceneSpec)
        except NothingReadError as error:
            assert error.__cause__ is not None
            return [error.__cause__]
        finally:
            self._drop(0, step)
        return []

    def _put(self, epoch: int, step: int, items: list[Any]) -> None:
        self.plan.items[epoch, step] = items
        if self._store is not None:
            self._store.put(epoch, step, items)

    def _drop(self, epoch: int, step: int) -> None:
        self.plan.items.pop((epoch, step), None)
        if self._store is not None:
            self._store.drop(epoch, step)

    def warn_of_steps(self, end: StreamPosition) -> None:
        """Warn of the number of steps, if other shards run other generators."""
        if len(self._generators.numbers) == self._generators.count:
            return
        plan = self.plan
        self.failure_log.deferred_warnings.defer(
            "steps",
            f"repetition {end.repetition} had {pluralize(end.step, 'step')} on shard {plan.shard_index} "
            f"of {plan.shard_count}. The other shards run other generators, and may have more or fewer steps: a "
            "training step that waits for all shards would then hang. Pass steps_per_epoch to fit, or use fewer "
            "generators than shards: each shard then runs them all, and all shards have the same number of steps",
            FeedWarning,
        )

    def stats(self) -> LoaderStats:
        """Return the counters of the loader and the generators' workers."""
        stats, pool = self.batch_loader.stats(), self._pools.present
        if pool is None:
            return stats
        return dataclasses.replace(
            stats, worker_type=pool.pool.worker_type, workers=pool.pool.options.workers, pids=pool.pool.pids(),
            respawns=self._pools.respawns,
        )  # fmt: skip

    def close(self) -> None:
        """End threads and processes; idempotent. Batches already delivered stay valid."""
        self._pools.close()
        self.batch_loader.close()
        self.plan.items.clear()
        if self._store is not None:
            self._store.close()


def _item_text(plan: StreamPlan, epoch: int, index: int) -> str:
    item = partial(plan.item, epoch, index // plan.shard_count)  # the batch may be cancelled by now
    return guarded(lambda: shown(item()), lambda _: f"number {index} of repetition {epoch}")
