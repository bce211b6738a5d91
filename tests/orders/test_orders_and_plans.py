"""Permutations, orders and plans: integer arithmetic, compared with simple implementations."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerasfeed.orders.base import Sequential, Shuffled
from kerasfeed.orders.permutation import permute, stream_keys
from kerasfeed.orders.plan import Plan


@settings(deadline=None, max_examples=60)
@given(length=st.integers(1, 5000), seed=st.integers(0, 2**70), epoch=st.integers(0, 10**6))
def test_permute_is_a_bijection_of_every_length(length, seed, epoch):
    values = permute(np.arange(length), length, stream_keys(seed, (0, epoch)))
    assert np.array_equal(np.sort(values), np.arange(length))


@pytest.mark.parametrize("length", [10**9, 10**12, 2**61 + 12345])
def test_permute_of_a_huge_range_is_in_range_and_without_repeats(length):
    positions = np.linspace(0, length - 1, 20_000).astype(np.int64)
    positions = np.unique(np.clip(positions, 0, length - 1))
    values = permute(positions, length, stream_keys(3, (0, 1)))
    assert values.min() >= 0
    assert values.max() < length
    assert len(np.unique(values)) == len(positions)


@pytest.mark.parametrize("length", [100, 70_000])
def test_every_position_receives_every_part_of_the_range_equally_often(length):
    epochs, parts = 400, 10
    order = Shuffled()
    counts = np.zeros((5, parts))
    for epoch in range(epochs):
        first = order.indices(0, 5, length=length, seed=11, epoch=epoch)
        for position, index in enumerate(first):
            counts[position, index * parts // length] += 1
    expected = epochs / parts
    chi_square = ((counts - expected) ** 2 / expected).sum(axis=1)
    assert (chi_square < 33.7).all()  # 9 degrees of freedom, p = 1e-4


@pytest.mark.parametrize("length", [1, 2, 7, 1000, 65_535, 65_536, 200_001])
def test_a_shuffled_epoch_visits_every_index_once_in_a_new_order(length):
    order = Shuffled()
    first, second = (order.indices(0, length, length=length, seed=5, epoch=epoch) for epoch in (0, 1))
    assert np.array_equal(np.sort(first), np.arange(length))
    assert np.array_equal(np.sort(second), np.arange(length))
    if length > 10:
        assert not np.array_equal(first, second)
        assert not np.array_equal(first, np.arange(length))


@given(cuts=st.lists(st.integers(0, 70_000), min_size=2, max_size=8))
@settings(deadline=None, max_examples=25)
def test_indices_in_pieces_equal_the_whole_order(cuts):
    order, length = Shuffled(), 70_000
    whole = order.indices(0, length, length=length, seed=1, epoch=2)
    cuts = sorted(cuts)
    for start, stop in pairwise(cuts):
        assert np.array_equal(order.indices(start, stop, length=length, seed=1, epoch=2), whole[start:stop])


@settings(deadline=None, max_examples=150)
@given(
    length=st.integers(1, 400),
    batch_size=st.integers(1, 40),
    shard_count=st.integers(1, 6),
    drop=st.booleans(),
    shuffle=st.booleans(),
)
def test_all_shards_together_equal_the_epoch_and_have_the_same_steps(length, batch_size, shard_count, drop, shuffle):
    order = Shuffled() if shuffle else Sequential()
    plans = [Plan(length, batch_size, order, 3, drop, shard, shard_count) for shard in range(shard_count)]
    assert len({plan.steps for plan in plans}) == 1
    found = [index for plan in plans for step in range(plan.steps) for index in plan.indices(1, step).tolist()]
    kept = length - (length % (batch_size * shard_count) if drop else 0)
    assert sorted(found) == sorted(order.indices(0, kept, length=length, seed=3, epoch=1).tolist())
    sizes = {len(plan.indices(0, step)) for plan in plans for step in range(plan.steps)}
    assert all(size <= batch_size for size in sizes)
    if plans[0].is_uniform:
        assert sizes <= {batch_size}


def test_the_scenes_of_a_step_do_not_depend_on_the_number_of_shards():
    whole = Plan(96, 12, Shuffled(), 9)
    thirds = [Plan(96, 4, Shuffled(), 9, False, shard, 3) for shard in range(3)]
    for step in range(whole.steps):
        joined = np.concatenate([plan.indices(2, step) for plan in thirds])
        assert np.array_equal(joined, whole.indices(2, step))


@pytest.mark.parametrize("shard_count", [1, 2])
def test_epoch_indices_calls_the_order_once(monkeypatch, shard_count):
    asked, indices = [], Shuffled.indices
    plan = Plan(1000, 3, Shuffled(), 9, shard_count=shard_count, pad_remainder=True)
    expected = np.concatenate([plan.indices(2, step) for step in range(plan.steps)])

    def counting(order, start, stop, **rest):
        asked.append((start, stop))
        return indices(order, start, stop, **rest)

    monkeypatch.setattr(Shuffled, "indices", counting)
    assert np.array_equal(plan.epoch_indices(2), expected)
    assert asked == [(0, 1000)]


def test_the_error_for_a_step_out_of_range_names_the_range():
    with pytest.raises(IndexError, match="step 4 is out of range: an epoch has 4 steps, 0 to 3"):
        Plan(100, 25).indices(0, 4)
    with pytest.raises(IndexError):
        Plan(100, 25).indices(0, -1)
