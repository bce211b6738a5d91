"""Items in line, cut into epochs: what is next, and what ends where. No thread and no clock is known here.

Invariant: an item is in line once, from `add` to the `next` that returns it. The end of an epoch is reported once,
after its last item, except where an earlier repetition had all of its items.
"""

from collections import deque
from typing import Any


class EpochQueue:
    """Not thread-safe.

    Attributes:
        added: Items added so far, those given back counted once.
    """

    def __init__(self) -> None:
        self.added = 0
        self._items: list[Any] = []
        self._ends: deque[int] = deque()  # how many items had been added when each epoch ended
        self._taken = 0
        self._of_epoch = self._of_repetition = self._of_ended_epoch = 0  # items taken

    def __len__(self) -> int:
        """Items in line."""
        return len(self._items)

    @property
    def ends(self) -> int:
        """Ends of epochs in line."""
        return len(self._ends)

    def add(self, item: Any) -> None:
        """Put an item at the end of the line."""
        self._items.append(item)
        self.added += 1

    def end(self) -> None:
        """End the epoch after what was added so far."""
        self._ends.append(self.added)

    def begin(self) -> None:
        """Begin a repetition: an epoch, or what is left of one."""
        self._of_repetition = 0

    def next(self, limit: int) -> list[Any] | None:
        """The next items of the epoch, at most `limit`; none at its end; None where neither is in line."""
        while True:
            waiting = self._ends[0] - self._taken if self._ends else len(self._items)
            count = min(limit, waiting)
            if count:
                # No call from here to the return: Ctrl-C strikes after calls, and would lose the items.
                taken = self._items[:count]
                del self._items[:count]
                self._taken += count
                self._of_epoch += count
                self._of_repetition += count
                return taken
            if not self._ends:
                return None
            del self._ends[0]
            was_left = self._of_epoch and not self._of_repetition
            self._of_ended_epoch, self._of_epoch = self._of_epoch, 0
            if not was_left:
                return []

    def give_back(self, items: list[Any], *, ended: bool) -> None:
        """Put items, and the end of their epoch, back to the front of the line."""
        if ended:
            self._ends.appendleft(self._taken)
            self._of_epoch = self._of_ended_epoch
        self._items[:0] = items
        self._taken -= len(items)
        self._of_epoch -= len(items)
        self._of_repetition -= len(items)

    def clear(self) -> None:
        """Drop what is in line."""
        self._items.clear()
        self._ends.clear()
