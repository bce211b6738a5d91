"""The plan: the indices of an epoch cut into steps and shards.

Invariant: `Plan.indices(epoch, step)` is integer arithmetic on frozen values. All shards have the same number of
steps, and the union of their indices over an epoch is the unsharded epoch (less the remainder, when dropped).
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from kerasfeed.order import Order, Sequential


@dataclass(frozen=True)
class Plan:
    """Order, batch size, remainder and shard of a feed.

    A global batch is `batch_size * shard_count` consecutive positions of the order; each shard takes its run of rows.
    So the scenes of a step do not depend on how many shards divide it.

    Attributes:
        length: Number of scenes in the sequence, at least 1.
        batch_size: Scenes in a batch of one shard; None where every scene is a batch already.
        order: Order of the scenes.
        seed: Seed of the order, at least 0.
        drop_remainder: Whether the last step is dropped when it cannot fill every shard's batch.
        shard_index: This shard, in [0, shard_count).
        shard_count: Number of shards, at least 1.
    """

    length: int
    batch_size: int | None
    order: Order = field(default_factory=Sequential)
    seed: int = 0
    drop_remainder: bool = False
    shard_index: int = 0
    shard_count: int = 1

    @property
    def rows(self) -> int:
        """Most rows a batch can have."""
        return min(self.batch_size or 1, -(-self.length // self.shard_count))

    @property
    def _global_rows(self) -> int:
        return (self.batch_size or 1) * self.shard_count

    @property
    def remainder(self) -> int:
        """Scenes left over after the full steps, in [0, batch_size * shard_count)."""
        return self.length % self._global_rows

    @property
    def steps(self) -> int:
        """Number of steps in an epoch, the same for every shard."""
        full = self.length // self._global_rows
        return full if self.drop_remainder or not self.remainder else full + 1

    @property
    def is_uniform(self) -> bool:
        """Whether every batch has exactly `rows` rows."""
        return self.drop_remainder or not self.remainder

    def indices(self, epoch: int, step: int) -> NDArray[np.int64]:
        """Indices of the scenes of one step of this shard.

        Args:
            epoch: Epoch number, from 0.
            step: Step number, in [0, steps).

        Returns:
            int64[B], B <= batch_size.

        Raises:
            IndexError: `step` is not in [0, steps).
        """
        if not 0 <= step < self.steps:
            raise IndexError(f"step {step} is out of range: an epoch has {self.steps} steps, 0 to {self.steps - 1}")
        start = step * self._global_rows
        count = min(self._global_rows, self.length - start)
        if count == self._global_rows:
            first, last = self.shard_index * self.rows, (self.shard_index + 1) * self.rows
        else:  # the remainder, divided as evenly as it goes
            first = self.shard_index * count // self.shard_count
            last = (self.shard_index + 1) * count // self.shard_count
        return self.order.indices(start + first, start + last, length=self.length, seed=self.seed, epoch=epoch)
