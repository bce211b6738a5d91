"""Workers in this process.

The base of thread pools, and the pool whose caller runs the tasks.

Invariant: an exception of the user's code fails its task. Ctrl-C and exceptions of signal handlers reach the caller.
"""

import itertools
import mmap
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from kerasfeed.pool import watchdog
from kerasfeed.pool.base import Pool, PoolOptions, Runner
from kerasfeed.pool.memory import PoolMemory
from kerasfeed.pool.task import CancelledTaskError, FailedTaskError, Task
from kerasfeed.pool.worker_hooks import begin_worker, defer_failed_end, end_worker
from kerasfeed.sequences.context import Worker
from kerasfeed.sequences.turn import Turn
from kerasfeed.util.error_text import is_the_programs

_T = TypeVar("_T")
CALLER = "the calling thread"
_ALONE = Worker(0, 1, "inline")
_serials = itertools.count(1)


@dataclass(eq=False)
class LocalWorker:
    """A worker in this process; see `kerasfeed.pool.base.WorkerContext`.

    Attributes:
        name: The name in messages.
        pool: The worker's `LocalPool`; for a `FirstWorker`, a pool of processes.
        thread: The worker's thread.
        task: The present task, or None.
        serial: Number of the task among all tasks begun in this process.
        progress: Item 1 is the position in the task.
        busy: Whether the worker is busy; a new worker is busy with `on_worker_begin`.
        given_up: Whether another worker has replaced this one, because it hangs.
    """

    worker: Worker
    name: str
    pool: Any
    thread: threading.Thread = field(default_factory=threading.current_thread)
    task: Task | None = None
    serial: int = 0
    progress: list[int] = field(default_factory=lambda: [0, 0])
    busy: bool = True
    given_up: bool = False
    used_random: int = 0  # only the program itself may seed the generators of this process
    has_copy: bool = False

    @property
    def runner(self) -> Runner:
        """The runner that does the tasks."""
        runner: Runner = self.pool.runner
        return runner

    def posted(self) -> Any:
        """See `WorkerContext.posted`."""
        return self.pool.posted

    def memory_at(self, offset: int, nbytes: int) -> mmap.mmap:
        """See `WorkerContext.memory_at`."""
        memory: mmap.mmap = self.pool.memory.at(offset)
        return memory

    def record_random(self, used: int) -> None:
        """See `WorkerContext.record_random`; in this process, the inference records this."""

    def do_all(self, tasks: Sequence[Task]) -> None:
        """Do tasks, then the tasks that follow from them."""
        waiting = deque(tasks)
        while waiting:
            self.task = waiting.popleft()
            waiting.extend(self.do(self.task))

    def do(self, task: Task) -> Sequence[Task]:
        """Do a task; return the tasks that follow from it.

        Raises:
            BaseException: Ctrl-C, or an exception of a signal handler.
        """
        self.serial = next(_serials)
        started = time.perf_counter()
        try:
            payload = self.in_turn(partial(self.runner.run, task.record(), self.progress, self))
        except CancelledTaskError:
            task.cancelled()
            return ()
        except FailedTaskError as carrier:
            error, position = carrier.error, carrier.position
            if is_the_programs(error):
                raise error from None
        else:
            return task.done(payload, time.perf_counter() - started, self.name)
        return task.failed(position, error, self.name, "")

    @property
    def watches_globals(self) -> bool:
        """See `WorkerContext.watches_globals`.

        False because other threads of the program may draw from the global generators.
        """
        return False

    def in_turn(self, call: Callable[[], _T]) -> _T:
        """Wait for the worker's turn, then call.

        The wait does not count for timeouts.
        """

        def at_work() -> _T:
            self.busy = True
            return call()

        self.busy = False
        turn: Turn = self.pool.options.turn
        return turn.run(at_work)

    def token(self) -> Any:
        """A value that changes with each step of the task.

        None between two tasks.
        """
        return (self.serial, self.progress[1]) if self.busy else None

    def warn_of_stall(self, seconds: float, consumer: int | None = None) -> None:
        """See `watchdog.warn_of_stall`."""
        scene = None if self.task is None else self.task.text(self.progress[1]) or "its work"
        stack = partial(watchdog.stack_of, self.thread)
        watchdog.warn_of_stall(self.pool.options, self.worker.worker_type, self.name, scene, seconds, stack, consumer)


class LocalPool(Pool):
    """A pool whose workers share this process and the runner.

    Attributes:
        posted: See `Pool.post`.
    """

    has_copies = False
    posted: Any = None

    def __init__(self, runner: Runner, options: PoolOptions) -> None:
        super().__init__(runner, options)
        self.memory = PoolMemory(shared=False, owner=self.owner)
        self._watch: watchdog.Watchdog | None = None

    def post(self, value: Any) -> None:
        """See `Pool.post`."""
        self.posted = value

    def renew(self) -> None:
        """See `Pool.renew`."""


class InlinePool(LocalPool):
    """A pool that runs each task as it is submitted."""

    worker_type = "inline"

    def __init__(self, runner: Runner, options: PoolOptions) -> None:
        super().__init__(runner, options)
        self._owner = None  # it has no workers that a fork would lack
        self._begun = False
        self._beginning = threading.RLock()  # held while the user's code runs, so `close` must not need it
        self._callers: dict[LocalWorker, None] = {}  # threads that run tasks at this moment
        self._stall_timer = watchdog.StallTimer(watchdog.tick_seconds(None))

    def submit(self, tasks: Sequence[Task]) -> None:
        """See `Pool.submit`; also raises exceptions of signal handlers, such as Ctrl-C."""
        self.refuse_if_ended()
        caller = LocalWorker(_ALONE, CALLER, self)
        self._callers[caller] = None
        try:
            self._ensure_watchdog()
            if not self._begun:
                self._begin()
            caller.do_all(tasks)
        finally:
            self._callers.pop(caller, None)
            if self.closed:
                self._end_hook()

    def _begin(self) -> None:
        with self._beginning:
            if self._begun:
                return
            begin = partial(begin_worker, self.runner.target, _ALONE, CALLER)
            failed = self.options.turn.run(begin)
            if failed is not None:
                raise failed
            self._begun = True

    def _ensure_watchdog(self) -> None:
        with self.lock:
            if self._watch is None:
                self._watch = watchdog.Watchdog(
                    self.look, watchdog.tick_seconds(None), self.owner, self.options.deferred_warnings
                )

    def look(self) -> None:
        """Warn of a scene that does not end; the watchdog calls this.

        The watchdog is stopped when no thread reads.
        """
        with self.lock:
            if self._watch is not None and not self._callers:
                self._watch.stop()
                self._watch = None
                return
        self._stall_timer.begin(time.monotonic())
        callers = {caller.thread.ident: caller for caller in list(self._callers)}
        for ident, caller in callers.items():  # one per thread: the innermost
            seconds = self._stall_timer.look(ident or 0, caller.token())
            if seconds >= watchdog.STALL_SECONDS:
                caller.warn_of_stall(seconds, ident)

    @property
    def in_flight(self) -> int:
        """See `Pool.in_flight`; 0, because a thread runs its own tasks at once."""
        return 0

    def _end(self) -> None:
        watch = self._watch  # the thread may be ending itself
        if watch is not None:
            watch.stop()
        self._end_hook()

    def _end_hook(self) -> None:
        """Call `on_worker_end` once; the last reading thread calls it."""
        with self.lock:
            if not self._begun or self._callers:
                return
            self._begun = False
        message = self.options.turn.run(partial(end_worker, self.runner.target, CALLER))
        defer_failed_end(self.options.deferred_warnings, message)
