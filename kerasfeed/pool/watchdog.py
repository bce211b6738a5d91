"""Has a worker been at the same thing for too long?

Invariant: looks only. Time during which nobody could look (the process was stopped, the machine asleep) hardly counts,
so that nothing is killed for having been paused.
"""

import os
import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Hashable
from typing import Any

from kerasfeed.errors import FeedWarning
from kerasfeed.pool.base import PoolOptions
from kerasfeed.pool.resource_errors import start_thread
from kerasfeed.util.deferred_warnings import DeferredWarnings
from kerasfeed.util.error_text import PACKAGE_FOLDER, exception_text

STALL_SECONDS = 30.0
_TICK = 1.0
_SHORTEST_TICK = 0.02
_NO_ANSWER = (
    "Where it is cannot be told, for it does not answer: it may be starting its interpreter, or be within a call of "
    "the system. "
)
OWN_FOLDERS = tuple(f"{PACKAGE_FOLDER}{name}{os.sep}" for name in ("pool", "loaders"))
VIEWS = f"{PACKAGE_FOLDER}sequences{os.sep}"  # stand between these and the user's class


def tick_seconds(timeout: float | None) -> float:
    """Seconds from one look to the next."""
    return _TICK if timeout is None else min(_TICK, max(_SHORTEST_TICK, timeout / 5))


class StallTimer:
    """How long each worker has been at what it is at."""

    def __init__(self, tick: float) -> None:
        """Someone will look every `tick` seconds."""
        self._tick = tick
        self._last: float | None = None
        self._elapsed = 0.0
        self._at: dict[int, tuple[Hashable, float]] = {}

    def begin(self, now: float) -> None:
        """A round of looks begins at `now`, s."""
        self._elapsed = 0.0 if self._last is None else min(now - self._last, 2 * self._tick)
        self._last = now

    def look(self, worker: int, token: Hashable | None) -> float:
        """Seconds for which `worker` has been seen at `token`; 0 where it is at nothing (None)."""
        before = self._at.get(worker)
        seconds = before[1] + self._elapsed if before is not None and before[0] == token and token is not None else 0.0
        self._at[worker] = (token, seconds)
        return seconds


class Watchdog:
    """A thread that calls `owner.look()` every `tick` seconds; it does not keep the owner alive."""

    def __init__(self, look: Callable[[], Any], tick: float, who: str, deferred_warnings: DeferredWarnings) -> None:
        """Watch the workers of `who` from now on; `look` is a bound method, and goes on to be called if it raises."""
        self._over = threading.Event()
        self._thread = threading.Thread(
            target=_watch, args=(weakref.WeakMethod(look), self._over, tick, who, deferred_warnings),
            name="kerasfeed-watch", daemon=True,
        )  # fmt: skip
        start_thread(self._thread, who)

    def stop(self) -> None:
        """End the thread; idempotent."""
        self._over.set()
        if self._thread is not threading.current_thread():
            self._thread.join(0.5)  # it may be waiting for a lock of whoever stops it


def _watch(
    reference: Callable[[], Callable[[], Any] | None], over: threading.Event, tick: float, who: str,
    deferred_warnings: DeferredWarnings,
) -> None:  # fmt: skip
    while not over.wait(tick):
        look = reference()
        if look is None:
            return
        try:
            look()
        except Exception as error:  # noqa: BLE001 - without this thread no timeout would end anything
            deferred_warnings.issue_now(
                "watchdog",
                f"the workers of {who} could not be looked after just now: {exception_text(error)}. That is tried "
                "again; until it succeeds, scenes may take longer than timeout",
                FeedWarning,
            )
        del look


def stack_of(thread: threading.Thread) -> str:
    """The stack of a thread of this process, the user's part of it, innermost call last."""
    frame = sys._current_frames().get(thread.ident or 0)
    if frame is None:
        return "(the thread has ended)"
    stack = traceback.extract_stack(frame)
    own = [number for number, each in enumerate(stack[:-1], 1) if each.filename.startswith(OWN_FOLDERS)]
    users = stack[own[-1] if own else 0 :]
    while len(users) > 1 and users[0].filename.startswith(VIEWS):
        del users[0]
    return "".join(traceback.format_list(users)).rstrip()


def warn_of_stall(
    options: PoolOptions,
    worker_type: str,
    name: str,
    scene: str | None,
    seconds: float,
    stack: Callable[[], str],
    consumer: int | None = None,
) -> None:
    """Warn, once, that a worker has been at a scene for very long, or has begun for very long.

    Args:
        options: The pool's.
        worker_type: What the worker is: "inline", "thread" or "process".
        name: The worker's.
        scene: What it loads, in words; None as long as it begins.
        seconds: Since when, s.
        stack: Finds out where it is; empty where it does not answer.
        consumer: The thread that waits for it; None for whoever asked last.
    """
    kind = "loading" if scene is None else "stall"
    if options.deferred_warnings.is_known(kind):
        return
    where = f"It is at\n{found}\n" if (found := stack()) else _NO_ANSWER
    if scene is None:
        what = "the sequence and what it imports" if worker_type == "process" else "the sequence (on_worker_begin)"
        text = (
            f"{name} is still loading {what}, since {seconds:.0f} s, and has come to no scene yet. {where}To import "
            "much (Keras, TensorFlow) takes so long on some machines and is no error; this is said once. What the "
            "module of the sequence's class imports, each worker imports as it begins"
        )
    else:
        text = (
            f"no progress for {seconds:.0f} s: {name} is still loading {scene}. {where}A scene that may take so long "
            f"is no error, and this is said once. {remedy_of(worker_type, options.timeout)}"
        )
    options.deferred_warnings.issue_now(kind, text, FeedWarning, consumer)


def remedy_of(worker_type: str, timeout: float | None) -> str:
    """What a user may do about scenes that take too long, with the workers and the timeout that the feed has."""
    if worker_type == "process":
        if timeout is None:
            return "To end such scenes give the feed timeout=<seconds>: it then replaces the worker"
        return f"The feed's timeout={timeout} s will end it, and replace the worker"
    if worker_type == "thread" and timeout is not None:
        return f"The feed's timeout={timeout} s will give it up; only worker_type='process' can end it"
    return "To end such scenes give the feed timeout=<seconds> and worker_type='process'"
