"""The loader of batches: one for every kind of pool.

Invariant: see `kerasfeed.loaders.session`.
"""

import os
import threading
import weakref
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Any

from kerasfeed.errors import FeedClosedError, WorkerDiedError
from kerasfeed.loaders.base import Job, Loader, LoaderStats
from kerasfeed.loaders.batch_runner import BatchRunner
from kerasfeed.loaders.batches.layout import Layout
from kerasfeed.loaders.failures.failure_log import FailureLog
from kerasfeed.loaders.session import Session
from kerasfeed.pool.base import CLOSED, Pool, PoolOptions
from kerasfeed.pool.factory import make_pool
from kerasfeed.pool.file_identities import FirstOpened
from kerasfeed.sequences.context import SceneContext
from kerasfeed.sequences.global_random import WARNING_KIND
from kerasfeed.spec.scene_spec import SceneSpec
from kerasfeed.util.error_text import class_name
from kerasfeed.util.frames import is_in_memory
from kerasfeed.util.read_cost import ReadCost


def worker_type_for(sequence: Any, worker_type: str) -> str:
    """`worker_type`, which is "thread" instead of "auto" for a sequence whose scenes are there already."""
    return "thread" if worker_type == "auto" and is_in_memory(sequence) else worker_type


def make_loader(job: Job, worker_type: str) -> "BatchLoader":
    """The loader for `worker_type` "thread", "process" or "auto", as in `Feed`; without workers, an inline one.

    Raises:
        TypeError, OSError: Worker processes were asked for and cannot be started, or the sequence cannot be pickled.
    """
    worker_type = worker_type_for(job.sequence, worker_type) if job.workers else "inline"
    loader = BatchLoader(job, worker_type)
    if worker_type in ("process", "auto"):
        try:
            loader.start()  # workers come up while the caller builds a model
        except BaseException:
            loader.close()
            raise
    return loader


class BatchLoader(Loader):
    """Loads batches by the workers of a pool.

    Attributes:
        worker_type: See `LoaderStats`; "auto" until a pool was started.
    """

    def __init__(
        self, job: Job, worker_type: str, layout: Layout | None = None, context: type[SceneContext] = SceneContext
    ) -> None:
        """Load `job`; the layout, where it is known, need not be inferred. Scenes are read in a `context`."""
        self.worker_type = worker_type
        self.layout = layout
        self._job = job
        self._context = context
        self._lock = threading.Lock()
        self._inferring = threading.RLock()  # held while scenes are read, as nothing is that close() needs
        self._sessions: list[Session] = []
        self._first_opened = FirstOpened()
        self._closed = False
        self._owner = None if worker_type == "inline" else os.getpid()
        self._respawns = 0  # of sessions that have failed
        self.failure_log = FailureLog(job.policy, job.plan.length)
        self._finalizer = weakref.finalize(self, _close_all, self._sessions, (self._first_opened,))

    def start(self) -> None:
        """Start the workers without waiting for them.

        Raises:
            TypeError, OSError: There can be no worker processes, or the sequence cannot be pickled.
        """
        with self._lock:
            self._session()

    def _start_pool(self, runner: BatchRunner) -> Pool:
        job = self._job
        options = PoolOptions(
            workers=max(1, job.workers),
            who=f"the feed of {class_name(job.sequence)}",
            seed=job.plan.seed,
            timeout=job.policy.timeout,
            tries=job.policy.tries,
            tries_in_time=job.policy.tries_in_time,
            environment=job.environment,
            inherit=job.inherit,
            first_opened=self._first_opened,
            deferred_warnings=self.failure_log.deferred_warnings,
        )
        pool = make_pool(runner, options, self.worker_type)
        self.worker_type = pool.worker_type
        return pool

    def _session(self) -> Session:
        """The session, started if there is none. The caller holds `_lock`."""
        if self._closed:
            raise FeedClosedError(CLOSED)
        if self._sessions and self._sessions[0].pool.failure is not None:
            self._respawns += self._sessions[0].pool.respawns
            _close_all(self._sessions)
        if not self._sessions:
            self._sessions.append(Session(self._job, self.failure_log, self._start_pool, self.layout, self._context))
        return self._sessions[0]

    def _ready(self) -> Session:
        """The session, its slots set up."""
        refuse_after_fork(self._owner)  # before the lock, which another thread may have held at the fork
        with self._lock:
            session = self._session()
        if session.slots is None:
            with self._inferring:
                if session.slots is None:
                    session.infer()
        assert session.slots is not None
        self.layout = session.slots.layout
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
        if self.worker_type == "inline":
            return 1
        slots = self._ready().slots
        assert slots is not None
        return max(1, min(self._job.look_ahead, slots.limit - 1))

    def submit(self, epoch: int, step: int, *, timeout: float | None = None) -> Future[Any]:
        """See `Loader.submit`."""
        session = self._ready()
        try:
            return session.submit(epoch, step, timeout)
        except WorkerDiedError as error:  # just now: this batch shares the fate of those in flight
            if session.pool.failure is None:
                raise
            promise: Future[Any] = Future()
            promise.set_exception(error)
            return promise

    def refresh(self, change: Callable[[], None]) -> None:
        """See `Loader.refresh`."""
        refuse_after_fork(self._owner)
        for session in self._present():
            session.pool.wait_until_idle()
        change()
        for session in self._present():  # one may have failed meanwhile, and another taken its place
            session.pool.renew()

    def _present(self) -> list[Session]:
        with self._lock:
            return list(self._sessions)

    def close(self) -> None:
        """See `Loader.close`."""
        if self._owner not in (None, os.getpid()):
            return  # another thread may have held the lock at the fork
        with self._lock:
            self._closed = True
        _close_all(self._sessions, (self._first_opened,))

    def stats(self) -> LoaderStats:
        """See `Loader.stats`."""
        session = next(iter(self._sessions), None)
        slots = session.slots if session else None
        warned = self.failure_log.deferred_warnings.is_known(WARNING_KIND)
        return LoaderStats(
            self.worker_type,
            max(1, self._job.workers),
            session.batches if session else 0,
            session.copied if session else 0,
            slots.total if slots else 0,
            slots.layout.nbytes if slots else 0,
            session.pool.pids() if session else (),
            self._respawns + (session.pool.respawns if session else 0),
            self.failure_log.failed,
            seeds_random=self.worker_type == "process" and warned,
        )

    def waste(self) -> ReadCost | None:
        """See `Loader.waste`."""
        session = next(iter(self._sessions), None)
        return session.wasted() if session else None


def refuse_after_fork(owner: int | None) -> None:
    """Raise where this process is not the `owner` of workers, of which it may be a fork; None: they are no process's.

    Raises:
        FeedClosedError: It is not.
    """
    if owner not in (None, os.getpid()):
        raise FeedClosedError(
            f"this feed belongs to process {owner} and this is a fork of it, where its workers are not. Make a feed "
            "here (a pickled feed makes itself anew)"
        )


def _close_all(sessions: list[Session], held: Iterable[FirstOpened] = ()) -> None:
    for session in sessions:
        session.close()
        session.failure_log.deferred_warnings.issue_last()  # nobody else would of a feed that was dropped
    sessions.clear()
    for each in held:
        each.close()
