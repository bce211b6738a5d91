"""Whose turn it is among several generators, what each has given, and what is said of one that fails.

Invariant: turns go round in the order of the generators' numbers. Who leaves is passed over; the others keep their
order.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from typing import Any

from kerasfeed.feeds.generators.generators import GeneratorRun
from kerasfeed.feeds.streams.place import Departure, Start
from kerasfeed.util.error_notes import noted

_NOTE = "kerasfeed: generator "


class RoundRobin:
    """The generators that have not ended in this repetition.

    Attributes:
        living: Their numbers, rising.
        turn: The place in `living` of whoever is next.
    """

    __slots__ = ("living", "turn")

    def __init__(self, numbers: Iterable[int]) -> None:
        self.living = list(numbers)
        self.turn = 0

    @property
    def current(self) -> int:
        """Number of the generator whose turn it is; at least one must be left."""
        return self.living[self.turn]

    def advance(self) -> None:
        """It has had its turn."""
        self.turn = (self.turn + 1) % len(self.living)

    def drop(self, n: int) -> None:
        """Generator `n` leaves."""
        place = self.living.index(n)
        del self.living[place]
        if place < self.turn:
            self.turn -= 1
        if self.turn == len(self.living):
            self.turn = 0


class JoinedGenerator:
    """One generator in one repetition, as the consumer sees it. Not thread-safe: the source guards `pending`.

    Attributes:
        n: Its number.
        run: What runs in the thread that takes; None where a worker runs it.
        pending: Promises of its next chunks, in their order.
        items: Scenes that have come.
        at: The place in `items` of the next to be taken.
        received: Scenes that have come in this repetition.
        looked: Bytes of the first of them when it was looked at last.
        early: Bytes of the first of them of which the scenes have come early, and are counted as received.
        start: Where the next chunk that is asked for begins; `GO_ON` where it goes on.
        ended: Whether nothing comes after `items`.
        error: What comes after `items`.
        deaths: How often it was lost, as what its worker had in hand, at `died_at`.
        died_at: The number of the scene that was next then.
    """

    __slots__ = (
        "at", "deaths", "died_at", "early", "ended", "error", "items", "looked", "n", "pending", "received", "run",
        "start",
    )  # fmt: skip

    def __init__(self, n: int, start: int, run: GeneratorRun | None) -> None:
        """Generator `n`, from its scene `start` on."""
        self.n = n
        self.run = run
        self.pending: deque[Future[Any]] = deque()
        self.items: list[Any] = []
        self.at = 0
        self.looked = self.early = 0
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
        """Whether nobody need wait for the next chunk: it has come, or will not, or is made by whoever takes it."""
        if self.run is not None:
            return True
        try:
            return self.pending[0].done()
        except IndexError:
            return False


def begun_at(numbers: Sequence[int], start: Start) -> tuple[RoundRobin, dict[int, int]]:
    """The generators `numbers` as they stand at `start`, and how many scenes each of them has given."""
    robin, given = RoundRobin(numbers), dict.fromkeys(numbers, 0)
    at = 0
    for departure in (*(each for each in start.departures if each.items <= start.items), None):
        stop = start.items if departure is None else departure.items
        if robin.living:
            _go_round(robin, given, stop - at)
        at = stop
        if departure is not None and departure.n in robin.living:
            robin.drop(departure.n)
    return robin, given


def length_of(numbers: Sequence[int], departures: Sequence[Departure]) -> int | None:
    """How many scenes the generators `numbers` give together, all of which have left; None where one has not."""
    left = {each.n: each.items for each in departures}
    return max(left.values(), default=0) if left.keys() >= {*numbers} else None


def _go_round(robin: RoundRobin, given: dict[int, int], items: int) -> None:
    rounds, more = divmod(items, len(robin.living))
    for place, n in enumerate(robin.living):
        given[n] += rounds + ((place - robin.turn) % len(robin.living) < more)
    robin.turn = (robin.turn + more) % len(robin.living)


def named(
    error: BaseException, n: int, count: int, position: int, repetition: int, where: str = "", traceback: str = ""
) -> BaseException:
    """The error to raise for generator `n`: `error` with the place as a note, where its type can travel.

    Args:
        error: What the generator raised.
        n: Its number.
        count: How many there are.
        position: The number of its scene, from 0.
        repetition: Number of the repetition.
        where: Who ran it, for example "worker process 1 (pid 4711)".
        traceback: Of another process, as text.
    """
    place = f"{_NOTE}{n} of {count}, at its scene {position}, repetition {repetition}"
    note = place + (f", in {where}" if where else "")
    return noted(error, note, traceback, replaces=_NOTE, what=f"generator {n} raised ")
