"""Where scenes take microseconds and a consumer does nothing else, it loads them itself; else workers load ahead."""

import threading
import time

import numpy as np
import pytest
from waits import SECONDS, wait_until

import kerasfeed as kf
from kerasfeed.errors import FeedClosedError


class Noting(kf.SceneSequence):
    """Scenes that take microseconds, and note the thread in which they are read."""

    def __init__(self, count=256):
        self.count = count
        self.threads = set()

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        self.threads.add(threading.get_ident())
        return index, self.rng.random()


class Beginning(Noting):
    def on_worker_begin(self, worker):
        pass


def loaded_here(feed, pause=0.0):
    """Whether this thread has read a scene in one epoch."""
    feed.sequence.threads.clear()
    for _ in feed:
        time.sleep(pause)
    return threading.get_ident() in feed.sequence.threads


def loop_until_loaded_here(feed):
    wait_until(lambda: loaded_here(feed))


def test_a_consumer_that_does_nothing_else_loads_quick_scenes_itself():
    with kf.Feed(Noting(), 32, workers=2, worker_type="thread") as feed:
        loop_until_loaded_here(feed)


def test_batches_are_the_same_whoever_loads_them():
    feeds = [kf.Feed(Noting(), 32, shuffle=True, seed=3, workers=workers, worker_type="thread") for workers in (0, 2)]
    with feeds[0], feeds[1]:
        loop_until_loaded_here(feeds[1])
        epoch = feeds[1].get_state()["epoch"]
        expected, found = ([[leaf.tolist() for leaf in batch] for batch in feed.epoch(epoch)] for feed in feeds)
        assert found == expected


def test_a_consumer_that_pauses_has_batches_loaded_ahead():
    with kf.Feed(Noting(), 32, workers=2, worker_type="thread") as feed:
        loop_until_loaded_here(feed)
        iterator = iter(feed)
        next(iterator)
        feed.sequence.threads.clear()
        for _ in range(4):
            time.sleep(0.01)
            next(iterator)
        assert threading.get_ident() not in feed.sequence.threads
        iterator.close()


@pytest.mark.parametrize(
    ("sequence", "arguments"),
    [(Noting(), {"workers": 1}), (Noting(), {"workers": 2, "timeout": SECONDS}), (Beginning(), {"workers": 2})],
    ids=["one worker", "timeout", "worker hooks"],
)
def test_workers_load_scenes_that_are_promised_to_them(sequence, arguments):
    with kf.Feed(sequence, 32, worker_type="thread", **arguments) as feed:
        assert not any(loaded_here(feed) for _ in range(20))


class Holding(Noting):
    """A scene of these waits, once asked to, where the thread that asks for batches reads it."""

    def __init__(self):
        super().__init__()
        self.holds, self.held, self.over = False, threading.Event(), threading.Event()
        self.consumer = None

    def __getitem__(self, index):
        if self.holds and threading.get_ident() == self.consumer:
            self.held.set()
            assert self.over.wait(SECONDS)
        return super().__getitem__(index)


def run_until_held(feed, caught):
    """Loop in a thread of its own, which comes to a scene that waits."""
    sequence = feed.sequence

    def consume():
        sequence.consumer = threading.get_ident()
        try:
            loop_until_loaded_here(feed)
            sequence.holds = True
            while not sequence.over.is_set():
                caught.extend(batch[0].tolist() for batch in feed)
        except FeedClosedError as error:
            caught.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    assert sequence.held.wait(SECONDS)
    return consumer


def test_close_gives_up_what_another_thread_loads_itself():
    caught = []
    feed = kf.Feed(Holding(), 32, workers=2, worker_type="thread")
    consumer = run_until_held(feed, caught)
    try:
        feed.close()
    finally:
        feed.sequence.over.set()
        consumer.join(SECONDS)
    assert type(caught[-1]) is FeedClosedError


def test_whoever_refreshes_waits_for_what_another_thread_loads_itself():
    with kf.Feed(Holding(), 32, workers=2, worker_type="thread") as feed:
        consumer = run_until_held(feed, [])
        loader, changed = feed._loader, threading.Event()
        refresher = threading.Thread(target=loader.refresh, args=(changed.set,))
        refresher.start()
        try:
            assert not changed.wait(0.1)
        finally:
            feed.sequence.over.set()
        assert changed.wait(SECONDS)
        refresher.join(SECONDS)
        consumer.join(SECONDS)


def test_other_threads_get_batches_while_one_is_at_a_scene_that_waits():
    with kf.Feed(Holding(), 32, workers=2, worker_type="thread") as feed:
        consumer = run_until_held(feed, [])
        try:
            assert [feed.submit(0, step).result(SECONDS)[0].tolist() for step in (0, 1)] == [
                np.arange(32).tolist(), np.arange(32, 64).tolist(),
            ]  # fmt: skip
        finally:
            feed.sequence.over.set()
            consumer.join(SECONDS)
