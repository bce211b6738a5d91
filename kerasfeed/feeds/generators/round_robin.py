"""Whose turn it is among several generators, and what is said of one that fails.

Invariant: turns go round in the order of the generators' numbers. Who leaves is passed over; the others keep their
order.
"""

from collections.abc import Iterable, Sequence

from kerasfeed.feeds.streams.place import Departure, Start
from kerasfeed.util.error_notes import can_travel, wrapped
from kerasfeed.util.error_text import notes_of, set_notes

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


def named(error: BaseException, n: int, count: int, position: int, repetition: int, where: str = "") -> BaseException:
    """The error to raise for generator `n`: `error` with the place as a note, where its type can travel.

    Args:
        error: What the generator raised.
        n: Its number.
        count: How many there are.
        position: The number of its scene, from 0.
        repetition: Number of the repetition.
        where: Who ran it, for example "worker process 1 (pid 4711)".
    """
    place = f"{_NOTE}{n} of {count}, at its scene {position}, repetition {repetition}"
    if not can_travel(error):
        error = wrapped(error, f"generator {n} raised ")
    notes = [note for note in notes_of(error) if not note.startswith(_NOTE)]
    set_notes(error, [place + (f", in {where}" if where else ""), *notes])
    return error
