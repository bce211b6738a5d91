"""Orders: which index stands at which position of an epoch.

Invariant: an order is a pure function of (length, seed, epoch). It may be asked for any positions in any order, by any
process, and always answers the same.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from kerasfeed.permute import EXACT_BELOW, permute, round_keys, shuffle_exactly

_BLOCK = 2048  # positions computed at once: about 0.15 ms, hardly more than 32 of them cost, and 16 KiB kept


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


@dataclass(frozen=True)
class Sequential(Order):
    """Scenes in the order of their indices."""

    def indices(self, start: int, stop: int, *, length: int, seed: int, epoch: int) -> NDArray[np.int64]:
        """Positions are indices; see `Order.indices`."""
        return np.arange(start, stop, dtype=np.int64)


@dataclass(frozen=True)
class Shuffled(Order):
    """A new random permutation every epoch, every scene exactly once.

    Below 65,536 scenes the permutation is drawn uniformly; above, it is computed position by position
    (`kerasfeed.permute`), so start-up time and memory do not grow with the length.
    """

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
