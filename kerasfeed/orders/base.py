"""Orders: the index at each position of an epoch, and global batches.

Invariant: an order is a pure function of (length, seed, epoch). Any process may compute any positions at any time, and
always gets the same indices. Every epoch has the same number of steps, every position that is not dropped is part of
exactly one step, and a batch never mixes buckets.
"""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from kerasfeed.orders.permutation import shuffled
from kerasfeed.spec.inference import probe_indices
from kerasfeed.util.seed_streams import SeedStream
from kerasfeed.util.validate import check_integer

_RUNS, _RUN = 64, 1024  # `mixing` reads 64 runs of up to 1,024 positions: 5 ms
_SIMULATED = 200_000  # positions that `block_reads` follows: 0.1 s


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
class EpochBatches:
    """The global batches of an epoch, for all shards together.

    Each batch has consecutive positions of one bucket, and the buckets divide an epoch into consecutive ranges. With
    several buckets, the steps are shuffled again in every epoch. With one bucket, the usual case, the steps follow the
    positions.

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
        """Whether there is one bucket, so that steps follow the positions."""
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
        """Number of global batches in an epoch.

        0 if all are short and dropped.
        """
        return self._ends[-1]

    @property
    def full(self) -> int:
        """Largest number of scenes in a full global batch."""
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
        """Number of positions that are part of a global batch."""
        dropped = sum(size % rows for size, rows in zip(self.sizes, self.rows, strict=True))
        return sum(self.sizes) - (dropped if self.drop_remainder else 0)

    @property
    def has_one_size(self) -> bool:
        """Whether all global batches have one size, except short ones."""
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


class Order(ABC):
    """Base class of orders: the scenes of an epoch, and their sequence.

    An order computes any part of an epoch from (position, seed, epoch), so it can be divided among shards and resumed.

    Attributes:
        needs_seed: Whether the order depends on the seed of the feed.
        made_for: Number of scenes that the sequence must have; None if the order fits any length.
        is_sequential: Whether scenes come in the order of their indices.
        window: Number of blocks whose scenes are mixed at a time; None if the order has no blocks.
    """

    needs_seed: bool = True
    made_for: int | None = None
    is_sequential: bool = False
    window: int | None = None

    @abstractmethod
    def indices(self, start: int, stop: int, *, length: int, seed: int, epoch: int) -> NDArray[np.int64]:
        """Indices of the scenes at positions [start, stop) of an epoch.

        Args:
            start: First position, inclusive.
            stop: Last position, exclusive; at most `num_scenes(length)`.
            length: Number of scenes in the sequence.
            seed: The seed of the feed.
            epoch: Epoch, from 0.

        Returns:
            int64[stop - start], each in [0, length).

        Examples:
            >>> kf.Sequential().indices(2, 5, length=100, seed=0, epoch=0)
            array([2, 3, 4])
        """

    def num_scenes(self, length: int) -> int:
        """Number of scenes in every epoch, for a sequence of `length` scenes.

        Args:
            length: Number of scenes in the sequence.

        Returns:
            The number of positions in an epoch.

        Raises:
            ValueError: The order does not fit a sequence of this length; the message says why.

        Examples:
            >>> kf.Weighted([1, 1, 2], num_scenes=8).num_scenes(3)
            8
        """
        return length

    def batches(self, length: int, batch_size: int, shard_count: int, drop_remainder: bool) -> EpochBatches:
        """Divide an epoch into global batches.

        Args:
            length: Number of scenes in the sequence.
            batch_size: Scenes in a batch of one shard.
            shard_count: Number of shards.
            drop_remainder: Whether short batches are dropped.

        Raises:
            ValueError: The order does not fit a sequence of this length.
        """
        return EpochBatches((self.num_scenes(length),), (batch_size * shard_count,), drop_remainder)

    def seeded(self, seed: int) -> "Order":
        """Return the order for a feed with this seed.

        It is another object only if the length of an epoch depends on the seed.
        """
        return self

    @property
    def argument(self) -> str:
        """The argument that gives a feed this order, for messages."""
        return f"order={self!r}"

    def identity(self) -> str:
        """Return a string that differs if the indices differ.

        It is part of a feed's state.
        """
        return repr(self)

    def mixing(self, length: int, *, seed: int = 0, epoch: int = 0) -> float:
        """Mixing of an epoch: near 0 if sequential, about 1 if shuffled.

        It is the mean distance between the indices at positions p and p + 1, divided by `spread(length)`, the mean
        distance of two indices drawn at random. It is measured on 64 runs of up to 1,024 positions, spread over the
        epoch. `BlockShuffled` with a window of W blocks has about 1 - 1 / W.

        Args:
            length: Number of scenes in the sequence.
            seed: The seed of the feed.
            epoch: Epoch, from 0.

        Returns:
            A number >= 0; 1 for a single scene.

        Examples:
            >>> round(kf.Shuffled().mixing(10_000), 1)
            1.0
            >>> round(kf.BlockShuffled(100, window=4).mixing(10_000), 1)
            0.7
        """
        count = self.num_scenes(length)
        spread = self.spread(length)
        if count < 2 or spread == 0:
            return 1.0
        starts = probe_indices(max(1, count - _RUN + 1), _RUNS)
        runs = [
            self.indices(start, min(start + _RUN, count), length=length, seed=seed, epoch=epoch) for start in starts
        ]
        lines = self.block_positions(np.concatenate(runs), length).reshape(len(runs), -1)  # all runs have one length
        return float(np.abs(np.diff(lines)).mean()) / spread

    def block_positions(self, indices: NDArray[np.int64], length: int) -> NDArray[np.int64]:
        """Return positions on a line, for `mixing`: by default, the indices."""
        return indices

    def spread(self, length: int) -> float:
        """Mean distance of the indices at two random positions, in scenes.

        Args:
            length: Number of scenes in the sequence.

        Returns:
            (length + 1) / 3 if all scenes come equally often.
        """
        return (length + 1) / 3

    def block_reads(
        self,
        length: int,
        block_size: int | NDArray[np.int64],
        *,
        held: int,
        seed: int = 0,
        epoch: int = 0,
        followed: int = _SIMULATED,
    ) -> float:
        """Number of block reads in an epoch if `held` blocks are kept.

        Args:
            length: Number of scenes in the sequence.
            block_size: Consecutive scenes in a block, at least 1; or int64[length], the block of each scene.
            held: Blocks kept, at least 1.
            seed: The seed of the feed.
            epoch: Epoch, from 0.
            followed: Number of positions to simulate, from the beginning of the epoch. The rest of a longer epoch is
                extrapolated.

        Returns:
            The number of reads; at least the number of blocks that occur in the epoch, if all of it is simulated.

        Examples:
            >>> kf.Sequential().block_reads(1000, 10, held=1)
            100.0
        """
        count = self.num_scenes(length)
        stop = min(count, followed)
        indices = self.indices(0, stop, length=length, seed=seed, epoch=epoch)
        blocks = block_size[indices] if isinstance(block_size, np.ndarray) else indices // block_size
        kept: OrderedDict[int, None] = OrderedDict()
        reads = 0
        for block in blocks.tolist():
            reads += block not in kept
            kept[block] = None
            kept.move_to_end(block)
            if len(kept) > held:
                kept.popitem(last=False)
        return reads * count / stop


@dataclass(frozen=True)
class Sequential(Order):
    """Scenes in the order of their indices. `kf.show(kf.Sequential())` draws a diagonal.

    Examples:
        >>> with kf.Feed(np.arange(5), batch_size=5, order=kf.Sequential(), workers=0) as feed:
        ...     print(feed[0])
        [0 1 2 3 4]
    """

    needs_seed = False
    is_sequential = True

    def __str__(self) -> str:
        return "sequential"

    def indices(self, start: int, stop: int, *, length: int, seed: int, epoch: int) -> NDArray[np.int64]:
        """Return the positions; see `Order.indices`."""
        return np.arange(start, stop, dtype=np.int64)


@dataclass(frozen=True, repr=False)
class Shuffled(Order):
    """A new random permutation in every epoch. `Feed(..., shuffle=True)` means this order.

    Every scene comes exactly once. Below 65,536 scenes the permutation is drawn uniformly. Above, it is computed
    position by position (`kerasfeed.orders.permutation`), so that start-up time and memory do not grow with the length.

    `kf.show(kf.Shuffled())` draws an even cloud.

    Args:
        seed: Integer >= 0 that replaces the feed's seed in the order only. None uses the feed's seed.

    Raises:
        TypeError: `seed` is not an integer.
        ValueError: `seed` is negative.

    Examples:
        >>> with kf.Feed(np.arange(5), batch_size=5, order=kf.Shuffled(7), workers=0) as feed:
        ...     print(sorted(feed[0].tolist()))
        [0, 1, 2, 3, 4]
    """

    seed: int | None = None

    def __post_init__(self) -> None:
        if self.seed is not None:
            object.__setattr__(self, "seed", check_integer("seed", self.seed, 0))
        object.__setattr__(self, "needs_seed", self.seed is None)

    def __str__(self) -> str:
        return "shuffled" if self.seed is None else f"shuffled with seed {self.seed}"

    def __repr__(self) -> str:
        return "Shuffled()" if self.seed is None else f"Shuffled({self.seed})"

    @property
    def argument(self) -> str:
        """See `Order.argument`."""
        return "shuffle=True" if self.seed is None else super().argument

    def indices(self, start: int, stop: int, *, length: int, seed: int, epoch: int) -> NDArray[np.int64]:
        """See `Order.indices`."""
        own = seed if self.seed is None else self.seed
        return shuffled(start, stop, length, own, (SeedStream.SHUFFLE, epoch))
