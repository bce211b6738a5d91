"""The order of scenes that pass through a shuffle buffer.

Invariant: the scene that leaves the buffer at a position is a function of (seed, epoch, shard, position) and of the
number of scenes. So the content of the buffer at any position can be computed without the positions before it.

The buffer fills first. Then each incoming scene replaces a random one, which leaves, as in `tf.data.Dataset.shuffle`.
At the end, the remaining scenes leave in random order.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np
from numpy.typing import NDArray

from kerasfeed.orders.base import Order
from kerasfeed.util.seed_streams import SeedStream

_DRAWN = 4096  # slots drawn at a time
_SLOTS, _REST = 0, 1


@dataclass(frozen=True)
class BufferShuffled(Order):
    """Scenes in the order of their indices, through a shuffle buffer.

    Attributes:
        buffer_size: Scenes in the buffer, at least 1.
        shard: Number of the shard, so that the buffers of shards differ.
    """

    buffer_size: int
    shard: int = 0

    def indices(self, start: int, stop: int, *, length: int, seed: int, epoch: int) -> NDArray[np.int64]:
        """See `Order.indices`."""
        size = min(self.buffer_size, length)
        drawn = length - size  # positions at which a new scene replaces the one that leaves
        first = min(start, drawn)
        held = self.held(first, seed=seed, epoch=epoch) if size == self.buffer_size else np.arange(size)
        slots = self.slots_from(first, seed=seed, epoch=epoch)
        indices = np.empty(max(0, stop - start), np.int64)
        for position in range(first, min(stop, drawn)):
            slot = next(slots)
            indices[position - start], held[slot] = held[slot], size + position
        if stop > drawn:
            rest = held[self.rest(size, seed=seed, epoch=epoch)]
            indices[max(0, drawn - start) :] = rest[max(0, start - drawn) : stop - drawn]
        return indices

    def slots_from(self, position: int, *, seed: int, epoch: int) -> Iterator[int]:
        """Yield the buffer slot whose scene leaves, from `position` on."""
        block, before = divmod(position, _DRAWN)
        for number in count(block):
            yield from self._block(number, seed, epoch)[before if number == block else 0 :].tolist()

    def held(self, position: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
        """int64[buffer_size]: the index in each slot after `position` scenes have left.

        Goes back through the draws until the content of every slot is known: about buffer_size * ln(buffer_size)
        draws, however many scenes have left.
        """
        held = np.full(self.buffer_size, -1, np.int64)
        stop = position
        while stop > 0:
            number = (stop - 1) // _DRAWN
            begin = number * _DRAWN
            drawn = self._block(number, seed, epoch)[: stop - begin]
            slots, last = np.unique(drawn[::-1], return_index=True)
            new = held[slots] < 0
            held[slots[new]] = self.buffer_size + stop - 1 - last[new]
            stop = begin
            if held.min() >= 0:
                break
        never = np.flatnonzero(held < 0)
        held[never] = never
        return held

    def rest(self, size: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
        """int64[size]: the slots of the last scenes, in leaving order."""
        drawn = self._bits(seed, epoch, _REST).random_raw(size)
        return np.argsort(drawn, kind="stable")

    def _block(self, number: int, seed: int, epoch: int) -> NDArray[np.int64]:
        drawn = self._bits(seed, epoch, _SLOTS, number).random_raw(_DRAWN)
        return (drawn % np.uint64(self.buffer_size)).astype(np.int64)

    def _bits(self, seed: int, epoch: int, *purpose: int) -> np.random.PCG64:
        key = (SeedStream.STREAM_BUFFER, self.shard, epoch, *purpose)
        return np.random.PCG64(np.random.SeedSequence(entropy=seed, spawn_key=key))

    def __str__(self) -> str:
        return f"shuffled in a buffer of {self.buffer_size:,}"
