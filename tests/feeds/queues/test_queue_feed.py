"""`QueueFeed`: epochs that other code puts, in loops, in `fit` and as a dataset."""

import errno
import gc
import itertools
import pickle
import queue
import signal
import threading
import time

import numpy as np
import pytest

import kerasfeed as kf
from kerasfeed.feeds.streams import pipeline

SPEC = (kf.ArraySpec((3,), np.float32), kf.ArraySpec((), np.float32))
EPOCHS = [[[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]], [[100, 101, 102, 103], [104, 105, 106, 107], [108, 109]]]


def _fill(feed, epochs=2, scenes=10):
    for epoch in range(epochs):
        for number in range(scenes):
            label = 100 * epoch + number
            feed.put((np.full(3, label, np.float32), float(label)))
        feed.end_epoch()
    feed.close()


def _labels(batches):
    return [labels.astype(int).tolist() for _, labels in batches]


STRUCTURED = np.dtype([("a", np.float32), ("b", np.int32)])


@pytest.mark.parametrize("spec", [None, kf.ArraySpec((), STRUCTURED)], ids=["inferred", "given"])
def test_a_scalar_of_a_structured_array_that_is_used_again_is_copied(spec):
    place = np.zeros(1, STRUCTURED)
    with kf.QueueFeed(batch_size=4, spec=spec, workers=0) as feed:
        for number in range(4):
            place["a"] = place["b"] = number
            feed.put(place[0])
        feed.end_epoch()
        assert next(iter(feed))["b"].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("dtype", "scene"),
    [
        (np.dtype("M8[s]"), np.datetime64(1, "ns")),
        (STRUCTURED, np.zeros(1, [("c", np.float64)])[0]),
    ],
)
def test_a_scalar_of_another_dtype_of_the_same_type_is_refused_where_it_is_put(dtype, scene):
    with kf.QueueFeed(batch_size=4, spec=kf.ArraySpec((), dtype), workers=0) as feed, pytest.raises(kf.SpecError):
        feed.put(scene)


@pytest.mark.parametrize("spec", [None, SPEC], ids=["inferred", "given"])
@pytest.mark.parametrize("workers", [0, "auto"])
def test_every_loop_is_one_epoch_of_the_producer_and_empty_after_its_last(spec, workers):
    with kf.QueueFeed(batch_size=4, spec=spec, maxsize=3, workers=workers) as feed:
        feed.produce(_fill, feed)
        assert [_labels(feed) for _ in range(4)] == [*EPOCHS, [], []]


def test_a_loop_that_is_left_loses_nothing():
    with kf.QueueFeed(batch_size=4, spec=SPEC) as feed:
        feed.produce(_fill, feed)
        first = _labels(itertools.islice(feed, 1))
        for points, _ in feed:
            assert points[0, 0] == 4
            break
        assert first + _labels(feed) == [EPOCHS[0][0], EPOCHS[0][2]]
        assert _labels(itertools.islice(feed, 3)) == EPOCHS[1]
        assert _labels(feed) == []


def test_a_loop_that_takes_all_but_the_end_leaves_no_epoch_behind():
    with kf.QueueFeed(batch_size=4, spec=SPEC) as feed:
        feed.produce(_fill, feed)
        assert [_labels(itertools.islice(feed, 3)) for _ in range(2)] == EPOCHS


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_that_ends_after_its_last_batch_was_taken_is_over_for_the_next_loop(workers):
    with kf.QueueFeed(batch_size=1, workers=workers, worker_type="thread") as feed:
        for each in (1, 2):
            feed.put(each)
        left = iter(feed)
        assert [next(left).item(), next(left).item()] == [1, 2]  # and it is still referenced
        loop = iter(feed)
        late = threading.Timer(0.1, lambda: [feed.end_epoch(), feed.put(3), feed.end_epoch()])
        late.start()
        assert [each.item() for each in loop] == [3]
        late.join()


def test_fit_takes_an_epoch_of_the_producer_for_each_of_its_own():
    import keras

    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    seen = []
    note = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: seen.append(0),
        on_train_batch_end=lambda batch, logs: seen.append(seen.pop() + 1),
    )
    with kf.QueueFeed(batch_size=4, spec=SPEC) as feed:
        feed.produce(_fill, feed)
        model.fit(feed, epochs=2, verbose=0, callbacks=[note])
    assert seen == [3, 3]


def test_a_dataset_has_the_shapes_of_the_spec_and_is_one_epoch():
    with kf.QueueFeed(batch_size=4, spec=SPEC) as feed:
        feed.produce(_fill, feed)
        dataset = feed.to_tf_dataset()
        assert [spec.shape.as_list() for spec in dataset.element_spec] == [[None, 3], [None]]
        assert [_labels((x.numpy(), y.numpy()) for x, y in dataset) for _ in range(2)] == EPOCHS


def test_map_makes_scenes_of_what_is_put():
    spec = {"name": kf.ArraySpec((), str), "number": kf.ArraySpec((), np.int64)}
    feed = kf.QueueFeed(batch_size=2, spec=spec, worker_type="thread", workers=2)
    with feed.map(lambda item: (np.full(2, item["number"]), item["name"].upper())) as mapped:
        gc.collect()  # the feed that `map` was called on may go
        for number, name in enumerate("abc"):
            mapped.put({"name": name, "number": number})
        mapped.end_epoch()
        assert [(numbers[:, 0].tolist(), list(names)) for numbers, names in mapped] == [
            ([0, 1], ["A", "B"]),
            ([2], ["C"]),
        ]
        with pytest.raises(kf.SpecError, match="field 'number': expected int64"):
            mapped.put({"name": "d", "number": 0.5})


@pytest.mark.parametrize("fails", ["FileStore", "make_loader"])
def test_a_feed_that_could_not_start_has_lost_no_scene(fails, monkeypatch):
    def refuses(*given):
        raise OSError(errno.EMFILE, "Too many open files")

    with kf.QueueFeed(batch_size=2, workers=1, worker_type="process").map(float) as feed:
        for number in range(2):
            feed.put(number)
        with monkeypatch.context() as patch:
            patch.setattr(pipeline, fails, refuses)
            with pytest.raises(OSError, match="Too many open files"):
                next(iter(feed))
        for number in range(2, 4):
            feed.put(number)
        feed.close()
        assert [batch.tolist() for batch in feed] == [[0, 1], [2, 3]]


def test_a_failure_of_a_producer_comes_after_the_batches_before_it():
    with kf.QueueFeed(batch_size=2) as feed:
        for number in range(3):
            feed.put(np.float32(number))
        feed.fail(OSError("the camera is off"))
        batches = iter(feed)
        assert [next(batches).tolist() for _ in range(2)] == [[0, 1], [2]]
        for loop in (batches, iter(feed)):
            with pytest.raises(OSError, match="the camera is off"):
                next(loop)


def _blocked(feed):
    """A thread that waits in `put`, and what it gets; the thread does not hold the feed."""
    put, ends = feed._source.put, []

    def run():
        try:
            while True:
                put(1)
        except kf.FeedClosedError as error:
            ends.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(0.1)
    assert thread.is_alive()
    return thread, ends


@pytest.mark.heavy
@pytest.mark.parametrize("begun", [False, True], ids=["fresh", "begun"])
@pytest.mark.parametrize("mapped", [False, True], ids=["plain", "mapped"])
def test_a_consumer_that_leaves_leaves_no_producer_blocked(begun, mapped):
    for leave in ("with", "drop"):
        feed = kf.QueueFeed(batch_size=2, maxsize=2, max_queue_size=1, worker_type="thread", workers=1)
        feed = feed.map(abs) if mapped else feed
        thread, ends = _blocked(feed)
        if begun:
            for batch in feed:
                assert batch.tolist() == [1, 1]
                break
        if leave == "with":
            with feed:
                pass
        del feed
        gc.collect()
        thread.join(60)
        assert not thread.is_alive(), leave
        assert len(ends) == 1


def test_a_put_waits_for_room_beside_the_batches_made_ahead():
    with kf.QueueFeed(batch_size=2, maxsize=3) as feed:
        for number in range(3):
            feed.put(number, timeout=0)
        with pytest.raises(queue.Full):
            feed.put(3, timeout=0.01)
        assert repr(feed).startswith("QueueFeed(put so far: 3, maxsize: 3, batch size: 2")
    assert "maxsize: 16" in repr(kf.QueueFeed(batch_size=2))


def test_a_process_fills_a_feed_through_its_producer():
    with kf.QueueFeed(batch_size=2, spec=SPEC, maxsize=30) as feed:
        with pickle.loads(pickle.dumps(feed.producer())) as producer:  # also where that is this one
            _fill(producer)
        assert sum(len(labels) for _, labels in feed) == 10


def test_bad_arguments_are_refused():
    with pytest.raises(ValueError, match="maxsize"):
        kf.QueueFeed(batch_size=2, maxsize=0)
    with pytest.raises(TypeError, match=r"a spec is a nesting of kf\.ArraySpec"):
        kf.QueueFeed(batch_size=2, spec=np.float32)
    with pytest.raises(TypeError, match="workers"):
        kf.QueueFeed(batch_size=2, num_workers=2)
    with pytest.raises(TypeError, match=r"belongs to its process.*Give other processes feed.producer\(\)"):
        pickle.dumps(kf.QueueFeed(batch_size=2))


def _yields():
    yield np.zeros(3)


@pytest.mark.parametrize(
    ("given", "what"),
    [(_yields, "a generator function"), (_yields(), "a generator"), (None, "a NoneType")],
    ids=["function", "generator", "None"],
)
def test_a_producer_that_is_no_function_that_puts_is_refused_at_once(given, what):
    with (
        kf.QueueFeed(batch_size=2) as feed,
        pytest.raises(TypeError, match=f"needs a function that puts scenes, received {what}. Pass the function"),
    ):
        feed.produce(given)


def _held(item):
    _go_on.wait(60)
    return item


_go_on = threading.Event()


def _interrupted(call):
    """Call something, and interrupt it soon, or before where the machine is busy."""
    timer = threading.Timer(0.15, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT))
    try:
        timer.start()
        call()
    finally:
        timer.join()


@pytest.mark.parametrize("mapped", [False, True], ids=["waiting", "mapping"])
@pytest.mark.parametrize("workers", [0, 1])
def test_ctrl_c_in_a_loop_loses_nothing(mapped, workers):
    feed = kf.QueueFeed(batch_size=2, workers=workers, worker_type="thread")
    _go_on.clear()
    with feed.map(_held) if mapped else feed as feed:
        for number in range(4 if mapped else 1):
            feed.put(number)
        for _ in range(2):
            with pytest.raises(KeyboardInterrupt):
                _interrupted(lambda: next(iter(feed)))
        _go_on.set()
        for number in range(4 if mapped else 1, 6):
            feed.put(number)
        feed.close()
        assert [batch.tolist() for batch in feed] == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize("begun", [False, True])
def test_ctrl_c_as_the_thread_that_reads_ahead_begins_loses_nothing_and_leaves_no_thread(begun, monkeypatch):
    start, readers = threading.Thread.start, []

    def struck(thread):
        if thread.name != "kerasfeed-stream":
            start(thread)
            return
        readers.append(thread)
        if begun or len(readers) > 1:
            start(thread)
        if len(readers) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", struck)
    with kf.QueueFeed(batch_size=2, maxsize=40, workers=1, worker_type="thread") as feed:
        for number in range(20):
            feed.put(number)
        feed.close()
        with pytest.raises(KeyboardInterrupt):
            next(iter(feed))
        assert [number for batch in feed for number in batch.tolist()] == list(range(20))
    for thread in readers[1 - begun :]:
        thread.join(60)
        assert not thread.is_alive()


def test_a_warning_that_is_an_error_loses_nothing():
    with kf.QueueFeed(batch_size=2) as feed:
        for number in range(4):
            feed.put(number)
        feed.close()
        feed._source.deferred_warnings.defer("one", "a producer has died", kf.FeedWarning)
        with pytest.raises(kf.FeedWarning):
            next(iter(feed))
        assert [batch.tolist() for batch in feed] == [[0, 1], [2, 3]]


@pytest.mark.heavy
@pytest.mark.parametrize("steps", [None, 15])
def test_a_fit_that_is_interrupted_late_in_an_epoch_loses_nothing(steps):
    import keras

    def interrupt(batch, logs):
        if batch == 11:
            raise KeyboardInterrupt

    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with kf.QueueFeed(batch_size=1, spec=SPEC, maxsize=30) as feed:
        _fill(feed, epochs=1, scenes=20)
        callback = keras.callbacks.LambdaCallback(on_train_batch_end=interrupt)
        with pytest.raises(KeyboardInterrupt) as raised:
            model.fit(feed, steps_per_epoch=steps, verbose=0, callbacks=[callback])
        del raised
        gc.collect()  # with the traceback goes Keras's iterator, which leaves the feed
        rest = [label for labels in _labels(feed) for label in labels]
    assert rest == list(range(rest[0], 20))
    assert rest[0] <= 12


@pytest.mark.heavy
def test_a_feed_may_be_collected_after_a_fit_that_failed():
    import keras

    def explode(batch, logs):
        raise ZeroDivisionError("in the middle of fit")

    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    feed = kf.QueueFeed(batch_size=4, spec=SPEC, maxsize=30)
    _fill(feed)
    with pytest.raises(ZeroDivisionError) as raised:
        model.fit(feed, verbose=0, callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=explode)])
    del feed
    gc.collect()
    del raised, model  # with them goes the generator; what it raises there fails the test
    gc.collect()
