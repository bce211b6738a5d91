"""Orders: which index stands at which position of an epoch.

Invariant: an order is a pure function of (length, seed, epoch). It may be asked for any positions in any order, by any
process, and always answers the same.
"""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kerasfeed.orders.batch_bounds import Cut, EvenCut
from kerasfeed.orders.permutation import shuffled
from kerasfeed.util.seed_streams import SeedStream
from kerasfeed.util.validate import check_integer

_RUNS, _RUN = 64, 1024  # positions looked at for `mixing`: 64 runs of up to 1,024, 5 ms
_SIMULATED = 200_000  # positions followed for `reads_per_epoch`: 0.1 s


class Order(ABC):
    """The order in which an epoch visits a sequence."""

    @abstractmethod
    def indices(self, start: int, stop: int, *, length: int, seed: int, epoch: int) -> NDArray[np.int64]:
        """Indices at positions [start, stop) of an epoch.

        Args:
            start: First position, inclusive.
            stop: Last position, exclusive; at most `num_scenes(length)`.
            length: Number of scenes in the sequence.
            seed: The feed's seed.
            epoch: Epoch number, from 0.

        Returns:
            int64[stop - start], each in [0, length).
        """

    def num_scenes(self, length: int) -> int:
        """Positions in an epoch of a sequence of `length` scenes, the same in every epoch.

        Raises:
            ValueError: The order does not fit a sequence of this length; the message says why.
        """
        return length

    def cut(self, length: int, batch_size: int, shard_count: int, drop_remainder: bool) -> Cut:
        """How its epochs are cut into global batches: evenly, unless the order itself says which scenes go together."""
        return EvenCut(self.num_scenes(length), batch_size * shard_count, drop_remainder)

    @property
    def needs_seed(self) -> bool:
        """Whether the feed's seed decides anything about it."""
        return True

    def seeded(self, seed: int) -> "Order":
        """What a feed of this seed is to use: itself, unless it must know the seed to tell how long an epoch is."""
        return self

    def identity(self) -> str:
        """A short text that two orders share only if they give the same indices; part of a feed's saved state."""
        return repr(self)

    def mixing(self, length: int, *, seed: int = 0, epoch: int = 0) -> float:
        """How far apart neighbours of an epoch stand in the sequence: about 0 in sequence, 1 in a full shuffle.

        The mean distance between the indices at positions p and p + 1, divided by `spread(length)`, the mean distance
        of two different indices drawn at random, (length + 1) / 3 where all come equally often. Measured on 64 runs of
        up to 1,024 positions spread over the epoch. Scenes in blocks of a window of W blocks come to about 1 - 1 / W.
        """
        count = self.num_scenes(length)
        spread = self.spread(length)
        if count < 2 or spread == 0:
            return 1.0
        starts = np.unique(np.linspace(0, max(0, count - _RUN), _RUNS).astype(np.int64)).tolist()
        runs = [
            self.indices(start, min(start + _RUN, count), length=length, seed=seed, epoch=epoch) for start in starts
        ]
        places = self.places(np.concatenate(runs), length).reshape(len(runs), -1)  # all runs are of one length
        return float(np.abs(np.diff(places)).mean()) / spread

    def places(self, indices: NDArray[np.int64], length: int) -> NDArray[np.int64]:
        """Where scenes stand, for `mixing`: at their indices, unless the order knows better what lies together."""
        return indices

    def spread(self, length: int) -> float:
        """Mean distance of the indices at two positions drawn at random, in scenes; the unit of `mixing`."""
        return (length + 1) / 3

    @property
    def made_for(self) -> int | None:
        """Length of the one kind of sequence that it fits; None where it fits any."""
        return None

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
        """Blocks read in an epoch by one reader that keeps the `held` blocks it used last.

        Args:
            length: Number of scenes in the sequence.
            block_size: Consecutive scenes of one block, at least 1; or int64[length], the block of each scene.
            held: Blocks kept, at least 1.
            seed: The feed's seed.
            epoch: Epoch number, from 0.
            followed: Positions followed from the start of the epoch; of a longer epoch they stand for the rest.

        Returns:
            At least the number of blocks when the whole epoch is followed: each is read once or more.
        """
        count = self.num_scenes(length)
        stop = min(count, followed)
        indices = self.indices(0, stop, length=length, seed=seed, epoch=epoch)
        blocks = block_size[indices] if isinstance(block_size, np.ndarray) else indices // block_size
        return count_reads(blocks.tolist(), held) * count / stop


@dataclass(frozen=True)
class Sequential(Order):
    """Scenes in the order of their indices; a diagonal in `kf.show(kf.Sequential())`."""

    @property
    def needs_seed(self) -> bool:
        """See `Order.needs_seed`."""
        return False

    def __str__(self) -> str:
        return "sequential"

    def indices(self, start: int, stop: int, *, length: int, seed: int, epoch: int) -> NDArray[np.int64]:
        """Positions are indices; see `Order.indices`."""
        return np.arange(start, stop, dtype=np.int64)


@dataclass(frozen=True, repr=False)
class Shuffled(Order):
    """A new random permutation every epoch, every scene exactly once.

    Below 65,536 scenes the permutation is drawn uniformly; above, it is computed position by position
    (`kerasfeed.orders.permutation`), so start-up time and memory do not grow with the length. In a picture,
    `kf.show(kf.Shuffled())`, it is an even cloud.

    Args:
        seed: Seed of this order, at least 0, in place of the feed's, which stays the one of the scenes' `rng`. None is
            the feed's.

    Raises:
        TypeError: `seed` is not an integer.
        ValueError: `seed` is negative.
    """

    seed: int | None = None

    def __post_init__(self) -> None:
        if self.seed is not None:
            object.__setattr__(self, "seed", check_integer("seed", self.seed, 0))

    @property
    def needs_seed(self) -> bool:
        """See `Order.needs_seed`."""
        return self.seed is None

    def __str__(self) -> str:
        return "shuffled" if self.seed is None else f"shuffled with seed {self.seed}"

    def __repr__(self) -> str:
        return "Shuffled()" if self.seed is None else f"Shuffled({self.seed})"

    def indices(self, start: int, stop: int, *, length: int, seed: int, epoch: int) -> NDArray[np.int64]:
        """See `Order.indices`."""
        own = seed if self.seed is None else self.seed
        return shuffled(start, stop, length, own, (SeedStream.SHUFFLE, epoch))


def count_reads(blocks: Iterable[int], held: int) -> int:
    """Blocks that a reader reads who wants these one after the other and keeps the `held` it used last."""
    kept: OrderedDict[int, None] = OrderedDict()
    reads = 0
    for block in blocks:
        if block in kept:
            kept.move_to_end(block)
            continue
        reads += 1
        kept[block] = None
        if len(kept) > held:
            kept.popitem(last=False)
    return reads
