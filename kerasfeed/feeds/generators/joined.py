"""`JoinedGenerators`: several generators as one source, wherever they run.

Invariant: one that has raised is over, so it is never tried again by itself; the others go on as far as `on_error`
bears it.
"""

import threading
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from kerasfeed.errors import FeedClosedError, FeedWarning, TooManyFailuresError
from kerasfeed.feeds.generators.round_robin import RoundRobin, begun_at, length_of
from kerasfeed.feeds.streams.place import Departure, Start
from kerasfeed.feeds.streams.source import Source
from kerasfeed.loaders.failures.failure_log import FailureLog
from kerasfeed.loaders.failures.policy import FailurePolicy
from kerasfeed.loaders.failures.table import FailedScene
from kerasfeed.pool.base import CLOSED
from kerasfeed.util.counted import counted
from kerasfeed.util.error_text import add_note, exception_text, notes_of


class JoinedGenerators(Source):
    """Generators that take turns.

    Attributes:
        failure_log: The record of failures: `index` is `position * count + n`, the scene's number in the repetition as
            long as no generator has ended; `epoch` is the repetition. Its warnings wait for the user.
    """

    def __init__(self, numbers: range, count: int, policy: FailurePolicy | None) -> None:
        """Join the generators `numbers` of `count`. Without a `policy`, what one raises ends the repetition."""
        self.failure_log = FailureLog(policy or FailurePolicy(), count)
        self._numbers = numbers
        self._count = count
        self._ever: set[int] = set()  # that have failed
        self._now: set[int] = set()  # of these, in this repetition
        self._taking = threading.Lock()  # held by whoever takes, or lets go of what is not wanted any more
        self._gone, self._closed = True, False
        self._repetition = 0
        self._round_robin = RoundRobin(())
        self._departures: list[Departure] = []
        self._joined = 0  # items taken of this repetition

    @property
    def departures(self) -> Sequence[Departure]:
        """See `Source.departures`."""
        return self._departures

    def length(self, departures: Sequence[Departure]) -> int | None:
        """See `Source.length`."""
        return length_of(self._numbers, departures)

    def failures(self) -> list[FailedScene]:
        """See `Source.failures`."""
        return list(self.failure_log.table())

    def issue_warnings(self) -> None:
        """See `Source.issue_warnings`."""
        self.failure_log.deferred_warnings.issue()

    def take(self, limit: int) -> list[Any]:
        """See `Source.take`."""
        self._refuse_closed()
        items: list[Any] = []
        try:
            with self._taking:
                self._join(items, limit)
                self._joined += len(items)
        finally:
            self._forget_if_gone()
        if not items:
            self._refuse_closed()
        return items

    @abstractmethod
    def _join(self, items: list[Any], limit: int) -> None:
        """Add the next items, up to `limit`, in turn; none at the end."""

    @abstractmethod
    def _forget(self) -> None:
        """Let go of what nobody will take."""

    def _forget_if_gone(self) -> None:
        """Let go of what nobody will take; whoever takes at the moment does that when it has noticed."""
        if self._gone and self._taking.acquire(blocking=False):
            try:
                if self._gone:
                    self._forget()
            finally:
                self._taking.release()

    def _begin(self, repetition: int, start: Start) -> dict[int, int]:
        """A repetition begins, in which no generator has failed; returns the scenes that each has given before."""
        self._repetition, self._gone = repetition, False
        self._round_robin, given = begun_at(self._numbers, start)
        self._departures = [each for each in start.departures if each.items <= start.items]
        self._joined = start.items
        self._now.clear()
        return given

    def _drop(self, n: int, items: int) -> None:
        """Generator `n` leaves, when `items` items have been joined for whoever takes."""
        self._departures.append(Departure(n, self._joined + items))
        self._round_robin.drop(n)

    def _tell_shorter(self, n: int, scenes: int, before: int) -> None:
        """Warn that generator `n`, run again, has ended after so many scenes, of which it had given more `before`."""
        self.failure_log.deferred_warnings.defer(
            "shorter",
            f"generator {n} was run again, to go on behind its scene {before - 1}, and has ended after "
            f"{counted(scenes, 'scene')}: it does not give what it gave before, so what comes now is not what would "
            "have come. Have it depend on its arguments alone (draw from `rng`, sort its files), and its data stay",
            FeedWarning,
        )

    def _refuse_closed(self) -> None:
        if self._closed:
            raise FeedClosedError(CLOSED)

    def _bear(self, n: int, position: int, error: BaseException) -> None:
        """Record that generator `n` failed at its scene `position`, and go on without it, or end the repetition.

        Raises:
            Exception: `error` itself, or TooManyFailuresError.
        """
        ending = None
        self._drop(n, 0)
        try:
            self.failure_log.note(position * self._count + n, self._repetition, None, error)
            ending = self._ending(n, position, error)
            if ending is error:
                raise error
            if ending is not None:
                raise ending from error
        except BaseException:
            self.leave()
            raise
        finally:
            del ending, error  # whose traceback holds this frame: only the collector would free them

    def _ending(self, n: int, position: int, error: BaseException) -> BaseException | None:
        """What ends the repetition now that generator `n` has failed with `error`; None where it goes on."""
        policy = self.failure_log.policy
        if policy.on_error == "raise":
            return error
        self._ever.add(n)
        self._now.add(n)
        count = len(self._numbers)
        most = policy.most_failed(count)
        if len(self._ever) <= most and len(self._now) < count:
            return None
        why = (
            f"{len(self._ever)} of {counted(count, 'generator')} failed and on_error={policy.on_error!r} allows {most}"
            if len(self._ever) > most
            else f"all of {counted(count, 'generator')} failed in repetition {self._repetition}"
        )
        refusal = TooManyFailuresError(
            f"{why}. The last was generator {n}, at its scene {position}: {exception_text(error)}. feed.failures lists "
            "them; repair the generators, or catch in them what may be passed over"
        )
        for note in notes_of(error):
            add_note(refusal, note)
        return refusal
