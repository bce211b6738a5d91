"""The reference loader: fills a slot in the calling thread. What every other loader must equal.

Invariant: `submit` returns a future that is done; no thread but the caller's reads scenes, and nothing is read ahead.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.errors import FeedClosedError
from kerasfeed.loaders.base import CLOSED, Job, Loader, LoaderStats
from kerasfeed.loaders.batches.filler import FailedSceneError, Filler
from kerasfeed.loaders.batches.layout import Layout
from kerasfeed.loaders.batches.pending_batch import BatchInProgress, begin_batch, scene_text
from kerasfeed.loaders.batches.slots import SlotMemory, SlotPool
from kerasfeed.loaders.batches.spec_inference import Probe, layout_for, probe_scenes, read_probe, watched
from kerasfeed.loaders.failures import watchdog
from kerasfeed.loaders.failures.exceptions import failed_here
from kerasfeed.loaders.failures.failure_log import FailureLog
from kerasfeed.loaders.failures.recovery import Range, Recovery
from kerasfeed.loaders.worker_hooks import begin_worker, defer_failed_end, end_worker
from kerasfeed.sequences.base import SceneContext, Worker
from kerasfeed.spec.scene_spec import SceneSpec
from kerasfeed.util.error_text import class_name
from kerasfeed.util.read_cost import ReadCost

_WORKER = "the calling thread"


@dataclass(eq=False)
class _Caller:
    """What one calling thread is at: row of a batch, or, while the spec is inferred, an index.

    Attributes:
        beginning: Whether it has come to no scene yet.
    """

    batch: BatchInProgress | None
    beginning: bool = False
    thread: threading.Thread = field(default_factory=threading.current_thread)
    note: list[int] = field(default_factory=lambda: [0, 0])

    @property
    def row(self) -> int:
        """The row, or the index."""
        return self.note[1]


class InlineLoader(Loader):
    """Loads each batch when it is asked for."""

    def __init__(self, job: Job, layout: Layout | None = None, context: type[SceneContext] = SceneContext) -> None:
        """Load `job`; the layout, where it is known, need not be inferred. Scenes are read in a `context`."""
        self._job = job
        self._context = context
        self.layout = layout
        self._lock = threading.RLock()
        self._pool: SlotPool | None = None
        self._filler: Filler | None = None
        self._arena = SlotMemory(shared=False, who=f"the feed of {class_name(job.sequence)}")
        self._closed = False
        self._batches = 0
        self._copied = 0
        self.failure_log = FailureLog(job.policy, job.plan.length)
        self._recovery = Recovery(job, self.failure_log)
        self._callers: dict[int, _Caller] = {}  # by thread
        self._stall_timer = watchdog.StallTimer(watchdog.tick_seconds(None))
        self._watch: watchdog.Watchdog | None = None

    @property
    def spec(self) -> SceneSpec:
        """See `Loader.spec`."""
        return self._ready()[0].layout.spec

    @property
    def look_ahead(self) -> int:
        """See `Loader.look_ahead`."""
        return 1

    def submit(self, epoch: int, step: int, *, timeout: float | None = None) -> Future[Any]:
        """Load the batch now, however long that takes; see `Loader.submit`."""
        indices = self._job.plan.indices(epoch, step)
        pool, filler = self._ready()
        failed_ahead = read_ahead(filler, self.failure_log, epoch, step, indices, _WORKER)
        if failed_ahead is not None:
            return failed_ahead
        slot = pool.acquire()
        batch = begin_batch(self._job, slot, epoch, step, indices)
        ranges = deque([(0, len(indices))])
        try:
            with self._at(batch) as caller:
                while ranges:
                    ranges.extend(self._fill(batch, filler, *ranges.popleft(), caller))
        except BaseException:
            pool.release(slot)
            raise
        copied = batch.finish(pool)
        if copied:
            self.failure_log.note_copied(pool.ceiling)
        with self._lock:
            self._batches += 1
            self._copied += copied
        try:
            return batch.future
        finally:
            del batch, caller  # the traceback of what a scene raised ends in this frame, and the future holds it

    @contextmanager
    def _at(self, batch: BatchInProgress | None, *, beginning: bool = False) -> Iterator[_Caller]:
        caller = self._callers[threading.get_ident()] = _Caller(batch, beginning)
        try:
            yield caller
        finally:
            self._callers.pop(threading.get_ident(), None)

    def _fill(self, batch: BatchInProgress, filler: Filler, start: int, stop: int, caller: _Caller) -> list[Range]:
        """Load rows [start, stop); returns the ranges that are to be loaded instead."""
        context = self._context(self._job.plan.seed, batch.epoch)
        try:
            batch.add(start, stop, filler.fill(batch.slot.view, start, stop, batch.serial, context, caller.note))
        except FailedSceneError as carrier:
            indices = tuple(batch.slot.view.indices[start:stop].tolist())
            error = failed_here(carrier, indices, batch.epoch, batch.step, _WORKER)
            self.failure_log.note(carrier.index, batch.epoch, batch.step, error)
            again = self._recovery.handle(batch, start, stop, carrier.row, error)
            del error, batch, caller  # the traceback ends in this frame: only the collector would free them
            return again
        return []

    def look(self) -> None:
        """Warn of a scene that does not end; called by the watching thread."""
        self._stall_timer.begin(time.monotonic())
        for ident, caller in list(self._callers.items()):
            token = (caller.beginning, None if caller.batch is None else caller.batch.serial, caller.row)
            seconds = self._stall_timer.look(ident, token)
            if seconds >= watchdog.STALL_SECONDS:
                scene = None if caller.beginning else scene_text(caller.batch, caller.row)
                stack = partial(watchdog.stack_of, caller.thread)
                watchdog.warn_of_stall(
                    self.failure_log.deferred_warnings, "inline", None, _WORKER, scene, seconds, stack, ident
                )

    def _ready(self) -> tuple[SlotPool, Filler]:
        with self._lock:
            if self._closed:
                raise FeedClosedError(CLOSED)
            if self._pool is None or self._filler is None:
                if self._watch is None:
                    self._watch = watchdog.Watchdog(self.look, watchdog.tick_seconds(None))
                with self._at(None, beginning=True):
                    failed = begin_worker(self._job.sequence, Worker(0, 1, "inline"), _WORKER)
                try:
                    if failed is not None:
                        raise failed
                finally:
                    del failed  # whose traceback holds this frame: only the collector would free them
                if self.layout is None:
                    read = watched(self._job, self.failure_log, self._read_probes)
                    self.layout = layout_for(self._job, probe_scenes(self._job, self.failure_log, read))
                layout = self.layout
                self._pool = SlotPool(layout, self._arena, max_memory=self._job.max_memory, in_flight=1)
                self._filler = Filler(self._job.sequence, layout, self._job.plan.length, self._job.maker)
            return self._pool, self._filler

    def _read_probes(self, indices: list[int]) -> list[Probe | BaseException]:
        found: list[Probe | BaseException] = []
        with self._at(None) as caller:
            for caller.note[1] in indices:
                found.append(read_probe(self._job, caller.row, _WORKER))
                if isinstance(found[-1], BaseException) and self._job.policy.on_error == "raise":
                    break  # the others are of no use
        try:
            return found
        finally:
            del found  # the traceback of what a scene raised ends in this frame: only the collector would free them

    def refresh(self, change: Callable[[], None]) -> None:
        """See `Loader.refresh`; the sequence is the one that is read."""
        change()

    def close(self) -> None:
        """See `Loader.close`."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            if self._watch is not None:
                self._watch.stop()
            if self._pool is not None:
                self._pool.free(flying=True)  # a batch that another thread loads is still delivered
                defer_failed_end(self.failure_log.deferred_warnings, end_worker(self._job.sequence, _WORKER))

    def stats(self) -> LoaderStats:
        """See `Loader.stats`."""
        total, nbytes = (self._pool.total, self._pool.layout.nbytes) if self._pool else (0, 0)
        return LoaderStats("inline", 1, self._batches, self._copied, total, nbytes, failed=self.failure_log.failed)

    def waste(self) -> ReadCost | None:
        """See `Loader.waste`."""
        return self._filler.meter.waste() if self._filler else None


def read_ahead(
    filler: Filler, failure_log: FailureLog, epoch: int, step: int, indices: NDArray[np.int64], worker: str
) -> Future[Any] | None:
    """Announce a batch to the sequence; where it raises, note that, and return a failed future if errors are raised.

    Otherwise the scenes are read without: each of them fails by itself, or does not.
    """
    try:
        filler.read_ahead(indices)
    except FailedSceneError as carrier:
        error = failed_here(carrier, tuple(indices.tolist()), epoch, step, worker)
        failure_log.note(None, epoch, step, error)
        if failure_log.policy.on_error != "raise":
            return None
        future: Future[Any] = Future()
        future.set_exception(error)
        return future
    return None
