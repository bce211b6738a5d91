"""Threads that read the same sequences one at a time, because nobody has said that several may.

Invariant: whoever has entered runs the user's code, in one thread of this process at a time.
"""

import threading
import weakref
from contextlib import AbstractContextManager
from typing import Any

from kerasfeed.sequences.view_base import parts_of


class _Lock:
    def __init__(self) -> None:
        self.lock = threading.RLock()


class Turn(AbstractContextManager[None]):
    """Entered by one thread of this process at a time, of all that read the same sequences.

    Two feeds may read one sequence: `kf.split` makes such.
    """

    _locks: "weakref.WeakValueDictionary[int, _Lock]" = weakref.WeakValueDictionary()
    _making = threading.Lock()

    def __init__(self, sequence: Any) -> None:
        """Take turns in reading `sequence`, which must live at least as long as this."""
        numbers = sorted(set(map(id, parts_of(sequence))))
        with self._making:
            self._held = [self._locks.setdefault(number, _Lock()) for number in numbers]

    def __enter__(self) -> None:
        entered = []
        try:
            for held in self._held:
                held.lock.acquire()
                entered.append(held)
        except BaseException:  # Ctrl-C
            for held in entered:
                held.lock.release()
            raise

    def __exit__(self, *error: object) -> None:
        for held in self._held:
            held.lock.release()
