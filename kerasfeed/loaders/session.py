"""What workers that are threads and workers that are processes have in common: batches sent to them, and delivered.

Invariant: a loader holds at most one session, one run of its workers, which does not hold the loader. A session that
has failed stays failed; the loader starts another at the next `submit`. A slot is given back by whoever submits until
its batch is sent, and by whoever delivers the batch from then on.
"""

import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from kerasfeed.errors import FeedClosedError, WorkerDiedError
from kerasfeed.loaders.base import CLOSED, CLOSED_BEFORE_LOADED, Job, Loader, LoaderStats
from kerasfeed.loaders.batches.filler import Filler
from kerasfeed.loaders.batches.layout import Layout
from kerasfeed.loaders.batches.pending_batch import BatchInProgress, SceneTiming, begin_batch
from kerasfeed.loaders.batches.slots import SlotMemory, SlotPool
from kerasfeed.loaders.batches.spec_inference import Probe, layout_for, probe_scenes, watched
from kerasfeed.loaders.failures.failure_log import FailureLog
from kerasfeed.loaders.failures.recovery import Recovery
from kerasfeed.loaders.file_identities import FirstOpened
from kerasfeed.loaders.inline import read_ahead
from kerasfeed.loaders.tasks import LoadTask, ProbeTask, Work
from kerasfeed.sequences.global_random import WARNING_KIND
from kerasfeed.spec.scene_spec import SceneSpec
from kerasfeed.util.read_cost import ReadCost

_ASKING = "the thread that asked for the batch"


class Session(ABC):
    """One run of workers.

    Attributes:
        lock: Guards everything below that changes.
        work: What is in flight.
        pool: The slots; None until the spec is inferred.
        failure: Why the session has ended; None as long as it has not.
        closed: Whether it was closed.
        reads_here: Whether workers read scenes in this process.
        filler: Reads them; None elsewhere, and until the spec is inferred.
    """

    reads_here: bool
    work: Collection[Any]
    _arena: SlotMemory

    def __init__(self, job: Job, failure_log: FailureLog) -> None:
        self.job = job
        self.failure_log = failure_log
        self.recovery = Recovery(job, failure_log)
        # Reentrant: the collector may close a dropped loader from inside any of these sections.
        self.lock = threading.RLock()
        self.idle = threading.Condition(self.lock)
        self.timing = SceneTiming(whole=job.maker is not None)
        self.pool: SlotPool | None = None
        self.filler: Filler | None = None
        self.failure: BaseException | None = None
        self.closed = False
        self.batches = 0
        self.copied = 0
        self._owner = os.getpid()

    @abstractmethod
    def _send(self, works: list[Work], batch: BatchInProgress | None = None) -> None:
        """Have workers do this; all of a `batch`, which is marked as sent, at once. The caller holds `lock`."""

    @abstractmethod
    def _post_layout(self, layout: Layout) -> None:
        """Let the workers know the layout of a slot. The caller holds `lock`."""

    @abstractmethod
    def give_up(self, batch: BatchInProgress, error: BaseException) -> None:
        """Fail a batch at once: workers skip what is left of it."""

    @abstractmethod
    def renew(self) -> None:
        """Have workers see the present state of the sequence from now on."""

    @abstractmethod
    def pids(self) -> tuple[int, ...]:
        """Process ids of the workers that live."""

    @abstractmethod
    def wasted(self) -> ReadCost | None:
        """See `Loader.waste`."""

    @abstractmethod
    def _end(self) -> None:
        """End the workers and free everything."""

    def close(self) -> None:
        """End the workers and free everything; idempotent. Futures in flight fail with `FeedClosedError`."""
        if os.getpid() != self._owner:
            return  # a fork of the owner: the workers are not here
        with self.lock:
            if self.closed:
                return
            self.closed = True
        self._end()

    def has_ended(self) -> bool:
        """Whether it was closed or has failed."""
        return self.closed or self.failure is not None

    def _refuse_if_ended(self) -> None:
        if self.has_ended():
            raise self.failure or FeedClosedError(CLOSED)

    def infer(self) -> None:
        """Have the workers describe a few scenes, then set the slots up. Waits.

        Raises:
            Exception: What the sequence raised; SpecError; WorkerDiedError.
        """
        read = watched(self.job, self.failure_log, self._read_probes) if self.reads_here else self._read_probes
        probes = probe_scenes(self.job, self.failure_log, read)
        # The fastest: the first scene a worker reads also opens files and warms caches.
        self.timing.note(min(probe.seconds for probe in probes), 1)
        layout = layout_for(self.job, probes)
        with self.lock:
            self._refuse_if_ended()
            self._post_layout(layout)
            self.pool = SlotPool(layout, self._arena, max_memory=self.job.max_memory, in_flight=self.job.look_ahead)

    def _read_probes(self, indices: list[int]) -> list[Probe | BaseException]:
        works = [ProbeTask(index, Future()) for index in indices]
        with self.lock:
            self._send([*works])
        return [work.future.result() for work in works]

    def submit(self, epoch: int, step: int, timeout: float | None = None) -> Future[Any]:
        """Cut a batch into tasks and hand them to the workers; see `Loader.submit`."""
        assert self.pool is not None
        indices = self.job.plan.indices(epoch, step)
        failed_ahead = read_ahead(self.filler, self.failure_log, epoch, step, indices, _ASKING) if self.filler else None
        if failed_ahead is not None:
            return failed_ahead
        try:
            slot = self.pool.acquire(timeout)
        except FeedClosedError:  # the pool closes with the session: say why that ended
            raise self.failure or FeedClosedError(CLOSED_BEFORE_LOADED) from None
        batch: BatchInProgress | None = None
        try:
            batch = begin_batch(self.job, slot, epoch, step, indices)
            future = batch.future  # once sent, the batch belongs to the workers
            ranges = self.timing.ranges(batch.rows, self.job.workers)
            with self.lock:
                ranges = self.recovery.begin(batch, ranges)
                self._send([LoadTask(batch, start, stop) for start, stop in ranges], batch)
            if not ranges:  # none of its scenes is to be tried; of threads some always is
                self.finish(batch)
            return future
        except BaseException as error:  # Ctrl-C: nobody will wait for this batch, and its slot must come back
            if batch is not None:
                self.give_up(batch, error)
            if batch is None or not batch.sent:
                self.pool.release(slot)
            raise

    def finish(self, batch: BatchInProgress) -> None:
        """Deliver a batch of which no row is missing."""
        assert self.pool is not None
        copied = batch.finish(self.pool)
        if copied:
            self.failure_log.note_copied(self.pool.ceiling)
        with self.lock:
            self.batches += 1
            self.copied += copied

    def wait_until_idle(self) -> None:
        """Wait for the work in flight."""
        with self.lock:
            self.idle.wait_for(lambda: not self.work)


AnySession = TypeVar("AnySession", bound=Session)


class SessionLoader(Loader, Generic[AnySession]):
    """A loader whose batches a session loads.

    Attributes:
        worker_type: See `LoaderStats`.
    """

    worker_type: str

    def __init__(self, job: Job, *held: FirstOpened) -> None:
        """Load `job`; what is `held` is closed with the loader."""
        self._job = job
        self._lock = threading.Lock()
        self._inferring = threading.Lock()  # held while scenes are read, as nothing is that close() needs
        self._sessions: list[AnySession] = []
        self._held = held
        self._closed = False
        self._owner = os.getpid()
        self.failure_log = FailureLog(job.policy, job.plan.length)
        self._finalizer = weakref.finalize(self, _close_all, self._sessions, held)

    @abstractmethod
    def _start(self) -> AnySession:
        """A new session."""

    def _session(self) -> AnySession:
        """The session, started if there is none. The caller holds `_lock`."""
        if self._closed:
            raise FeedClosedError(CLOSED)
        if self._sessions and self._sessions[0].failure is not None:
            _close_all(self._sessions)
        if not self._sessions:
            self._sessions.append(self._start())
        return self._sessions[0]

    def _ready(self) -> AnySession:
        """The session, its slots set up."""
        refuse_after_fork(self._owner)  # before the lock, which another thread may have held at the fork
        with self._lock:
            session = self._session()
        if session.pool is None:
            with self._inferring:
                if session.pool is None:
                    session.infer()
        assert session.pool is not None
        self.layout = session.pool.layout
        return session

    @property
    def spec(self) -> SceneSpec:
        """See `Loader.spec`."""
        self._ready()
        assert self.layout is not None
        return self.layout.spec

    @property
    def look_ahead(self) -> int:
        """See `Loader.look_ahead`."""
        pool = self._ready().pool
        assert pool is not None
        return max(1, min(self._job.look_ahead, pool.limit - 1))

    def submit(self, epoch: int, step: int, *, timeout: float | None = None) -> Future[Any]:
        """See `Loader.submit`."""
        session = self._ready()
        try:
            return session.submit(epoch, step, timeout)
        except WorkerDiedError as error:  # just now: this batch shares the fate of those in flight
            promise: Future[Any] = Future()
            promise.set_exception(error)
            return promise

    def refresh(self, change: Callable[[], None]) -> None:
        """See `Loader.refresh`."""
        refuse_after_fork(self._owner)
        for session in self._present():
            session.wait_until_idle()
        change()
        for session in self._present():  # one may have failed meanwhile, and another taken its place
            session.renew()

    def _present(self) -> list[AnySession]:
        with self._lock:
            return list(self._sessions)

    def close(self) -> None:
        """See `Loader.close`."""
        if os.getpid() != self._owner:
            return  # another thread may have held the lock at the fork
        with self._lock:
            self._closed = True
        _close_all(self._sessions, self._held)

    def stats(self) -> LoaderStats:
        """See `Loader.stats`."""
        session = next(iter(self._sessions), None)
        pool = session.pool if session else None
        return LoaderStats(
            self.worker_type,
            self._job.workers,
            session.batches if session else 0,
            session.copied if session else 0,
            pool.total if pool else 0,
            pool.layout.nbytes if pool else 0,
            session.pids() if session else (),
            self.failure_log.respawns,
            self.failure_log.failed,
            seeds_random=self.worker_type == "process" and self.failure_log.deferred_warnings.is_known(WARNING_KIND),
        )

    def waste(self) -> ReadCost | None:
        """See `Loader.waste`."""
        session = next(iter(self._sessions), None)
        return session.wasted() if session else None


def _close_all(sessions: list[Any], held: Iterable[FirstOpened] = ()) -> None:
    for session in sessions:
        session.close()
        session.failure_log.deferred_warnings.issue_last()  # nobody else would of a feed that was dropped
    sessions.clear()
    for each in held:
        each.close()


def refuse_after_fork(owner: int) -> None:
    """Refuse to go on in a fork of the process `owner`: its worker threads and processes are not here.

    Raises:
        FeedClosedError: This process is another.
    """
    if os.getpid() != owner:
        raise FeedClosedError(
            f"this feed belongs to process {owner} and this is a fork of it, where its workers are not. Make a feed "
            "here (a pickled feed makes itself anew)"
        )
