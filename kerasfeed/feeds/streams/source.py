"""The `Source` protocol: where the items of a stream come from.

Invariant: items come in their order, repetition after repetition, to one thread at a time. An item is a whole scene,
or, where a function makes scenes of items (`map`), whatever that function takes.
"""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from kerasfeed.loaders.base import LoaderStats
from kerasfeed.loaders.failures.table import FailedScene


class Source(ABC):
    """One or more generators, or a queue.

    One thread at a time calls `begin` and `take`. Any thread may call `leave` and `close`, at any moment: a `take` that
    waits then returns or raises soon.

    Attributes:
        afresh: Whether a loop that follows one that was left begins a repetition; else it goes on with the other's.
    """

    afresh: ClassVar[bool] = True

    @abstractmethod
    def begin(self, repetition: int) -> None:
        """Begin a repetition, numbered from 0, afresh; one that still runs is left."""

    @abstractmethod
    def take(self, limit: int) -> list[Any]:
        """The next items in their order, at least 1 and at most `limit`; none at the end of the repetition. Waits.

        What it returns belongs to the caller: arrays are not changed later.

        Raises:
            Exception: What the generator raised, or the error of whoever fills the queue; a note tells the place. The
                items before it have been returned by earlier calls.
            FeedClosedError: The source is closed.
        """

    @abstractmethod
    def leave(self) -> None:
        """The consumer has gone in the middle of a repetition: stop working ahead. Idempotent."""

    def stats(self) -> LoaderStats | None:
        """Counters of the workers that make the items, if there are any."""
        return None

    def issue_warnings(self) -> None:  # noqa: B027 - most sources have none
        """Issue the warnings that wait, here where the user stands."""

    def failures(self) -> list[FailedScene]:
        """What has failed so far and was borne, as `on_error` asks for."""
        return []

    @abstractmethod
    def close(self) -> None:
        """End threads and processes, and free what they hold; idempotent."""
