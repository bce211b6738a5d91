"""Whose turn it is among several generators, and what becomes of those that fail.

Invariant: turns go round in the order of the generators' numbers. Who leaves is passed over; the others keep their
order.
"""

from kerasfeed.errors import TooManyFailuresError
from kerasfeed.loaders.failures.failure_log import FailureLog
from kerasfeed.loaders.failures.policy import FailurePolicy
from kerasfeed.util.error_notes import can_travel, wrapped
from kerasfeed.util.error_text import add_note, exception_text, notes_of, set_notes

_NOTE = "kerasfeed: generator "
_LOADERS_NOTE = "kerasfeed: scene "


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


class FailedGenerators:
    """Carries out `on_error` for generators: one that has raised is over, so it is never tried again by itself.

    Attributes:
        faults: The record of failures: `index` is `position * count + n`, the scene's number in the repetition as long
            as no generator has ended; `epoch` is the repetition. Its notices wait for the user.
    """

    def __init__(self, policy: FailurePolicy, count: int) -> None:
        self.faults = FailureLog(policy, count)
        self._count = count
        self._ever: set[int] = set()
        self._now: set[int] = set()

    def begin(self) -> None:
        """A repetition begins, in which no generator has failed."""
        self._now.clear()

    def bear(self, n: int, position: int, repetition: int, error: BaseException) -> None:
        """Record that generator `n` failed at its scene `position`, or end the repetition.

        Raises:
            Exception: `error` itself, or TooManyFailuresError.
        """
        self.faults.note(position * self._count + n, repetition, None, error)
        ending = self._ending(n, position, repetition, error)
        try:
            if ending is error:
                raise error
            if ending is not None:
                raise ending from error
        finally:
            del ending, error  # whose traceback holds this frame: only the collector would free them

    def _ending(self, n: int, position: int, repetition: int, error: BaseException) -> BaseException | None:
        """What ends the repetition now that generator `n` has failed with `error`; None where it goes on."""
        policy = self.faults.policy
        if policy.on_error == "raise":
            return error
        self._ever.add(n)
        self._now.add(n)
        most = policy.most_failed(self._count)
        if len(self._ever) <= most and len(self._now) < self._count:
            return None
        why = (
            f"{len(self._ever)} of {self._count} generators have failed and on_error={policy.on_error!r} bears {most}"
            if len(self._ever) > most
            else f"all of {self._count} generators have failed in repetition {repetition}"
        )
        refusal = TooManyFailuresError(
            f"{why}. The last was generator {n}, at its scene {position}: {exception_text(error)}. feed.failures lists "
            "them; mend the generators, or catch in them what may be passed over"
        )
        for note in notes_of(error):
            add_note(refusal, note)
        return refusal


def named(
    error: BaseException, n: int, count: int, position: int | str, repetition: int, where: str = ""
) -> BaseException:
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
    notes = [note for note in notes_of(error) if not note.startswith((_NOTE, _LOADERS_NOTE))]
    set_notes(error, [place + (f", in {where}" if where else ""), *notes])
    return error
