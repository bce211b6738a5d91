"""The loader of batches: one for every kind of pool.

Invariant: see `kerasfeed.loaders.session`.
"""

import dataclasses
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np

from kerasfeed.errors import FeedWarning, WorkerDiedError
from kerasfeed.loaders.auto_workers import WORKER_TYPE, WORKERS, Choice, Setup, choose, most_processes
from kerasfeed.loaders.base import Job, LoaderStats
from kerasfeed.loaders.batch_runner import FirstScenes
from kerasfeed.loaders.batches.layout import Layout
from kerasfeed.loaders.batches.slots import failed_future
from kerasfeed.loaders.failures.failure_log import FailureLog
from kerasfeed.loaders.hosts.session import HostsSession
from kerasfeed.loaders.session import Session
from kerasfeed.pool.base import LOGGER, Sessions
from kerasfeed.readers.read_cost import ReadCost
from kerasfeed.sequences.context import MakeContext, SceneContext
from kerasfeed.sequences.frames import is_in_memory
from kerasfeed.spec.nesting import flatten
from kerasfeed.spec.scene_spec import SceneSpec
from kerasfeed.util.error_text import class_name

_QUICK_BYTES = 1 << 20  # of a batch
LoaderSession: TypeAlias = "Session | HostsSession"


def worker_type_for(sequence: Any, worker_type: str) -> str:
    """Return `worker_type`; "thread" instead of "auto" if all scenes are in memory."""
    return "thread" if worker_type == "auto" and is_in_memory(sequence) else worker_type


def make_loader(job: Job, worker_type: str, failure_log: FailureLog | None = None) -> "Loader":
    """Make the loader for a `worker_type`, as in `Feed`.

    Without workers, it is an inline one. A given `failure_log` is continued.

    Raises:
        TypeError, OSError: The user asked for processes, and they cannot start or the sequence cannot be pickled.
        ImportError, WorkerStartError: See `RayHosts.join`.
    """
    in_memory = is_in_memory(job.sequence) and job.thread_safe and job.hosts is None
    if job.hosts is not None:
        worker_type = "process"
    elif in_memory and worker_type == "auto":
        worker_type = "thread"
        if WORKERS in job.auto and job.policy.timeout is None and _is_quick(job):
            job = job.with_workers(0)
    if not job.workers:
        worker_type = "inline"
    if worker_type == "inline" or in_memory or job.hosts is not None:
        job = dataclasses.replace(job, auto=frozenset())
    loader = Loader(job, worker_type, failure_log=failure_log)
    if loader.worker_type in ("process", "auto"):
        try:
            loader.start()  # workers start while the caller builds a model
        except BaseException:
            loader.close()
            raise
    return loader


def _is_quick(job: Job) -> bool:
    """Whether copying a batch is quicker than passing it between threads."""
    leaves = flatten(job.sequence[0])[0] if job.maker is None else []
    on_disk = isinstance(job.sequence, np.memmap) or any(isinstance(leaf, np.memmap) for leaf in leaves)
    nbytes = job.plan.rows * sum(leaf.nbytes for leaf in leaves if isinstance(leaf, np.ndarray))
    return bool(leaves) and not on_disk and nbytes <= _QUICK_BYTES


class Loader:
    """Make the batches of a job with the workers of a pool.

    All methods may be called from any thread. Every kind of pool gives the same bits for the same (sequence, plan,
    epoch, step), for any workers; the inline pool is the reference. `submit` is the only data path: callers that want
    parallelism call it ahead of time.

    Attributes:
        failure_log: Failures, and deferred warnings for the user.
        layout: The layout of a batch, once it is known; it stays known after `close`.
        worker_type: See `LoaderStats`; "auto" until a pool has started.
        epoch: The first scenes are read as in this epoch.
        choice: The choice that "auto" made, if it has made one.
        scene_seconds: Time per scene, s; 0 if unknown.
    """

    def __init__(
        self,
        job: Job,
        worker_type: str,
        layout: Layout | None = None,
        context: MakeContext = SceneContext,
        scene_seconds: float = 0.0,
        failure_log: FailureLog | None = None,
    ) -> None:
        """Load `job`, with scenes read in a `context`.

        A known layout need not be inferred. With a known layout, `scene_seconds` is the time per scene, s; 0 if
        unknown.
        """
        self.worker_type = self._wanted_type = worker_type
        self.layout = layout
        self.epoch = 0
        self._job = job
        self._context = context
        self._inferring = threading.RLock()  # held while scenes are read, so close() must not need it
        self.scene_seconds = scene_seconds
        self._must_choose = bool(job.auto) and worker_type != "inline"  # whether workers are still to be chosen
        self.choice: Choice | None = None
        self._sessions: Sessions[LoaderSession] = Sessions(self, forks=worker_type == "inline")
        self.failure_log = failure_log or FailureLog(job.policy, job.plan.length, job.plan.shard_count)

    def start(self) -> None:
        """Start the workers without waiting for them.

        Raises:
            TypeError, OSError: Worker processes cannot start, or the sequence cannot be pickled.
            ImportError, WorkerStartError: See `RayHosts.join`.
            FeedClosedError: The loader is closed.
        """
        self._sessions.current(self._start_session)

    def _start_session(self) -> LoaderSession:
        if self._job.hosts is not None:
            return HostsSession(self._job, self.failure_log)
        begins_with_thread = self._job.auto == {WORKERS, WORKER_TYPE} and self._job.policy.timeout is None
        session = Session(
            self._job, self.failure_log, self._wanted_type, most_processes() if begins_with_thread else 0,
            self._context, self.scene_seconds,
        )  # fmt: skip
        self.worker_type = session.pool.worker_type
        return session

    def _ready_session(self, least: int = 1) -> LoaderSession:
        """Return the session with its slots set up.

        To infer a spec of batches, read at least `least` items.
        """
        session = self._sessions.current(self._start_session)
        if session.layout is None:
            with self._closing_if_interrupted(), self._inferring:
                session = self._sessions.current(self._start_session)
                if session.layout is None:
                    session = self._set_up(session, least)
        self.layout = session.layout
        return session

    def _set_up(self, session: LoaderSession, least: int) -> LoaderSession:
        """Set up a session with the chosen workers; end the old one."""
        if isinstance(session, HostsSession):
            session.infer(self.layout, self.epoch, least)
            return session
        if session.has_first_thread and not self._job.environment.is_here:
            session.take_processes(self._job.workers)
        layout = session.infer(self.layout, self.epoch, least)
        if session.first is not None:
            self.scene_seconds = session.timing.seconds
            self._warn_of_first(session, session.first)
        if self._must_choose:
            session = self._with_chosen_workers(session, layout)
            self._must_choose = False
        session.begin(layout)
        return session

    def _warn_of_first(self, session: Session, first: FirstScenes) -> None:
        """Warn if the first scenes show that batches would be wrong.

        They would depend on the workers, or hold one scene many times.
        """
        threads = session.pool.worker_type == "thread" and session.job.workers > 1
        # Each scene is copied before the next one is read, except if a function collates a list of scenes.
        harmless = not (threads or self._must_choose or self._job.maker)
        if not first.trouble or (first.is_reused and harmless):
            return
        follows = "With several threads, batches may hold values of other scenes" if threads else ""
        if WORKERS in self._job.auto:
            follows = "Until then one worker loads them all"
        elif not first.is_reused:
            follows = "Batches depend on which worker reads a scene"
        self.failure_log.deferred_warnings.defer("first scenes", f"{first.trouble}. {follows}".strip(), FeedWarning)

    # ---- the choice of workers

    def _with_chosen_workers(self, session: Session, layout: Layout) -> Session:
        """Choose workers; return the session with these workers."""
        job, pool = self._job, session.pool
        auto = job.auto if pool.has_copies else job.auto - {WORKER_TYPE}
        if session.first is None or not auto or not (pool.has_copies or job.thread_safe):
            return session
        present = Setup(session.job.workers, pool.worker_type)
        self.choice = choice = choose(
            job, present, session.first, auto=auto, batch_bytes=layout.nbytes, draws_globally=pool.used_random > 0
        )
        LOGGER.info("the feed of %s: auto chooses %s", class_name(job.sequence), choice)
        if choice.setup == present:
            return session
        self._job = job.with_workers(choice.setup.workers)
        self.worker_type = self._wanted_type = choice.setup.worker_type
        if session.has_first_thread and choice.setup.worker_type == "process":
            session.take_processes(choice.setup.workers)
            return session
        self._sessions.end_present()
        chosen = self._sessions.current(self._start_session)
        assert isinstance(chosen, Session)
        chosen.infer(layout, self.epoch)  # reads no scene because the layout is known
        return chosen

    def warn_of_settings(self, remedy: str) -> None:
        """Warn if the user's objects changed after workers received copies.

        The warning ends with `remedy`. See `Settings`.
        """
        session = self._sessions.present
        settings = None if session is None else session.pool.settings
        if settings is not None:
            settings.warn_of_changes(self.failure_log.deferred_warnings, remedy)

    # ---- a loader of a host

    def infer(self, epoch: int, least: int) -> Layout | None:
        """Return the layout; scenes are read as in `epoch`.

        If items are batches, at least `least` are read.
        """
        self.epoch = epoch
        self._ready_session(least)
        return self.layout

    def record_random(self, used: int) -> None:
        """Record which random generators scenes have used on other hosts.

        Workers then seed these from the start.
        """
        present = self._sessions.present
        if isinstance(present, Session):
            present.pool.record_random(used)

    def replace_sequence(self, sequence: Any) -> None:
        """Load scenes of `sequence`, a changed copy of the job's."""

        def change() -> None:
            self._job = dataclasses.replace(self._job, sequence=sequence)
            present = self._sessions.present
            if present is not None:
                present.runner.target = sequence

        self.refresh(change)

    # ---- batches

    @property
    def spec(self) -> SceneSpec:
        """Spec of a scene; of a batch, with `job.maker`.

        The first use reads a few scenes spread over the sequence.
        """
        self._sessions.refuse_if_closed()
        if self.layout is None:  # otherwise no session has to start again
            self._ready_session(2)  # the caller, such as a TensorFlow graph, depends on an exact spec
        assert self.layout is not None
        return self.layout.spec

    @property
    def look_ahead(self) -> int:
        """Batches to keep in flight; 1 if `submit` does the work."""
        if self.worker_type == "inline":
            return 1
        return self._ready_session().look_ahead

    def submit(self, epoch: int, step: int, *, timeout: float | None = None) -> Future[Any]:
        """Return a future of one batch.

        A batch has the nesting of a scene with a leading axis, or is the result of `job.collate`.

        With `on_error="mask"`, or if the plan fills batches up, scenes `(x, y)` become batches `(x, y, float32[B]
        weights)`. With "skip", a batch may have fewer rows; it is None if none is left.

        Cancelling the future skips the scenes not yet begun. Callbacks of the future run on a thread that other batches
        wait for: they must not block, and must not submit. Errors of the sequence are set on the future. Errors of the
        call, and of the scenes that the first call reads to infer the spec, are raised here.

        Args:
            epoch: Epoch, from 0.
            step: Step of the epoch.
            timeout: How long to wait for memory, s, if `max_memory` is reached; None is for ever. If `submit` does the
                work itself, it takes as long as the work.

        Raises:
            NotYet: No memory became free in this time.
            SceneTimeoutError: Only hung threads could free memory.
            IndexError: `step` is out of range.
            FeedClosedError: The loader is closed.
        """
        session = self._ready_session()
        try:
            with self._closing_if_interrupted():
                return session.submit(epoch, step, timeout)
        except WorkerDiedError as error:  # the pool has just failed: this batch fails like those in flight
            if session.pool.failure is None:
                raise
            return failed_future(error)

    @contextmanager
    def _closing_if_interrupted(self) -> Iterator[None]:
        """Close the session after Ctrl-C, which may leave it in any state.

        The next call starts another session.
        """
        try:
            yield
        except Exception:
            raise
        except BaseException:
            self._sessions.end_present()
            raise

    def refresh(self, change: Callable[[], None]) -> None:
        """Run `change`, which alters `job.sequence`, while no scene is loaded.

        Workers use the changed sequence afterwards.

        Raises:
            TypeError: The changed sequence cannot be pickled.
            FeedClosedError: This process is a fork.
        """
        self._sessions.refuse_after_fork()
        with self._closing_if_interrupted():
            before = self._sessions.present
            if before is None:
                change()
            else:
                before.runner.change()
                before.pool.refresh(change)
            now = self._sessions.present
            if now is not None and now is not before:  # the session before has failed meanwhile
                now.pool.renew()

    def close(self) -> None:
        """Stop the workers and free their memory; idempotent.

        Batches already delivered stay valid.
        """
        self._sessions.close()

    def stats(self) -> LoaderStats:
        """Return a snapshot of the counters."""
        session = self._sessions.present
        here = session if isinstance(session, Session) else None
        slots = None if here is None else here.slots
        worker_type = here.pool.worker_type if here else self.worker_type
        return LoaderStats(
            worker_type,
            max(1, session.job.workers if session else self._job.workers),
            session.batches if session else 0,
            here.copied if here else 0,
            slots.total if slots else 0,
            slots.layout.nbytes if slots else 0,
            here.pool.pids() if here else (),
            self._sessions.respawns,
            self.failure_log.failed,
            seeds_random=worker_type == "process" and self.failure_log.used_random > 0,
            hosts=session.host_stats() if isinstance(session, HostsSession) else None,
            chosen="" if self.choice is None else str(self.choice),
        )

    def waste(self) -> ReadCost | None:
        """The wasteful reads that one worker has measured, if any.

        The call takes 1 us.
        """
        session = self._sessions.present
        return session.wasted() if isinstance(session, Session) else None
