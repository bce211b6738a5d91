"""Orders: which index stands at which position of an epoch.

Invariant: an order is a pure function of (length, seed, epoch). It may be asked for any positions in any order, by any
process, and always answers the same.
"""

import operator
from abc import ABC, abstractmethod
from collections import OrderedDict
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.permute import EXACT_BELOW, permute, round_keys, shuffle_exactly

_BLOCK = 2048  # positions computed at once: about 0.15 ms, hardly more than 32 of them cost, and 16 KiB kept
# Streams 0 and 1 of the seed are the full shuffle's and the scenes'.
_SHORT_BLOCK_STREAM = 2
_WINDOW_STREAM = 3
_RUNS, _RUN = 64, 1024  # positions looked at for `mixing`: 64 runs of up to 1,024, 5 ms
_SIMULATED = 200_000  # positions followed for `reads_per_epoch`: 0.1 s


class Order(ABC):
    """The order in which an epoch visits a sequence."""

    @abstractmethod
    def indices(self, start: int, stop: int, *, length: int, seed: int, epoch: int) -> NDArray[np.int64]:
        """Indices at positions [start, stop) of an epoch.

        Args:
            start: First position, inclusive.
            stop: Last position, exclusive; at most `length`.
            length: Number of scenes in the sequence.
            seed: The feed's seed.
            epoch: Epoch number, from 0.

        Returns:
            int64[stop - start], each in [0, length).
        """

    def mixing(self, length: int, *, seed: int = 0, epoch: int = 0) -> float:
        """How far apart neighbours of an epoch stand in the sequence: about 0 in sequence, 1 in a full shuffle.

        The mean distance between the indices at positions p and p + 1, divided by (length + 1) / 3, which is the
        mean distance of two different indices drawn at random. Measured on 64 runs of up to 1,024 positions spread
        over the epoch. Scenes in blocks of a window of W blocks come to about 1 - 1 / W.
        """
        if length < 2:
            return 1.0
        starts = np.unique(np.linspace(0, max(0, length - _RUN), _RUNS).astype(np.int64)).tolist()
        total, pairs = 0.0, 0
        for start in starts:
            found = self.indices(start, min(start + _RUN, length), length=length, seed=seed, epoch=epoch)
            total += float(np.abs(np.diff(found)).sum())
            pairs += len(found) - 1
        return total / pairs / ((length + 1) / 3)

    def block_reads(
        self, length: int, block_size: int, *, held: int, seed: int = 0, epoch: int = 0, followed: int = _SIMULATED
    ) -> float:
        """Blocks read in an epoch by one reader that keeps the `held` blocks it used last.

        Args:
            length: Number of scenes in the sequence.
            block_size: Consecutive scenes of one block, at least 1.
            held: Blocks kept, at least 1.
            seed: The feed's seed.
            epoch: Epoch number, from 0.
            followed: Positions followed from the start of the epoch; of a longer epoch they stand for the rest.

        Returns:
            At least the number of blocks when the whole epoch is followed: each is read once or more.
        """
        stop = min(length, followed)
        blocks = self.indices(0, stop, length=length, seed=seed, epoch=epoch) // block_size
        kept: OrderedDict[int, None] = OrderedDict()
        reads = 0
        for block in blocks.tolist():
            if block in kept:
                kept.move_to_end(block)
                continue
            reads += 1
            kept[block] = None
            if len(kept) > held:
                kept.popitem(last=False)
        return reads * length / stop


@dataclass(frozen=True)
class Sequential(Order):
    """Scenes in the order of their indices."""

    def __str__(self) -> str:
        return "sequential"

    def indices(self, start: int, stop: int, *, length: int, seed: int, epoch: int) -> NDArray[np.int64]:
        """Positions are indices; see `Order.indices`."""
        return np.arange(start, stop, dtype=np.int64)


@dataclass(frozen=True)
class Shuffled(Order):
    """A new random permutation every epoch, every scene exactly once.

    Below 65,536 scenes the permutation is drawn uniformly; above, it is computed position by position
    (`kerasfeed.permute`), so start-up time and memory do not grow with the length.
    """

    def __str__(self) -> str:
        return "shuffled"

    def indices(self, start: int, stop: int, *, length: int, seed: int, epoch: int) -> NDArray[np.int64]:
        """See `Order.indices`."""
        if length < EXACT_BELOW:
            return _exact(length, seed, epoch)[start:stop]
        first, last = start // _BLOCK, (stop - 1) // _BLOCK
        if start >= stop:
            return np.empty(0, dtype=np.int64)
        blocks = [_block(block, length, seed, epoch) for block in range(first, last + 1)]
        joined = blocks[0] if len(blocks) == 1 else np.concatenate(blocks)
        return joined[start - first * _BLOCK : stop - first * _BLOCK]


@dataclass(frozen=True, init=False)
class BlockShuffled(Order):
    """Blocks of consecutive scenes in random order, and the scenes of a few blocks at a time mixed.

    For scenes that are cheap to read together, such as those of one HDF5 chunk. Every scene comes exactly once an
    epoch. The epoch is cut into windows of `window` blocks; a reader that keeps that many blocks reads each once,
    whereas a full shuffle reads nearly one a scene. A window of all blocks is a full shuffle.

    Of a sequence whose length is no multiple of `block_size` the last block is short; it too stands anywhere.

    Args:
        block_size: Scenes of one block, at least 1; or an object that has a `block_size`, such as a dataset of an
            `HDF5File`, whose blocks are its chunks.
        window: Blocks whose scenes are mixed, at least 1. More mix better and take more memory: a window of W comes
            to about 1 - 1 / W of the full shuffle's `mixing`.

    Raises:
        TypeError: An argument is not an integer.
        ValueError: An argument is below 1.
    """

    block_size: int
    window: int

    def __init__(self, block_size: Any, *, window: int = 4) -> None:
        block_size = getattr(block_size, "block_size", block_size)
        object.__setattr__(self, "block_size", _at_least_1("block_size", block_size))
        object.__setattr__(self, "window", _at_least_1("window", window))

    def __str__(self) -> str:
        return f"blocks of {self.block_size:,} shuffled, windows of {self.window:,}"

    def indices(self, start: int, stop: int, *, length: int, seed: int, epoch: int) -> NDArray[np.int64]:
        """See `Order.indices`; costs the windows that the positions lie in, at most 8 of which are kept."""
        pieces = []
        place = _Blocks.of(self.block_size, length, seed, epoch)
        position = start
        while position < stop:
            number = place.rank_at(position) // self.window
            first = place.position_of(number * self.window)
            scenes = _window(self.block_size, self.window, number, length, seed, epoch)
            until = min(stop, first + len(scenes))
            pieces.append(scenes[position - first : until - first])
            position = until
        if not pieces:
            return np.empty(0, dtype=np.int64)
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def reads_per_epoch(self, length: int) -> int:
        """Blocks read in an epoch by a reader that keeps `window` of them: as many as there are."""
        return -(-length // self.block_size)


@dataclass(frozen=True)
class _Blocks:
    """The blocks of one epoch in their order: the full ones permuted, the short one put among them.

    Attributes:
        size: Scenes of a full block.
        full: Number of full blocks.
        short: Scenes of the short block, in [0, size); 0 for none.
        short_rank: Place of the short block, in [0, full]; `full` where there is none.
    """

    size: int
    full: int
    short: int
    short_rank: int

    @classmethod
    def of(cls, size: int, length: int, seed: int, epoch: int) -> "_Blocks":
        """The blocks of a sequence of `length` scenes in one epoch."""
        full, short = divmod(length, size)
        return cls(size, full, short, _short_rank(full, seed, epoch) if short else full)

    @property
    def count(self) -> int:
        """Number of blocks."""
        return self.full + (self.short > 0)

    def rank_at(self, position: int) -> int:
        """Which block of the epoch holds `position`."""
        before_short = self.short_rank * self.size
        if position < before_short:
            return position // self.size
        if position < before_short + self.short:
            return self.short_rank
        # Behind the short block everything stands where it would were that block full, less what it lacks.
        return (position + (self.size - self.short if self.short else 0)) // self.size

    def position_of(self, rank: int) -> int:
        """First position of the block at `rank`."""
        missing = self.size - self.short if self.short and rank > self.short_rank else 0
        return rank * self.size - missing


def _at_least_1(name: str, value: Any) -> int:
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        more = ", or a dataset that has a block_size" if name == "block_size" else ""
        raise TypeError(f"{name} must be an integer{more}, received {value!r} of type {type(value).__name__}") from None
    if number < 1:
        raise ValueError(f"{name} must be at least 1, received {number}")
    return number


@lru_cache(maxsize=16)
def _short_rank(full: int, seed: int, epoch: int) -> int:
    source = np.random.SeedSequence(entropy=seed, spawn_key=(_SHORT_BLOCK_STREAM, epoch))
    return int(np.random.Generator(np.random.PCG64(source)).integers(full + 1))


@lru_cache(maxsize=8)
def _window(size: int, window: int, number: int, length: int, seed: int, epoch: int) -> NDArray[np.int64]:
    """Indices of the scenes of window `number`, mixed."""
    blocks = _Blocks.of(size, length, seed, epoch)
    ranks = np.arange(number * window, min((number + 1) * window, blocks.count), dtype=np.int64)
    is_short = (ranks == blocks.short_rank) & (blocks.short > 0)
    places = ranks[~is_short]
    places -= (places > blocks.short_rank) & (blocks.short > 0)  # places among the full blocks
    chosen = places
    if len(places):
        first, last = int(places[0]), int(places[-1])
        chosen = Shuffled().indices(first, last + 1, length=blocks.full, seed=seed, epoch=epoch)
    scenes: NDArray[np.int64] = (chosen[:, None] * size + np.arange(size, dtype=np.int64)).ravel()
    if is_short.any():
        scenes = np.concatenate([scenes, np.arange(blocks.full * size, length, dtype=np.int64)])
    source = np.random.SeedSequence(entropy=seed, spawn_key=(_WINDOW_STREAM, epoch, number))
    np.random.Generator(np.random.PCG64(source)).shuffle(scenes)
    scenes.setflags(write=False)
    return scenes


@lru_cache(maxsize=4)
def _exact(length: int, seed: int, epoch: int) -> NDArray[np.int64]:
    indices = shuffle_exactly(length, seed, epoch)
    indices.setflags(write=False)  # whoever asks gets a view of what the next one gets
    return indices


@lru_cache(maxsize=512)
def _block(block: int, length: int, seed: int, epoch: int) -> NDArray[np.int64]:
    positions = np.arange(block * _BLOCK, min((block + 1) * _BLOCK, length), dtype=np.int64)
    indices = permute(positions, length, round_keys(seed, epoch))
    indices.setflags(write=False)
    return indices
