"""The `Source` protocol: where the items of a stream come from; and places, from which one goes on.

Invariant: items come in their order, repetition after repetition, to one thread at a time. An item is a whole scene,
or, where a function makes scenes of items (`map`), whatever that function takes. A place says what was given before it,
and holds no scene.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kerasfeed.loaders.base import LoaderStats
from kerasfeed.loaders.failures.table import FailedScene
from kerasfeed.util.deferred_warnings import DeferredWarnings


@dataclass(frozen=True)
class Departure:
    """A generator that has left a repetition: it has ended, or failed.

    Attributes:
        n: Its number.
        items: How many scenes of all generators had been joined before.
    """

    n: int
    items: int


@dataclass(frozen=True)
class StreamPlace:
    """Where a consumer stands in a stream.

    Attributes:
        repetition: Its number, from 0.
        step: The batch of it that is next, from 0.
        departures: The generators that have left; more of them than had left at this place do no harm.
    """

    repetition: int = 0
    step: int = 0
    departures: Sequence[Departure] = ()


class Source(ABC):
    """One or more generators.

    One thread at a time calls `begin` and `take`. Any thread may call `leave` and `close`, at any moment: a `take` that
    waits then returns or raises soon.

    Attributes:
        is_share: Whether other shards have generators of their own, so that nobody knows how many items they get.
        deferred_warnings: What the user is to be told of it.
    """

    is_share: bool = False
    deferred_warnings: DeferredWarnings

    @abstractmethod
    def begin(self, repetition: int, items: int = 0, departures: Sequence[Departure] = ()) -> None:
        """Begin a repetition, numbered from 0, afresh; one that still runs is left.

        Args:
            repetition: Its number.
            items: How many of its items were given before, at least 0.
            departures: The generators that had left by then, in that order.
        """

    @abstractmethod
    def take(self, limit: int) -> list[Any]:
        """The next items in their order, at least 1 and at most `limit`; none at the end of the repetition. Waits.

        What it returns belongs to the caller: arrays are not changed later.

        Raises:
            Exception: What the generator raised; a note names the generator and the scene. The
                items before it have been returned by earlier calls.
            FeedClosedError: The source is closed.
        """

    @property
    def departures(self) -> Sequence[Departure]:
        """The generators that have left this repetition so far; the same list until `begin`, which grows."""
        return ()

    def joined(self, items: int) -> int:
        """How many scenes of all generators are joined, at most, to give the first `items` items."""
        return items

    @abstractmethod
    def leave(self) -> None:
        """The consumer has gone: stop working ahead. Idempotent; called also behind the end, and before any `begin`."""

    def stats(self) -> LoaderStats | None:
        """Counters of the workers that make the items, if there are any."""
        return None

    def failures(self) -> list[FailedScene]:
        """What has failed so far and was borne, as `on_error` asks for."""
        return []

    @abstractmethod
    def close(self) -> None:
        """End threads and processes, and free what they hold; idempotent."""
