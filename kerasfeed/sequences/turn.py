"""`Turn`: threads that read the same sequences take turns, because these are not known to be thread-safe.

Invariant: of all threads of this process that run something by a turn of one sequence, one does so at a time. Inside,
it may run something else by such a turn.
"""

import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from kerasfeed.sequences.view_base import parts_of

_T = TypeVar("_T")
_LOOK_SECONDS = 0.2  # between looks: a signal may keep a thread from notifying the others


class _Run:
    """One call by a turn.

    Attributes:
        thread: Number of its thread.
        over: Whether it has ended. That one assignment releases all sequences, so no signal can come in between.
    """

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.over = False


class _Place:
    """Who reads one sequence: the last call by a turn of it, which may be over."""

    run: _Run | None = None


class Turn:
    """A turn in reading `sequences`, or what these are made of; without any, no call waits.

    Two feeds may read one sequence: `kf.split` makes such.
    """

    _places: "weakref.WeakValueDictionary[int, _Place]" = weakref.WeakValueDictionary()
    _changed = threading.Condition()

    def __init__(self, *sequences: Any) -> None:
        """The sequences must live at least as long as this."""
        numbers = sorted({id(part) for sequence in sequences for part in parts_of(sequence)})
        with self._changed:
            self._held = [self._places.setdefault(number, _Place()) for number in numbers]

    @property
    def is_mine(self) -> bool:
        """Whether this thread runs something by a turn of one of the sequences."""
        own = threading.get_ident()
        return any((run := place.run) is not None and run.thread == own and not run.over for place in self._held)

    def run(self, call: Callable[[], _T]) -> _T:
        """Wait until no other thread reads any of the sequences, and call."""
        if not self._held:
            return call()
        own = _Run()
        try:
            with self._changed:
                for place in self._held:  # 0.1 us each: a `Concat` may have thousands
                    while (run := place.run) is not None and not run.over and run.thread != own.thread:
                        self._changed.wait(_LOOK_SECONDS)
                    if run is None or run.over:
                        place.run = own
            return call()
        finally:
            own.over = True
            with self._changed:
                self._changed.notify_all()

    def abandon(self) -> None:
        """Release the sequences that a thread reads which hangs."""
        with self._changed:
            for place in self._held:
                place.run = None
            self._changed.notify_all()
