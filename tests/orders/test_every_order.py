"""The promises of every order in `order_kinds.ORDERS`."""

import pickle

import numpy as np
import pytest
from order_kinds import EACH_ONCE, ORDERS, RANDOM

import kerasfeed as kf
from kerasfeed.orders.plan import Plan

LENGTHS = [24, 101]


@pytest.fixture(params=ORDERS)
def name(request):
    return request.param


@pytest.fixture(params=LENGTHS)
def length(request):
    return request.param


@pytest.fixture
def order(name, length):
    return ORDERS[name](length).seeded(3)


def epoch_of(order, length, seed=3, epoch=0):
    return order.indices(0, order.num_scenes(length), length=length, seed=seed, epoch=epoch)


def test_indices_are_int64_in_range_and_equally_many_per_epoch(order, length):
    for epoch in range(3):
        found = epoch_of(order, length, epoch=epoch)
        assert found.dtype == np.int64
        assert found.shape == (order.num_scenes(length),)
        assert 0 <= found.min() <= found.max() < length


def test_indices_in_pieces_equal_the_whole_order(order, length):
    whole, count = epoch_of(order, length, epoch=2), order.num_scenes(length)
    starts = list(range(0, count, 7))
    for start in reversed(starts):
        stop = min(start + 7, count)
        piece = order.indices(start, stop, length=length, seed=3, epoch=2)
        assert piece.tolist() == whole[start:stop].tolist()
    assert order.indices(3, 3, length=length, seed=3, epoch=2).tolist() == []


def test_a_pickled_copy_gives_the_same_indices(order, length):
    copy = pickle.loads(pickle.dumps(order))
    assert epoch_of(copy, length).tolist() == epoch_of(order, length).tolist()
    assert copy.identity() == order.identity()


def test_seeds_and_epochs_change_only_random_orders(name, order, length):
    found = {
        tuple(epoch_of(ORDERS[name](length).seeded(seed), length, seed, epoch).tolist())
        for seed in (3, 4)
        for epoch in (0, 1)
    }
    if name in RANDOM:
        assert order.needs_seed
        assert len(found) == 4
    elif not order.needs_seed:
        assert len(found) == 1


@pytest.mark.parametrize("name", EACH_ONCE, indirect=True)
def test_an_epoch_visits_each_scene_once(order, length):
    assert sorted(epoch_of(order, length, epoch=1).tolist()) == list(range(length))


def test_all_shards_together_equal_the_epoch_and_have_the_same_steps(order, length):
    plans = [Plan(length, 4, order, 3, False, shard, 3) for shard in range(3)]
    assert len({plan.steps for plan in plans}) == 1
    found = [index for plan in plans for step in range(plan.steps) for index in plan.indices(1, step).tolist()]
    assert sorted(found) == sorted(epoch_of(order, length, epoch=1).tolist())


def test_a_feed_with_the_order_resumes_within_an_epoch(name, length):
    feeds = [kf.Feed(np.arange(length), 5, order=ORDERS[name](length), seed=3, workers=0) for _ in range(2)]
    rest = iter(feeds[0])
    next(rest)
    next(rest)
    feeds[1].set_state(feeds[0].get_state())
    assert [batch.tolist() for batch in feeds[1]] == [batch.tolist() for batch in rest]


def test_orders_have_distinct_identities_and_texts(length):
    made = [make(length) for make in ORDERS.values()]
    assert len({order.identity() for order in made}) == len(made)
    assert all(str(order) for order in made)


def test_mixing_is_not_negative_and_reads_are_at_least_the_blocks(order, length):
    assert 0 <= order.mixing(length, seed=3) < 3
    read = {index // 4 for index in epoch_of(order, length).tolist()}
    assert order.block_reads(length, 4, held=2, seed=3) >= len(read)
