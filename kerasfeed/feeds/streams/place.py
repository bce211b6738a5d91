"""Places in a stream: small values from which a source, or a feed, goes on.

Invariant: a place says what was given before it, and holds no scene.
"""

from collections.abc import Sequence
from dataclasses import dataclass


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
class Start:
    """Where in a repetition a source begins.

    Attributes:
        items: How many of its items were given before, at least 0.
        departures: The generators that had left by then, in that order.
    """

    items: int = 0
    departures: Sequence[Departure] = ()


BEGINNING = Start()


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
