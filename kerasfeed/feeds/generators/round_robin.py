"""Whose turn it is among several generators, and what is said of one that fails.

Invariant: turns go round in the order of the generators' numbers. Who leaves is passed over; the others keep their
order.
"""

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

    def __init__(self, count: int) -> None:
        self.living = list(range(count))
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
