"""Shards of a stream: `DealtSource` for scenes that are dealt one by one, `CountedSource` for generators of its own.

Invariant: where scenes are dealt, all shards have the same number of batches, and together all scenes but those that
would give only some of the shards one batch more; for every shard runs the same generators, which give the same scenes.
Where each shard has generators of its own, how many batches that were is told.
"""

from collections.abc import Sequence
from typing import Any

from kerasfeed.errors import FeedWarning
from kerasfeed.feeds.sharding import Shard
from kerasfeed.feeds.streams.place import BEGINNING, Departure, Start
from kerasfeed.feeds.streams.source import Source
from kerasfeed.feeds.streams.wrapped import WrappedSource
from kerasfeed.util.counted import counted


class DealtSource(WrappedSource):
    """Item k of a shard is item `k * shard.count + shard.index` of all."""

    def __init__(self, source: Source, shard: Shard, rows: int, *, whole_batches: bool) -> None:
        """Deal the items of `source`.

        Args:
            source: All items, in the same order on each shard.
            shard: The shard that gets them.
            rows: Items of a batch of one shard.
            whole_batches: Whether batches with fewer are dropped.
        """
        super().__init__(source)
        self._shard = shard
        self._rows = rows
        self._whole_batches = whole_batches
        self._waiting: list[Any] = []  # of a round that is not complete yet
        self._given = 0
        self._over = False

    def begin(self, repetition: int, start: Start = BEGINNING) -> None:
        """See `Source.begin`."""
        self._waiting, self._over = [], False
        self._given = start.items
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


class CountedSource(WrappedSource):
    """The items of a shard's own generators, which are counted: nobody knows how many the other shards have."""

    def __init__(self, source: Source, shard: Shard, rows: int, *, whole_batches: bool) -> None:
        """Count the items of `source`; see `DealtSource` for the arguments."""
        super().__init__(source)
        self._shard = shard
        self._rows = rows
        self._whole_batches = whole_batches
        self._given = 0
        self._repetition = 0
        self._left = False

    def begin(self, repetition: int, start: Start = BEGINNING) -> None:
        """See `Source.begin`."""
        self._given, self._repetition, self._left = start.items, repetition, False
        self.source.begin(repetition, start)

    def take(self, limit: int) -> list[Any]:
        """See `Source.take`."""
        items = self.source.take(limit)
        self._given += len(items)
        if not items and not self._left:
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
        self._left = True
        super().leave()
