"""The loader on worker processes: for scenes that hold the GIL, and for isolation.

Invariant: the loader holds at most one `Session`. A session replaces workers that die; one that has failed is itself
replaced at the next `submit`.
"""

import os
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from kerasfeed.errors import FeedClosedError, WorkerDiedError
from kerasfeed.loaders.base import Job, Loader, LoaderStats
from kerasfeed.loaders.batches.slots import SlotPool
from kerasfeed.loaders.failures.failure_log import FailureLog
from kerasfeed.loaders.file_identities import FirstOpened
from kerasfeed.loaders.inline import refuse_after_fork
from kerasfeed.loaders.processes.session import Session
from kerasfeed.sequences.global_random import NOTICE
from kerasfeed.spec.scene_spec import SceneSpec
from kerasfeed.util.read_cost import ReadCost


def processes_supported() -> bool:
    """Whether this system can run worker processes (it needs `pass_fds` and `poll`: any POSIX system)."""
    return sys.platform != "win32"


class ProcessLoader(Loader):
    """Loads batches in `job.workers` processes."""

    def __init__(self, job: Job) -> None:
        if not processes_supported():
            raise OSError("worker processes need a POSIX system (Linux, macOS); use worker_type='thread'")
        self._job = job
        self._lock = threading.Lock()
        self._inferring = threading.Lock()  # held while scenes are read, as nothing is that close() needs
        self._sessions: list[Session] = []
        self._closed = False
        self._owner = os.getpid()
        self.faults = FailureLog(job.policy, job.plan.length)
        self._own_first_opened = FirstOpened()
        self._finalizer = weakref.finalize(self, _close_all, self._sessions, self._own_first_opened)

    def start(self) -> None:
        """Start the workers without waiting for them.

        Raises:
            TypeError: The sequence cannot be pickled.
        """
        with self._lock:
            self._session()

    def _session(self) -> Session:
        refuse_after_fork(self._owner)
        if self._closed:
            raise FeedClosedError("the feed is closed; make a new one")
        if self._sessions and self._sessions[0].failure is not None:
            _close_all(self._sessions)
        if not self._sessions:
            first_opened = self._job.first_opened or self._own_first_opened
            self._sessions.append(Session(self._job, self.faults, first_opened))
        return self._sessions[0]

    def _ready(self) -> tuple[Session, SlotPool]:
        refuse_after_fork(self._owner)  # before the lock, which another thread may have held at the fork
        with self._lock:
            session = self._session()
        if session.pool is None:
            with self._inferring:
                if session.pool is None:
                    session.infer()
        assert session.pool is not None
        self.layout = session.pool.layout
        return session, session.pool

    @property
    def spec(self) -> SceneSpec:
        """See `Loader.spec`."""
        return self._ready()[1].layout.spec

    @property
    def look_ahead(self) -> int:
        """See `Loader.look_ahead`."""
        return max(1, min(self._job.look_ahead, self._ready()[1].limit - 1))

    def submit(self, epoch: int, step: int, *, patience: float | None = None) -> Future[Any]:
        """See `Loader.submit`."""
        session, _ = self._ready()
        try:
            return session.submit(epoch, step, patience)
        except WorkerDiedError as error:  # just now: this batch shares the fate of those in flight
            promise: Future[Any] = Future()
            promise.set_exception(error)
            return promise

    def refresh(self, change: Callable[[], None]) -> None:
        """See `Loader.refresh`."""
        refuse_after_fork(self._owner)
        with self._lock:
            sessions = list(self._sessions)
        for session in sessions:
            session.wait_until_idle()
        change()
        with self._lock:  # those there are now: one may have failed meanwhile, and another taken its place
            sessions = list(self._sessions)
        for session in sessions:
            try:
                session.post_sequence()
            except TypeError:
                if not session.closed:
                    raise

    def close(self) -> None:
        """See `Loader.close`."""
        if os.getpid() != self._owner:
            return  # another thread may have held the lock at the fork
        with self._lock:
            self._closed = True
            _close_all(self._sessions, self._own_first_opened)

    def stats(self) -> LoaderStats:
        """See `Loader.stats`."""
        session = self._sessions[0] if self._sessions else None
        pool = session.pool if session else None
        return LoaderStats(
            "process",
            self._job.workers,
            session.batches if session else 0,
            session.copied if session else 0,
            pool.total if pool else 0,
            pool.layout.nbytes if pool else 0,
            session.pids() if session else (),
            self.faults.respawns,
            self.faults.failed,
            self.faults.notices.told(NOTICE),
        )

    def waste(self) -> ReadCost | None:
        """See `Loader.waste`; the first that a worker reported."""
        session = self._sessions[0] if self._sessions else None
        return session.waste if session else None


def _close_all(sessions: list[Session], first_opened: FirstOpened | None = None) -> None:
    for session in sessions:
        session.close()
        session.faults.notices.tell_last()  # nobody else would of a feed that was dropped
    sessions.clear()
    if first_opened is not None:
        first_opened.close()
