"""Weighted and balanced draws: as often as requested, computed anywhere, without unused reads."""

import pickle
import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
import scenes
from hypothesis import given, settings
from hypothesis import strategies as st
from order_checks import epoch_of

import kerasfeed as kf
from kerasfeed.orders.plan import Plan

LABELS = np.repeat(["chair", "lamp", "sofa"], [300, 30, 3])


ORDERS = [
    kf.Weighted(np.arange(1, 334)),
    kf.Weighted(np.arange(1, 334), num_scenes=7001),
    kf.Balanced(LABELS),
    kf.Balanced(LABELS, num_scenes=7001),
]


@pytest.mark.parametrize("order", ORDERS, ids=repr)
def test_indices_in_pieces_equal_the_whole_order(order):
    whole = epoch_of(order, 333)
    assert whole.dtype == np.int64
    assert 0 <= whole.min() <= whole.max() < 333
    cuts = [0, 1, 5, 40, 41, 300, len(whole)]
    fresh = pickle.loads(pickle.dumps(order))
    for start, stop in reversed(list(pairwise(cuts))):
        assert np.array_equal(fresh.indices(start, stop, length=333, seed=3, epoch=0), whole[start:stop])
    assert len(order.indices(5, 5, length=333, seed=3, epoch=0)) == 0


@pytest.mark.parametrize("order", ORDERS, ids=repr)
def test_all_shards_together_equal_the_epoch_and_epochs_and_seeds_differ(order):
    plans = [Plan(333, 8, order, 3, False, shard, 3) for shard in range(3)]
    steps = [np.concatenate([plan.indices(1, step) for plan in plans]) for step in range(plans[0].steps)]
    assert np.array_equal(np.concatenate(steps), epoch_of(order, 333, epoch=1))
    assert not np.array_equal(epoch_of(order, 333, epoch=1), epoch_of(order, 333, epoch=2))
    assert not np.array_equal(epoch_of(order, 333, epoch=1), epoch_of(order, 333, seed=4, epoch=1))


def test_scenes_are_drawn_in_proportion_to_their_weights():
    weights = np.array([5.0, 0, 1, 1, 0.5, 0, 2.5])
    drawn = np.concatenate([epoch_of(kf.Weighted(weights, 50_000), 7, epoch=epoch) for epoch in range(4)])
    counts, expected = np.bincount(drawn, minlength=7), 200_000 * weights / weights.sum()
    assert (counts[weights == 0] == 0).all()
    kept = weights > 0
    assert ((counts - expected)[kept] ** 2 / expected[kept]).sum() < 23.5  # 4 degrees of freedom, p = 1e-4


def test_a_weights_function_is_called_once_per_epoch():
    asked = []

    def harder(epoch):
        asked.append(epoch)
        return np.array([4, 1, 1]) if epoch < 2 else [0, 1, epoch]

    order = kf.Weighted(harder, num_scenes=60_000)
    for epoch, weights in ((0, [4, 1, 1]), (1, [4, 1, 1]), (2, [0, 1, 2]), (5, [0, 1, 5])):
        counts = np.bincount(epoch_of(order, 3, epoch=epoch), minlength=3)
        assert np.allclose(counts, 60_000 * np.array(weights) / sum(weights), atol=600)
        assert np.array_equal(counts, np.bincount(epoch_of(kf.Weighted(weights, 60_000), 3, epoch=epoch), minlength=3))
    assert asked == [0, 1, 2, 5]


def test_neighbouring_weighted_draws_are_independent():
    drawn = epoch_of(kf.Weighted(np.ones(4), 80_000), 4).reshape(-1, 2)
    counts = np.bincount(drawn[:, 0] * 4 + drawn[:, 1], minlength=16)
    assert ((counts - 2500) ** 2 / 2500).sum() < 44.3  # 15 degrees of freedom, p = 1e-4


@settings(deadline=None, max_examples=60)
@given(weights=st.lists(st.one_of(st.just(0.0), st.floats(0, 1e308)), min_size=1, max_size=40), seed=st.integers(0, 99))
def test_a_scene_of_weight_zero_is_never_drawn(weights, seed):
    if not any(weights):
        return
    drawn = epoch_of(kf.Weighted(weights, 3000), len(weights), seed)
    assert all(weights[index] > 0 for index in np.unique(drawn).tolist())


@settings(deadline=None, max_examples=80)
@given(sizes=st.lists(st.integers(1, 60), min_size=1, max_size=9), count=st.integers(1, 900), epoch=st.integers(0, 99))
def test_counts_of_classes_and_of_scenes_in_a_class_differ_by_at_most_one(sizes, count, epoch):
    labels = np.random.default_rng(1).permutation(np.repeat(np.arange(len(sizes)) * 3 - 5, sizes))
    order = kf.Balanced(labels, num_scenes=count)
    drawn = epoch_of(order, len(labels), epoch=epoch)
    assert len(drawn) == count
    classes = np.array([(labels[drawn] == label).sum() for label in np.unique(labels)])
    assert np.ptp(classes) <= 1
    times = np.bincount(drawn, minlength=len(labels))
    for label in np.unique(labels):
        assert np.ptp(times[labels == label]) <= 1


def test_a_short_balanced_epoch_has_no_repeats_and_the_next_draws_others():
    order = kf.Balanced(LABELS, num_scenes=9)
    epochs = [set(epoch_of(order, 333, epoch=epoch).tolist()) for epoch in range(20)]
    assert all(len(found) == 9 for found in epochs)
    assert len(set().union(*epochs)) > 60


@pytest.mark.heavy
def test_the_scenes_of_a_class_are_equally_likely_at_any_turn():
    order, counts = kf.Balanced(np.repeat([0, 1], [20, 5]), num_scenes=40), np.zeros((20, 20))
    for epoch in range(400):
        drawn = epoch_of(order, 25, epoch=epoch)
        turns = drawn[drawn < 20]
        counts[np.arange(20), turns] += 1
    assert abs(((counts - 20) ** 2 / 20).sum() - 361) < 5 * np.sqrt(2 * 361)


@pytest.mark.parametrize(
    "labels",
    [
        [True, False, True],
        np.array(["a", "b", "a"]),
        np.array(["a", "b", "a"], object),
        np.array([7, -3, 7], np.int8),
        [b"a", b"b", b"a"],
    ],
    ids=str,
)
def test_labels_may_be_integers_booleans_or_strings(labels):
    drawn = epoch_of(kf.Balanced(labels, 100), 3)
    assert (drawn == 1).sum() == 50


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: kf.Weighted([[1, 2]]), ValueError, r"weights must be one number per scene.*received shape \(1, 2\)"),
        (lambda: kf.Weighted([]), ValueError, r"weights must be one number per scene.*received shape \(0,\)"),
        (lambda: kf.Weighted([1, -2, -3]), ValueError, "at least 0, received -2 at index 1, and 1 more"),
        (lambda: kf.Weighted([1, np.nan]), ValueError, "finite and at least 0, received nan at index 1"),
        (lambda: kf.Weighted([1, np.inf]), ValueError, "received inf at index 1"),
        (lambda: kf.Weighted([0, 0]), ValueError, "weights: all 2 are 0, so no scene can be drawn"),
        (lambda: kf.Weighted(["a"]), TypeError, "weights must be numbers, received <U1"),
        (
            lambda: kf.Weighted(lambda epoch: [0, 0]),
            ValueError,
            "weights=.*lambda.* for epoch 0: all 2 are 0, so no scene can be drawn",
        ),
        (lambda: kf.Weighted(lambda epoch: None), ValueError, "weights=.*lambda.* for epoch 0 must be one number"),
        (
            lambda: epoch_of(kf.Weighted(lambda epoch: [1.0] * (epoch + 1)), 1, epoch=2),
            ValueError,
            "weights=.*lambda.* returned 3 weights for epoch 2 and 1 for epoch 0: return one for each scene",
        ),
        (
            lambda: epoch_of(kf.Weighted(lambda epoch: [1, -epoch]), 2, epoch=3),
            ValueError,
            "weights=.*lambda.* for epoch 3 must be finite and at least 0, received -3 at index 1",
        ),
        (lambda: kf.Weighted([1], num_scenes=0), ValueError, "num_scenes must be at least 1, received 0"),
        (
            lambda: kf.Balanced([0.5, 1.0]),
            TypeError,
            r"must be integers, .*received float64 \(.*0.5.* at index 0",
        ),
        (lambda: kf.Balanced([["a"], ["b"]]), ValueError, r"received shape \(2, 1\).*kf.labels_of.*argmax"),
        (lambda: kf.Balanced([[1], [1, 2]]), ValueError, "labels must be an array with one value per scene"),
        (lambda: kf.Balanced(["a", None]), TypeError, "received object .None at index 1."),
        (lambda: kf.Balanced([1], num_scenes=2.0), TypeError, "num_scenes must be an integer, received 2.0"),
        (lambda: kf.Feed(scenes.Clouds(), 8, order=kf.Weighted([1, 2])), ValueError, "weights has 2 .* 37 scenes"),
        (lambda: kf.Feed(scenes.Clouds(), 8, order=kf.Balanced([1, 2])), ValueError, "labels has 2 .* 37 scenes"),
    ],
)
def test_invalid_weights_and_labels_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize("kind", [kf.Weighted, kf.Balanced])
def test_orders_are_equal_if_and_only_if_they_draw_the_same(kind):
    one, same, other = kind([1, 2, 3, 1]), kind([1, 2, 3, 1]), kind([1, 2, 2, 1])
    assert one == same == pickle.loads(pickle.dumps(one))
    assert hash(one) == hash(same)
    assert one.identity() == same.identity()
    assert one != other
    assert one.identity() != other.identity()
    assert one != kind([1, 2, 3, 1], num_scenes=5)
    assert len(one.identity()) < 100


def test_mixing_equals_that_of_independent_draws():
    assert kf.Weighted(np.arange(1, 5001)).mixing(5000) == pytest.approx(1, abs=0.03)
    assert kf.Weighted([0, 1, 0]).mixing(3) == 1.0
    assert kf.Balanced(np.repeat([0, 1, 2], [9000, 900, 90])).mixing(9990) == pytest.approx(1, abs=0.4)


def test_the_tables_need_4_or_8_bytes_per_scene_and_draws_need_none():
    count = 200_000
    labels, weights = np.arange(count) % 1000 == 0, np.ones(count)
    for make, bound in ((lambda: kf.Balanced(labels), 4), (lambda: kf.Weighted(weights), 8)):
        tracemalloc.start()
        try:
            order = make()
            assert tracemalloc.get_traced_memory()[0] < bound * count + 2e5
            before = tracemalloc.get_traced_memory()[0]
            for start in range(0, count, 20_000):
                order.indices(start, start + 32, length=count, seed=1, epoch=start)
            assert tracemalloc.get_traced_memory()[0] - before < 1e6
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("order", [kf.Balanced(np.arange(37) % 5 == 0, 50), kf.Weighted(np.arange(37), 50)], ids=repr)
def test_a_feed_loads_only_the_drawn_scenes(order):
    read = []

    class Counted(scenes.Clouds):
        def __getitem__(self, index):
            read.append(index)
            return super().__getitem__(index)

    with kf.Feed(Counted(), 8, order=order, seed=3, workers=0) as feed:
        assert len(feed) == 7
        _ = feed.element_spec
        read.clear()
        labels = [label for _, batch in feed for label in batch.tolist()]
        assert labels == epoch_of(order, 37).tolist() == read
        assert str(order) in repr(feed)
