"""Detect workers that have been at the same step for too long.

Invariant: this module only observes. A pause of the module itself (the process was stopped, the machine slept) counts
as two checks at most, so no worker is killed for a pause.
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
    "Its position is unknown because it does not answer: it may be starting its interpreter, or be inside a system "
    "call. "
)
# Frames of code in these folders are left out of the stacks that users see.
OWN_FOLDERS = tuple(f"{PACKAGE_FOLDER}{name}{os.sep}" for name in ("pool", "loaders"))
VIEWS = f"{PACKAGE_FOLDER}sequences{os.sep}"  # frames between OWN_FOLDERS and the user's class


def tick_seconds(timeout: float | None) -> float:
    """Seconds between two checks."""
    return _TICK if timeout is None else min(_TICK, max(_SHORTEST_TICK, timeout / 5))


class StallTimer:
    """Measure how long each worker has been at its present step."""

    def __init__(self, tick: float) -> None:
        """`tick`: seconds between two checks."""
        self._tick = tick
        self._last: float | None = None
        self._elapsed = 0.0
        self._at: dict[int, tuple[Hashable, float]] = {}

    def begin(self, now: float) -> None:
        """Begin a round of checks at time `now`, s."""
        self._elapsed = 0.0 if self._last is None else min(now - self._last, 2 * self._tick)
        self._last = now

    def look(self, worker: int, token: Hashable | None) -> float:
        """Return how long a worker has been at its present step, s.

        Args:
            worker: Its number.
            token: Differs between any two steps; None if the worker is idle; the result is then 0.
        """
        before = self._at.get(worker)
        seconds = before[1] + self._elapsed if before is not None and before[0] == token and token is not None else 0.0
        self._at[worker] = (token, seconds)
        return seconds


class Watchdog:
    """Call a method every `tick` seconds, without keeping its object alive."""

    def __init__(self, look: Callable[[], Any], tick: float, owner: str, deferred_warnings: DeferredWarnings) -> None:
        """Start the thread that calls `look`.

        Args:
            look: A bound method. If it raises an exception, `deferred_warnings` reports that, and the calls go on.
            tick: Seconds between two calls.
            owner: The feed that has the workers, as messages name it.
            deferred_warnings: The feed's warnings.

        Raises:
            RuntimeError: The system cannot start another thread.
        """
        self._over = threading.Event()
        self._thread = threading.Thread(
            target=_watch, args=(weakref.WeakMethod(look), self._over, tick, owner, deferred_warnings),
            name="kerasfeed-watch", daemon=True,
        )  # fmt: skip
        start_thread(self._thread, owner)

    def stop(self) -> None:
        """End the thread; idempotent."""
        self._over.set()
        if self._thread is not threading.current_thread():
            self._thread.join(0.5)  # it may be waiting for a lock that this thread holds


def _watch(
    reference: Callable[[], Callable[[], Any] | None], over: threading.Event, tick: float, owner: str,
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
                f"the workers of {owner} could not be checked: {exception_text(error)}. The check will be repeated; "
                "until it succeeds, scenes may take longer than timeout",
                FeedWarning,
            )
        del look


def stack_of(thread: threading.Thread) -> str:
    """A thread's stack from the user's first frame, innermost last."""
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
    """Warn once that a worker has been busy for very long.

    It may be loading a scene, or starting.

    Args:
        options: The pool's options.
        worker_type: Type of the worker: "inline", "thread" or "process".
        name: The worker's name.
        scene: The scene that it loads, in words; None while it starts.
        seconds: Duration so far, s.
        stack: Returns the worker's stack; empty if it does not answer.
        consumer: The thread that waits for the worker; None for the thread that last asked for a batch.
    """
    kind = "loading" if scene is None else "stall"
    if options.deferred_warnings.is_known(kind):
        return
    where = f"It is at\n{found}\n" if (found := stack()) else _NO_ANSWER
    if scene is None:
        what = "the sequence and what it imports" if worker_type == "process" else "the sequence (on_worker_begin)"
        text = (
            f"{name} has been loading {what} for {seconds:.0f} s, and has reached no scene yet. {where}Each worker "
            "imports the module of the sequence's class; if that imports Keras or TensorFlow, it may take this long. "
            "This warning appears once"
        )
    else:
        text = (
            f"no progress for {seconds:.0f} s: {name} is still loading {scene}. {where}If scenes may take this long, "
            f"ignore this warning, which appears once. {remedy_of(worker_type, options.timeout)}"
        )
    options.deferred_warnings.issue_now(kind, text, FeedWarning, consumer)


def remedy_of(worker_type: str, timeout: float | None) -> str:
    """The remedy for scenes that take too long."""
    if worker_type == "process":
        if timeout is None:
            return "To end such scenes, pass timeout=<seconds> to the feed: it then replaces the worker"
        return f"The feed's timeout={timeout} s will end the scene and replace the worker"
    if worker_type == "thread" and timeout is not None:
        return f"The feed's timeout={timeout} s will give up the scene; only worker_type='process' can end it"
    return "To end such scenes, pass timeout=<seconds> and worker_type='process' to the feed"
