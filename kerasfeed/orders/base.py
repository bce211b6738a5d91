"""Orders: which index stands at which position of an epoch.

Invariant: an order is a pure function of (length, seed, epoch). It may be asked for any positions in any order, by any
process, and always answers the same.
"""

from abc import ABC, abstractmethod
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kerasfeed.orders.batch_bounds import Cut
from kerasfeed.orders.permutation import shuffled
from kerasfeed.spec.inference import probe_indices
from kerasfeed.util.seed_streams import SeedStream
from kerasfeed.util.validate import check_integer

_RUNS, _RUN = 64, 1024  # positions looked at for `mixing`: 64 runs of up to 1,024, 5 ms
_SIMULATED = 200_000  # positions followed for `reads_per_epoch`: 0.1 s


class Order(ABC):
    """Base class of orders: which scenes an epoch visits, and when.

    An order computes any part of an epoch from (position, seed, epoch), so it can be divided among shards and resumed.

    Attributes:
        needs_seed: Whether the order depends on the seed of the feed.
        made_for: Number of scenes that the sequence must have; None if the order fits any length.
        is_quick: Whether indices of a batch are computed in well under 1 ms, and by no code of the user's. Then
            TensorFlow's threads may ask for them.
        is_sequential: Whether scenes come in the order of their indices.
        window: Blocks of scenes that are mixed at a time; None if the order knows no blocks.
    """

    needs_seed: bool = True
    made_for: int | None = None
    is_quick: bool = False
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
        """Number of scenes in an epoch, for a sequence of `length` scenes; the same in every epoch.

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

    def cut(self, length: int, batch_size: int, shard_count: int, drop_remainder: bool) -> Cut:
        """How an epoch is divided into global batches: evenly, unless the order says which scenes belong together."""
        return Cut((self.num_scenes(length),), (batch_size * shard_count,), drop_remainder)

    def seeded(self, seed: int) -> "Order":
        """The order that a feed with this seed uses: this one, unless the length of an epoch depends on the seed."""
        return self

    @property
    def argument(self) -> str:
        """The argument that gives a feed this order, for messages."""
        return f"order={self!r}"

    def identity(self) -> str:
        """A short text that two orders share only if they give the same indices; part of the state of a feed."""
        return repr(self)

    def mixing(self, length: int, *, seed: int = 0, epoch: int = 0) -> float:
        """How well an epoch is mixed: 0 for scenes in sequence, about 1 for a full shuffle.

        It is the mean distance between the indices at positions p and p + 1, divided by `spread(length)`, the mean
        distance of two indices drawn at random. Measured on 64 runs of up to 1,024 positions, spread over the epoch.
        `BlockShuffled` with a window of W blocks has about 1 - 1 / W.

        Args:
            length: Number of scenes in the sequence.
            seed: The seed of the feed.
            epoch: Epoch, from 0.

        Returns:
            A number >= 0.

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
        lines = self.places(np.concatenate(runs), length).reshape(len(runs), -1)  # all runs are of one length
        return float(np.abs(np.diff(lines)).mean()) / spread

    def places(self, indices: NDArray[np.int64], length: int) -> NDArray[np.int64]:
        """Positions on a line, for `mixing`: the indices, unless the order knows which scenes lie together."""
        return indices

    def spread(self, length: int) -> float:
        """Mean distance of the indices at two positions drawn at random, in scenes; the unit of `mixing`.

        Args:
            length: Number of scenes in the sequence.

        Returns:
            (length + 1) / 3 where all scenes come equally often.
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
        """Number of blocks that one reader reads in an epoch, if it keeps the `held` blocks that it used last.

        Args:
            length: Number of scenes in the sequence.
            block_size: Consecutive scenes in a block, at least 1; or int64[length], the block of each scene.
            held: Blocks kept, at least 1.
            seed: The seed of the feed.
            epoch: Epoch, from 0.
            followed: Positions that are followed, from the beginning of the epoch. The rest of a longer epoch is
                extrapolated.

        Returns:
            The number of reads, at least the number of blocks if the whole epoch is followed.

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
    is_quick = True
    is_sequential = True

    def __str__(self) -> str:
        return "sequential"

    def indices(self, start: int, stop: int, *, length: int, seed: int, epoch: int) -> NDArray[np.int64]:
        """Positions are indices; see `Order.indices`."""
        return np.arange(start, stop, dtype=np.int64)


@dataclass(frozen=True, repr=False)
class Shuffled(Order):
    """A new random permutation in every epoch: every scene exactly once. `Feed(..., shuffle=True)` means this order.

    Below 65,536 scenes the permutation is drawn uniformly. Above, it is computed position by position
    (`kerasfeed.orders.permutation`), so that start-up time and memory do not grow with the length.

    `kf.show(kf.Shuffled())` draws an even cloud.

    Args:
        seed: Integer >= 0 used in place of the feed's seed, for the order alone. None uses the feed's.

    Raises:
        TypeError: `seed` is not an integer.
        ValueError: `seed` is negative.

    Examples:
        >>> with kf.Feed(np.arange(5), batch_size=5, order=kf.Shuffled(7), workers=0) as feed:
        ...     print(sorted(feed[0].tolist()))
        [0, 1, 2, 3, 4]
    """

    seed: int | None = None
    is_quick = True

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
