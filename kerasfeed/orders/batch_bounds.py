"""Divide the positions of an epoch into global batches.

Invariant: pure arithmetic. Every epoch has the same number of steps, every position that is not dropped is part of
exactly one step, and a batch never mixes buckets.
"""

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from kerasfeed.orders.permutation import shuffled
from kerasfeed.util.seed_streams import SeedStream


@dataclass(frozen=True)
class Bounds:
    """One global batch.

    Attributes:
        start: First position, inclusive.
        stop: Last position, exclusive; at least `start` + 1.
        full: Number of scenes of a batch that is not short, at least `stop` - `start`.
    """

    start: int
    stop: int
    full: int


@dataclass(frozen=True)
class Cut:
    """The global batches of an epoch, for all shards together. Each has consecutive positions of one bucket.

    Positions go through the buckets one after the other. If there are several buckets, the steps are shuffled again in
    every epoch. If there is one, the usual case, steps go through the positions in order.

    Attributes:
        sizes: Number of positions in each bucket; one of several buckets may be empty.
        rows: Number of scenes in a full global batch of each bucket, at least 1.
        drop_remainder: Whether the short last batch of each bucket is dropped.
    """

    sizes: tuple[int, ...]
    rows: tuple[int, ...]
    drop_remainder: bool

    @property
    def is_even(self) -> bool:
        """Whether steps are consecutive positions of the epoch, all of one size."""
        return len(self.sizes) == 1

    @cached_property
    def _ends(self) -> list[int]:
        """Cumulative numbers of batches of the buckets, before shuffling."""
        counts = (divmod(size, rows) for size, rows in zip(self.sizes, self.rows, strict=True))
        return list(accumulate(whole + (rest > 0 and not self.drop_remainder) for whole, rest in counts))

    @cached_property
    def _sizes(self) -> list[tuple[int, int]]:
        """All pairs (scenes of a full batch, scenes of the batch)."""
        pairs = []
        for size, rows in zip(self.sizes, self.rows, strict=True):
            if size >= rows:
                pairs.append((rows, rows))
            if size % rows and not self.drop_remainder:
                pairs.append((rows, size % rows))
        return pairs or [(rows, rows) for rows in self.rows]

    @property
    def steps(self) -> int:
        """Number of global batches in an epoch; 0 if all are short and dropped."""
        return self._ends[-1]

    @property
    def full(self) -> int:
        """Number of scenes in the largest global batch if it is full."""
        return max(full for full, _ in self._sizes)

    @property
    def largest(self) -> int:
        """Largest number of scenes in a global batch."""
        return max(real for _, real in self._sizes)

    @property
    def smallest(self) -> int:
        """Smallest number of scenes in a global batch."""
        return min(real for _, real in self._sizes)

    @property
    def kept(self) -> int:
        """Number of positions that are part of a global batch; all, unless short batches are dropped."""
        dropped = sum(size % rows for size, rows in zip(self.sizes, self.rows, strict=True))
        return sum(self.sizes) - (dropped if self.drop_remainder else 0)

    @property
    def has_one_size(self) -> bool:
        """Whether all global batches have one size, short ones aside."""
        return len({full for full, _ in self._sizes}) == 1

    def bounds(self, step: int, *, seed: int, epoch: int) -> Bounds:
        """Return the global batch of a step in [0, steps)."""
        number, bucket = step, 0
        if not self.is_even:
            number = int(shuffled(step, step + 1, self.steps, seed, (SeedStream.BUCKET_STEP, epoch))[0])
            bucket = bisect_right(self._ends, number)
        batch = number - (self._ends[bucket - 1] if bucket else 0)
        rows = self.rows[bucket]
        first = sum(self.sizes[:bucket])
        start = first + batch * rows
        return Bounds(start, min(start + rows, first + self.sizes[bucket]), rows)
