"""Sources over a source, which change which of its items come, and when: shards, and a shuffle buffer.

Invariant: everything else is the other's: threads, processes, counters, failures.

Where scenes are dealt to shards, all shards have the same number of batches, and together all scenes but those that
would give only some of the shards one batch more; for every shard runs the same generators, which give the same scenes.

Which item comes of a shuffle buffer at a position is what `kerasfeed.orders.buffered` says, a function of numbers
alone. So the buffer is filled again at any position, from the source, and no scene is ever kept elsewhere.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import optree

from kerasfeed.errors import FeedWarning
from kerasfeed.feeds.sharding import Shard
from kerasfeed.feeds.streams.source import Departure, Source
from kerasfeed.loaders.base import LoaderStats
from kerasfeed.loaders.failures.table import FailedScene
from kerasfeed.orders.buffered import BufferShuffled
from kerasfeed.spec.conformance import own_copy
from kerasfeed.util.error_text import counted
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
        self.is_share = source.is_share
        self.deferred_warnings = source.deferred_warnings

    @property
    def departures(self) -> Sequence[Departure]:
        """See `Source.departures`."""
        return self.source.departures

    def joined(self, items: int) -> int:
        """See `Source.joined`."""
        return self.source.joined(items)

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


class DealtSource(WrappedSource):
    """Item k of a shard is item `k * shard.count + shard.index` of all, which come in the same order on each shard."""

    def __init__(self, source: Source, shard: Shard, rows: int, *, whole_batches: bool) -> None:
        """Have the items of one shard.

        Args:
            source: All items.
            shard: The shard.
            rows: Items of a batch of one shard.
            whole_batches: Whether batches with fewer are dropped.
        """
        super().__init__(source)
        self._shard = shard
        self._rows = rows
        self._whole_batches = whole_batches
        self._waiting: list[Any] = []  # of a round that is not complete yet
        self._given = 0  # items of this repetition
        self._over = True

    def begin(self, repetition: int, items: int = 0, departures: Sequence[Departure] = ()) -> None:
        """See `Source.begin`."""
        self._waiting, self._given, self._over = [], items, False
        self.source.begin(repetition, self.joined(items), departures)

    def joined(self, items: int) -> int:
        """See `Source.joined`."""
        return self.source.joined(items * self._shard.count)

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
        if rest and (self._whole_batches or self._given % self._rows == 0):
            if not self._whole_batches:
                self.deferred_warnings.defer(
                    "dealt",
                    f"the last {counted(len(rest), 'scene')} of a repetition would have given {len(rest)} of "
                    f"{self._shard.count} shards one batch more, and are left out",
                    FeedWarning,
                )
            return []
        return rest[self._shard.index : self._shard.index + 1]


class ShuffledSource(WrappedSource):
    """Items of a source, shuffled."""

    def __init__(self, source: Source, order: BufferShuffled, seed: int) -> None:
        """Shuffle the items of `source` in the buffer of `order`."""
        super().__init__(source)
        self._order = order
        self._seed = seed
        self._begun: tuple[int, int, Sequence[Departure]] = (0, 0, ())  # how `begin` was called last
        self._left = True
        self._buffer: dict[int, Any] = {}  # by place
        self._places: Iterator[int] = iter(())
        # Place, by number, of each item with which the buffer is still to be filled; None: the place is the number.
        self._wanted: dict[int, int] | None = None
        self._read = 0  # number of the item of the source that comes next
        self._until = 0  # number of the item behind the last one with which the buffer is filled
        self._rest: list[Any] | None = None  # when the source has ended, what is left, the last one first
        self._skip = 0  # items that come, and have been given before
        self._error: Exception | None = None  # of the source; raised after the items that came before it

    def begin(self, repetition: int, items: int = 0, departures: Sequence[Departure] = ()) -> None:
        """See `Source.begin`."""
        size = self._order.buffer_size
        # Where the source ends within the buffer is not known yet: so long before, it has not.
        first = max(0, items - size)
        self._buffer = {}  # which takes no more than there is, however large it may be
        self._wanted = None
        if first:
            held = self._order.held(first, seed=self._seed, epoch=repetition).tolist()
            self._wanted = {number: place for place, number in enumerate(held)}
        self._begun = repetition, items, departures
        self._left = False
        self._skip = items - first
        self._until = first + size
        self._places = self._order.places_from(first, seed=self._seed, epoch=repetition)
        self._rest, self._error = None, None
        self._read = min(self._wanted) if self._wanted else 0
        self.source.begin(repetition, self._read, departures)

    def joined(self, items: int) -> int:
        """See `Source.joined`."""
        return self.source.joined(items + self._order.buffer_size)

    def take(self, limit: int) -> list[Any]:
        """See `Source.take`; the first call of a repetition fills the buffer."""
        try:
            self._fill()
            while self._skip and (left := len(self._take(min(self._skip, _AT_ONCE)))):
                self._skip -= left
        except KeyboardInterrupt:  # what had come, and has no place, is lost
            self.begin(*self._begun)
            raise
        return self._take(limit)

    def _take(self, limit: int) -> list[Any]:
        buffer = self._buffer  # `leave` lets go of it, in any thread
        if self._rest is None and not self._left:
            items = []
            for item in self._next(limit):
                place = next(self._places)
                items.append(buffer[place])
                buffer[place] = own_copy(item)
            if items:
                return items
        rest = self._rest
        if self._left or rest is None:
            return []
        if rest:
            items = rest[: -limit - 1 : -1]
            del rest[-limit:]
            return items
        if self._error is None:
            return []
        raised, self._error = [self._error], None
        raise raised.pop()  # whose traceback holds this frame, which must not hold it

    def leave(self) -> None:
        """See `Source.leave`; nothing of the buffer is kept."""
        self._left = True
        super().leave()
        self._buffer, self._rest = {}, None

    def _next(self, limit: int) -> list[Any]:
        """The next items of the source; none where it has ended, and what is left is put in order then."""
        try:
            found = self.source.take(limit)
        except Exception as error:  # noqa: BLE001 - raised after the items that came before it
            self._error, found = error, []
        self._read += len(found)
        if not found and not self._left:
            held = [self._buffer[place] for place in sorted(self._buffer)]
            order = self._order.rest(len(held), seed=self._seed, epoch=self._begun[0])
            self._rest = [held[place] for place in order[::-1].tolist()]
            self._buffer = {}
        return found

    def _fill(self) -> None:
        """Fill the buffer with the items that it holds where the repetition begins; those between are not kept."""
        buffer = self._buffer  # `leave` lets go of it, in any thread
        while self._read < self._until and self._rest is None and not self._left:
            number = self._read
            for item in self._next(min(_AT_ONCE, self._until - number)):
                place = number if self._wanted is None else self._wanted.pop(number, None)
                if place is not None:
                    buffer[place] = own_copy(item)
                number += 1
            self._estimate()

    def _estimate(self) -> None:
        """Warn where the whole buffer will take more than half of the memory."""
        kept = list(islice(self._buffer.values(), _LOOKED_AT))
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


def _nbytes(item: Any) -> int:
    return sum(int(getattr(leaf, "nbytes", 0)) for leaf in optree.tree_leaves(item))
