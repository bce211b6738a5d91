"""A user's own order: any function of (length, seed, epoch), checked before it is used."""

import pickle

import numpy as np
import pytest
import scenes
from order_checks import epoch_of

import kerasfeed as kf
from kerasfeed.orders.custom import CustomOrder
from kerasfeed.orders.plan import Plan


def curriculum(length, seed, epoch):
    """The easiest half, shuffled."""
    return np.random.default_rng([seed, epoch]).permutation(length)[: length // 2]


def _labels(feed, epoch=0):
    return [label for _, labels in feed.epoch(epoch) for label in labels.tolist()]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_feed_delivers_the_indices_of_a_function(workers):
    with kf.Feed(scenes.Clouds(), 8, order=curriculum, seed=3, workers=workers, worker_type="thread") as feed:
        assert len(feed) == 3
        for epoch in (0, 1, 5):
            assert _labels(feed, epoch) == curriculum(37, 3, epoch).tolist()
        assert "order of curriculum" in repr(feed)
        assert "order of curriculum, seed 3" in feed._repr_html_()


def test_a_feed_with_a_lambda_survives_pickling():
    with (
        kf.Feed(scenes.Clouds(), 8, order=lambda length, seed, epoch: [epoch, 5, 5], seed=3, workers=0) as feed,
        pickle.loads(pickle.dumps(feed)) as copy,
    ):
        assert _labels(copy, 2) == _labels(feed, 2) == [2, 5, 5]
        assert copy.plan.order == feed.plan.order


def test_the_function_is_called_once_per_epoch():
    called = []

    def order(length, seed, epoch):
        called.append(epoch)
        return range(length)

    plan = Plan(40, 4, CustomOrder(order, 1), 1)
    for epoch in range(5):
        for step in range(plan.steps):
            plan.indices(epoch, step)
    assert called == [0, 1, 2, 3, 4]


def test_all_shards_together_equal_the_epoch():
    order = CustomOrder(curriculum, 3)
    plans = [Plan(37, 3, order, 3, False, shard, 3) for shard in range(3)]
    found = [np.concatenate([plan.indices(1, step) for plan in plans]) for step in range(plans[0].steps)]
    assert np.array_equal(np.concatenate(found), curriculum(37, 3, 1))


def test_later_changes_to_the_returned_array_have_no_effect():
    kept = np.arange(37)
    order = CustomOrder(lambda *_: kept, 1)
    before = epoch_of(order, 37).tolist()
    kept[:] = 0
    assert epoch_of(order, 37).tolist() == before


@pytest.mark.parametrize(
    ("returned", "error", "message"),
    [
        ([0, 37], ValueError, r"for epoch 0 must be in \[0, 37\), received 37 at index 1$"),
        ([0, -1, 99], ValueError, "received -1 at index 1, and 1 more"),
        ([0.0], TypeError, r"for epoch 0 must be integers, received float64 \(.*0.0.* at index 0\)$"),
        ([True], TypeError, r"received bool .*np.flatnonzero\(mask\)"),
        ([], ValueError, r"for epoch 0 must be one number per scene.*received shape \(0,\)"),
        ([[0]], ValueError, r"received shape \(1, 1\)"),
        (None, ValueError, "received a NoneType"),
        ([[0], [1, 2]], ValueError, "must be an array with one value per scene"),
    ],
)
def test_invalid_indices_are_refused_when_the_feed_is_created(returned, error, message):
    def mine(length, seed, epoch):
        return returned

    with pytest.raises(error, match=f"order=.*mine.*{message}"):
        kf.Feed(scenes.Clouds(), 8, order=mine, workers=0)


def test_the_error_for_an_epoch_of_another_length_names_both_lengths():
    with kf.Feed(scenes.Clouds(), 8, order=lambda n, seed, epoch: range(20 + epoch), workers=0) as feed:
        assert _labels(feed) == list(range(20))
        with pytest.raises(ValueError, match=r"returned 21 indices for epoch 1 and 20 for epoch 0: return the same"):
            feed.submit(1, 0)


def test_submit_raises_an_error_of_the_function_with_a_note():
    def order(length, seed, epoch):
        if epoch == 2:
            raise KeyError("no such epoch")
        return range(length)

    with kf.Feed(scenes.Clouds(), 8, order=order, seed=4, workers=2, worker_type="thread") as feed:
        assert len(_labels(feed, 1)) == 37
        with pytest.raises(KeyError, match="no such epoch") as caught:
            feed.submit(2, 0)
        assert any("raised it when called with (37, 4, 2)" in note for note in caught.value.__notes__)


def test_functions_are_equal_if_their_code_and_closures_are():
    def make(step, table):
        return CustomOrder(lambda length, seed, epoch: table[::step], 0)

    one = make(1, np.arange(9))
    assert one == make(1, np.arange(9))
    assert hash(one) == hash(make(1, np.arange(9)))
    assert one.identity() == make(1, np.arange(9)).identity() == pickle.loads(pickle.dumps(one)).identity()
    assert one != make(2, np.arange(9))
    assert one != make(1, np.arange(9)[::-1])
    assert one != CustomOrder(curriculum, 0)
    assert "test_order_custom.curriculum" in CustomOrder(curriculum, 0).identity()
