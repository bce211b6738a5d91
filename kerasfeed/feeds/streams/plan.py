"""The plan of a stream: batches that are announced, one by one, by whoever has read their items.

Invariant: what is announced does not change. A batch that was announced has the same indices for every loader.
"""

import threading
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kerasfeed.orders.base import Order, Sequential
from kerasfeed.orders.plan import Plan


@dataclass(frozen=True, eq=False)
class StreamPlan(Plan):
    """Batches of a stream: an epoch is a repetition, an index the number of an item in it.

    Where there are shards, item k of shard s has the number `k * shard_count + s`, so that no two have the same random
    numbers.

    Attributes:
        length: 0: nobody knows it.
        batch_size: Most scenes in a batch.
        seed: Seed of each scene's `rng`, at least 0.
        pad_remainder: Whether short batches are filled up with their own scenes again.
        readable: Items that are read to infer the spec; at least one before a loader is asked for its spec.
        others: Items that may be read in place of those that fail.
    """

    length: int = 0
    batch_size: int | None = 1
    order: Order = field(default_factory=Sequential)
    readable: list[int] = field(default_factory=list)
    others: list[int] = field(default_factory=list)
    _announced: dict[tuple[int, int], NDArray[np.int64]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def afresh(self) -> "StreamPlan":
        """The same plan, with nothing announced."""
        return StreamPlan(
            batch_size=self.batch_size, order=self.order, seed=self.seed, drop_remainder=self.drop_remainder,
            shard_index=self.shard_index, shard_count=self.shard_count, pad_remainder=self.pad_remainder,
        )  # fmt: skip

    def numbered(self, step: int, items: int) -> NDArray[np.int64]:
        """Indices of the items of a batch, int64[items]."""
        first = step * self.rows
        return np.arange(first, first + items, dtype=np.int64) * self.shard_count + self.shard_index

    def announce(self, epoch: int, step: int, indices: NDArray[np.int64]) -> None:
        """Say which items, int64[B] with 1 <= B <= rows, are batch `step` of a repetition. It may be submitted then."""
        with self._lock:
            self._announced[epoch, step] = indices

    def forget(self, epoch: int, step: int) -> None:
        """The batch will not be submitted (again)."""
        with self._lock:
            self._announced.pop((epoch, step), None)

    @property
    def rows(self) -> int:
        """Most rows a batch can have."""
        return self.batch_size or 1

    @property
    def is_uniform(self) -> bool:
        """Whether every batch has exactly `rows` rows."""
        return self.drop_remainder or self.pad_remainder

    def sizes(self) -> tuple[int, ...]:
        """Numbers of rows that batches may have, as far as that can be known."""
        return (self.rows,) if self.is_uniform else (1, self.rows)

    def indices(self, epoch: int, step: int) -> NDArray[np.int64]:
        """Indices of the items of a batch that was announced, int64[B]; filled up where the plan does so.

        Raises:
            IndexError: It was not.
        """
        with self._lock:
            found = self._announced.get((epoch, step))
        if found is None:
            raise IndexError(f"batch {step} of repetition {epoch} of the stream has not been announced")
        return np.resize(found, self.rows) if self.pad_remainder and len(found) < self.rows else found

    def filler(self, epoch: int, step: int) -> int:
        """How many of the last rows of a batch repeat scenes only to fill it; 0 without `pad_remainder`."""
        return self.rows - self.scenes_of(epoch, step) if self.pad_remainder else 0

    def scenes_of(self, epoch: int, step: int) -> int:
        """How many scenes a batch that was announced has, filler not counted."""
        with self._lock:
            return len(self._announced[epoch, step])

    def probe_indices(self) -> list[int]:
        """Indices of the items that are read to infer the spec."""
        return list(self.readable)

    def other_probes(self) -> list[int]:
        """Indices of the items that are read in place of those that fail."""
        return list(self.others)
