"""Warnings to the user, issued where the user stands.

Invariant: what is found on a thread of ours is issued on the thread of whoever next asks the feed for a batch, so that
a filter which makes warnings errors reaches the user, and the warning names the user's line. Each kind is issued once.
"""

import inspect
import queue
import sys
import threading
import warnings
from collections import deque
from types import FrameType

_PACKAGE = __name__.split(".")[0]
# Between the user's line and kerasfeed's there may be these; a thread that they start has no line of the user's at all.
_INTERNAL = {
    _PACKAGE, "keras", "tensorflow", "tf_keras", "jax", "torch", "optree", "threading", "concurrent", "contextlib",
    "weakref", "queue", "functools", "importlib", "runpy", "_pytest", "pluggy",
}  # fmt: skip


class DeferredWarnings:
    """Warnings that wait for the user. Thread-safe.

    Attributes:
        urgent: What would be issued now, where the user is that of another process, who is told what is `taken`, too.
    """

    def __init__(self) -> None:
        self.urgent: queue.SimpleQueue[tuple[str, str, type[Warning]]] | None = None
        self._waiting: deque[tuple[str, str, type[Warning]]] = deque()
        self._known: set[str] = set()
        self._lock = threading.Lock()
        self._consumer: int | None = None  # the thread that asked for a batch last

    def defer(self, kind: str, text: str, category: type[Warning]) -> None:
        """Have `text` issued at the next `issue`, unless something of this kind was deferred before."""
        if self._is_first(kind):
            self._waiting.append((kind, text, category))

    def mute(self, *kinds: str) -> None:
        """Have nothing of these kinds issued any more."""
        with self._lock:
            self._known.update(kinds)

    def is_known(self, kind: str) -> bool:
        """Whether something of this kind was deferred or issued."""
        return kind in self._known

    def _is_first(self, kind: str) -> bool:
        with self._lock:
            first = kind not in self._known
            self._known.add(kind)
            return first

    def taken(self) -> list[tuple[str, str, type[Warning]]]:
        """Kind, text and class of those that wait, which nobody else is told."""
        return list(iter(self._next, None))

    def _next(self) -> tuple[str, str, type[Warning]] | None:
        try:
            return self._waiting.popleft()
        except IndexError:  # another consumer was faster
            return None

    def issue(self) -> None:
        """Warn of what waits; 80 ns where nothing does."""
        self._consumer = threading.get_ident()
        while self._waiting and (waiting := self._next()) is not None:
            warn_caller(*waiting[1:])

    def issue_last(self) -> None:
        """Warn of what waits, and raise nothing: where warnings are errors, on stderr."""
        while self._waiting and self.urgent is None and (waiting := self._next()) is not None:
            _say(*waiting[1:])

    def issue_now(self, kind: str, text: str, category: type[Warning], consumer: int | None = None) -> None:
        """Warn from this thread, of ours, for the user's may be waiting; where warnings are errors, on stderr.

        The line that is named is where the thread `consumer` stands, or whoever last asked for a batch.
        """
        if self._is_first(kind):
            if self.urgent is None:
                _say(text, category, consumer or self._consumer)
            else:
                self.urgent.put((kind, text, category))


def _say(text: str, category: type[Warning], thread: int | None = None) -> None:
    try:
        warn_caller(text, category, thread)
    except Warning as warning:
        print(f"{category.__name__}: {warning}", file=sys.stderr)


def warn_caller(text: str, category: type[Warning], thread: int | None = None) -> None:
    """Warn, naming the user's line: the one that has called kerasfeed, be it through Keras or TensorFlow.

    Args:
        text: What to say.
        category: The class of the warning.
        thread: The thread in which to look for the line; None is this one. Where it runs nothing of the user's, the
            main thread.
    """
    if thread is None:
        found = users_frame(inspect.currentframe())
    else:
        found = users_frame(sys._current_frames().get(thread), around=True)
    if found is None:
        found = users_frame(sys._current_frames().get(threading.main_thread().ident or 0), around=True)
    if found is None:
        warnings.warn(text, category, stacklevel=2)
        return
    names = found.f_globals
    # As `warnings.warn` does, which knows the stack of its own thread alone.
    warnings.warn_explicit(
        text, category, found.f_code.co_filename, found.f_lineno, str(names.get("__name__", "<unknown>")),
        names.setdefault("__warningregistry__", {}),
    )  # fmt: skip


def users_frame(innermost: FrameType | None, *, around: bool = False) -> FrameType | None:
    """The innermost frame of the user's; None where there is none.

    Args:
        innermost: The stack.
        around: Whether the user's code that kerasfeed calls (a scene) does not count, and only what has called it does.
    """
    frames: list[FrameType] = []
    while innermost is not None:
        frames.append(innermost)
        innermost = innermost.f_back
    own = [number for number, each in enumerate(frames) if _package_of(each) == _PACKAGE]
    if around and own:
        frames = frames[own[-1] + 1 :]
    return next((each for each in frames if _package_of(each) not in _INTERNAL), None)


def _package_of(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).split(".")[0]
