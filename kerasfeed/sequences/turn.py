"""`Turn`: threads take turns to read sequences that are not thread-safe.

Invariant: at most one thread of this process at a time reads a sequence through `Turn.run`. Such calls may be nested.
"""

import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from kerasfeed.sequences.view_base import parts_of

_T = TypeVar("_T")
_LOOK_SECONDS = 0.2  # between checks, because a signal may keep a thread from notifying the others


class _Run:
    """One call of `Turn.run`.

    Attributes:
        thread: Id of its thread.
        over: Whether it has ended. Setting it releases all sequences in one step, so no signal can interrupt that.
    """

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.over = False


class _Part:
    """The last call of `Turn.run` for one sequence; it may be over."""

    run: _Run | None = None


class Turn:
    """A turn to read `sequences`, or the sequences inside these.

    Turns share their state by sequence, because two feeds may read one sequence, for example after `kf.split`. Without
    sequences, no call waits.
    """

    _parts: "weakref.WeakValueDictionary[int, _Part]" = weakref.WeakValueDictionary()
    _changed = threading.Condition()

    def __init__(self, *sequences: Any) -> None:
        """The sequences must live at least as long as this object."""
        numbers = sorted({id(part) for sequence in sequences for part in parts_of(sequence)})
        with self._changed:
            self._held = [self._parts.setdefault(number, _Part()) for number in numbers]

    @property
    def is_mine(self) -> bool:
        """Whether this thread is inside a call of `run` for these sequences."""
        own = threading.get_ident()
        return any((run := part.run) is not None and run.thread == own and not run.over for part in self._held)

    def run(self, call: Callable[[], _T]) -> _T:
        """Wait until no other thread reads any of the sequences, then call."""
        if not self._held:
            return call()
        own = _Run()
        try:
            with self._changed:
                for part in self._held:  # takes 0.1 us each; a `Concat` may have thousands
                    while (run := part.run) is not None and not run.over and run.thread != own.thread:
                        self._changed.wait(_LOOK_SECONDS)
                    if run is None or run.over:
                        part.run = own
            return call()
        finally:
            own.over = True
            with self._changed:
                self._changed.notify_all()

    def abandon(self) -> None:
        """Release the sequences from a thread that hangs while it reads them."""
        with self._changed:
            for part in self._held:
                part.run = None
            self._changed.notify_all()
