"""The order of a stream: generators joined in turn, dealt to shards and shuffled, as pure state machines.

Invariant: nothing here waits, starts or reads anything. Which scene comes at a position follows from the numbers of the
generators, from how many scenes each of them has, and from the seed. So the positions of all generators follow from the
number of scenes joined and from the lengths of the generators that have ended.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from kerasfeed.errors import FeedWarning
from kerasfeed.feeds.sharding import Shard
from kerasfeed.orders.buffered import BufferShuffled
from kerasfeed.spec.conformance import own_copy
from kerasfeed.util.deferred_warnings import DeferredWarnings
from kerasfeed.util.error_text import counted


@dataclass(frozen=True)
class StreamPosition:
    """A position in a stream, between two batches.

    Attributes:
        repetition: Number of the repetition, from 0.
        step: The next batch of it, from 0.
        ended: Number and scenes of each generator that had ended when the scenes before were joined.
    """

    repetition: int = 0
    step: int = 0
    ended: tuple[tuple[int, int], ...] = ()


def positions(numbers: Sequence[int], items: int, lengths: Mapping[int, int]) -> dict[int, int]:
    """The next scene of each generator when `items` scenes have been joined in turn.

    Args:
        numbers: All generators, in the order of their turns.
        items: Scenes joined, at least 0.
        lengths: Scenes of the generators whose end is known.

    Returns:
        By generator, without generators that have left; the generator whose turn it is comes first.
    """
    rounds, left, living = 0, items, len(numbers)
    for length in sorted(lengths[n] for n in numbers if n in lengths):
        if left < living * (length - rounds):
            break
        left -= living * (length - rounds)
        rounds, living = length, living - 1
    if not living:
        return {}
    more, left = divmod(left, living)
    rounds += more
    names = [n for n in numbers if lengths.get(n, rounds + 1) > rounds]
    return {**dict.fromkeys(names[left:], rounds), **dict.fromkeys(names[:left], rounds + 1)}


class Lane:
    """One generator of a merge.

    Attributes:
        n: Its number.
        position: The scene that is joined next, from 0.
        length: How many scenes it has; None as long as that is unknown.
        scenes: The scenes that have come and are not joined yet.
        ended: Whether no scene comes after these.
    """

    def __init__(self, n: int, position: int, length: int | None) -> None:
        self.n = n
        self.position = position
        self.length = length
        self.scenes: deque[Any] = deque()
        self.ended = position == length

    @property
    def received(self) -> int:
        """How many scenes have come."""
        return self.position + len(self.scenes)

    def add(self, scenes: Iterable[Any]) -> None:
        """Add scenes that have come; those behind a known end are left out."""
        room = None if self.length is None else self.length - self.received
        self.scenes.extend(islice(scenes, room))
        self.ended = self.ended or self.received == self.length


class Merge:
    """Generators joined scene by scene.

    Attributes:
        lanes: The generators that have not left; the one whose turn it is comes first.
        in_turn: Whether the generators take turns; else any that has a scene gives the next one.
        ended: Number and scenes of the generators that have left, or whose end was known at the beginning.
    """

    def __init__(
        self, numbers: Sequence[int], items: int = 0, ended: Sequence[tuple[int, int]] = (), *, in_turn: bool = True
    ) -> None:
        """Go on when `items` scenes have been joined, and the ends of the generators in `ended` are known."""
        lengths = dict(ended)
        self.lanes = deque(Lane(n, at, lengths.get(n)) for n, at in positions(numbers, items, lengths).items())
        self.in_turn = in_turn
        self.ended = tuple(ended)

    def joined(self, supply: Callable[[Sequence[Lane]], None]) -> Iterator[Any]:
        """Yield the scenes.

        Args:
            supply: Called if the next scene has not come, with the lanes that may give it. It adds scenes to one of
                these, or marks one as ended.
        """
        lanes = self.lanes
        while lanes:
            lane = lanes[0]
            if not self.in_turn:
                lane = next((each for each in lanes if each.scenes or each.ended), lane)
                lanes.rotate(-lanes.index(lane))
            if lane.scenes:
                lane.position += 1
                lanes.rotate(-1)
                yield lane.scenes.popleft()
            elif lane.ended:
                lanes.popleft()
                if lane.length is None:
                    self.ended = (*self.ended, (lane.n, lane.position))
            else:
                supply([lane] if self.in_turn else list(lanes))


def dealt(items: Iterator[Any], shard: Shard, warnings: DeferredWarnings) -> Iterator[Any]:
    """Yield the items of one shard: item `shard.index` of each round of `shard.count` items.

    The items are the same on all shards, so all have the same number. A last round that is not complete is left out,
    and `warnings` say so.
    """
    while len(found := list(islice(items, shard.count))) == shard.count:
        yield found[shard.index]
    if found:
        warnings.defer(
            "dealt",
            f"the last {counted(len(found), 'scene')} of a repetition cannot be dealt to {shard.count} shards evenly, "
            "and are left out",
            FeedWarning,
        )


class Shuffler:
    """Items shuffled in a buffer, as `kerasfeed.orders.buffered` says.

    What the buffer holds at a position follows from numbers alone, so it is filled from the items again, and no state
    holds a scene.

    Attributes:
        first: The first item that is needed.
    """

    def __init__(self, order: BufferShuffled, seed: int, repetition: int, given: int) -> None:
        """Go on behind the first `given` items of a repetition."""
        self._order, self._seed, self._repetition = order, seed, repetition
        # An end within the buffer is not known yet, so the buffer is assumed full at an earlier position.
        self._filled_at = max(0, given - order.buffer_size)
        self._again = given - self._filled_at  # items that come again
        self._places: dict[int, int] | None = None  # of each item of the filled buffer; None: its number
        if self._filled_at:
            held = order.held(self._filled_at, seed=seed, epoch=repetition).tolist()
            self._places = {number: place for place, number in enumerate(held)}
        self.first = min(self._places) if self._places else 0

    def shuffled(self, items: Iterator[Any]) -> Iterator[Any]:
        """Return `items`, which begin with number `first`, shuffled. An error comes after the items before it."""
        return islice(self._shuffled(items), self._again, None)

    def _shuffled(self, items: Iterator[Any]) -> Iterator[Any]:
        buffer: dict[int, Any] = {}  # by place; as large as there are items
        order, seed, epoch = self._order, self._seed, self._repetition
        raised: list[Exception] = []
        try:
            for number, item in enumerate(islice(items, self._filled_at + order.buffer_size - self.first), self.first):
                place = number if self._places is None else self._places.get(number)
                if place is not None:
                    buffer[place] = own_copy(item)
            for item, place in zip(items, order.places_from(self._filled_at, seed=seed, epoch=epoch), strict=False):
                leaving, buffer[place] = buffer[place], own_copy(item)
                yield leaving
        except Exception as error:  # noqa: BLE001 - raised after the items that came before it
            raised.append(error)
        held = [buffer[place] for place in sorted(buffer)]
        for place in order.rest(len(held), seed=seed, epoch=epoch).tolist():
            yield held[place]
        if raised:
            raise raised.pop()  # its traceback holds this frame, which must not hold it
