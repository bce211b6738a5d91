"""`feed.start()`: the first batches are loaded before a consumer requests them."""

import os

import numpy as np
import pytest
from waits import wait_until

import kerasfeed as kf
from kerasfeed.errors import FeedClosedError
from kerasfeed.feeds.base import BaseFeed

pytestmark = pytest.mark.timeout(60)


class Counted(kf.SceneSequence):
    """Scenes that note each read; scene 5 may fail."""

    thread_safe = True

    def __init__(self, length=40, fails=False):
        self.length = length
        self.fails = fails
        self.read = []
        self.epochs = 0

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        self.read.append(index)
        if self.fails and index == 5:
            raise ValueError("scene 5 is damaged")
        return np.full(1000, index, np.float32)


class Hooked(Counted):
    def on_epoch_begin(self):
        self.epochs += 1

    def __getitem__(self, index):
        return super().__getitem__(index) + 100 * self.epochs


def thread_feed(sequence, **options):
    return BaseFeed(sequence, 4, workers=2, worker_type="thread", **options)


def values(batches):
    return [batch[:, 0].tolist() for batch in batches]


def test_started_batches_are_loaded_before_a_loop_and_given_to_it():
    scenes = Counted()
    with thread_feed(scenes, shuffle=True, seed=3) as feed:
        expected = values(feed.epoch(0))
        scenes.read.clear()
        feed.start()
        wait_until(lambda: len(scenes.read) == 40)  # all 10 batches
        assert values(feed) == expected
        assert len(scenes.read) == 40
        assert values(feed) == values(feed.epoch(1))


def test_after_set_state_the_started_batches_are_dropped():
    with thread_feed(Counted(), shuffle=True, seed=3) as feed:
        expected = values(feed.epoch(0))
        state = feed.get_state(epoch=0, step=4)
        feed.start()
        feed.set_state(state)
        assert values(feed) == expected[4:]
        feed.set_state(state)
        feed.start()
        assert values(feed) == expected[4:]


@pytest.mark.filterwarnings("ignore:the consumer keeps so many batches")
def test_started_batches_hold_no_memory_that_another_request_needs():
    with thread_feed(Counted(), max_memory=50_000) as feed:
        for _ in range(3):
            feed.start()
            assert feed[9][0, 0] == 36
        assert len(values(feed)) == 10


def test_an_epoch_begins_once_and_before_its_scenes_are_loaded():
    scenes = Hooked()
    with thread_feed(scenes) as feed:
        feed.start()
        assert scenes.epochs == 1
        first = values(feed)
        assert first[0] == [100, 101, 102, 103]
        assert scenes.epochs == 1
        assert values(feed)[0] == [200, 201, 202, 203]


def test_an_error_of_a_started_batch_is_raised_where_the_batch_is_requested():
    with thread_feed(Counted(fails=True)) as feed:
        feed.start()
        assert feed[0][:, 0].tolist() == [0, 1, 2, 3]
        with pytest.raises(ValueError, match="scene 5 is damaged"):
            _ = feed[1]


def test_an_error_of_the_first_scenes_is_raised_at_once():
    with thread_feed(Counted(length=6, fails=True)) as feed, pytest.raises(ValueError, match="scene 5 is damaged"):
        feed.start()


def test_without_workers_nothing_is_read_before_the_first_request():
    scenes = Counted()
    with BaseFeed(scenes, 4, workers=0) as feed:
        feed.start()
        assert not scenes.read
        assert len(list(feed)) == 10


def test_an_epoch_that_is_started_within_a_loop_begins_once():
    scenes = Hooked()
    with thread_feed(scenes, max_queue_size=2) as feed:
        for step, _ in enumerate(feed):
            if step == len(feed) - 1:
                feed.start()
        found = [value for batch in values(feed) for value in batch]
        assert found == [200 + index for index in range(40)]
        assert scenes.epochs == 2


def test_a_closed_feed_does_not_start():
    feed = thread_feed(Counted())
    feed.start()
    feed.close()
    with pytest.raises(FeedClosedError):
        feed.start()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_does_not_wait_for_batches_of_its_parent():
    with thread_feed(Counted()) as feed:
        feed.start()
        child = os.fork()
        if not child:
            try:
                feed[9]
            except FeedClosedError:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_auto_starts_too():
    with BaseFeed(Counted(), 4) as feed:
        feed.start()
        assert values(feed) == values(feed.epoch(0))


@pytest.mark.heavy
def test_processes_load_the_first_batches_before_a_loop():
    with BaseFeed(np.arange(64.0).reshape(64, 1), 4, workers=2, worker_type="process", shuffle=True, seed=0) as feed:
        feed.start()
        wait_until(lambda: feed.stats().batches >= 10)
        assert values(feed) == values(feed.epoch(0))
