"""What has come, and what is still to come, of one generator that runs elsewhere.

Invariant: items are taken in the order in which the generator gave them. Not thread-safe: the feed guards `pending`.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any


class RemoteGenerator:
    """One generator in one repetition, as the consumer sees it.

    Attributes:
        n: Its number.
        pending: Promises of its next chunks, in their order.
        items: Scenes that have come.
        at: The place in `items` of the next to be taken.
        received: Scenes that have come in this repetition.
        early: Whether scenes of the first of them have come early, and are counted as received.
        start: Where the next chunk that is asked for begins; `GO_ON` where it goes on.
        ended: Whether nothing comes after `items`.
        error: What comes after `items`.
        deaths: How often it was lost, as what its worker had in hand, at `died_at`.
        died_at: The number of the scene that was next then.
    """

    __slots__ = ("at", "deaths", "died_at", "early", "ended", "error", "items", "n", "pending", "received", "start")

    def __init__(self, n: int, start: int = 0) -> None:
        """Generator `n`, from its scene `start` on."""
        self.n = n
        self.pending: deque[Future[Any]] = deque()
        self.items: list[Any] = []
        self.at = 0
        self.early = False
        self.received = self.start = start
        self.ended = False
        self.error: BaseException | None = None
        self.deaths, self.died_at = 0, -1

    @property
    def left(self) -> int:
        """Items that wait to be taken."""
        return len(self.items) - self.at

    def pop(self, limit: int) -> list[Any]:
        """The next items."""
        items = self.items[self.at : self.at + limit]
        self.at += len(items)
        if self.at == len(self.items):
            self.items, self.at = [], 0
        return items

    @property
    def is_done(self) -> bool:
        """Whether the next chunk has come, or will not."""
        try:
            return self.pending[0].done()
        except IndexError:
            return False


def drain(queue: "SimpleQueue[None]") -> None:
    """Take out all that is in it now."""
    try:
        while True:
            queue.get_nowait()
    except Empty:
        pass


def waking(queue: "SimpleQueue[None]") -> Callable[[Any], None]:
    """A callback that puts something into the queue; it holds nothing else, for futures live long."""
    return lambda _: queue.put(None)
