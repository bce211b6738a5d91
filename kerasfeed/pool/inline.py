"""The reference pool: tasks are done by whoever submits them, in the thread that does.

Invariant: no thread but the caller's runs the user's code. The object begins with the first task, and again with the
next where it could not.
"""

import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from kerasfeed.pool import watchdog
from kerasfeed.pool.base import Pool, PoolOptions, Receipt, Runner
from kerasfeed.pool.local import CALLER, LocalWorker, do_all, look_at_callers
from kerasfeed.pool.memory import PoolMemory
from kerasfeed.pool.task import Task
from kerasfeed.pool.worker_hooks import begin_worker, defer_failed_end, end_worker
from kerasfeed.sequences.context import Worker


class InlinePool(Pool):
    """Does each task as it is submitted."""

    worker_type = "inline"

    def __init__(self, runner: Runner, options: PoolOptions) -> None:
        super().__init__(runner, options)
        self.memory = PoolMemory(shared=False, who=self.who)
        self._owner = None  # it has no workers that a fork would lack
        self._shared: list[Any] = [None]
        self._begun = False
        self._beginning = threading.RLock()  # held while the user's code runs, as nothing is that `close` needs
        self._callers: dict[LocalWorker, None] = {}  # threads that do tasks just now
        self._stall_timer = watchdog.StallTimer(watchdog.tick_seconds(None))
        self._watch: watchdog.Watchdog | None = None

    def submit(self, tasks: Sequence[Task], receipt: Receipt | None = None) -> None:
        """See `Pool.submit`; also raises Ctrl-C, and what `on_worker_begin` raises."""
        self.refuse_if_ended()
        worker, thread = Worker(0, 1, "inline"), threading.current_thread()
        caller = LocalWorker(worker, CALLER, self.memory, self._shared, thread, turn=self.options.turn)
        self._callers[caller] = None
        try:
            if not self._begun:
                self._begin()
            do_all(tasks, caller, self.runner)
        finally:
            self._callers.pop(caller, None)
            caller.task = None
            if self.closed:
                self._tell_end()
            del caller, tasks, receipt  # the traceback of what was raised ends here: only the collector would free them

    def _begin(self) -> None:
        with self._beginning:
            if self._begun:
                return
            if self._watch is None:
                self._watch = watchdog.Watchdog(
                    self.look, watchdog.tick_seconds(None), self.who, self.options.deferred_warnings
                )
            begin = partial(begin_worker, self.runner.target, Worker(0, 1, "inline"), CALLER)
            failed = self.options.turn.run(begin)
            try:
                if failed is not None:
                    raise failed
            finally:
                del failed  # whose traceback holds this frame: only the collector would free them
            self._begun = True

    def look(self) -> None:
        """Warn of a scene that does not end; called by the watching thread."""
        self._stall_timer.begin(time.monotonic())
        look_at_callers(list(self._callers), self._stall_timer, self.options, self.worker_type)

    @property
    def in_flight(self) -> int:
        """See `Pool.in_flight`; whoever asks has none, and need not wait for those of other threads."""
        return 0

    def post(self, value: Any) -> None:
        """See `Pool.post`."""
        self._shared[0] = value

    def renew(self) -> None:
        """See `Pool.renew`; the object is the one that is read."""

    def _end(self) -> None:
        if self._watch is not None:
            self._watch.stop()
        self._tell_end()

    def _tell_end(self) -> None:
        """Call `on_worker_end`, once, and not while a thread reads: the last to leave does."""
        with self.lock:
            if not self._begun or self._callers:
                return
            self._begun = False
        told = self.options.turn.run(partial(end_worker, self.runner.target, CALLER))
        defer_failed_end(self.options.deferred_warnings, told)
