"""Threads that decode chunks for whoever reads, shared by all files of a process.

Invariant: never more threads than cores; they are daemons that end after a second without work and when the process
ends, and after a fork the child starts with none. Work given here is optional: whoever gives it must be able to do
without, for a task may be dropped.
"""

import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Callable

from kerasfeed.util.resources import cores

_IDLE_SECONDS = 1.0
_EXIT_SECONDS = 2.0

DecodeTask = Callable[[], object]


class DecodePool:
    """A queue of tasks and the threads that work it off. All methods may be called from any thread.

    Attributes:
        workers: The most threads there may be.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._changed = threading.Condition(threading.Lock())
        self._tasks: deque[DecodeTask] = deque()
        self._threads: set[threading.Thread] = set()
        self._idle = 0
        self._serial = 0
        self._ended = False

    def submit(self, task: DecodeTask, *, urgent: bool = False) -> None:
        """Run `task` on a thread of the pool, soon. What it raises is dropped: it concerns nobody.

        Args:
            task: Called without arguments.
            urgent: Somebody waits for it: it goes before tasks that are done ahead.
        """
        with self._changed:
            if self._ended:
                return
            if urgent:
                self._tasks.appendleft(task)
            else:
                self._tasks.append(task)
            if self._idle >= len(self._tasks):
                self._changed.notify()
            elif len(self._threads) < self.workers:
                self._serial += 1
                thread = threading.Thread(target=self._run, name=f"kerasfeed-decode-{self._serial}", daemon=True)
                self._threads.add(thread)
                try:
                    thread.start()
                except RuntimeError:  # the interpreter is ending, or the system has no thread left
                    self._threads.discard(thread)
            else:
                self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                until = time.monotonic() + _IDLE_SECONDS
                while not self._tasks and not self._ended and (left := until - time.monotonic()) > 0:
                    self._changed.wait(left)
                self._idle -= 1
                if self._ended or not self._tasks:
                    self._threads.discard(threading.current_thread())
                    return
                task = self._tasks.popleft()
            try:
                task()
            except Exception:  # noqa: BLE001  # the read that needs the chunk meets the same error and raises it
                pass
            del task  # it may be the last that holds a file open

    def end(self) -> None:
        """Drop what waits, and wait a little for what runs, so that the process does not end amid a decode."""
        with self._changed:
            self._ended = True
            self._tasks.clear()
            self._changed.notify_all()
            threads = list(self._threads)
        until = time.monotonic() + _EXIT_SECONDS
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))


_pool = DecodePool(cores())


def _forget() -> None:
    global _pool
    _pool = DecodePool(cores())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
atexit.register(lambda: _pool.end())


def shared() -> DecodePool:
    """The pool of this process."""
    return _pool
