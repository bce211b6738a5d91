"""The order that a shuffle buffer makes of scenes that come one after the other.

Invariant: which scene leaves the buffer at a position is a function of (seed, epoch, shard, position) and of how many
scenes there are, so what the buffer holds at any position is known without going through those before it.

The buffer is filled; then each scene that leaves, from a place drawn at random, makes room for the next one that comes,
as in `tf.data.Dataset.shuffle`. When no more come, those that are left leave in random order.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import numpy as np
from numpy.typing import NDArray

from kerasfeed.orders.base import Order
from kerasfeed.util.seed_streams import SeedStream

_DRAWN = 4096  # places that are drawn at a time
_PLACES, _REST = 0, 1


@dataclass(frozen=True)
class BufferShuffled(Order):
    """Scenes in sequence, through a shuffle buffer.

    Attributes:
        buffer_size: Scenes in the buffer, at least 1.
        shard: Number of the shard, so that the buffers of shards differ.
    """

    buffer_size: int
    shard: int = 0

    def indices(self, start: int, stop: int, *, length: int, seed: int, epoch: int) -> NDArray[np.int64]:
        """See `Order.indices`."""
        size = min(self.buffer_size, length)
        drawn = length - size  # positions at which a scene comes for the one that leaves
        first = min(start, drawn)
        held = self.held(first, seed=seed, epoch=epoch) if size == self.buffer_size else np.arange(size)
        places = self.places_from(first, seed=seed, epoch=epoch)
        found = np.empty(max(0, stop - start), np.int64)
        for position in range(first, min(stop, drawn)):
            place = next(places)
            found[position - start], held[place] = held[place], size + position
        if stop > drawn:
            rest = held[self.rest(size, seed=seed, epoch=epoch)]
            found[max(0, drawn - start) :] = rest[max(0, start - drawn) : stop - drawn]
        return found

    def places_from(self, position: int, *, seed: int, epoch: int) -> Iterator[int]:
        """The place in the buffer, in [0, buffer_size), of the scene that leaves at each position from this one on."""
        block, before = divmod(position, _DRAWN)
        for number in count(block):
            yield from self._block(number, seed, epoch)[before if number == block else 0 :].tolist()

    def held(self, position: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
        """int64[buffer_size]: the index of the scene at each place of the buffer when `position` scenes have left.

        Goes back through what was drawn, until every place is known: about buffer_size * ln(buffer_size) draws,
        however many scenes have left.
        """
        found = np.full(self.buffer_size, -1, np.int64)
        stop = position
        while stop > 0:
            number = (stop - 1) // _DRAWN
            begin = number * _DRAWN
            drawn = self._block(number, seed, epoch)[: stop - begin]
            places, last = np.unique(drawn[::-1], return_index=True)
            new = found[places] < 0
            found[places[new]] = self.buffer_size + stop - 1 - last[new]
            stop = begin
            if found.min() >= 0:
                break
        never = np.flatnonzero(found < 0)
        found[never] = never
        return found

    def rest(self, size: int, *, seed: int, epoch: int) -> NDArray[np.int64]:
        """int64[size]: the places of the last `size` scenes, in the order in which they leave."""
        drawn = self._bits(seed, epoch, _REST).random_raw(size)
        return np.argsort(drawn, kind="stable")

    def _block(self, number: int, seed: int, epoch: int) -> NDArray[np.int64]:
        drawn = self._bits(seed, epoch, _PLACES, number).random_raw(_DRAWN)
        return (drawn % np.uint64(self.buffer_size)).astype(np.int64)

    def _bits(self, seed: int, epoch: int, *purpose: int) -> np.random.PCG64:
        key = (SeedStream.STREAM_BUFFER, self.shard, epoch, *purpose)
        return np.random.PCG64(np.random.SeedSequence(entropy=seed, spawn_key=key))

    def __str__(self) -> str:
        return f"shuffled in a buffer of {self.buffer_size:,}"
