"""Threads that read the same sequences one at a time, because nobody has said that several may.

Invariant: of all threads of this process that run something by a turn of the same sequences, one does at a time. A
thread that does may run something else by such a turn within.
"""

import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from kerasfeed.sequences.view_base import parts_of

_T = TypeVar("_T")
_LOOK_SECONDS = 0.2  # between looks, should a signal have kept somebody from telling that his turn is over


class _Place(threading.Condition):
    """Whose turn it is; notified where a turn is over.

    Attributes:
        owner: The thread, by its number, and a mark of the call; None where it is nobody's.
    """

    owner: tuple[int, object] | None = None


class Turn:
    """A turn in reading `sequences`, or what these are made of; without any, nobody is waited for.

    Two feeds may read one sequence: `kf.split` makes such.
    """

    _places: "weakref.WeakValueDictionary[int, _Place]" = weakref.WeakValueDictionary()
    _making = threading.Lock()

    def __init__(self, *sequences: Any) -> None:
        """The sequences must live at least as long as this."""
        numbers = sorted({id(part) for sequence in sequences for part in parts_of(sequence)})
        with self._making:
            self._held = tuple(self._places.setdefault(number, _Place()) for number in numbers)

    @property
    def is_mine(self) -> bool:
        """Whether this thread runs something by a turn of one of the sequences."""
        own = threading.get_ident()
        return any((owner := place.owner) is not None and owner[0] == own for place in self._held)

    def run(self, call: Callable[[], _T], number: int = 0) -> _T:
        """Wait for the turn, of place `number` and those behind it, and call."""
        if number == len(self._held):
            return call()
        place, own = self._held[number], (threading.get_ident(), object())
        if (owner := place.owner) is not None and owner[0] == own[0]:
            return self.run(call, number + 1)
        try:
            with place:
                while place.owner is not None:
                    place.wait(_LOOK_SECONDS)
                place.owner = own
            return self.run(call, number + 1)
        finally:
            if place.owner is own:  # no call before this, for a signal could come with it
                place.owner = None
            with place:
                place.notify()

    def abandon(self) -> None:
        """Let others have the turn of a thread that hangs."""
        for place in self._held:
            with place:
                place.owner = None
                place.notify_all()
