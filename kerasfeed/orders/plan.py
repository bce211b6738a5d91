"""The plan: the indices of an epoch cut into steps and shards.

Invariant: `Plan.indices(epoch, step)` is integer arithmetic on frozen values. All shards have the same number of
steps, and the union of their indices over an epoch, filler aside, is the unsharded epoch (less what is dropped).
"""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kerasfeed.orders.base import Order, Sequential
from kerasfeed.orders.batch_bounds import Bounds, Cut
from kerasfeed.spec.inference import probe_indices
from kerasfeed.util.error_text import counted


@dataclass(frozen=True)
class Plan:
    """Order, batch size, remainder and shard of a feed.

    A global batch is `batch_size * shard_count` consecutive positions of the order; each shard takes its run of rows.
    So the scenes of a step do not depend on how many shards divide it. A short global batch is divided as evenly as
    it goes.

    Attributes:
        length: Number of scenes in the sequence, at least 1.
        batch_size: Scenes in a batch of one shard; None where every scene is a batch already.
        order: Order of the scenes.
        seed: Seed of the order, at least 0.
        drop_remainder: Whether a step is dropped when it cannot fill every shard's batch.
        shard_index: This shard, in [0, shard_count).
        shard_count: Number of shards, at least 1.
        pad_remainder: Whether short batches are filled up with scenes that count for nothing; see `filler`.
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
    def cut(self) -> Cut:
        """The global batches of an epoch."""
        return self.order.cut(self.length, self.batch_size or 1, self.shard_count, self.drop_remainder)

    @cached_property
    def scenes(self) -> int:
        """Positions in an epoch; `length`, unless the order draws more, fewer, or some again."""
        return self.order.num_scenes(self.length)

    @cached_property
    def rows(self) -> int:
        """Most rows a batch can have."""
        return self.cut.full // self.shard_count if self.pad_remainder else -(-self.cut.largest // self.shard_count)

    @cached_property
    def steps(self) -> int:
        """Number of steps in an epoch, the same for every shard."""
        return self.cut.steps

    @cached_property
    def is_uniform(self) -> bool:
        """Whether every batch has exactly `rows` rows."""
        return self.cut.has_one_size and (self.pad_remainder or self.cut.smallest == self.cut.full)

    def indices(self, epoch: int, step: int) -> NDArray[np.int64]:
        """Indices of the scenes of one step of this shard.

        Args:
            epoch: Epoch number, from 0.
            step: Step number, in [0, steps).

        Returns:
            int64[B], B <= rows; the last `filler(epoch, step)` of them only fill the batch up.

        Raises:
            IndexError: `step` is not in [0, steps).
        """
        bounds = self._bounds(epoch, step)
        start, stop = self._read(bounds)
        found = self.order.indices(start, stop, length=self.length, seed=self.seed, epoch=epoch)
        return self._filled(found, bounds)

    def epoch_indices(self, epoch: int) -> NDArray[np.int64]:
        """Indices of the scenes of all steps of this shard, one step after the other; see `indices`."""
        order = self.order.indices(0, self.scenes, length=self.length, seed=self.seed, epoch=epoch)
        if self.cut.is_even and self.shard_count == 1 and not self.pad_remainder:
            return order[: self.cut.kept]
        cuts = [self._bounds(epoch, step) for step in range(self.steps)]
        return np.concatenate([self._filled(order[slice(*self._read(bounds))], bounds) for bounds in cuts])

    def _read(self, bounds: Bounds) -> tuple[int, int]:
        """First position that this shard reads for a global batch, and the one after the last."""
        first, last = self._own(bounds)
        # Filler is the batch's own scenes again: of the right shape, and cheap to read once more. A shard that has
        # none takes the first of the global batch.
        return (first, last) if first < last or not self.pad_remainder else (bounds.start, bounds.start + 1)

    def _filled(self, found: NDArray[np.int64], bounds: Bounds) -> NDArray[np.int64]:
        rows = bounds.full // self.shard_count
        return np.resize(found, rows) if self.pad_remainder and len(found) < rows else found

    def sizes(self) -> tuple[int, ...]:
        """Numbers of rows that batches of this shard have, as far as they may be told apart, rising."""
        sizes = {self.rows}
        if not self.is_uniform:
            smallest = self.cut.smallest
            sizes |= {max(1, smallest // self.shard_count), max(1, -(-smallest // self.shard_count))}
        return tuple(sorted(sizes))

    def probe_indices(self) -> list[int]:
        """Indices of the few scenes that are read to infer the spec."""
        return probe_indices(self.length)

    def other_probes(self) -> list[int]:
        """Indices to read in place of those that fail, where none can be drawn."""
        return []

    def filler(self, epoch: int, step: int) -> int:
        """How many of the last rows of a batch repeat scenes only to fill it; 0 without `pad_remainder`."""
        if not self.pad_remainder:
            return 0
        return self._bounds(epoch, step).full // self.shard_count - self.scenes_of(epoch, step)

    def scenes_of(self, epoch: int, step: int) -> int:
        """How many scenes one step of this shard has, filler not counted; costs no order."""
        first, last = self._own(self._bounds(epoch, step))
        return last - first

    def _bounds(self, epoch: int, step: int) -> Bounds:
        if not 0 <= step < self.steps:
            raise IndexError(
                f"step {step} is out of range: an epoch has {counted(self.steps, 'step')}, 0 to {self.steps - 1}"
            )
        return self.cut.bounds(step, seed=self.seed, epoch=epoch)

    def _own(self, bounds: Bounds) -> tuple[int, int]:
        """First position of this shard's part of a global batch, and the one after the last."""
        count = bounds.stop - bounds.start
        first = self.shard_index * count // self.shard_count
        last = (self.shard_index + 1) * count // self.shard_count
        return bounds.start + first, bounds.start + last
