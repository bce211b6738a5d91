"""Threads that decode chunks for whoever reads, shared by all files of a process, and work done together with them.

Invariant: never more threads than cores; they are daemons that end when the process ends, and after a fork the child
starts with none. Work given here is optional: whoever gives it must be able to do without, for a task may be dropped.
Whoever shares work (`share`) works too and waits only for what a helper has begun, so nothing can hang on a full pool;
when `share` returns or raises, nobody works on any more.
"""

import atexit
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TypeVar

from kerasfeed.util.resources import cores

_EXIT_SECONDS = 2.0

DecodeTask = Callable[[], object]
T = TypeVar("T")


class DecodePool:
    """Tasks, and the threads that do them. All methods may be called from any thread.

    Attributes:
        workers: The most threads there may be.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self._tasks: deque[DecodeTask] = deque()
        self._due = threading.Semaphore(0)  # one for each task
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def submit(self, task: DecodeTask, *, urgent: bool = False) -> None:
        """Run `task` on a thread of the pool, soon. What it raises is dropped: it concerns nobody.

        Args:
            task: Called without arguments.
            urgent: Somebody waits for it: it goes before tasks that are done ahead.
        """
        if urgent:
            self._tasks.appendleft(task)
        else:
            self._tasks.append(task)
        self._due.release()
        with self._lock:
            if len(self._threads) < self.workers:
                name = f"kerasfeed-decode-{len(self._threads) + 1}"
                thread = threading.Thread(target=self._run, name=name, daemon=True)
                with suppress(RuntimeError):  # the interpreter is ending, or the system has no thread left
                    thread.start()
                    self._threads.append(thread)

    def _run(self) -> None:
        while True:
            self._due.acquire()
            try:
                task = self._tasks.popleft()
            except IndexError:  # the end
                return
            with suppress(Exception):  # the read that needs the chunk meets the same error and raises it
                task()
            del task  # it may be the last that holds a file open

    def end(self) -> None:
        """Drop what waits, and wait a little for what runs, so that the process does not end amid a decode."""
        with self._lock:
            self.workers = 0
        self._tasks.clear()
        self._due.release(len(self._threads) + 1)
        until = time.monotonic() + _EXIT_SECONDS
        for thread in self._threads:
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


def share(items: Iterator[T], work: Callable[[T], None], helpers: int) -> None:
    """Call `work` for each of `items`, each once, in any thread and order.

    Args:
        items: Taken one by one, under a lock.
        work: Called for each, several at a time.
        helpers: How many threads of the pool to ask; with 0 all is done here, in order.

    Raises:
        Exception: The first that `work` raised; the items not yet begun are left.
    """
    if helpers < 1:
        for item in items:
            work(item)
        return
    changed = threading.Condition(threading.Lock())
    errors: list[BaseException] = []
    busy, is_over = 0, False

    def drain() -> None:
        while True:
            try:
                with changed:
                    item = None if errors else next(items, None)
                if item is None:
                    return
                work(item)
            except BaseException as error:  # noqa: BLE001  # raised again by the caller
                errors.append(error)

    def help_out() -> None:
        nonlocal busy
        with changed:
            if is_over:
                return
            busy += 1
        try:
            drain()
        finally:
            with changed:
                busy -= 1
                changed.notify_all()

    for _ in range(helpers):
        shared().submit(help_out, urgent=True)
    try:
        drain()
    finally:  # whoever interrupts the caller does not interrupt the helpers, which write to its memory
        with changed:
            is_over = True
            while busy:
                changed.wait()
    if errors:
        raise errors[0]
