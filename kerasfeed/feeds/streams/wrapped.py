"""Sources over a source, which change which of its items come, and when: shards, and a shuffle buffer.

Invariant: everything else is the other's: threads, processes, counters, failures.

Where scenes are dealt to shards, all shards have the same number of batches, and together all scenes but those that
would give only some of the shards one batch more; for every shard runs the same generators, which give the same scenes.
Where each shard has generators of its own, how many batches that were is told.

Which item comes of a shuffle buffer at a position is what `kerasfeed.orders.buffered` says, a function of numbers
alone. So the buffer is filled again at any position, from the source, and no scene is ever kept elsewhere.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import count, islice
from typing import Any

import optree

from kerasfeed.errors import FeedWarning
from kerasfeed.feeds.sharding import Shard
from kerasfeed.feeds.streams.place import BEGINNING, Departure, Start
from kerasfeed.feeds.streams.source import Source
from kerasfeed.loaders.base import LoaderStats
from kerasfeed.loaders.failures.table import FailedScene
from kerasfeed.orders.buffered import BufferShuffled
from kerasfeed.spec.conformance import own_copy
from kerasfeed.util.counted import counted
from kerasfeed.util.resources import memory

_AT_ONCE = 1024  # items that are asked for while the buffer is filled
_LOOKED_AT = 16  # items by which its bytes are estimated


class WrappedSource(Source):
    """A source over another one.

    Attributes:
        source: The other one.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.deferred_warnings = source.deferred_warnings

    @property
    def departures(self) -> Sequence[Departure]:
        """See `Source.departures`."""
        return self.source.departures

    def joined(self, items: int) -> int:
        """See `Source.joined`."""
        return self.source.joined(items)

    def length(self, departures: Sequence[Departure]) -> int | None:
        """See `Source.length`."""
        return self.source.length(departures)

    def leave(self) -> None:
        """See `Source.leave`."""
        self.source.leave()

    def stats(self) -> LoaderStats | None:
        """See `Source.stats`."""
        return self.source.stats()

    def failures(self) -> list[FailedScene]:
        """See `Source.failures`."""
        return self.source.failures()

    def close(self) -> None:
        """See `Source.close`."""
        self.source.close()


class ShardSource(WrappedSource):
    """The items of one shard, of a source over the items of all or over its own."""

    def __init__(self, source: Source, shard: Shard, rows: int, *, whole_batches: bool) -> None:
        """Have the items of one shard.

        Args:
            source: All items, in the same order on each shard; or the shard's own.
            shard: The shard.
            rows: Items of a batch of one shard.
            whole_batches: Whether batches with fewer are dropped.
        """
        super().__init__(source)
        self._shard = shard
        self._rows = rows
        self._whole_batches = whole_batches
        self._given = 0  # items of this repetition
        self._over = True


class DealtSource(ShardSource):
    """Item k of a shard is item `k * shard.count + shard.index` of all."""

    _waiting: list[Any]  # of a round that is not complete yet

    def begin(self, repetition: int, start: Start = BEGINNING) -> None:
        """See `Source.begin`."""
        self._waiting, self._given, self._over = [], start.items, False
        self.source.begin(repetition, Start(self.joined(start.items), start.departures))

    def joined(self, items: int) -> int:
        """See `Source.joined`."""
        return self.source.joined(items * self._shard.count)

    def length(self, departures: Sequence[Departure]) -> int | None:
        """See `Source.length`."""
        length = self.source.length(departures)
        if length is None:
            return None
        rounds, rest = divmod(length, self._shard.count)
        return rounds + (self._shard.index < rest and not self._is_dropped(rounds))

    def take(self, limit: int) -> list[Any]:
        """See `Source.take`."""
        count = self._shard.count
        items: list[Any] = []
        while not items and not self._over:
            found = self.source.take(limit * count - len(self._waiting))
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
        if rest and self._is_dropped(self._given):
            if not self._whole_batches:
                self.deferred_warnings.defer(
                    "dealt",
                    f"the last {counted(len(rest), 'scene')} of a repetition would have given {len(rest)} of "
                    f"{self._shard.count} shards one batch more, and are left out",
                    FeedWarning,
                )
            return []
        return rest[self._shard.index : self._shard.index + 1]

    def _is_dropped(self, rounds: int) -> bool:
        """Whether what comes after so many whole rounds, and is none, is left out."""
        return self._whole_batches or rounds % self._rows == 0


class CountedSource(ShardSource):
    """The items of a shard's own generators, which are counted: nobody knows how many the other shards have."""

    _repetition: int

    def begin(self, repetition: int, start: Start = BEGINNING) -> None:
        """See `Source.begin`."""
        self._given, self._repetition, self._over = start.items, repetition, False
        self.source.begin(repetition, start)

    def take(self, limit: int) -> list[Any]:
        """See `Source.take`."""
        items = self.source.take(limit)
        self._given += len(items)
        if not items and not self._over:
            steps = self._given // self._rows if self._whole_batches else -(-self._given // self._rows)
            self.deferred_warnings.defer(
                "steps",
                f"repetition {self._repetition} had {counted(steps, 'step')} ({counted(self._given, 'scene')}) on "
                f"shard {self._shard}. The others run other generators, and may have more or fewer: a training step "
                "that waits for all shards would then hang. Pass steps_per_epoch to fit, or count=1 for generators "
                "that all shards run, with the scenes dealt in turn, to all the same number of steps",
                FeedWarning,
            )
        return items

    def leave(self) -> None:
        """See `Source.leave`."""
        self._over = True
        super().leave()


class ShuffledSource(WrappedSource):
    """Items of a source, shuffled."""

    def __init__(self, source: Source, order: BufferShuffled, seed: int) -> None:
        """Shuffle the items of `source` in the buffer of `order`."""
        super().__init__(source)
        self._order = order
        self._seed = seed
        self._left = True
        self._limit = 1  # of the items that are asked for
        self._shuffled: Iterator[list[Any]] = iter(())  # holds the buffer

    def begin(self, repetition: int, start: Start = BEGINNING) -> None:
        """See `Source.begin`."""
        size = self._order.buffer_size
        length = self.source.length(start.departures)
        if length is not None and start.items + size <= length:
            length = None  # as far as the buffer is concerned
        first = start.items if length is None else max(0, min(start.items, length - size))
        filled = range(size if length is None else min(length, size))
        places: Mapping[int, int] | None = None  # in the buffer, of the items that it holds at first
        if first:
            held = self._order.held(first, seed=self._seed, epoch=repetition).tolist()
            places = dict(zip(held, filled, strict=True))
            filled = range(min(held), first + size)
        self._left = False
        self._shuffled = self._items(repetition, first, filled, places, start.items - first)
        self.source.begin(repetition, Start(filled.start, start.departures))

    def joined(self, items: int) -> int:
        """See `Source.joined`."""
        return self.source.joined(items + self._order.buffer_size)

    def take(self, limit: int) -> list[Any]:
        """See `Source.take`; the first call of a repetition fills the buffer."""
        self._limit = limit
        return next(self._shuffled, [])

    def leave(self) -> None:
        """See `Source.leave`; nothing of the buffer is kept."""
        self._left = True
        super().leave()
        self._shuffled = iter(())

    def close(self) -> None:
        """See `Source.close`."""
        self.leave()
        super().close()

    def _items(
        self, repetition: int, first: int, filled: range, places: Mapping[int, int] | None, skip: int
    ) -> Iterator[list[Any]]:
        """The items of a repetition, as many at once as are asked for.

        Args:
            repetition: Its number.
            first: How many items had left the buffer when it held those with which it is filled.
            filled: Numbers of the items of the source that are read to fill it.
            places: At which place of the buffer each of those is; those without a place are not kept. None where all
                are, in their order.
            skip: How many items have left since, all of them after the end of the source.
        """
        buffer: dict[int, Any] = {}  # by place: one larger than the data takes no more than the data
        error: Exception | None = None
        try:
            at = filled.start
            while at < filled.stop and (found := self.source.take(min(_AT_ONCE, filled.stop - at))):
                wanted = zip(count(at) if places is None else map(places.get, count(at)), found, strict=False)
                buffer.update((place, own_copy(item)) for place, item in wanted if place is not None)
                at += len(found)
                found.clear()  # see `_exchanged`
                self._estimate(buffer)
            leaving = self._order.places_from(first, seed=self._seed, epoch=repetition)
            while at >= filled.stop and (found := self.source.take(self._limit)):
                yield _exchanged(buffer, leaving, found)
        except Exception as raised:  # noqa: BLE001 - raised after the items that came before it
            error = raised
        if self._left:
            return
        rest = dict(enumerate([buffer.pop(place) for place in sorted(buffer)]))
        order = iter(self._order.rest(len(rest), seed=self._seed, epoch=repetition)[skip:].tolist())
        while numbers := list(islice(order, self._limit)):
            yield [rest.pop(number) for number in numbers]
        try:
            if error is not None:
                raise error
        finally:
            del error  # whose traceback holds this frame

    def _estimate(self, buffer: Mapping[int, Any]) -> None:
        """Warn where the whole buffer will take more than half of the memory."""
        kept = list(islice(buffer.values(), _LOOKED_AT))
        if not kept or self.deferred_warnings.is_known("buffer"):
            return
        nbytes = sum(_nbytes(item) for item in kept) / len(kept) * self._order.buffer_size
        if nbytes > memory() / 2:
            self.deferred_warnings.defer(
                "buffer",
                f"the shuffle buffer of {self._order.buffer_size:,} scenes will take about {nbytes / 1e9:,.1f} GB, of "
                f"{memory() / 1e9:,.1f} GB of memory: pass a smaller shuffle_buffer, or yield what is small and load "
                "it in a map()",
                FeedWarning,
            )


def _exchanged(buffer: dict[int, Any], places: Iterator[int], items: list[Any]) -> list[Any]:
    """Put `items`, which is empty then, into the buffer, each at the next of `places`; what has stood there."""
    leaving = []
    for place, item in zip(islice(places, len(items)), items, strict=True):
        leaving.append(buffer[place])
        buffer[place] = own_copy(item)
    items.clear()  # they may hold the memory of all that came with them
    return leaving


def _nbytes(item: Any) -> int:
    return sum(int(getattr(leaf, "nbytes", 0)) for leaf in optree.tree_leaves(item))
