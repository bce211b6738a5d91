"""Tasks run in this process, by whatever thread: what pools of threads use, and the pool in which the caller does them.

Invariant: what the user's code raises reaches the task; Ctrl-C, and what a signal's handler raises, the caller.
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
        name: As messages name it.
        pool: The `LocalPool` whose worker it is; of a `FirstWorker`, a pool of processes.
        thread: Its thread.
        task: What it is at; None for nothing.
        serial: Number of that, of all that were begun in this process.
        note: Where in the task it is.
        busy: Whether it is at something; it begins busy, with `on_worker_begin`.
        given_up: Whether another has taken its place, because it hangs.
    """

    worker: Worker
    name: str
    pool: Any
    thread: threading.Thread = field(default_factory=threading.current_thread)
    task: Task | None = None
    serial: int = 0
    note: list[int] = field(default_factory=lambda: [0, 0])
    busy: bool = True
    given_up: bool = False
    used_random: int = 0  # of this process's only the program itself may dispose
    has_copy: bool = False

    @property
    def runner(self) -> Runner:
        """What does the tasks."""
        found: Runner = self.pool.runner
        return found

    def posted(self) -> Any:
        """See `WorkerContext.posted`."""
        return self.pool.posted

    def memory_at(self, offset: int, nbytes: int) -> mmap.mmap:
        """See `WorkerContext.memory_at`."""
        found: mmap.mmap = self.pool.memory.at(offset, nbytes)
        return found

    def note_random(self, used: int) -> None:
        """See `WorkerContext.note_random`; in this process it is told while the spec is inferred."""

    def do_all(self, tasks: Sequence[Task]) -> None:
        """Do tasks, and then what is to be done in their place."""
        waiting = deque(tasks)
        while waiting:
            self.task = waiting.popleft()
            waiting.extend(self.do(self.task))

    def do(self, task: Task) -> Sequence[Task]:
        """Do a task; returns what is to be done next.

        Raises:
            BaseException: Ctrl-C, or what a signal's handler has raised.
        """
        self.serial = next(_serials)
        started = time.perf_counter()
        try:
            payload = self.in_turn(partial(self.runner.run, task.record(), self.note, self))
        except CancelledTaskError:
            task.cancelled()
            return ()
        except FailedTaskError as carrier:
            error, place = carrier.error, carrier.place
            if is_the_programs(error):
                raise error from None
        else:
            return task.done(payload, time.perf_counter() - started, self.name)
        return task.failed(place, error, self.name, "")

    @property
    def watches_globals(self) -> bool:
        """See `WorkerContext.watches_globals`; other threads of the program may draw from them."""
        return False

    def in_turn(self, call: Callable[[], _T]) -> _T:
        """Call when it is the worker's turn; waiting for that is no work, which might take too long."""

        def at_work() -> _T:
            self.busy = True
            return call()

        self.busy = False
        turn: Turn = self.pool.options.turn
        return turn.run(at_work)

    def token(self) -> Any:
        """Changes from place to place; None between two tasks."""
        return (self.serial, self.note[1]) if self.busy else None

    def warn_of_stall(self, seconds: float, consumer: int | None = None) -> None:
        """See `watchdog.warn_of_stall`."""
        scene = None if self.task is None else self.task.text(self.note[1]) or "its work"
        stack = partial(watchdog.stack_of, self.thread)
        watchdog.warn_of_stall(self.pool.options, self.worker.worker_type, self.name, scene, seconds, stack, consumer)


class LocalPool(Pool):
    """A pool whose workers are in this process, and read the runner itself.

    Attributes:
        posted: See `Pool.post`.
    """

    has_copies = False
    posted: Any = None

    def __init__(self, runner: Runner, options: PoolOptions) -> None:
        super().__init__(runner, options)
        self.memory = PoolMemory(shared=False, who=self.who)
        self._watch: watchdog.Watchdog | None = None

    def post(self, value: Any) -> None:
        """See `Pool.post`."""
        self.posted = value

    def renew(self) -> None:
        """See `Pool.renew`."""


class InlinePool(LocalPool):
    """Does each task as it is submitted."""

    worker_type = "inline"

    def __init__(self, runner: Runner, options: PoolOptions) -> None:
        super().__init__(runner, options)
        self._owner = None  # it has no workers that a fork would lack
        self._begun = False
        self._beginning = threading.RLock()  # held while the user's code runs, as nothing is that `close` needs
        self._callers: dict[LocalWorker, None] = {}  # threads that do tasks just now
        self._stall_timer = watchdog.StallTimer(watchdog.tick_seconds(None))

    def submit(self, tasks: Sequence[Task]) -> None:
        """See `Pool.submit`; also raises Ctrl-C, and what `on_worker_begin` raises."""
        self.refuse_if_ended()
        caller = LocalWorker(_ALONE, CALLER, self)
        self._callers[caller] = None
        try:
            self._be_watched()
            if not self._begun:
                self._begin()
            caller.do_all(tasks)
        finally:
            self._callers.pop(caller, None)
            if self.closed:
                self._tell_end()

    def _begin(self) -> None:
        with self._beginning:
            if self._begun:
                return
            begin = partial(begin_worker, self.runner.target, _ALONE, CALLER)
            failed = self.options.turn.run(begin)
            if failed is not None:
                raise failed
            self._begun = True

    def _be_watched(self) -> None:
        with self.lock:
            if self._watch is None:
                self._watch = watchdog.Watchdog(
                    self.look, watchdog.tick_seconds(None), self.who, self.options.deferred_warnings
                )

    def look(self) -> None:
        """Warn of a scene that does not end; called by the watching thread, which ends when no thread reads."""
        with self.lock:
            if self._watch is not None and not self._callers:
                self._watch.stop()
                self._watch = None
                return
        self._stall_timer.begin(time.monotonic())
        callers = {caller.thread.ident: caller for caller in list(self._callers)}
        for ident, caller in callers.items():  # of a thread the last counts
            seconds = self._stall_timer.look(ident or 0, caller.token())
            if seconds >= watchdog.STALL_SECONDS:
                caller.warn_of_stall(seconds, ident)

    @property
    def in_flight(self) -> int:
        """See `Pool.in_flight`; whoever asks has none, and need not wait for those of other threads."""
        return 0

    def _end(self) -> None:
        watch = self._watch  # the thread may be ending itself
        if watch is not None:
            watch.stop()
        self._tell_end()

    def _tell_end(self) -> None:
        """Call `on_worker_end`, once, and not while a thread reads: the last to leave does."""
        with self.lock:
            if not self._begun or self._callers:
                return
            self._begun = False
        told = self.options.turn.run(partial(end_worker, self.runner.target, CALLER))
        defer_failed_end(self.options.deferred_warnings, told)
