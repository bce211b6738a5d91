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

import optree

from kerasfeed.errors import FeedWarning
from kerasfeed.feeds.sharding import Shard
from kerasfeed.orders.buffered import BufferShuffled
from kerasfeed.spec.conformance import own_copy
from kerasfeed.util.deferred_warnings import DeferredWarnings
from kerasfeed.util.error_text import counted
from kerasfeed.util.resources import memory

_AT_ONCE = 1024  # items requested at a time while the buffer is filled
_SAMPLE = 16  # items that are measured to estimate the bytes of the buffer

# Returns the next items, at least 1 and at most so many; none at the end. May raise what made them raised.
Take = Callable[[int], list[Any]]


class Left(Exception):
    """Internal: the consumer has left the repetition, so no more items come."""


@dataclass(frozen=True)
class StreamPosition:
    """A position in a stream, between two batches.

    Attributes:
        repetition: Number of the repetition, from 0.
        step: The next batch of it, from 0.
        ended: Number and scenes of each generator that had ended, or failed, when the scenes before were joined.
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
        ended: Number and scenes of the generators that have left, or whose end was known at the beginning.
    """

    def __init__(
        self, numbers: Sequence[int], items: int = 0, ended: Sequence[tuple[int, int]] = (), *, in_turn: bool = True
    ) -> None:
        """Go on when `items` scenes have been joined, and the ends of the generators in `ended` are known.

        With `in_turn=False`, any generator that has a scene gives the next one.
        """
        lengths = dict(ended)
        self.lanes = deque(Lane(n, at, lengths.get(n)) for n, at in positions(numbers, items, lengths).items())
        self.ended = tuple(ended)
        self._in_turn = in_turn

    def take(self, limit: int) -> list[Any]:
        """The next scenes as far as they have come, at most `limit`."""
        items: list[Any] = []
        lanes = self.lanes
        while lanes and len(items) < limit:
            lane = lanes[0]
            if not self._in_turn:
                ready = (each for each in lanes if each.scenes or each.ended)
                lane = next(ready, lane)
                lanes.rotate(-lanes.index(lane))
            if lane.scenes:
                items.append(lane.scenes.popleft())
                lane.position += 1
                lanes.rotate(-1)
            elif lane.ended:
                self.drop(lane)
            else:
                break
        return items

    def drop(self, lane: Lane) -> None:
        """`lane` leaves the rotation: it has ended, or failed."""
        self.lanes.remove(lane)
        if lane.length != lane.position:
            self.ended = (*(each for each in self.ended if each[0] != lane.n), (lane.n, lane.position))


class Dealer:
    """Items of one shard: item k is item `k * shard.count + shard.index` of all, which are the same on each shard.

    All shards have the same number of batches, and together all items, except a last round that would give only
    some of the shards one batch more.
    """

    def __init__(
        self, take: Take, shard: Shard, rows: int, given: int, warnings: DeferredWarnings, *, whole_batches: bool
    ) -> None:
        """Deal the items of `take`.

        Args:
            take: Gives all items, from the first one of a round on.
            shard: The shard.
            rows: Items of a batch of one shard.
            given: Items of this repetition that the shard was given before.
            warnings: Where left out items are reported.
            whole_batches: Whether batches with fewer items are dropped.
        """
        self._take, self._shard, self._rows, self._given = take, shard, rows, given
        self._warnings, self._whole_batches = warnings, whole_batches
        self._waiting: list[Any] = []  # of a round that is not complete yet
        self._over = False

    def take(self, limit: int) -> list[Any]:
        """See `Take`."""
        count = self._shard.count
        items: list[Any] = []
        while not items and not self._over:
            found = self._take(limit * count - len(self._waiting))
            waiting = self._waiting + found
            rounds = len(waiting) // count
            items = waiting[self._shard.index : rounds * count : count]
            self._waiting = waiting[rounds * count :]
            if not found:
                self._over = True
                items = self._last_round()
        self._given += len(items)
        return items

    def _last_round(self) -> list[Any]:
        rest, self._waiting = self._waiting, []
        if not rest or not (self._whole_batches or self._given % self._rows == 0):
            return rest[self._shard.index : self._shard.index + 1]
        if not self._whole_batches:
            self._warnings.defer(
                "dealt",
                f"the last {counted(len(rest), 'scene')} of a repetition would have given {len(rest)} of "
                f"{self._shard.count} shards one batch more, and are left out",
                FeedWarning,
            )
        return []


class Shuffler:
    """Items shuffled in a buffer, as `kerasfeed.orders.buffered` says.

    What the buffer holds at a position follows from numbers alone, so it is filled from the items again, and no state
    holds a scene.

    Attributes:
        first: The first item that is needed.
    """

    def __init__(
        self, order: BufferShuffled, seed: int, repetition: int, given: int, warnings: DeferredWarnings
    ) -> None:
        """Go on behind the first `given` items of a repetition; a buffer that will be too large is reported."""
        self._order, self._seed, self._repetition, self._warnings = order, seed, repetition, warnings
        size = order.buffer_size
        # An end within the buffer is not known yet, so the buffer is assumed full `size` items before.
        filled_at = max(0, given - size)
        self._skip = given - filled_at  # items that come again
        self._until = filled_at + size  # the item behind the last one of the filled buffer
        self._buffer: dict[int, Any] = {}  # by place; as large as there are items
        self._wanted: dict[int, int] | None = None  # place of each item of the filled buffer; None: its number
        if filled_at:
            held = order.held(filled_at, seed=seed, epoch=repetition).tolist()
            self._wanted = {number: place for place, number in enumerate(held)}
        self.first = self._number = min(self._wanted) if self._wanted else 0
        self._places: Iterator[int] = order.places_from(filled_at, seed=seed, epoch=repetition)
        self._rest: list[Any] | None = None  # the items left after the end, the last one first
        self._error: Exception | None = None  # raised after the items before it

    def shuffled(self, take: Take) -> Take:
        """The items of `take`, which gives them from item `first` on, shuffled."""

        def next_items(limit: int) -> list[Any]:
            self._fill(take)
            while self._skip and (again := len(self._next(take, min(self._skip, _AT_ONCE)))):
                self._skip -= again
            return self._next(take, limit)

        return next_items

    def _next(self, take: Take, limit: int) -> list[Any]:
        if self._rest is None:
            items = []
            for item in self._read(take, limit):
                place = next(self._places)
                items.append(self._buffer[place])
                self._buffer[place] = own_copy(item)
            if items:
                return items
        rest = self._rest or []
        items = rest[: -limit - 1 : -1]
        del rest[-limit:]
        if not items and self._error is not None:
            raised, self._error = [self._error], None
            raise raised.pop()  # its traceback holds this frame, which must not hold it
        return items

    def _read(self, take: Take, limit: int) -> list[Any]:
        """The next items; at their end, the items left in the buffer are put in order."""
        try:
            found = take(limit)
        except Left:
            raise
        except Exception as error:  # noqa: BLE001 - raised after the items that came before it
            self._error, found = error, []
        self._number += len(found)
        if not found:
            held = [self._buffer[place] for place in sorted(self._buffer)]
            order = self._order.rest(len(held), seed=self._seed, epoch=self._repetition)
            self._rest = [held[place] for place in order[::-1].tolist()]
            self._buffer = {}
        return found

    def _fill(self, take: Take) -> None:
        while self._number < self._until and self._rest is None:
            number = self._number
            for item in self._read(take, min(_AT_ONCE, self._until - number)):
                place = number if self._wanted is None else self._wanted.pop(number, None)
                if place is not None:
                    self._buffer[place] = own_copy(item)
                number += 1
            self._warn_if_large()

    def _warn_if_large(self) -> None:
        """Warn if the full buffer will take more than half of the memory."""
        kept = list(islice(self._buffer.values(), _SAMPLE))
        if not kept or self._warnings.is_known("buffer"):
            return
        size = self._order.buffer_size
        leaves: list[Any] = optree.tree_leaves(kept)  # type: ignore[arg-type]
        nbytes = sum(int(getattr(leaf, "nbytes", 0)) for leaf in leaves) / len(kept) * size
        if nbytes > memory() / 2:
            self._warnings.defer(
                "buffer",
                f"the shuffle buffer of {size:,} scenes will take about {nbytes / 1e9:,.1f} GB, of "
                f"{memory() / 1e9:,.1f} GB of memory: pass a smaller shuffle_buffer, or yield names and load "
                "scenes in a map()",
                FeedWarning,
            )
