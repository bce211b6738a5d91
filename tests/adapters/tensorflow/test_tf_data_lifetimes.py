"""`Feed.to_tf_dataset`: waits between threads, and references that keep objects alive."""

import contextvars
import gc
import threading
import time
import weakref

import numpy as np
import pytest
import scenes
import tensorflow as tf
from scenes_frameworks import (
    Numbered,
    let_tensorflow_free_memory,
)
from tf_batches import indices_of, order_of

import kerasfeed as kf

# ---- concurrency and lifetimes


@pytest.mark.parametrize(("workers", "most"), [(0, 1), (1, 1), (3, 3)])
def test_scenes_are_read_by_no_more_than_the_workers_at_once(workers, most):
    class Counting(Numbered):
        def __getitem__(self, index):
            with lock:
                at_once.append(at_once[-1] + 1)
            time.sleep(0.003)
            with lock:
                at_once.append(at_once[-1] - 1)
            return super().__getitem__(index)

    lock, at_once = threading.Lock(), [0]
    with kf.Feed(Counting(120), 2, workers=workers, worker_type="thread") as feed:
        assert sum(x.shape[0] for x, _ in feed.to_tf_dataset()) == 120
    assert max(at_once) == most


def test_waiting_workers_are_not_limited_by_the_cores(tmp_path):
    with kf.Feed(scenes.Meeting(tmp_path, 16), 2, workers=16, worker_type="thread") as feed:
        dataset = feed.to_tf_dataset()
        (tmp_path / "begin").touch()
        assert sum(labels.shape[0] for _, labels in dataset) == 64


def test_waiting_feeds_do_not_block_the_rest_of_the_graph(tmp_path):
    with kf.Feed(scenes.Meeting(tmp_path, 8), 1, workers=8, worker_type="thread") as feed:
        dataset = feed.to_tf_dataset().map(
            lambda _, index: tf.numpy_function(lambda i: i * 2, [index], tf.int64), num_parallel_calls=8
        )
        (tmp_path / "begin").touch()
        assert [int(value[0]) for value in dataset] == list(range(0, 128, 2))


@pytest.mark.heavy
@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_an_abandoned_iterator_leaks_nothing_and_the_next_epoch_is_complete(worker_type):
    with kf.Feed(scenes.Slow(100, 0.001), 2, shuffle=True, workers=2, worker_type=worker_type) as feed:
        dataset = feed.to_tf_dataset()
        for epoch in range(3):
            iterator = iter(dataset)
            next(iterator)
            del iterator
            gc.collect()
            assert feed.clock.taken == (epoch + 1) * len(feed)
        assert indices_of(dataset) == order_of(feed, 3)
        assert feed.stats().slots <= 40


def _assert_let_go(alive):
    """TensorFlow's threads drop an iterator, and so the feed, a moment after Python does."""
    deadline = time.monotonic() + 60
    while alive() is not None and time.monotonic() < deadline:
        let_tensorflow_free_memory()
        time.sleep(0.05)
    if alive() is not None:
        alive().close()
        pytest.fail("the feed outlives its dataset")


@pytest.mark.heavy
@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_the_dataset_keeps_the_feed_alive_and_releases_it(worker_type):
    feed = kf.Feed(scenes.Clouds(), 8, workers=2, worker_type=worker_type)
    alive = weakref.ref(feed)
    dataset = feed.to_tf_dataset().map(lambda points, labels: (points, labels)).repeat(1).prefetch(1)
    del feed
    gc.collect()
    assert indices_of(dataset) == list(range(37))
    iterator = iter(dataset)
    del dataset
    gc.collect()
    assert indices_of(iterator) == list(range(37))
    del iterator
    _assert_let_go(alive)


@pytest.mark.heavy
def test_a_feed_whose_dataset_was_deleted_is_released():
    feed = kf.Feed(scenes.Clouds(), 8, workers=1, worker_type="thread")
    alive = weakref.ref(feed)
    for _ in range(5):
        feed.to_tf_dataset()
    assert indices_of(feed.to_tf_dataset()) == list(range(37))
    del feed
    _assert_let_go(alive)


def test_the_graph_of_a_session_keeps_the_feed_alive_and_releases_it():
    feed = kf.Feed(scenes.Clouds(40), 8, workers=1, worker_type="thread")
    alive = weakref.ref(feed)
    graph = tf.Graph()
    with graph.as_default():
        iterator = tf.compat.v1.data.make_initializable_iterator(feed.to_tf_dataset())
        _, labels = iterator.get_next()
    del feed
    gc.collect()
    with tf.compat.v1.Session(graph=graph) as session:
        session.run(iterator.initializer)
        assert session.run(labels).tolist() == list(range(8))
        session.close()
    del graph, iterator, labels, session, _
    _assert_let_go(alive)


@pytest.mark.heavy
def test_a_dataset_made_in_a_function_outlives_its_tracing():
    def make():
        feed = kf.Feed(scenes.Clouds(40), 8, workers=1, worker_type="thread")

        @tf.function
        def total():
            found = tf.constant(0, tf.int64)
            for _, labels in feed.to_tf_dataset():
                found += tf.reduce_sum(labels)
            return found

        return total.get_concrete_function(), weakref.ref(feed)

    total, alive = make()
    gc.collect()
    assert int(total()) == int(total()) == sum(range(40))
    del total
    _assert_let_go(alive)


def test_a_tensor_outlives_feed_and_dataset():
    feed = kf.Feed(scenes.Clouds(), 8, workers=1, worker_type="thread")
    points, labels = next(iter(feed.to_tf_dataset()))
    feed.close()
    del feed
    gc.collect()
    assert np.array_equal(points.numpy()[:, 0, 0], 100.0 * labels.numpy())


def test_threads_iterate_datasets_of_one_feed_at_once():
    with kf.Feed(scenes.Clouds(), 8, shuffle=True, seed=1, workers=2, worker_type="thread") as feed:
        dataset, found = feed.to_tf_dataset(), []
        threads = [threading.Thread(target=lambda: found.append(tuple(indices_of(dataset)))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(found) == {tuple(order_of(feed, epoch)) for epoch in range(4)}


def test_tensorflow_runs_no_autotune_thread_for_the_dataset():
    """A thread that drops an iterator would wait for it, sometimes for seconds, holding the GIL."""
    with kf.Feed(Numbered(8), 4, workers=2, worker_type="thread") as feed:
        assert feed.to_tf_dataset().options().autotune.enabled is False


# ---- the thread that runs users' code


@pytest.mark.parametrize("stream", [False, True])
def test_without_workers_one_thread_reads_the_scenes_with_the_context_of_the_dataset(stream):
    class Noting(Numbered):
        def __getitem__(self, index):
            threads.add(threading.current_thread())
            found.append((variable.get(), self.rng.random()))
            return np.float32(index)

    def generate():
        yield from (Noting(12)[index] for index in range(12))

    variable = contextvars.ContextVar("variable", default="default")
    threads, found = set(), []
    with (kf.StreamFeed if stream else kf.Feed)(generate if stream else Noting(12), 3, workers=0, seed=5) as feed:
        variable.set("of the dataset")
        dataset = feed.to_tf_dataset()
        expected = None
        if not stream:
            found.clear()
            list(feed.epoch(0))
            expected = [number for _, number in found]
        threads.clear(), found.clear()
        assert len(list(dataset)) == 4
        read = found if not stream else found[-6:]  # the first batches of a stream were read for the spec
        assert {value for value, _ in read} == {"of the dataset"}
        if not stream:
            assert [number for _, number in found] == expected
        own = [thread for thread in threads if thread.name == "kerasfeed-cursor"]
        assert len(own) == 1
        own[0].join(20)
        assert not own[0].is_alive()


@pytest.mark.heavy
def test_without_workers_no_two_scenes_are_read_at_once_after_an_iterator_was_dropped():
    class Slow(Numbered):
        def __getitem__(self, index):
            with lock:
                inside.append(inside[-1] + 1)
            time.sleep(0.05)
            with lock:
                inside.append(inside[-1] - 1)
            return np.float32(index)

    lock, inside = threading.Lock(), [0]
    with kf.Feed(Slow(12), 2, workers=0) as feed:
        dataset = feed.to_tf_dataset()
        for _ in range(4):
            next(iter(dataset))  # dropped while the next batch is read
            feed[3]
    assert max(inside) == 1
