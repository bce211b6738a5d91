"""The `Pool` protocol: workers hold one object and run its tasks.

Invariant: each submitted task is done once or reported as lost, whatever happens to workers. A pool does not know what
its tasks do. Workers are started, watched, replaced and ended only in this package. A failed pool stays failed: its
user makes another one.
"""

import logging
import mmap
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from kerasfeed.errors import FeedClosedError
from kerasfeed.pool.environment import Environment
from kerasfeed.pool.memory import PoolMemory
from kerasfeed.pool.settings import Settings
from kerasfeed.pool.task import FutureTask, Record, Task, TaskProgress
from kerasfeed.sequences.context import Worker
from kerasfeed.sequences.turn import Turn
from kerasfeed.sequences.view_base import parts_of
from kerasfeed.util.deferred_warnings import DeferredWarnings
from kerasfeed.util.error_text import class_name, message_of, pluralize
from kerasfeed.util.picklers import cloud_pickled

LOGGER = logging.getLogger("kerasfeed")  # starts, deaths and ends of workers, never one per batch; workers log nothing
CLOSED = "the feed is closed; make a new one"
CLOSED_BEFORE_DONE = "the feed was closed before this batch was loaded"


AnySession = TypeVar("AnySession", bound=Any)


class WorkerContext(Protocol):
    """The part of a worker that a runner may use.

    Attributes:
        worker: Number, count and type of the workers.
        used_random: The random generators that scenes in any worker have used; see `record_random`.
        has_copy: Whether only this worker uses the runner, which is a copy.
    """

    worker: Worker
    used_random: int
    has_copy: bool

    @property
    def watches_globals(self) -> bool:
        """Whether to check if scenes draw from global random generators."""

    def posted(self) -> Any:
        """The value posted last; see `Pool.post`."""

    def memory_at(self, offset: int, nbytes: int) -> mmap.mmap:
        """The segment of the pool's memory at `offset`, `nbytes` long."""

    def record_random(self, used: int) -> None:
        """Record for all workers which random generators scenes use.

        These are the global ones or the scenes' own.
        """


class Runner(ABC):
    """The user's object and the code that runs tasks on it.

    Each worker of a pool holds one. It can be pickled. Worker threads share one runner. A worker process has
    a copy, and so has the thread that a pool of processes may begin with.

    Attributes:
        target: The object whose `on_worker_begin` and `on_worker_end` are called.
    """

    target: Any

    @abstractmethod
    def run(self, record: Record, progress: TaskProgress, context: WorkerContext) -> Any:
        """Do a task; return the payload for `Task.done`.

        Args:
            record: The return value of `Task.record`.
            progress: The runner sets item 1 to its position in the task.
            context: The worker's context.

        Raises:
            FailedTaskError: The user's code has raised an exception, which is the cause.
            CancelledTaskError: The consumer has cancelled the task.
        """

    def follow(self, previous: "Runner") -> None:  # noqa: B027 - most keep nothing
        """Copy the state that stays valid from the previous runner.

        Called in a worker that has a copy, after `Pool.renew`.
        """

    @property
    def objects(self) -> tuple[Any, ...]:
        """The user's objects that worker processes receive with the runner."""
        return (self.target,)

    def unpicklable(self, error: Exception) -> TypeError:
        """Return the exception to raise because `error` prevents pickling."""
        name, attribute = class_name(parts_of(self.target)[0]), unpicklable_attribute(self.target)
        what = f"its attribute {attribute} does not pickle: " if attribute else ""
        return TypeError(
            f"the sequence ({name}) cannot be sent to worker processes: {what}{message_of(error)}. Leave such "
            "attributes out in __getstate__ and open them in on_worker_begin (for HDF5, use a kerasfeed.HDF5File, "
            f"which pickles). If several threads may read {name} at once, use worker_type='thread' instead"
        )


def unpicklable_attribute(target: Any) -> str:
    """Name and type of the first attribute that cannot be pickled.

    "" if there is none. The parts of a view are searched too.
    """
    for part in parts_of(target):
        for name, value in getattr(part, "__dict__", {}).items():
            try:
                cloud_pickled(value)
            except Exception:  # noqa: BLE001 - pickling raises anything
                return f"{name!r} ({class_name(value)})"
    return ""


def large_text(owner: str, target: Any, nbytes: int) -> str:
    """Text of the warning that each worker process copies `nbytes` of `target`.

    It names the longest list or dict.
    """
    attributes = [item for part in parts_of(target) for item in getattr(part, "__dict__", {}).items()]
    long = [(name, value) for name, value in attributes if isinstance(value, list | tuple | dict | set | frozenset)]
    name, value = max(long, key=lambda item: len(item[1]), default=("", ()))
    longest = f" (the longest: {name!r}, {class_name(value)} of {pluralize(len(value), 'item')})" if value else ""
    return (
        f"{owner}: each worker process has its own copy of {nbytes / 1e6:,.0f} MB of lists, dicts and other Python "
        f"objects{longest}. Keep a long one as kf.shared(list_or_dict), which takes memory once for all workers"
    )


@dataclass(frozen=True)
class HostNumbers:
    """The numbers of a pool's workers among the workers of several hosts.

    Attributes:
        first: Number of the first worker.
        count: Number of workers on all hosts, as far as known; 0 without other hosts.
        text: Text that messages append to the name of a worker.
    """

    first: int = 0
    count: int = 0
    text: str = ""


@dataclass(frozen=True)
class PoolOptions:
    """The options of a pool.

    Attributes:
        workers: Number of workers, at least 1.
        owner: The user of the pool, as messages name it: "the feed of Rooms".
        seed: Seed for the hashes of text in worker processes.
        timeout: Seconds that one scene may take; None for no limit.
        tries: How often workers may be lost at one position before the position is blamed; after a timeout, at most
            twice.
        addressed: Whether each task names its worker.
        environment: Directory and environment of worker processes.
        inherit: Descriptors that worker processes inherit because the object needs them.
        deferred_warnings: Receives warnings of workers that are lost or hang.
        host_numbers: The numbers of the workers among those on other hosts, if there are any.
        thread_safe: Whether several threads may run tasks at once even if the user did not ask for threads.
        turn: The turn that a thread of this process takes to run the user's code.
        most_workers: If not 0, the limit for `take_processes`. A pool of processes then starts none at first: a thread
            of this process runs the tasks, on a copy of the runner.
    """

    workers: int
    owner: str
    seed: int = 0
    timeout: float | None = None
    tries: int = 3
    addressed: bool = False
    environment: Environment = field(default_factory=Environment.now)
    inherit: tuple[int, ...] = ()
    deferred_warnings: DeferredWarnings = field(default_factory=DeferredWarnings)
    host_numbers: HostNumbers = field(default_factory=HostNumbers)
    thread_safe: bool = False
    turn: Turn = field(default_factory=Turn)
    most_workers: int = 0


class Pool(ABC):
    """A pool of workers. All methods may be called from any thread.

    Attributes:
        worker_type: "inline" (the calling thread), "thread" or "process".
        has_copies: Whether each worker has a copy of the runner.
        memory: Memory that all workers can access; a `Runner` addresses it by offset.
        respawns: Worker processes that were lost and replaced.
        lock: Reentrant lock of the tasks in flight. The user's code is never called while a thread holds it.
        failure: Why the pool has failed, or None.
        closed: Whether the pool is closed.
        owner: The user of the pool, as messages name it.
        on_failure: Callback that a pool of processes calls, in any thread, when it fails or is closed.
        settings: The settings that worker processes received last; None if workers use the user's objects.
    """

    worker_type: str
    has_copies: bool
    memory: PoolMemory
    respawns: int = 0
    on_failure: Callable[[], object] | None = None
    settings: Settings | None = None

    def __init__(self, runner: Runner, options: PoolOptions) -> None:
        """Start workers that hold `runner`."""
        self.runner = runner
        self.options = options
        self.owner = options.owner
        if self.worker_type != "inline" and not (self.has_copies and options.most_workers):
            plural = "worker processes" if self.worker_type == "process" else ""
            self.owner += f" ({pluralize(options.workers, f'worker {self.worker_type}', plural)})"
        # Reentrant: the collector may close a dropped pool from inside any of these sections.
        self.lock = threading.RLock()
        self.failure: BaseException | None = None
        self.closed = False
        self._idle = threading.Condition(self.lock)
        self._owner: int | None = os.getpid()
        if self.worker_type != "inline":
            LOGGER.info("%s: starting", self.owner)

    @abstractmethod
    def submit(self, tasks: Sequence[Task]) -> None:
        """Queue tasks for the workers, which begin them in this order.

        Either all tasks are queued or none. An inline pool runs the tasks before it returns; if one raises, it drops
        the rest. After an interrupt (Ctrl-C), the caller closes the pool.

        Args:
            tasks: The tasks.

        Raises:
            FeedClosedError: The pool is closed.
            WorkerDiedError: The pool has failed.
            WorkerStartError: `on_worker_begin` has failed in an inline pool.
        """

    def run(self, task: FutureTask) -> Future[Any]:
        """Submit `task` and return its future."""
        self.submit([task])
        return task.future

    @abstractmethod
    def post(self, value: Any) -> None:
        """Publish `value` for all tasks submitted from now on. It must pickle."""

    def refresh(self, change: Callable[[], None]) -> None:
        """Run `change`, which alters the runner, while no task is running.

        Workers use the changed runner afterwards.

        Raises:
            TypeError: The changed runner cannot be pickled.
        """
        self.wait_until_idle()
        self.options.turn.run(change)
        self.renew()

    def take_processes(self, workers: int, *, at_once: bool) -> None:
        """Begin to replace the first thread by worker processes.

        The thread continues until as many processes as cores are up. With `at_once`, it only finishes its present task.

        Raises:
            TypeError: The pool did not begin with a thread; see `PoolOptions.most_workers`.
        """
        raise TypeError(f"{self.owner} does not begin with a thread")

    @abstractmethod
    def renew(self) -> None:
        """Publish the runner's present state for the next tasks.

        Raises:
            TypeError: The runner cannot be pickled.
        """

    def wait_until_idle(self) -> None:
        """Wait for all tasks in flight."""
        with self.lock:
            self._idle.wait_for(lambda: not self.in_flight)

    @property
    @abstractmethod
    def in_flight(self) -> int:
        """Number of submitted tasks whose outcome is not known yet."""

    @property
    def used_random(self) -> int:
        """The random generators that scenes in worker processes have used; see `RandomWatch`."""
        return 0

    def record_random(self, used: int) -> None:  # noqa: B027 - for worker processes only
        """Record for workers which random generators scenes have used elsewhere."""

    def pids(self) -> tuple[int, ...]:
        """Process ids of the living worker processes."""
        return ()

    @property
    def is_here(self) -> bool:
        """Whether the workers belong to this process; False in a fork."""
        return self._owner in (None, os.getpid())

    def ending(self) -> BaseException | None:
        """The error if the pool accepts no more tasks: `FeedClosedError` or `WorkerDiedError`."""
        return self.failure or (FeedClosedError(CLOSED) if self.closed else None)

    def refuse_if_ended(self) -> None:
        """Raise an error if the pool no longer accepts tasks.

        Raises:
            FeedClosedError: The pool is closed.
            WorkerDiedError: The pool has failed.
        """
        error = self.ending()
        if error is not None:
            raise error

    def close(self) -> None:
        """End the workers and free all resources; idempotent.

        Tasks in flight fail with `FeedClosedError`.
        """
        if not self.is_here:
            return
        with self.lock:
            if self.closed:
                return
            self.closed = True
        self._end()
        if self.worker_type != "inline":
            LOGGER.info("%s: ended", self.owner)

    @abstractmethod
    def _end(self) -> None:
        """End the workers and free all resources."""


class Sessions(Generic[AnySession]):
    """The sessions of one user of pools, one at a time.

    All methods may be called from any thread. A session gives tasks to a pool. It has `close` and `pool`; the pool, or
    an object in its place, has `failure`, `respawns` and `options`. If the pool has failed, `current` starts another
    session. A session holds no reference to its user, so that a dropped user is collected and its workers end.
    """

    def __init__(self, user: object, *, forks: bool) -> None:
        """Begin without a session; close the last one when `user` is collected.

        With `forks`, forked processes may use the sessions.
        """
        self._lock = threading.Lock()
        self._sessions: list[AnySession] = []  # one at most
        self._closed = False
        self._owner = None if forks else os.getpid()
        self._respawns = 0  # workers replaced in sessions that have ended
        weakref.finalize(user, _close_all, self._sessions)

    def current(self, start: Callable[[], AnySession]) -> AnySession:
        """Return the session; start one if none works.

        Raises:
            FeedClosedError: The sessions are closed, or they belong to the parent of this fork.
        """
        self.refuse_after_fork()  # before the lock, which another thread may have held at the fork
        with self._lock:
            self.refuse_if_closed()
            present = self.present
            if present is not None and present.pool.failure is not None:
                self._end()
            if not self._sessions:
                self._sessions.append(start())
            return self._sessions[0]

    @property
    def present(self) -> AnySession | None:
        """The session, if there is one."""
        return next(iter(self._sessions), None)

    @property
    def respawns(self) -> int:
        """Number of workers replaced in all sessions."""
        present = self.present
        return self._respawns + (present.pool.respawns if present is not None else 0)

    def close(self) -> None:
        """Close the session and refuse to start another; idempotent."""
        if self._owner not in (None, os.getpid()):
            return  # another thread may have held the lock at the fork
        with self._lock:
            self._closed = True
        self._end()

    def end_present(self) -> None:
        """Close the session; `current` starts another."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        present = self.present
        _close_all(self._sessions)
        if present is not None:
            self._respawns += present.pool.respawns

    def refuse_if_closed(self) -> None:
        """Refuse to continue after `close`.

        Raises:
            FeedClosedError: The sessions are closed.
        """
        if self._closed:
            raise FeedClosedError(CLOSED)

    def refuse_after_fork(self) -> None:
        """Refuse to continue in a fork, which has no workers.

        Raises:
            FeedClosedError: This process is a fork.
        """
        if self._owner not in (None, os.getpid()):
            raise FeedClosedError(
                f"this feed belongs to process {self._owner}, and this process is a fork without its workers. "
                "Make a feed here, or pickle the feed. In PyTorch, loop over feed.to_torch() without a DataLoader, or "
                "pass the sequence itself to the DataLoader"
            )


def _close_all(sessions: list[AnySession]) -> None:
    while sessions:
        session = sessions.pop()
        session.close()
        session.pool.options.deferred_warnings.issue_last()  # of a dropped feed, too
