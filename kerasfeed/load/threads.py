"""The loader on a thread pool: for scenes that wait (disks, networks) or leave the interpreter (NumPy, zlib).

Invariant: the threads know the job and the queue, never the loader, so a loader that is dropped is collected and its
threads end. A batch is guarded by one lock and settled by whichever thread accounts for its last row.
"""

import os
import queue
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from typing import Any

from kerasfeed.costs import ReadCost
from kerasfeed.errors import FeedClosedError, WorkerStartError
from kerasfeed.load import Job, Loader, LoaderStats
from kerasfeed.load.batch import BatchInProgress, Pace
from kerasfeed.load.failure import Place, for_consumer
from kerasfeed.load.fill import Cancelled, FailedSceneError, Filler, probe
from kerasfeed.load.inline import layout_for, read_ahead, refuse_after_fork
from kerasfeed.load.layout import Layout
from kerasfeed.load.slots import Arena, SlotPool
from kerasfeed.scene import SceneContext, Worker, optional_method
from kerasfeed.spec import SceneSpec, probe_indices


@dataclass(frozen=True)
class _LoadTask:
    batch: BatchInProgress
    start: int
    stop: int


@dataclass(frozen=True)
class _ProbeTask:
    index: int
    future: Future[tuple[SceneSpec, float]]


class _Session:
    """The threads and what they share; see the module's invariant."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.owner = os.getpid()
        # Reentrant: the collector may close a dropped loader from inside any of these sections.
        self.lock = threading.RLock()
        self.idle = threading.Condition(self.lock)
        self.tasks: queue.SimpleQueue[_LoadTask | _ProbeTask | None] = queue.SimpleQueue()
        self.pace = Pace()
        self.pool: SlotPool | None = None
        self.filler: Filler | None = None
        self.pending: set[BatchInProgress] = set()
        self.probes: list[Future[tuple[SceneSpec, float]]] = []
        self.closed = False
        self.batches = 0
        self.copied = 0
        self.threads = [
            threading.Thread(target=self.work, args=(number,), name=f"kerasfeed-worker-{number}", daemon=True)
            for number in range(job.workers)
        ]
        for thread in self.threads:
            thread.start()

    def work(self, number: int) -> None:
        """Body of one worker thread."""
        sequence = self.job.sequence
        name = f"worker thread {number}"
        trouble: BaseException | None = None
        try:
            begin = optional_method(sequence, "on_worker_begin")
            if begin is not None:
                begin(Worker(number, self.job.workers, "thread"))
        except BaseException as error:  # noqa: BLE001 - handed to every consumer of this worker's tasks
            trouble = WorkerStartError(f"on_worker_begin failed in {name}: {type(error).__name__}: {error}")
            trouble.__cause__ = error
        while (task := self.tasks.get()) is not None:
            if isinstance(task, _ProbeTask):
                self._probe(task, name, trouble)
            else:
                self._load(task, name, trouble)
            del task  # else an idle thread keeps the last batch's slot
        end = optional_method(sequence, "on_worker_end")
        if end is not None and trouble is None:
            end()

    def _probe(self, task: _ProbeTask, name: str, trouble: BaseException | None) -> None:
        started = time.perf_counter()
        if task.future.done():  # closed meanwhile
            return
        if trouble is not None:
            _fail(task.future, trouble)
            return
        try:
            spec = probe(self.job.sequence, task.index, self.job.plan.seed)
            task.future.set_result((spec, time.perf_counter() - started))
        except InvalidStateError:
            pass  # closed meanwhile
        except FailedSceneError as carrier:
            assert carrier.__cause__ is not None
            _fail(task.future, for_consumer(carrier.__cause__, Place((task.index,), None, None, name)))
        except BaseException as error:  # noqa: BLE001 - whatever it is, somebody waits
            _fail(task.future, error)

    def _load(self, task: _LoadTask, name: str, trouble: BaseException | None) -> None:
        batch, start, stop = task.batch, task.start, task.stop
        assert self.filler is not None
        assert self.pool is not None
        started = time.perf_counter()
        try:
            if trouble is not None:
                raise FailedSceneError(int(batch.slot.view.indices[start]), start) from trouble
            context = SceneContext(self.job.plan.seed, batch.epoch)
            beside = self.filler.fill(batch.slot.view, start, stop, batch.serial, context)
            self.pace.note(time.perf_counter() - started, stop - start)
            with self.lock:
                complete = batch.add(start, stop, beside)
        except Cancelled:
            with self.lock:
                complete = batch.add(start, stop, {})
        except FailedSceneError as carrier:
            assert carrier.__cause__ is not None
            failed = tuple(batch.slot.view.indices[start:stop].tolist()) if carrier.index is None else (carrier.index,)
            error = carrier.__cause__
            if error is not trouble:
                error = for_consumer(error, Place(failed, batch.epoch, batch.step, name))
            with self.lock:
                complete = batch.fail(start, stop, start if carrier.row is None else carrier.row, error)
        except BaseException as error:  # noqa: BLE001 - whatever it is, somebody waits
            with self.lock:
                complete = batch.fail(start, stop, start, error)
        if complete:
            copied = batch.settle(self.pool)
            with self.lock:
                self.batches += 1
                self.copied += copied
                self.pending.discard(batch)
                if not self.pending:
                    self.idle.notify_all()

    def infer(self) -> Layout:
        """Read a few scenes, in parallel, and set up the slots."""
        futures: list[tuple[int, Future[tuple[SceneSpec, float]]]] = []
        with self.lock:
            if self.closed:
                raise FeedClosedError("the feed is closed; make a new one")
            for index in probe_indices(self.job.plan.length):
                future: Future[tuple[SceneSpec, float]] = Future()
                futures.append((index, future))
                self.tasks.put(_ProbeTask(index, future))
            self.probes = [future for _, future in futures]
        try:
            results = [(index, *future.result()) for index, future in futures]
        finally:
            self.probes = []
        # The fastest: the first scene a thread reads also opens files and warms caches.
        self.pace.note(min(seconds for _, _, seconds in results), 1)
        return layout_for(self.job, [(index, spec) for index, spec, _ in results])

    def wait_until_idle(self) -> None:
        """Wait for the batches in flight."""
        with self.lock:
            self.idle.wait_for(lambda: not self.pending)

    def close(self) -> None:
        """End the threads; those inside a scene are waited for, briefly."""
        if os.getpid() != self.owner:
            return  # a fork of the owner has none of its threads
        with self.lock:
            if self.closed:
                return
            self.closed = True
            for batch in self.pending:
                batch.give_up(FeedClosedError("the feed was closed before this batch was loaded"))
            for future in self.probes:
                _fail(future, FeedClosedError("the feed was closed while its first scenes were read"))
        if self.pool is not None:
            self.pool.close()
        for _ in self.threads:
            self.tasks.put(None)
        deadline = time.monotonic() + 5.0
        for thread in self.threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))


class ThreadLoader(Loader):
    """Loads batches on `job.workers` threads."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._lock = threading.Lock()
        self._inferring = threading.Lock()  # held while scenes are read, as nothing is that close() needs
        self._sessions: list[_Session] = []
        self._closed = False
        self._owner = os.getpid()
        self._finalizer = weakref.finalize(self, _close_all, self._sessions)

    @property
    def spec(self) -> SceneSpec:
        """See `Loader.spec`."""
        pool = self._ready().pool
        assert pool is not None
        return pool.layout.spec

    @property
    def look_ahead(self) -> int:
        """See `Loader.look_ahead`."""
        pool = self._ready().pool
        assert pool is not None
        return max(1, min(self._job.look_ahead, pool.limit - 1))

    def submit(self, epoch: int, step: int) -> Future[Any]:
        """See `Loader.submit`."""
        indices = self._job.plan.indices(epoch, step)
        session = self._ready()
        assert session.pool is not None
        assert session.filler is not None
        failed_ahead = read_ahead(session.filler, epoch, step, indices, "the thread that asked for the batch")
        if failed_ahead is not None:
            return failed_ahead
        slot = session.pool.acquire()
        slot.view.indices[: len(indices)] = indices
        batch = BatchInProgress(slot, epoch, step, len(indices))
        future = batch.future  # once queued, the batch belongs to the workers
        with session.lock:
            if session.closed:
                raise FeedClosedError("the feed is closed; make a new one")
            session.pending.add(batch)
        for start, stop in session.pace.ranges(len(indices), self._job.workers):
            session.tasks.put(_LoadTask(batch, start, stop))
        return future

    def _ready(self) -> _Session:
        refuse_after_fork(self._owner)
        with self._lock:
            if self._closed:
                raise FeedClosedError("the feed is closed; make a new one")
            if not self._sessions:
                self._sessions.append(_Session(self._job))
            session = self._sessions[0]
        if session.pool is None:
            with self._inferring:
                if session.pool is None:
                    layout = session.infer()
                    session.filler = Filler(self._job.sequence, layout, self._job.plan.length)
                    session.pool = SlotPool(
                        layout, Arena(shared=False), max_memory=self._job.max_memory, in_flight=self._job.look_ahead
                    )
        return session

    def refresh(self, change: Callable[[], None]) -> None:
        """See `Loader.refresh`; the threads read the sequence itself."""
        refuse_after_fork(self._owner)
        for session in list(self._sessions):
            session.wait_until_idle()
        change()

    def close(self) -> None:
        """See `Loader.close`."""
        if os.getpid() != self._owner:
            return  # another thread may have held the lock at the fork
        with self._lock:
            self._closed = True
        _close_all(self._sessions)

    def stats(self) -> LoaderStats:
        """See `Loader.stats`."""
        session = self._sessions[0] if self._sessions else None
        pool = session.pool if session else None
        return LoaderStats(
            "thread",
            self._job.workers,
            session.batches if session else 0,
            session.copied if session else 0,
            pool.total if pool else 0,
            pool.layout.nbytes if pool else 0,
        )

    def waste(self) -> ReadCost | None:
        """See `Loader.waste`."""
        session = self._sessions[0] if self._sessions else None
        return session.filler.meter.waste() if session and session.filler else None


def _fail(future: Future[Any], error: BaseException) -> None:
    try:
        future.set_exception(error)
    except InvalidStateError:
        pass  # settled meanwhile


def _close_all(sessions: list[_Session]) -> None:
    for session in sessions:
        session.close()
    sessions.clear()
