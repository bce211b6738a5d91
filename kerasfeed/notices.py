"""Warnings to the user, issued where the user stands.

Invariant: what is found on a thread of ours is told on the thread of whoever next asks the feed for a batch, so that a
filter which makes warnings errors reaches the user, and the warning names the user's line. Each kind is told once.
"""

import sys
import threading
import warnings
from collections import deque
from collections.abc import Callable

_PACKAGE = __name__.split(".")[0]


class Notices:
    """Warnings that wait for the user. Thread-safe."""

    def __init__(self, reword: Callable[[str], str] | None = None) -> None:
        """`reword`: what is done to every text; it must not fail."""
        self._reword = reword or str
        self._waiting: deque[tuple[str, type[Warning]]] = deque()
        self._told: set[str] = set()
        self._lock = threading.Lock()

    def post(self, kind: str, text: str, category: type[Warning]) -> None:
        """Have `text` told at the next `tell`, unless something of this kind was posted before."""
        if self._is_first(kind):
            self._waiting.append((self._reword(text), category))

    def mute(self, *kinds: str) -> None:
        """Have nothing of these kinds told any more."""
        for kind in kinds:
            self._is_first(kind)

    def told(self, kind: str) -> bool:
        """Whether something of this kind was posted or told."""
        return kind in self._told

    def _is_first(self, kind: str) -> bool:
        with self._lock:
            first = kind not in self._told
            self._told.add(kind)
            return first

    def _next(self) -> tuple[str, type[Warning]] | None:
        try:
            return self._waiting.popleft()
        except IndexError:  # another consumer was faster
            return None

    def tell(self) -> None:
        """Warn of what waits; 50 ns where nothing does."""
        while self._waiting and (notice := self._next()) is not None:
            warn_caller(*notice)

    def tell_last(self) -> None:
        """Warn of what waits, and raise nothing: where warnings are errors, on stderr."""
        while self._waiting and (notice := self._next()) is not None:
            _say(*notice)

    def tell_now(self, kind: str, text: str, category: type[Warning]) -> None:
        """Warn from this thread, of ours, for the user's may be waiting; where warnings are errors, on stderr."""
        if self._is_first(kind):
            _say(self._reword(text), category)


def _say(text: str, category: type[Warning]) -> None:
    try:
        warn_caller(text, category)
    except Warning as warning:
        print(f"{category.__name__}: {warning}", file=sys.stderr)


def warn_caller(text: str, category: type[Warning]) -> None:
    """Warn, naming the innermost line of the stack that is not kerasfeed's."""
    level, frame = 1, sys._getframe()
    while frame is not None and str(frame.f_globals.get("__name__", "")).split(".")[0] == _PACKAGE:
        level, frame = level + 1, frame.f_back  # type: ignore[assignment]
    warnings.warn(text, category, stacklevel=level)
