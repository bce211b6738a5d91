"""Warnings that name the user's line of code.

Invariant: a deferred warning is issued on the thread that next asks the feed for a batch. So a filter that turns
warnings into errors raises in the user's code, and the warning names the user's line. Each kind is issued once.
"""

import inspect
import sys
import threading
import warnings
from collections import deque
from types import FrameType

_PACKAGE = __name__.split(".")[0]
# Packages whose frames are skipped in the search for the user's line.
_INTERNAL = {
    _PACKAGE, "keras", "tensorflow", "tf_keras", "jax", "torch", "optree", "threading", "concurrent", "contextlib",
    "weakref", "queue", "functools", "importlib", "runpy", "_pytest", "pluggy",
}  # fmt: skip


class DeferredWarnings:
    """Warnings deferred until the user's thread can issue them. Thread-safe."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[str, str, type[Warning]]] = deque()
        self._known: set[str] = set()
        self._lock = threading.Lock()
        self._consumer: int | None = None  # the thread that asked for a batch last

    def defer(self, kind: str, text: str, category: type[Warning]) -> None:
        """Issue `text` at the next `issue`, unless this kind is known."""
        if self._is_first(kind):
            self._waiting.append((kind, text, category))

    def mute(self, *kinds: str) -> None:
        """Ignore these kinds from now on."""
        with self._lock:
            self._known.update(kinds)

    def is_known(self, kind: str) -> bool:
        """Whether this kind was deferred, issued or muted."""
        return kind in self._known

    def _is_first(self, kind: str) -> bool:
        with self._lock:
            first = kind not in self._known
            self._known.add(kind)
            return first

    def taken(self) -> list[tuple[str, str, type[Warning]]]:
        """Remove the deferred warnings; return kind, text and class of each."""
        return list(iter(self._next, None))

    def _next(self) -> tuple[str, str, type[Warning]] | None:
        try:
            return self._waiting.popleft()
        except IndexError:  # another consumer took it
            return None

    def issue(self) -> None:
        """Issue the deferred warnings; takes 80 ns if there are none."""
        self._consumer = threading.get_ident()
        while self._waiting and (waiting := self._next()) is not None:
            warn_caller(*waiting[1:])

    def issue_last(self) -> None:
        """Issue the deferred warnings; print them if filters make them errors."""
        while self._waiting and (waiting := self._next()) is not None:
            _say(*waiting[1:])

    def issue_now(self, kind: str, text: str, category: type[Warning], consumer: int | None = None) -> None:
        """Warn from a thread of kerasfeed; the user's thread may be blocked.

        If a filter makes the warning an error, print it on stderr. The warning names the current line of the thread
        `consumer`, or of the thread that last asked for a batch.
        """
        if self._is_first(kind):
            _say(text, category, consumer or self._consumer)


def _say(text: str, category: type[Warning], thread: int | None = None) -> None:
    try:
        warn_caller(text, category, thread)
    except Warning as warning:
        print(f"{category.__name__}: {warning}", file=sys.stderr)


def warn_caller(text: str, category: type[Warning], thread: int | None = None) -> None:
    """Issue a warning that names the user's line that called kerasfeed.

    Args:
        text: The message.
        category: The class of the warning.
        thread: The thread whose stack has the line; None for the current thread. If it runs no code of the user, the
            main thread is used.
    """
    if thread is None:
        frame = users_frame(inspect.currentframe())
    else:
        frame = users_frame(sys._current_frames().get(thread), around=True)
    if frame is None:
        frame = users_frame(sys._current_frames().get(threading.main_thread().ident or 0), around=True)
    if frame is None:
        warnings.warn(text, category, stacklevel=2)
        return
    names = frame.f_globals
    # Not `warnings.warn`, which sees only the stack of the current thread.
    warnings.warn_explicit(
        text, category, frame.f_code.co_filename, frame.f_lineno, str(names.get("__name__", "<unknown>")),
        names.setdefault("__warningregistry__", {}),
    )  # fmt: skip


def users_frame(innermost: FrameType | None, *, around: bool = False) -> FrameType | None:
    """Return the innermost frame of the user's code, or None.

    Args:
        innermost: The innermost frame of the stack.
        around: Whether to skip the user's code that kerasfeed calls (a scene), and search only the code that calls
            kerasfeed.
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
