"""Keras in several processes, and several trainings in the threads of one."""

import threading
from types import SimpleNamespace

import keras
import pytest
from keras_fits import MARKS, Trainer, make_feed, order_of
from waits import SECONDS

import kerasfeed as kf

pytestmark = MARKS


@pytest.fixture
def distribution(monkeypatch):
    """What `keras.distribution.distribution()` returns in one of several processes."""
    found = SimpleNamespace(_is_multi_process=True, auto_shard_dataset=True, num_model_replicas=2)
    monkeypatch.setattr(keras.distribution, "distribution", lambda: found)
    return found


def feed_of(**arguments):
    return make_feed(workers=0, **arguments)


@pytest.mark.parametrize("method", ["fit", "evaluate", "predict"])
def test_a_feed_of_all_scenes_is_refused_in_multi_process_training(method, distribution):
    with feed_of() as feed, pytest.raises(ValueError, match=r"each would train on all scenes. Use .*shard='auto'"):
        getattr(Trainer().model, method)(feed, verbose=0)


def test_a_shard_of_a_feed_is_accepted_in_multi_process_training(distribution):
    with feed_of(shard=(1, 2)) as feed:
        trainer = Trainer()
        trainer.fit(feed, epochs=2)
        assert trainer.trained == [order_of(feed, 0), order_of(feed, 1)]
        assert set(trainer.trained[0]) < set(range(24))


def test_a_feed_of_all_scenes_is_accepted_without_auto_sharding(distribution):
    distribution.auto_shard_dataset = False
    with feed_of() as feed:
        trainer = Trainer()
        trainer.fit(feed)
        assert trainer.trained == [order_of(feed, 0)]


def test_processes_that_hold_one_model_all_train_on_all_scenes_if_these_are_the_same(distribution):
    distribution.num_model_replicas = 1
    with feed_of(seed=3) as feed:
        trainer = Trainer()
        trainer.fit(feed)
        assert trainer.trained == [order_of(feed, 0)]
    with feed_of(seed=None) as feed, pytest.raises(ValueError, match=r"must load the same scenes: use .*seed=0"):
        Trainer().fit(feed)


def test_an_unknown_number_of_processes_draws_a_warning(distribution):
    del distribution._is_multi_process
    with (
        feed_of() as feed,
        pytest.warns(kf.FeedWarning, match="does not report whether SimpleNamespace runs in sev"),
    ):
        Trainer().fit(feed)


def test_two_threads_can_train_on_separate_feeds_at_once():
    feeds = [make_feed(seed=seed) for seed in (1, 2)]
    trainers = [Trainer(), Trainer()]
    errors = []

    def train(feed, trainer):
        try:
            trainer.fit(feed, epochs=3)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=train, args=pair) for pair in zip(feeds, trainers, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert not errors
    for feed, trainer in zip(feeds, trainers, strict=True):
        assert trainer.trained == [order_of(feed, epoch) for epoch in range(3)]
        feed.close()
