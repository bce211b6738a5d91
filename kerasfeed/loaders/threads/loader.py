"""The loader on a thread pool: for scenes that wait (disks, networks) or leave the interpreter (NumPy, zlib).

Invariant: the loader holds at most one session, whose threads do not hold the loader.
"""

import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from kerasfeed.errors import FeedClosedError
from kerasfeed.loaders.base import Job, Loader, LoaderStats
from kerasfeed.loaders.batches.filler import Filler
from kerasfeed.loaders.batches.pending_batch import BatchInProgress
from kerasfeed.loaders.batches.slots import Arena, SlotPool
from kerasfeed.loaders.failures.failure_log import FailureLog
from kerasfeed.loaders.inline import read_ahead, refuse_after_fork
from kerasfeed.loaders.resource_errors import feed_name
from kerasfeed.loaders.threads.session import LoadTask, ThreadSession
from kerasfeed.spec.scene_spec import SceneSpec
from kerasfeed.util.read_cost import ReadCost

_ASKING = "the thread that asked for the batch"


class ThreadLoader(Loader):
    """Loads batches on `job.workers` threads."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._lock = threading.Lock()
        self._inferring = threading.Lock()  # held while scenes are read, as nothing is that close() needs
        self._sessions: list[ThreadSession] = []
        self._closed = False
        self._owner = os.getpid()
        self.faults = FailureLog(job.policy, job.plan.length)
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

    def submit(self, epoch: int, step: int, *, patience: float | None = None) -> Future[Any]:
        """See `Loader.submit`."""
        indices = self._job.plan.indices(epoch, step)
        session = self._ready()
        assert session.pool is not None
        assert session.filler is not None
        failed_ahead = read_ahead(session.filler, self.faults, epoch, step, indices, _ASKING)
        if failed_ahead is not None:
            return failed_ahead
        slot = session.pool.acquire(patience)
        queued, batch = False, None
        try:
            slot.view.indices[: len(indices)] = indices
            batch = BatchInProgress(
                slot, epoch, step, len(indices), self._job.policy.on_error, self._job.filler(epoch, step)
            )
            ranges = session.pace.ranges(len(indices), self._job.workers)
            tasks = [LoadTask(batch, start, stop) for start, stop in ranges]
            future = batch.future  # once queued, the batch belongs to the workers
            with session.lock:
                if session.closed:
                    raise FeedClosedError("the feed is closed; make a new one")
                session.pending.add(batch)
                queued = True  # and not a call earlier: Ctrl-C comes after calls
                session.tasks.put(tasks)
            return future
        except BaseException as error:  # Ctrl-C: nobody will wait for this batch, and its slot must come back
            if batch is not None:
                session.give_up(batch, error)
            if not queued:
                session.pool.release(slot)
            raise

    def _ready(self) -> ThreadSession:
        refuse_after_fork(self._owner)
        with self._lock:
            if self._closed:
                raise FeedClosedError("the feed is closed; make a new one")
            if not self._sessions:
                self._sessions.append(ThreadSession(self._job, self.faults))
            session = self._sessions[0]
        if session.pool is None:
            with self._inferring:
                if session.pool is None:
                    self.layout = layout = session.infer()
                    session.filler = Filler(self._job.sequence, layout, self._job.plan.length, self._job.maker)
                    arena = Arena(shared=False, who=feed_name(self._job.sequence, self._job.workers, "thread"))
                    session.pool = SlotPool(
                        layout, arena, max_memory=self._job.max_memory, in_flight=self._job.look_ahead
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
            failed=self.faults.failed,
        )

    def waste(self) -> ReadCost | None:
        """See `Loader.waste`."""
        session = self._sessions[0] if self._sessions else None
        return session.filler.meter.waste() if session and session.filler else None


def _close_all(sessions: list[ThreadSession]) -> None:
    for session in sessions:
        session.close()
        session.faults.notices.tell_last()  # nobody else would of a feed that was dropped
    sessions.clear()
