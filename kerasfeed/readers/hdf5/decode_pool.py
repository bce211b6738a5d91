"""Threads that decode chunks for whoever reads, shared by all files of a process, and work done together with them.

Invariant: never more threads than cores; after a fork the child starts with none. Whoever shares work (`share`) works
too and waits only for what a helper has begun, so nothing can hang on busy threads; when `share` returns or raises,
nobody works on any more.
"""

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import TypeVar

from kerasfeed.util.resources import cores

T = TypeVar("T")


def _made() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(cores(), "kerasfeed-decode")


_threads = _made()


def _forget() -> None:
    global _threads
    _threads = _made()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def threads() -> ThreadPoolExecutor:
    """The threads of this process. What they raise concerns nobody but who asks for the result."""
    return _threads


def share(items: Iterator[T], work: Callable[[T], None], helpers: int) -> None:
    """Call `work` for each of `items`, each once, in any thread and order.

    Args:
        items: Taken one by one, under a lock.
        work: Called for each, several at a time.
        helpers: How many threads to ask; with 0 all is done here, in order.

    Raises:
        Exception: What `work` raised; the items not yet begun are left.
    """
    lock = threading.Lock()

    def drain() -> None:
        nonlocal items
        try:
            while True:
                with lock:
                    item = next(items, None)
                if item is None:
                    return
                work(item)
        except BaseException:
            items = iter(())
            raise

    asked: list[Future[None]] = []
    try:
        with suppress(RuntimeError):  # the interpreter is ending, or the system has no thread left
            asked += (threads().submit(drain) for _ in range(helpers))
        drain()
    finally:  # whoever interrupts the caller does not interrupt the helpers, which write to its memory
        items = iter(())
        begun = [future for future in asked if not future.cancel()]
        wait(begun)
    for future in begun:
        future.result()
