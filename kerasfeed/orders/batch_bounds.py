"""How the positions of an epoch are cut into global batches.

Invariant: pure arithmetic. The number of steps is the same in every epoch, every position that is not dropped is part
of exactly one step, and a batch never mixes buckets.
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
        full: Scenes the batch has when it is not short, at least `stop` - `start`.
    """

    start: int
    stop: int
    full: int


@dataclass(frozen=True)
class Cut:
    """The global batches of an epoch, those of all shards together: consecutive positions of one bucket each.

    Positions go through the buckets one after the other. So do the steps of one bucket, the usual case; those of
    several are shuffled, anew in every epoch.

    Attributes:
        sizes: Positions of each bucket; a bucket of several may be empty.
        rows: Scenes of a global batch of each bucket that is not short, at least 1.
        drop_remainder: Whether each bucket's short last batch is left out.
    """

    sizes: tuple[int, ...]
    rows: tuple[int, ...]
    drop_remainder: bool

    @property
    def is_even(self) -> bool:
        """Whether steps are consecutive positions of the epoch, as many at a time."""
        return len(self.sizes) == 1

    @cached_property
    def _ends(self) -> list[int]:
        """Where the batches of each bucket end among all, before steps are shuffled."""
        counts = (divmod(size, rows) for size, rows in zip(self.sizes, self.rows, strict=True))
        return list(accumulate(whole + (rest > 0 and not self.drop_remainder) for whole, rest in counts))

    @cached_property
    def _sizes(self) -> list[tuple[int, int]]:
        """Scenes that global batches have when full, and those that they really have: each pair that occurs."""
        pairs = []
        for size, rows in zip(self.sizes, self.rows, strict=True):
            if size >= rows:
                pairs.append((rows, rows))
            if size % rows and not self.drop_remainder:
                pairs.append((rows, size % rows))
        return pairs or [(rows, rows) for rows in self.rows]

    @property
    def steps(self) -> int:
        """Number of global batches in an epoch; 0 where dropping short ones leaves none."""
        return self._ends[-1]

    @property
    def full(self) -> int:
        """Scenes of the largest global batch, were it not short."""
        return max(full for full, _ in self._sizes)

    @property
    def largest(self) -> int:
        """Most scenes that a global batch really has."""
        return max(real for _, real in self._sizes)

    @property
    def smallest(self) -> int:
        """Fewest scenes that a global batch really has."""
        return min(real for _, real in self._sizes)

    @property
    def kept(self) -> int:
        """Positions of an epoch that are part of a global batch; all, unless short ones are dropped."""
        dropped = sum(size % rows for size, rows in zip(self.sizes, self.rows, strict=True))
        return sum(self.sizes) - (dropped if self.drop_remainder else 0)

    @property
    def has_one_size(self) -> bool:
        """Whether all global batches have one size, but for those that are short."""
        return len({full for full, _ in self._sizes}) == 1

    def bounds(self, step: int, *, seed: int, epoch: int) -> Bounds:
        """The global batch of a step, in [0, steps)."""
        number, bucket = step, 0
        if not self.is_even:
            number = int(shuffled(step, step + 1, self.steps, seed, (SeedStream.BUCKET_STEP, epoch))[0])
            bucket = bisect_right(self._ends, number)
        place = number - (self._ends[bucket - 1] if bucket else 0)
        rows = self.rows[bucket]
        first = sum(self.sizes[:bucket])
        start = first + place * rows
        return Bounds(start, min(start + rows, first + self.sizes[bucket]), rows)
