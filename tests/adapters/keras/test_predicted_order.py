"""`feed.indices()`: the scene of each row of a prediction, with every order, batch size, shard and padding row."""

import warnings

import numpy as np
import pytest
from keras_fits import BACKEND, MARKS, Trainer
from scenes_frameworks import Numbered

import kerasfeed as kf

pytestmark = MARKS
LENGTHS = [1 + index % 4 for index in range(23)]
ORDERS = {
    "sequential": {},
    "shuffled": {"shuffle": True},
    "blocks": {"order": kf.BlockShuffled(4)},
    "weighted": {"order": kf.Weighted(np.arange(23.0))},
    "balanced": {"order": kf.Balanced(np.arange(23) % 3)},
    "bucketed": {"order": kf.Bucketed(LENGTHS, [2, 4])},
    "a function": {"order": lambda length, seed, epoch: np.roll(np.arange(length), epoch + 1)[3:]},
}
CUTS = {
    "whole": {},
    "dropped": {"drop_remainder": True},
    "filled": {"pad_remainder": True},
    "sharded": {"shard_index": 1, "shard_count": 2},
    "a filled shard": {"shard_index": 2, "shard_count": 3, "pad_remainder": True},
}


def feed_of(batch_size=4, length=23, workers=0, **arguments):
    return kf.Feed(Numbered(length), batch_size, seed=5, workers=workers, worker_type="thread", **arguments)


def rows_of(feed, epoch):
    return np.concatenate([x[:, 0] for x, *_ in feed.epoch(epoch)]).astype(np.int64)


@pytest.fixture(scope="module")
def model():
    return Trainer().model


def predicted(model, feed):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kf.FeedWarning)
        return model.predict(feed, verbose=0)[:, 0].astype(np.int64).tolist()


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("order", ORDERS)
def test_indices_lists_scenes_in_delivery_order(order, cut):
    with feed_of(**ORDERS[order], **CUTS[cut]) as feed:
        for epoch in (0, 3):
            found = feed.indices(epoch)
            assert found.dtype == np.int64
            assert found.tolist() == rows_of(feed, epoch).tolist()
        assert feed.indices().tolist() == feed.indices(0).tolist()


@pytest.mark.light(where=lambda order, cut: cut in ("whole", "a filled shard") or order == "bucketed")
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("order", ORDERS)
def test_indices_match_the_prediction_before_and_after_it(model, order, cut):
    if BACKEND != "tensorflow" and cut != "a filled shard":
        pytest.skip("behind the loader nothing knows the backend")
    with feed_of(**ORDERS[order], **CUTS[cut]) as feed:
        before = feed.indices().tolist()
        rows = predicted(model, feed)
        assert rows == before == feed.indices().tolist()


def test_indices_restore_the_scene_order_of_predictions(model):
    with feed_of(shuffle=True, workers=2) as feed, pytest.warns(kf.FeedWarning, match="order of the feed"):
        rows = model.predict(feed, verbose=0)
    in_order = np.empty_like(rows)
    in_order[feed.indices()] = rows
    np.testing.assert_array_equal(in_order[:, 0], np.arange(23))


@pytest.mark.heavy
def test_indices_match_the_prediction_after_loops_fits_and_evaluations():
    trainer = Trainer()
    with feed_of(shuffle=True, workers=2) as feed:
        for use in (
            lambda: list(feed), lambda: trainer.fit(feed, epochs=2), lambda: trainer.model.evaluate(feed, verbose=0),
            lambda: next(iter(feed)), lambda: trainer.fit(feed, epochs=4, steps_per_epoch=4),
            lambda: feed.set_state(feed.get_state(epoch=2, step=3)),
            lambda: feed.set_state({**feed.get_state(epoch=4, step=1), "shuffled_steps": True}),
        ):  # fmt: skip
            use()
            before = feed.indices().tolist()
            assert predicted(trainer.model, feed) == before == feed.indices().tolist()


def test_indices_match_a_prediction_in_a_callback():
    with feed_of(shuffle=True) as feed:
        seen = []

        def look(batch):
            if batch == 2:
                before = feed.indices().tolist()
                seen.append((predicted(other.model, feed), before, feed.indices().tolist()))

        other, trainer = Trainer(run_eagerly=True), Trainer(after_batch=look, run_eagerly=True)
        trainer.fit(feed, epochs=2)
    assert len(seen) == 2
    for rows, before, after in seen:
        assert rows == before == after


def test_predict_warns_once_about_a_shuffled_feed(model):
    with feed_of(shuffle=True) as feed:
        with pytest.warns(kf.FeedWarning, match=r"row k is for scene feed.indices\(\)\[k\]") as caught:
            model.predict(feed, verbose=0)
        assert len([each for each in caught if issubclass(each.category, kf.FeedWarning)]) == 1
        with warnings.catch_warnings():
            warnings.simplefilter("error", kf.FeedWarning)
            model.predict(feed, verbose=0)


def test_unshuffled_predictions_fit_and_evaluate_draw_no_warning():
    trainer = Trainer()
    with warnings.catch_warnings():
        warnings.simplefilter("error", kf.FeedWarning)
        with feed_of() as feed:
            trainer.model.predict(feed, verbose=0)
        with feed_of(shuffle=True) as feed:
            trainer.fit(feed)
            trainer.model.evaluate(feed, verbose=0)


def test_indices_has_one_entry_per_step_if_items_are_batches():
    batches = [(np.full((rows, 1), rows), np.zeros((rows, 1))) for rows in (3, 1, 2)]
    with kf.Feed(batches, None, shuffle=True, seed=1, workers=0) as feed:
        found = feed.indices()
        assert [len(x) for x, _ in feed] == [len(batches[index][0]) for index in found]


@pytest.mark.parametrize(("epoch", "error"), [(-1, ValueError), (0.5, TypeError), ("0", TypeError)])
def test_indices_refuses_an_invalid_epoch(epoch, error):
    with feed_of() as feed, pytest.raises(error, match="epoch"):
        feed.indices(epoch)


def test_indices_returns_a_million_scenes_in_one_call():
    with kf.Feed(np.zeros(1_000_000, np.uint8), 32, shuffle=True, seed=1, workers=0) as feed:
        found = feed.indices(2)
    assert np.array_equal(np.sort(found), np.arange(1_000_000))
