"""A loop over scenes in memory that does little else loads them itself; else workers load ahead."""

import threading
import time

import numpy as np
import pytest
from waits import SECONDS, wait_until

import kerasfeed as kf
from kerasfeed.errors import FeedClosedError
from kerasfeed.loaders.batches import pending_batch
from kerasfeed.loaders.batches.filler import Filler

ARRAY = np.arange(256 * 64.0).reshape(256, 64)
SCENES = [(index, row) for index, row in enumerate(ARRAY)]


class Fills:
    """Notes which threads load rows, and holds one of them there."""

    def __init__(self):
        self.threads = set()
        self.held_thread, self.held, self.over = None, threading.Event(), threading.Event()

    def note(self):
        self.threads.add(threading.get_ident())
        if threading.get_ident() == self.held_thread:
            self.held.set()
            assert self.over.wait(SECONDS)


@pytest.fixture
def fills(monkeypatch):
    noted, fill = Fills(), Filler.fill

    def noting(filler, *args):
        noted.note()
        return fill(filler, *args)

    monkeypatch.setattr(Filler, "fill", noting)
    yield noted
    noted.over.set()


def threads(sequence, batch_size=32, **options):
    """A feed of two worker threads."""
    return kf.Feed(sequence, batch_size, workers=2, worker_type="thread", **options)


def loaded_here(feed, fills):
    """Whether this thread has loaded a batch of one epoch."""
    fills.threads.clear()
    for _ in feed:
        pass
    return threading.get_ident() in fills.threads


@pytest.mark.parametrize("sequence", [ARRAY, SCENES, tuple(SCENES)], ids=["array", "list", "tuple"])
def test_a_loop_that_does_nothing_else_loads_scenes_in_memory_itself(sequence, fills):
    with threads(sequence) as feed:
        wait_until(lambda: loaded_here(feed, fills))


def test_batches_are_the_same_whoever_loads_them(fills):
    with threads(SCENES, shuffle=True, seed=3) as feed, kf.Feed(SCENES, 32, shuffle=True, seed=3, workers=0) as inline:
        wait_until(lambda: loaded_here(feed, fills))
        found, expected = ([[leaf.tolist() for leaf in batch] for batch in each.epoch(7)] for each in (feed, inline))
        assert found == expected


def test_a_loop_that_pauses_has_batches_loaded_ahead(fills):
    with threads(SCENES) as feed:
        wait_until(lambda: loaded_here(feed, fills))
        iterator = iter(feed)
        next(iterator)
        fills.threads.clear()
        for _ in range(4):
            time.sleep(0.01)
            next(iterator)
        assert threading.get_ident() not in fills.threads
        iterator.close()


class Rooms(kf.SceneSequence):
    def __len__(self):
        return 256

    def __getitem__(self, index):
        return SCENES[index]


class Rows(list):
    pass


@pytest.mark.parametrize(
    ("sequence", "options"),
    [(Rooms(), {}), (Rows(SCENES), {}), (list(ARRAY), {"collate": np.vstack})],
    ids=["class", "subclass of list", "collate function"],
)
def test_what_users_wrote_is_run_by_workers_alone(sequence, options, fills):
    with threads(sequence, **options) as feed:
        assert not any(loaded_here(feed, fills) for _ in range(20))


def test_batches_that_several_workers_share_are_loaded_ahead(fills, monkeypatch):
    monkeypatch.setattr(pending_batch, "_TASK_SECONDS", 0)
    with threads(SCENES) as feed:
        assert not any(loaded_here(feed, fills) for _ in range(20))


def run_until_held(feed, fills, caught):
    """Loop in a thread of its own, which stays where it loads a batch."""

    def consume():
        try:
            wait_until(lambda: loaded_here(feed, fills))
            fills.held_thread = threading.get_ident()
            while not fills.over.is_set():
                caught.extend(batch[0].tolist() for batch in feed)
        except FeedClosedError as error:
            caught.append(error)

    consumer = threading.Thread(target=consume)
    consumer.start()
    assert fills.held.wait(SECONDS)
    return consumer


def test_close_gives_up_what_another_thread_loads_itself(fills):
    caught, feed = [], threads(SCENES)
    consumer = run_until_held(feed, fills, caught)
    feed.close()
    fills.over.set()
    consumer.join(SECONDS)
    assert type(caught[-1]) is FeedClosedError


def test_whoever_refreshes_waits_for_what_another_thread_loads_itself(fills):
    with threads(SCENES) as feed:
        consumer, changed = run_until_held(feed, fills, []), threading.Event()
        refresher = threading.Thread(target=feed._loader.refresh, args=(changed.set,))
        refresher.start()
        assert not changed.wait(0.1)
        fills.over.set()
        assert changed.wait(SECONDS)
        refresher.join(SECONDS)
        consumer.join(SECONDS)


def test_other_threads_get_batches_while_one_that_loads_itself_is_slow(fills):
    with threads(SCENES) as feed:
        consumer = run_until_held(feed, fills, [])
        found = [feed.submit(0, step).result(SECONDS)[0].tolist() for step in (0, 1)]
        assert found == [list(range(32)), list(range(32, 64))]
        fills.over.set()
        consumer.join(SECONDS)


def test_a_feed_may_be_closed_at_any_moment_of_a_batch_that_another_thread_loads(fills):
    fills.over.set()
    for _ in range(60):
        feed, ended = threads(ARRAY, 8), []

        def consume(feed=feed, ended=ended):
            try:
                while True:
                    for _ in feed:
                        pass
            except FeedClosedError as error:
                ended.append(error)

        consumer = threading.Thread(target=consume)
        consumer.start()
        wait_until(lambda: consumer.ident in fills.threads)  # noqa: B023 - called at once
        feed.close()
        consumer.join(SECONDS)
        assert not consumer.is_alive()
        assert ended
