"""The `Pool` protocol: workers that hold one object and run tasks on it.

Invariant: each task that was sent is done once, or told to be lost, whatever becomes of workers; a pool knows nothing
of what tasks are about. Starting, watching, ending and replacing workers is done here and nowhere else. A pool that has
failed stays failed; whoever uses it makes another.
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
from kerasfeed.pool.task import FutureTask, Note, Record, Task
from kerasfeed.sequences.context import Worker
from kerasfeed.sequences.turn import Turn
from kerasfeed.sequences.view_base import parts_of
from kerasfeed.util.deferred_warnings import DeferredWarnings
from kerasfeed.util.error_text import class_name, counted, message_of
from kerasfeed.util.picklers import cloud_pickled

LOGGER = logging.getLogger("kerasfeed")  # of what happens to workers, and never once a batch; workers log nothing
CLOSED = "the feed is closed; make a new one"
CLOSED_BEFORE_DONE = "the feed was closed before this batch was loaded"


AnySession = TypeVar("AnySession", bound=Any)


class WorkerContext(Protocol):
    """What a runner may use of the worker in which it runs.

    Attributes:
        worker: Number, count and type of the workers.
        used_random: The random generators that scenes were seen to use, in all workers; see `note_random`.
        has_copy: Whether the runner is a copy, which only this worker uses.
    """

    worker: Worker
    used_random: int
    has_copy: bool

    @property
    def watches_globals(self) -> bool:
        """Whether to look if scenes draw from global random generators."""

    def posted(self) -> Any:
        """What was posted last; see `Pool.post`."""

    def memory_at(self, offset: int, nbytes: int) -> mmap.mmap:
        """The segment of the pool's memory at `offset`, `nbytes` long."""

    def note_random(self, used: int) -> None:
        """Note for all workers that scenes use random generators: the global ones, or their own."""


class Runner(ABC):
    """What each worker of a pool holds: an object of the user's, and how tasks are run on it.

    Pickles. Worker threads share one, and each worker process has its own.

    Attributes:
        target: The object whose `on_worker_begin` and `on_worker_end` are called.
    """

    target: Any

    @abstractmethod
    def run(self, record: Record, note: Note, context: WorkerContext) -> Any:
        """Do a task; what is returned is for `Task.done`.

        Args:
            record: What `Task.record` gave.
            note: Item 1 is set to where in the task this is.
            context: The worker's.

        Raises:
            FailedTaskError: The user's code has raised, which is the cause.
            CancelledTaskError: Nobody waits for it.
        """

    def follow(self, previous: "Runner") -> None:  # noqa: B027 - most keep nothing
        """Take over what stays as it is, from the runner before; called in a worker process after `Pool.renew`."""

    def unpicklable(self, error: Exception) -> TypeError:
        """What to raise where this cannot be pickled, because of `error`."""
        name, attribute = class_name(parts_of(self.target)[0]), unpicklable_attribute(self.target)
        what = f"its attribute {attribute} does not pickle: " if attribute else ""
        return TypeError(
            f"the sequence ({name}) cannot be sent to worker processes: {what}{message_of(error)}. Leave what does not "
            "pickle out of the state with __getstate__, and open it in __getitem__ or "
            "on_worker_begin (for HDF5 keep a kerasfeed.HDF5File, which pickles). If several threads may read "
            f"{name} at once, set thread_safe = True in the class, or use worker_type='thread'"
        )


def unpicklable_attribute(target: Any) -> str:
    """Name and type of the first attribute of an object, or of a part of a view, that does not pickle; else empty."""
    for part in parts_of(target):
        for name, value in getattr(part, "__dict__", {}).items():
            try:
                cloud_pickled(value)
            except Exception:  # noqa: BLE001 - pickling raises anything
                return f"{name!r} ({class_name(value)})"
    return ""


@dataclass(frozen=True)
class HostPlace:
    """Where the workers of a pool stand among those of several hosts.

    Attributes:
        first: Number of the first of them.
        count: Workers of all hosts, as far as is known; 0 where there are no others.
        text: What messages say after the name of a worker.
    """

    first: int = 0
    count: int = 0
    text: str = ""


@dataclass(frozen=True)
class PoolOptions:
    """How a pool is to be.

    Attributes:
        workers: How many, at least 1.
        who: Who needs it, as messages name it: "the feed of Rooms".
        seed: Behind the hashes of text in worker processes.
        timeout: Seconds that one scene may take; None for any time.
        tries: How often a worker may be lost at one place before that is to blame; by the timeout, twice at most.
        addressed: Whether each task names its worker.
        environment: Directory and environment of worker processes.
        inherit: Descriptors that worker processes inherit for the object's sake.
        deferred_warnings: Where the user is told of workers that were lost, or that hang.
        place: Where the workers stand, if there are others on other hosts.
        thread_safe: Whether several threads may do tasks at once where nobody asked for threads by name.
        turn: By which the user's code runs in this process.
        most_workers: If not 0, the most worker processes that `take_processes` may ask for: a pool of processes then
            begins with none, and a thread of this process does the tasks, on a copy of the runner.
    """

    workers: int
    who: str
    seed: int = 0
    timeout: float | None = None
    tries: int = 3
    addressed: bool = False
    environment: Environment = field(default_factory=Environment.now)
    inherit: tuple[int, ...] = ()
    deferred_warnings: DeferredWarnings = field(default_factory=DeferredWarnings)
    place: HostPlace = field(default_factory=HostPlace)
    thread_safe: bool = False
    turn: Turn = field(default_factory=Turn)
    most_workers: int = 0


class Pool(ABC):
    """Workers. All methods may be called from any thread.

    Attributes:
        worker_type: "inline" (the calling thread), "thread" or "process".
        has_copies: Whether each worker has a copy of the runner.
        memory: Memory that all workers see; a `Runner` finds it by offset.
        respawns: Workers that were lost and replaced.
        lock: Reentrant. Guards what is in flight; whoever holds it never calls the user's code.
        failure: Why the pool has ended; None as long as it has not.
        closed: Whether it was closed.
        who: Who needs the pool, as messages name it.
        on_failure: Called where the pool fails, by the thread that has found out.
    """

    worker_type: str
    has_copies: bool
    memory: PoolMemory
    respawns: int = 0
    on_failure: Callable[[], object] | None = None

    def __init__(self, runner: Runner, options: PoolOptions) -> None:
        """Start workers that hold `runner`."""
        self.runner = runner
        self.options = options
        self.who = options.who
        if self.worker_type != "inline" and not (self.has_copies and options.most_workers):
            plural = "worker processes" if self.worker_type == "process" else ""
            self.who += f" ({counted(options.workers, f'worker {self.worker_type}', plural)})"
        # Reentrant: the collector may close a dropped pool from inside any of these sections.
        self.lock = threading.RLock()
        self.failure: BaseException | None = None
        self.closed = False
        self._idle = threading.Condition(self.lock)
        self._owner: int | None = os.getpid()
        if self.worker_type != "inline":
            LOGGER.info("%s: starting", self.who)

    @abstractmethod
    def submit(self, tasks: Sequence[Task]) -> None:
        """Have workers do these tasks, in their order as far as workers are free.

        All of them, or none; an inline pool does them here, and if that raises, the rest is left. After an interrupt
        (Ctrl-C), the caller closes the pool.

        Args:
            tasks: What is to be done. An inline pool does it before it returns.

        Raises:
            FeedClosedError: The pool is closed.
            WorkerDiedError: It has failed.
            WorkerStartError: Of an inline pool: `on_worker_begin` has failed.
        """

    def run(self, task: FutureTask) -> Future[Any]:
        """Have a worker do `task`; its future."""
        self.submit([task])
        return task.future

    @abstractmethod
    def post(self, value: Any) -> None:
        """Have workers find `value` with all tasks that are submitted from now on; it pickles."""

    def refresh(self, change: Callable[[], None]) -> None:
        """Run `change`, which alters the runner, while no task is being done; workers then see the result.

        Raises:
            TypeError: It cannot be pickled any more.
        """
        self.wait_until_idle()
        self.options.turn.run(change)
        self.renew()

    def take_processes(self, workers: int, *, at_once: bool) -> None:
        """Start worker processes in place of the thread that has begun, without waiting for them.

        The thread continues until as many as there are cores are up; with `at_once`, it only ends its present task.
        """
        raise TypeError(f"{self.who} does not begin with a thread")

    @abstractmethod
    def renew(self) -> None:
        """Have workers see the present state of the runner from the next task on."""

    def wait_until_idle(self) -> None:
        """Wait for all tasks in flight."""
        with self.lock:
            self._idle.wait_for(lambda: not self.in_flight)

    @property
    @abstractmethod
    def in_flight(self) -> int:
        """Tasks that were sent, and of which it is not known what became of them."""

    @property
    def used_random(self) -> int:
        """The random generators that scenes were seen to use in worker processes; see `RandomWatch`."""
        return 0

    def note_random(self, used: int) -> None:  # noqa: B027 - of worker processes alone
        """Have workers know of random generators that scenes were seen to use elsewhere."""

    def pids(self) -> tuple[int, ...]:
        """Process ids of the workers that live; none of threads."""
        return ()

    @property
    def is_here(self) -> bool:
        """Whether the workers belong to this process, and not to that of which it is a fork."""
        return self._owner in (None, os.getpid())

    def ending(self) -> BaseException | None:
        """Why it takes no more tasks, `FeedClosedError` or `WorkerDiedError`; None as long as it does."""
        return self.failure or (FeedClosedError(CLOSED) if self.closed else None)

    def refuse_if_ended(self) -> None:
        """Raise why it takes no more tasks, if it does not.

        Raises:
            FeedClosedError: It is closed.
            WorkerDiedError: It has failed.
        """
        error = self.ending()
        if error is not None:
            raise error

    def close(self) -> None:
        """End the workers and free everything; idempotent. What is in flight is given up with `FeedClosedError`."""
        if not self.is_here:
            return
        with self.lock:
            if self.closed:
                return
            self.closed = True
        self._end()
        if self.worker_type != "inline":
            LOGGER.info("%s: ended", self.who)

    @abstractmethod
    def _end(self) -> None:
        """End the workers and free everything."""


class Sessions(Generic[AnySession]):
    """The sessions of one user of pools, one after the other. All methods may be called from any thread.

    A session is what gives tasks to a pool: it has a `close`, and a `pool`, or what has the `failure`, `respawns` and
    `options` of one. Where its pool has failed, another is started. There is one at most, and it does not hold whoever
    uses it, so that one that is dropped is collected, and its workers end.
    """

    def __init__(self, user: object, *, forks: bool) -> None:
        """Have none yet; the last is closed when `user` is collected. In a fork only those that `forks` may go on."""
        self._lock = threading.Lock()
        self._sessions: list[AnySession] = []  # one at most
        self._closed = False
        self._owner = None if forks else os.getpid()
        self._respawns = 0  # of those that have failed
        weakref.finalize(user, _close_all, self._sessions)

    def current(self, start: Callable[[], AnySession]) -> AnySession:
        """The session; started if there is none, or its pool has failed.

        Raises:
            FeedClosedError: They are closed, or this process is a fork of the one that they belong to.
        """
        self.refuse_after_fork()  # before the lock, which another thread may have held at the fork
        with self._lock:
            if self._closed:
                raise FeedClosedError(CLOSED)
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
        """Workers that were replaced, in all sessions."""
        present = self.present
        return self._respawns + (present.pool.respawns if present is not None else 0)

    def close(self) -> None:
        """Close the session, and let none be started; idempotent."""
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

    def refuse_after_fork(self) -> None:
        """Refuse to go on in a fork: the worker threads and processes are not here.

        Raises:
            FeedClosedError: This process is a fork.
        """
        if self._owner not in (None, os.getpid()):
            raise FeedClosedError(
                f"this feed belongs to process {self._owner} and this is a fork of it, where its workers are not. "
                "Make a feed here (a pickled feed makes itself anew). PyTorch's DataLoader is given the sequence "
                "itself; a loop over feed.to_torch() needs no DataLoader"
            )


def _close_all(sessions: list[AnySession]) -> None:
    while sessions:
        session = sessions.pop()
        session.close()
        session.pool.options.deferred_warnings.issue_last()  # nobody else would of a feed that was dropped
