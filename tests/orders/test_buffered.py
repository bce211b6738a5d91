"""The order of a shuffle buffer: pure arithmetic for any part of it."""

import numpy as np
import pytest

from kerasfeed.orders.base import Sequential
from kerasfeed.orders.buffered import BufferShuffled


def model(size, length, seed, epoch):
    """The reference: a list as the buffer."""
    order = BufferShuffled(size)
    places = order.slots_from(0, seed=seed, epoch=epoch)
    buffer, found = list(range(min(size, length))), []
    for number in range(size, length):
        place = next(places)
        found.append(buffer[place])
        buffer[place] = number
    return [*found, *(buffer[place] for place in order.rest(len(buffer), seed=seed, epoch=epoch))]


@pytest.mark.parametrize(("size", "length"), [(1, 9), (4, 3), (5, 5), (7, 100), (100, 9000)])
def test_every_part_equals_a_buffer_run_from_the_start(size, length):
    whole = model(size, length, 3, 1)
    assert sorted(whole) == list(range(length))
    for start in {0, 1, length // 2, max(0, length - size), length - 1, length}:
        for stop in {start, min(start + 3, length), length}:
            found = BufferShuffled(size).indices(start, stop, length=length, seed=3, epoch=1)
            assert found.tolist() == whole[start:stop]


def test_a_buffer_of_one_keeps_the_order_and_seeds_epochs_and_shards_differ():
    assert model(1, 9, 0, 0) == list(range(9))
    drawn = [
        BufferShuffled(50, shard).indices(0, 500, length=500, seed=seed, epoch=epoch).tolist()
        for seed, epoch, shard in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))
    ]
    assert len({tuple(each) for each in drawn}) == 4


def test_mixing_grows_with_the_buffer_up_to_a_full_shuffle():
    sizes = [BufferShuffled(size).mixing(10_000) for size in (1, 100, 1000, 10_000)]
    assert sizes[0] == pytest.approx(Sequential().mixing(10_000))
    assert np.all(np.diff(sizes) > 0)
    assert sizes[2] == pytest.approx(0.3, abs=0.05)
    assert sizes[3] == pytest.approx(1.0, abs=0.1)
