"""The plan: the indices of an epoch divided into steps and shards.

Invariant: `Plan.indices(epoch, step)` is a pure function of frozen values. All shards have the same number of steps.
The union of their indices over an epoch, without padding rows, is the unsharded epoch without dropped scenes.
"""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kerasfeed.orders.base import Bounds, EpochBatches, Order, Sequential
from kerasfeed.spec.inference import probe_indices
from kerasfeed.util.error_text import pluralize


@dataclass(frozen=True)
class Plan:
    """Order, batch size, remainder and shard of a feed.

    A global batch is `batch_size * shard_count` consecutive positions of the order; each shard takes its part. So the
    number of shards does not change the scenes of a step. A short global batch is divided as evenly as possible.

    Attributes:
        length: Number of scenes in the sequence, at least 1.
        batch_size: Scenes in a batch of one shard; None if every scene is a batch already.
        order: Order of the scenes.
        seed: Seed of the order, at least 0.
        drop_remainder: Whether a step is dropped when it cannot fill every shard's batch.
        shard_index: This shard, in [0, shard_count).
        shard_count: Number of shards, at least 1.
        pad_remainder: Whether short batches are filled up with repeated scenes, whose sample weight is 0.
    """

    length: int
    batch_size: int | None
    order: Order = field(default_factory=Sequential)
    seed: int = 0
    drop_remainder: bool = False
    shard_index: int = 0
    shard_count: int = 1
    pad_remainder: bool = False

    @cached_property
    def batches(self) -> EpochBatches:
        """The global batches of an epoch."""
        return self.order.batches(self.length, self.batch_size or 1, self.shard_count, self.drop_remainder)

    @cached_property
    def scenes(self) -> int:
        """Number of positions in an epoch."""
        return self.order.num_scenes(self.length)

    @cached_property
    def rows(self) -> int:
        """Largest number of rows of a batch, with padding rows."""
        if self.pad_remainder:
            return self.batches.full // self.shard_count
        return -(-self.batches.largest // self.shard_count)

    @cached_property
    def steps(self) -> int:
        """Number of steps in an epoch, the same for every shard."""
        return self.batches.steps

    @cached_property
    def is_uniform(self) -> bool:
        """Whether every batch has exactly `rows` rows."""
        return self.batches.has_one_size and (self.pad_remainder or self.batches.smallest == self.batches.full)

    def indices(self, epoch: int, step: int) -> NDArray[np.int64]:
        """Return the indices of the scenes in one step of this shard.

        Args:
            epoch: Epoch number, from 0.
            step: Step number, in [0, steps).

        Returns:
            int64[B], B <= rows; the last `padding_rows(epoch, step)` of them only fill up the batch.

        Raises:
            IndexError: `step` is not in [0, steps).
        """
        bounds = self._bounds(epoch, step)
        start, stop = self._read(bounds)
        indices = self.order.indices(start, stop, length=self.length, seed=self.seed, epoch=epoch)
        return self._filled(indices, bounds)

    def epoch_indices(self, epoch: int) -> NDArray[np.int64]:
        """Return the indices of all steps of this shard; see `indices`."""
        order = self.order.indices(0, self.scenes, length=self.length, seed=self.seed, epoch=epoch)
        if self.batches.is_even and self.shard_count == 1 and not self.pad_remainder:
            return order[: self.batches.kept]
        cuts = [self._bounds(epoch, step) for step in range(self.steps)]
        return np.concatenate([self._filled(order[slice(*self._read(bounds))], bounds) for bounds in cuts])

    def _read(self, bounds: Bounds) -> tuple[int, int]:
        """Return the range of positions that this shard reads: (start, stop)."""
        first, last = self._own(bounds)
        # A batch is filled with its own scenes: they have the right shape and are cheap to read again. A shard
        # without scenes is filled with the first scene of the global batch.
        return (first, last) if first < last or not self.pad_remainder else (bounds.start, bounds.start + 1)

    def _filled(self, indices: NDArray[np.int64], bounds: Bounds) -> NDArray[np.int64]:
        rows = bounds.full // self.shard_count
        return np.resize(indices, rows) if self.pad_remainder and len(indices) < rows else indices

    def sizes(self) -> tuple[int, ...]:
        """Return the possible largest and smallest numbers of rows, ascending."""
        sizes = {self.rows}
        if not self.is_uniform:
            smallest = self.batches.smallest
            sizes |= {max(1, smallest // self.shard_count), max(1, -(-smallest // self.shard_count))}
        return tuple(sorted(sizes))

    def probe_indices(self) -> list[int]:
        """Return the indices of scenes to read to infer the spec."""
        return probe_indices(self.length)

    def other_probes(self) -> list[int]:
        """Return indices to read if `probe_indices` fail: none in a plan."""
        return []

    def padding_rows(self, epoch: int, step: int) -> int:
        """Return the number of padding rows at the end of a batch."""
        if not self.pad_remainder:
            return 0
        return self._bounds(epoch, step).full // self.shard_count - self.scenes_of(epoch, step)

    def scenes_of(self, epoch: int, step: int) -> int:
        """Return the number of scenes, without padding rows, in this shard's step."""
        first, last = self._own(self._bounds(epoch, step))
        return last - first

    def _bounds(self, epoch: int, step: int) -> Bounds:
        if not 0 <= step < self.steps:
            raise IndexError(
                f"step {step} is out of range: an epoch has {pluralize(self.steps, 'step')}, 0 to {self.steps - 1}"
            )
        return self.batches.bounds(step, seed=self.seed, epoch=epoch)

    def _own(self, bounds: Bounds) -> tuple[int, int]:
        """Return this shard's range of positions in a global batch: (start, stop)."""
        count = bounds.stop - bounds.start
        first = self.shard_index * count // self.shard_count
        last = (self.shard_index + 1) * count // self.shard_count
        return bounds.start + first, bounds.start + last
