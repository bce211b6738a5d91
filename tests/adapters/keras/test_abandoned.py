"""Feeds that are closed, dropped or left during an epoch: nothing leaks, nothing hangs, no batch is wrong."""

import gc
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import scenes
from programs import assert_gone
from waits import wait_until

import kerasfeed as kf

KINDS = {
    "inline": {"workers": 0},
    "thread": {"workers": 2, "worker_type": "thread"},
    "process": {"workers": 2, "worker_type": "process"},
}
needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs Linux's /proc")


def _feed(kind, seconds=0.002, length=120):
    return kf.Feed(scenes.Slow(length, seconds), 4, shuffle=True, seed=5, **KINDS[kind])


def _labels(batches):
    return [labels.tolist() for _, labels in batches]


def _expected(epoch, length=120):
    with kf.Feed(scenes.Clouds(length), 4, shuffle=True, seed=5, workers=0) as feed:
        return _labels(feed.epoch(epoch))


@pytest.mark.parametrize("kind", KINDS)
def test_a_feed_closed_in_the_middle_of_an_epoch_ends_its_iterator_with_an_error(kind):
    feed = _feed(kind)
    iterator = iter(feed)
    kept = [next(iterator) for _ in range(3)]
    pids = feed.stats().pids
    feed.close()
    assert_gone(pids)
    with pytest.raises(kf.FeedClosedError):
        list(iterator)
    assert _labels(kept) == _expected(0)[:3]


@pytest.mark.heavy
@pytest.mark.parametrize("kind", KINDS)
def test_a_feed_dropped_in_the_middle_of_an_epoch_ends_its_workers(kind):
    feed = _feed(kind)
    iterator = iter(feed)
    points, labels = next(iterator)
    pids = feed.stats().pids
    del feed, iterator
    gc.collect()
    assert_gone(pids)
    assert labels.tolist() == _expected(0)[0]
    assert np.array_equal(points[:, 0, 0], 100.0 * labels)


@pytest.mark.heavy
@pytest.mark.parametrize("kind", KINDS)
def test_abandoned_iterators_do_not_affect_later_epochs(kind):
    with _feed(kind) as feed:
        left = []
        for epoch in range(5):
            iterator = iter(feed)
            assert _labels([next(iterator)]) == _expected(epoch)[:1]
            left.append(iterator)  # alive, with batches in flight
        assert _labels(feed) == _expected(5)
        left.clear()
        assert _labels(feed.epoch(1)) == _expected(1)


@pytest.mark.parametrize("kind", KINDS)
def test_dropping_an_iterator_cancels_its_pending_scenes(kind, tmp_path):
    if kind == "inline":
        pytest.skip("loads nothing ahead")
    sequence = scenes.Held(tmp_path, 400, free=_expected(0, 400)[0])
    with kf.Feed(sequence, 4, shuffle=True, seed=5, **KINDS[kind]) as feed:
        assert feed.element_spec
        (tmp_path / "hold").touch()
        iterator = iter(feed)
        next(iterator)  # 10 batches ahead, 40 scenes; each worker reaches the first
        before = len(sequence.read())
        del iterator
        (tmp_path / "hold").unlink()
        assert len(feed[99][1]) == 4
        assert len(sequence.read()) <= before + 2 * 4 + 4  # the rest of what both workers had begun, and the batch


def _train(feed):
    for number, batch in enumerate(feed):
        assert len(batch) == 2
        _ = 1 / (3 - number)


@pytest.mark.heavy
@pytest.mark.parametrize("kind", KINDS)
def test_a_feed_continues_after_an_exception_in_the_training_loop(kind):
    with _feed(kind) as feed:
        for epoch in range(3):
            with pytest.raises(ZeroDivisionError):
                _train(feed)
            assert _labels(feed.epoch(epoch)) == _expected(epoch)
        pids = feed.stats().pids
    assert_gone(pids)


class Pairs(scenes.Clouds):
    def __getitem__(self, index):
        time.sleep(0.001)
        return np.full(3, index, np.float32), np.float32(index)


@pytest.mark.heavy
@pytest.mark.parametrize("kind", KINDS)
def test_a_feed_continues_after_an_exception_inside_fit(kind):
    import keras  # not above, because workers import this module

    def explode(batch, logs):
        if batch == 4:
            raise ZeroDivisionError("in the middle of fit")

    bomb = keras.callbacks.LambdaCallback(on_train_batch_end=explode)
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    feed = kf.Feed(Pairs(80), 4, shuffle=True, seed=5, **KINDS[kind])
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            model.fit(feed, epochs=2, verbose=0, callbacks=[bomb])
    model.fit(feed, epochs=1, verbose=0)
    assert sorted(label for _, labels in feed.epoch(3) for label in labels.tolist()) == list(range(80))
    pids = feed.stats().pids
    feed.close()
    assert_gone(pids)


@pytest.mark.heavy
@pytest.mark.parametrize("kind", ["thread", "process"])
def test_a_feed_may_be_closed_while_threads_read_it(kind):
    feed = _feed(kind, length=2000)
    ends = []

    def read():
        try:
            for _ in feed.epoch(0):
                pass
        except (kf.FeedClosedError, BaseException) as error:
            ends.append(type(error).__name__)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    feed.close()
    for thread in threads:
        thread.join(timeout=60)
        assert not thread.is_alive()
    assert ends == ["FeedClosedError"] * 4


def _held():
    me = psutil.Process()
    gc.collect()
    return {
        "descriptors": me.num_fds(),
        "threads": me.num_threads(),
        "processes": len(me.children(recursive=True)),
        "maps": sum("kerasfeed" in line for line in Path("/proc/self/maps").read_text().splitlines()),
    }


def _open_read_close(kind, number):
    options = {"workers": 1, "worker_type": "process"} if kind == "process" else KINDS[kind]
    feed = kf.Feed(scenes.Clouds(64), 4, shuffle=True, seed=number, **options)
    iterator = iter(feed)
    points, labels = next(iterator)
    assert np.array_equal(points[:, 0, 0], 100.0 * labels)
    if number % 3 == 0:
        feed.close()  # otherwise it is dropped during its epoch


@pytest.mark.heavy
@needs_proc
def test_hundreds_of_feeds_leak_no_threads_processes_or_memory():
    # Only one feed in 25 uses processes, because a worker process takes 0.3 s to start.
    for number in range(20):
        _open_read_close("thread", number)
    for number in range(3):
        _open_read_close("process", number)
    before, resident = _held(), psutil.Process().memory_info().rss
    for number in range(500):
        _open_read_close("process" if number % 25 == 3 else "thread", number)
    wait_until(lambda: _held() == before)
    assert psutil.Process().memory_info().rss - resident < 8 << 20
