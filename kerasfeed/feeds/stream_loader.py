"""`StreamLoader`: a `Loader` whose batches are announced with their items.

Invariant: an announced batch does not change: it has the same indices for every loader. An item in the store stays
until its batch is dropped. If a worker does not find an item, its batch was cancelled, and the worker skips it.
"""

import dataclasses
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

from kerasfeed.feeds.options import FeedOptions
from kerasfeed.feeds.sharding import Shard
from kerasfeed.feeds.stream_merge import Shuffler, StreamPosition, dealt
from kerasfeed.feeds.stream_source import SourceRun
from kerasfeed.loaders.base import LoaderStats
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
from kerasfeed.util.error_text import add_note, guarded, message_of, shown
from kerasfeed.util.picklers import cloud_pickled

_MORE = 64  # spare entries, for batches not yet released after Ctrl-C
_ENTRY = struct.Struct("=5q")  # epoch + 1 (0 if empty), step, offset, bytes, number of the `put`
_MOST_BYTES = 1 << 30  # per read or write; Linux writes at most 2 GB

Function = Callable[[Any], Any]


@dataclass(frozen=True, eq=False)
class StreamPlan(Plan):
    """Batches of a stream. Thread-safe.

    An epoch is a repetition; an index is the number of an item in the repetition.

    Item k of shard s has the number `k * shard_count + s`, so that no two items share random numbers.

    Attributes:
        length: 0, because the length is unknown.
        batch_size: Most scenes in a batch.
        seed: Seed of each scene's `rng`, at least 0.
        pad_remainder: Whether a short batch repeats its scenes until it is full.
        readable: Items to infer the spec from; at least one before `Loader.spec` is read.
        others: Items that may be read in place of failed ones.
    """

    length: int = 0
    batch_size: int | None = 1
    order: Order = field(default_factory=Sequential)
    # Empty in a copy by `dataclasses.replace`.
    readable: list[int] = field(init=False, default_factory=list)
    others: list[int] = field(init=False, default_factory=list)
    _announced: dict[tuple[int, int], NDArray[np.int64]] = field(init=False, default_factory=dict)

    def numbered(self, step: int, items: int) -> NDArray[np.int64]:
        """Indices of the items of a batch, int64[items]."""
        first = step * self.rows
        return np.arange(first, first + items, dtype=np.int64) * self.shard_count + self.shard_index

    def announce(self, epoch: int, step: int, indices: NDArray[np.int64]) -> None:
        """Set the items of a batch before it is submitted.

        `indices` is int64[B] with 1 <= B <= rows.
        """
        self._announced[epoch, step] = indices

    def forget(self, epoch: int, step: int) -> None:
        """Forget a batch that is not submitted again."""
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
        """Smallest and largest possible number of rows, or the only one."""
        return (self.rows,) if self.is_uniform else (1, self.rows)

    def indices(self, epoch: int, step: int) -> NDArray[np.int64]:
        """Item indices of an announced batch, int64[B], with padding."""
        found = self._announced[epoch, step]
        return np.resize(found, self.rows) if self.pad_remainder and len(found) < self.rows else found

    def filler(self, epoch: int, step: int) -> int:
        """Number of padding rows of a batch; 0 without `pad_remainder`."""
        return self.rows - self.scenes_of(epoch, step) if self.pad_remainder else 0

    def scenes_of(self, epoch: int, step: int) -> int:
        """Number of scenes in an announced batch, without padding."""
        return len(self._announced[epoch, step])

    def probe_indices(self) -> list[int]:
        """Indices of the items to infer the spec from."""
        return list(self.readable)

    def other_probes(self) -> list[int]:
        """Indices of the items to read in place of failed ones."""
        return list(self.others)


class ItemStore:
    """Items of batches in flight, for worker threads.

    Any thread may call `put` and `drop`.
    """

    fds: tuple[int, ...] = ()  # descriptors that worker processes must inherit

    def __init__(self, rows: int) -> None:
        """`rows`: items in a batch."""
        self._rows = rows
        self._batches: dict[tuple[int, int], Sequence[Any]] = {}

    def put(self, epoch: int, step: int, items: Sequence[Any]) -> None:
        """Keep the items of a batch.

        All batches of an epoch except the last have the same size.
        """
        self._batches[epoch, step] = items

    def drop(self, epoch: int, step: int) -> None:
        """Forget the items of a batch; idempotent."""
        self._batches.pop((epoch, step), None)

    def item(self, epoch: int, number: int) -> Any:
        """Return an item by its number in the epoch.

        Raises:
            CancelledTaskError: Its batch was dropped.
        """
        step, row = divmod(number, self._rows)
        items = self._batches.get((epoch, step))
        if items is None:
            raise CancelledTaskError
        return items[row]

    def close(self) -> None:
        """Free everything; idempotent."""
        self._batches.clear()


class ItemFile(ItemStore):
    """Items of batches in flight, for worker processes.

    Workers inherit a file without a path, which holds the items.

    A table of the batches in flight comes first in the file, then the pickled batches. The step of a batch determines
    its table entry. A worker reads the entry, then the batch, then the entry again: if the entry is unchanged, the
    batch was not overwritten.
    """

    def __init__(self, rows: int, batches: int) -> None:
        """`rows`: items in a batch; `batches`: maximum number in flight."""
        super().__init__(rows)
        self._entries = batches + _MORE
        with naming_descriptors("a stream feed with worker processes", DESCRIPTORS):
            self._fd = anonymous_file("kerasfeed-items")
        self.fds = (self._fd,)
        os.ftruncate(self._fd, _ENTRY.size * self._entries)
        self._lock = threading.Lock()
        self._used: dict[int, tuple[int, int, tuple[int, int]]] = {}  # by entry: offset, bytes, epoch and step
        self._puts = 0
        self._last: tuple[bytes, list[bytes]] = b"", []  # in a worker: the last entry read, and its pickled items

    def put(self, epoch: int, step: int, items: Sequence[Any]) -> None:
        """See `ItemStore.put`.

        Raises:
            TypeError: An item cannot be pickled.
        """
        pickled = [_pickled(item, number) for number, item in enumerate(items, step * self._rows)]
        blob = memoryview(pickle.dumps(pickled, protocol=5))
        with self._lock:
            if not self.fds:  # closed
                return
            entry, offset = step % self._entries, _ENTRY.size * self._entries
            self._used.pop(entry, None)
            for start, nbytes, _ in sorted(self._used.values()):  # first gap large enough
                if start - offset >= len(blob):
                    break
                offset = start + nbytes
            self._write(entry, bytes(_ENTRY.size))
            with naming_memory("the stream feed", len(blob), offset, what="items on their way to workers"):
                done = 0
                while done < len(blob):  # the system limits the size of a write
                    done += os.pwrite(self._fd, blob[done : done + _MOST_BYTES], offset + done)
            self._used[entry] = offset, len(blob), (epoch, step)
            self._puts += 1
            self._write(entry, _ENTRY.pack(epoch + 1, step, offset, len(blob), self._puts))

    def drop(self, epoch: int, step: int) -> None:
        """See `ItemStore.drop`."""
        with self._lock:
            entry = step % self._entries
            if self.fds and entry in self._used and self._used[entry][2] == (epoch, step):
                del self._used[entry]
                self._write(entry, bytes(_ENTRY.size))

    def item(self, epoch: int, number: int) -> Any:
        """See `ItemStore.item`."""
        step, row = divmod(number, self._rows)
        entry = self._read(step)
        begun, found, offset, nbytes, _ = _ENTRY.unpack(entry)
        if (begun, found) != (epoch + 1, step):
            raise CancelledTaskError
        last = self._last
        if last[0] != entry:
            parts = [
                os.pread(self._fd, min(_MOST_BYTES, nbytes - start), offset + start)
                for start in range(0, nbytes, _MOST_BYTES)
            ]
            if self._read(step) != entry:
                raise CancelledTaskError
            self._last = last = entry, pickle.loads(b"".join(parts))
        return pickle.loads(last[1][row])

    def _read(self, step: int) -> bytes:
        return os.pread(self._fd, _ENTRY.size, _ENTRY.size * (step % self._entries))

    def _write(self, entry: int, data: bytes) -> None:
        os.pwrite(self._fd, data, _ENTRY.size * entry)

    def close(self) -> None:
        """See `ItemStore.close`."""
        with self._lock:
            fds, self.fds = self.fds, ()
            for fd in fds:
                os.close(fd)

    def __getstate__(self) -> dict[str, Any]:
        """Return only the attributes that a worker needs to read items."""
        return {name: self.__dict__[name] for name in ("_fd", "_rows", "_entries", "_last")}


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

    def __init__(self, store: ItemStore, functions: tuple[Function, ...], shard_count: int) -> None:
        self._store = store
        self._functions = functions
        self._shard_count = shard_count

    def __getitem__(self, index: int) -> Any:
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
    """The generators, their workers, and the loader of their items.

    Attributes:
        plan: Which items each batch has.
        failure_log: The failures and warnings of generators and functions.
        job: The job of `loader`.
        loader: Makes batches of the items.
        ahead: Number of batches that a thread reads ahead; 0 if the consumer reads.
        inferred: Whether the spec of a scene is known.
        is_share: Whether other shards run other generators, so that their numbers of items are unknown.
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

        Raises:
            TypeError: An object cannot be sent to worker processes.
            OSError: Worker processes cannot start.
        """
        workers = options.workers if functions else 0
        processes = workers > 0 and options.worker_type != "thread" and processes_supported()
        self.plan, self._options, self._generators, self._shard = plan, options, generators, shard
        self.failure_log = FailureLog(options.policy, 0, plan.shard_count)
        self._pools: Sessions[GeneratorPool] = Sessions(self, forks=False)
        self._has_pool = options.workers > 0 and not functions
        with ExitStack() as undo:
            undo.callback(self._pools.close)
            if self._has_pool:
                self._pools.current(self._start_pool)
            self._store = ItemFile(plan.rows, options.ahead) if processes else ItemStore(plan.rows)
            undo.callback(self._store.close)
            text = partial(_item_text, self._store, plan.shard_count) if functions else None
            self.job = options.job(
                StreamItems(self._store, functions, plan.shard_count), plan, collation, workers=workers, spec=spec,
                inherit=self._store.fds, item_text=text,
                watches_random=bool(functions),  # without functions, this loader runs no user code
            )  # fmt: skip
            self.loader = make_loader(self.job, options.worker_type, self.failure_log)
            undo.pop_all()
        self.ahead = self.job.look_ahead if options.workers else 0
        self.inferred = spec is not None
        self.is_share = len(generators.numbers) < generators.count

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
        run = SourceRun(
            self._generators, self._pools.current(self._start_pool) if self._has_pool else None, self.failure_log,
            position.repetition, first * (self._shard.count if self._shard else 1), position.ended,
            in_turn=self._options.given["deterministic"],
        )  # fmt: skip
        items = dealt(run.items(), self._shard, warnings) if self._shard else run.items()
        return run, shuffler.shuffled(items) if shuffler else items

    def submit(self, epoch: int, step: int, items: list[Any]) -> Future[Any]:
        """Return a future of the batch of `items`; needs the spec."""
        numbers = self.plan.numbered(step, len(items))
        try:
            self._store.put(epoch, step, items)
            self.plan.announce(epoch, step, numbers)
            promised = [self.loader.submit(epoch, step)]
        except BaseException:
            self._drop(epoch, step)
            raise
        promised[0].add_done_callback(lambda _: self._drop(epoch, step))  # runs at once if the batch is done
        return promised.pop()  # pop: the traceback of its error may hold this frame

    def infer(self, step: int, items: list[Any]) -> None:
        """Infer the spec from a few items, unless it is known.

        The items are read as items of repetition 0.

        Raises:
            NothingReadError: Each item failed, and `on_error` tolerates failures; the cause is the first failure.
            Exception: An item failed; TooManyFailuresError.
        """
        if self.inferred:
            return
        numbers = self.plan.numbered(step, len(items)).tolist()
        rows = probe_indices(len(items))
        self.plan.readable[:] = [numbers[row] for row in rows]
        self.plan.others[:] = [number for row, number in enumerate(numbers) if row not in rows]
        try:
            self._store.put(0, step, items)
            self.inferred = isinstance(self.loader.spec, SceneSpec)
        finally:
            self._drop(0, step)

    def _drop(self, epoch: int, step: int) -> None:
        self._store.drop(epoch, step)
        self.plan.forget(epoch, step)

    def stats(self) -> LoaderStats:
        """Return the counters of the loader and the generators' workers."""
        stats, pool = self.loader.stats(), self._pools.present
        if pool is None:
            return stats
        return dataclasses.replace(
            stats, worker_type=pool.pool.worker_type, workers=pool.pool.options.workers, pids=pool.pool.pids(),
            respawns=self._pools.respawns,
        )  # fmt: skip

    def close(self) -> None:
        """End threads and processes; idempotent. Batches already delivered stay valid."""
        self._pools.close()
        self.loader.close()
        self._store.close()


def _item_text(store: ItemStore, shard_count: int, epoch: int, index: int) -> str:
    # The batch may be cancelled by now, or the item may not unpickle.
    item = partial(store.item, epoch, index // shard_count)
    return guarded(lambda: shown(item()), lambda _: f"number {index} of repetition {epoch}")
