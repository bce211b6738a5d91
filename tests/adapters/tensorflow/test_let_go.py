"""TensorFlow iterators that any thread drops in the middle of an epoch: never a hang, and no work continues."""

import textwrap
import threading
import time

import ml_dtypes
import numpy as np
import pytest
import tensorflow as tf
from scenes_frameworks import Lingering
from waits import PROGRAM_SECONDS, wait_until, wait_until_nothing_follows

import kerasfeed as kf
from kerasfeed.adapters.tensorflow import dataset as tf_dataset
from kerasfeed.feeds import cursor


@pytest.mark.heavy
@pytest.mark.parametrize("change", [lambda dataset: dataset, lambda dataset: dataset.map(lambda batch: batch["x"])])
def test_leaving_a_loop_waits_for_no_batch_and_drops_those_ahead(change):
    sequence = Lingering(120)
    with kf.Feed(sequence, 2, workers=1, worker_type="thread", collate="pad", max_queue_size=40) as feed:
        iterators = [iter(change(feed.to_tf_dataset()))]
        next(iterators[0])
        iterators.clear()
        assert len(sequence.read) < 50  # 80, which take 24 s, are asked for
        wait_until_nothing_follows(sequence.read)
        assert len(sequence.read) < 50


@pytest.fixture
def polls_often(monkeypatch):
    """For nearly every batch, TensorFlow hears that it is not ready yet."""
    for module in (cursor, tf_dataset):
        monkeypatch.setattr(module, "POLL_SECONDS", 0.0005)


@pytest.fixture
def assert_ended():
    """Call it: no iteration of this test is left, a moment after the last iterator."""
    before = set(threading.enumerate())

    def check():
        new = set(threading.enumerate()) - before
        wait_until(lambda: not any(thread.is_alive() and thread.name == "kerasfeed-cursor" for thread in new))

    return check


@pytest.mark.heavy
@pytest.mark.parametrize("kind", [(1, "thread"), (2, "thread"), (2, "process")], ids=str)
@pytest.mark.parametrize("deterministic", [True, False])
def test_a_batch_that_is_requested_many_times_comes_once(polls_often, kind, deterministic, assert_ended):
    workers, worker_type = kind
    sequence = Lingering(24, 0.02)
    with kf.Feed(sequence, 3, shuffle=True, workers=workers, worker_type=worker_type, collate="ragged") as feed:
        names = [name for batch in feed.to_tf_dataset(deterministic=deterministic) for name in batch["name"].numpy()]
        expected = [f"scene {i}".encode() for step in range(8) for i in feed.plan.indices(0, step)]
        assert (names if deterministic else sorted(names)) == (expected if deterministic else sorted(expected))
        assert_ended()


@pytest.mark.heavy
def test_a_batch_of_a_stream_that_is_requested_many_times_comes_once(polls_often):
    def slow(n, count):
        for number in range(12):
            time.sleep(0.01)
            yield {"x": np.full(number % 3 + 1, number, np.float32), "name": f"scene {number}"}

    with kf.StreamFeed(slow, 3, workers=1, worker_type="thread", collate="ragged") as feed:
        for _ in range(2):
            names = [name for batch in feed.to_tf_dataset() for name in batch["name"].numpy()]
            assert names == [f"scene {number}".encode() for number in range(12)]


@pytest.mark.heavy
def test_a_feed_with_memory_for_two_batches_waits_for_it_many_times(polls_often):
    sequence = [np.full(1 << 16, number, np.float32) for number in range(24)]
    told = pytest.warns(kf.FeedWarning, match="the consumer keeps so many batches")
    feed = kf.Feed(sequence, 2, workers=2, worker_type="process", max_memory=2 * (2 << 18) + 8192)
    with told, feed:
        found = [batch.numpy()[:, 0].tolist() for batch in feed.to_tf_dataset()]
    assert found == [[number, number + 1.0] for number in range(0, 24, 2)]


@pytest.mark.parametrize("dtype", ["int4", "uint4", "float8_e4m3fn", "bfloat16"])
def test_dtypes_that_loops_of_a_graph_cannot_carry_arrive(polls_often, dtype, assert_ended):
    numbers = np.arange(6).astype(getattr(ml_dtypes, dtype))

    class Rare(Lingering):
        def __getitem__(self, index):
            time.sleep(0.02)
            return numbers[index : index + 1]

    with kf.Feed(Rare(6), 2, workers=1, worker_type="thread") as feed:
        batches = list(feed.to_tf_dataset())
    assert [batch.dtype.name for batch in batches] == [dtype] * 3
    assert [batch.numpy().astype(float)[:, 0].tolist() for batch in batches] == [[0, 1], [2, 3], [4, 5]]
    assert_ended()


def test_an_error_of_a_batch_that_is_requested_many_times_arrives_once_with_its_whole_text(polls_often):
    def failing(n, count):
        yield np.zeros(3)
        time.sleep(0.1)
        raise ZeroDivisionError("in the generator")

    class Failing(Lingering):
        def __getitem__(self, index):
            if index == 7:
                time.sleep(0.1)
                raise TimeoutError("the scanner sleeps")
            return super().__getitem__(index)["x"][:1, 0]

    told = pytest.raises(tf.errors.UnknownError, match=r"TimeoutError: the scanner sleeps\n.*scene 7")
    with kf.Feed(Failing(12, 0.01), 2, workers=2, worker_type="thread") as feed, told:
        list(feed.to_tf_dataset())
    told = pytest.raises(tf.errors.UnknownError, match="ZeroDivisionError: in the generator")
    with kf.StreamFeed(failing, 1, workers=1, worker_type="thread") as feed, told:
        list(feed.to_tf_dataset())


COLLECTED = """
    import gc, os, threading, time, weakref
    import numpy as np, tensorflow as tf
    import keras
    import kerasfeed as kf

    hooks = []

    def scene(index, held_back):
        while index > 12 and os.path.exists(held_back):  # scenes are left to be read, however slow the start is
            time.sleep(0.01)
        time.sleep(0.02)
        for hook in hooks:  # in this process alone
            hook()
        return np.full(3, index, np.float32), np.float32(index)

    class Scenes(kf.SceneSequence):
        def __init__(self, held_back): self.held_back = held_back
        def __len__(self): return 40
        def __getitem__(self, index): return scene(index, self.held_back)

    def scenes(held_back):
        for index in range(40):
            yield scene(index, held_back)

    class Cycle:
        pass

    class Stopped(Exception):
        pass

    def stop(batch, logs=None):
        raise Stopped

    def an_iterator(feed):
        iterator = iter(feed.to_tf_dataset())
        next(iterator)
        return iterator

    def a_derived_iterator(feed):
        iterator = iter(feed.to_tf_dataset().map(lambda x, y: x).prefetch(1))
        next(iterator)
        return iterator

    def a_stopped_fit(feed):
        model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        try:
            stops = keras.callbacks.LambdaCallback(on_train_batch_end=stop)
            model.fit(feed, shuffle=False, verbose=0, callbacks=[stops])
        except Stopped as error:
            return error

    def collected_where_batches_are_made(make, options, begin):
        gc.collect()
        gc.disable()
        held_back = os.path.abspath(f"held back {make.__name__} {options['worker_type']} {begin.__name__}")
        with make(held_back, batch_size=2, **options) as feed:
            gone, collectors, submit = [], [], getattr(feed, "submit", None)

            def collect(future=None):
                if gone and not collectors:
                    collectors.append(threading.current_thread().name)
                    gc.collect()
                    collectors.append(gone[0]() is None)

            def noting(epoch, step, **options):
                future = submit(epoch, step, **options)
                future.add_done_callback(collect)  # by the supervisor of the processes
                return future

            if options["worker_type"] == "process":
                feed.submit = noting
            else:
                hooks.append(collect)
            feed.element_spec  # which reads the last scene, too
            open(held_back, "w").close()
            cycle = Cycle()
            cycle.itself, cycle.held = cycle, begin(feed)
            reference = weakref.ref(cycle)
            del cycle
            gone.append(reference)
            os.remove(held_back)
            deadline = time.monotonic() + 60
            while len(collectors) < 2:
                assert time.monotonic() < deadline, collectors
                time.sleep(0.01)
            hooks.clear()
            vars(feed).pop("submit", None)
            print(make.__name__, options, begin.__name__, collectors)
            assert collectors[0] != "MainThread" and collectors[1]
            found = [float(y) for _, labels in feed for y in labels]
            assert found == list(range(40)), found
        gc.enable()

    def indexed(held_back, **options):
        return kf.Feed(Scenes(held_back), **options)

    def stream(held_back, **options):
        return kf.StreamFeed(lambda n, count: scenes(held_back), **options)

    thread = {"workers": 1, "worker_type": "thread"}
    for begin in (an_iterator, a_derived_iterator, a_stopped_fit):
        collected_where_batches_are_made(indexed, thread, begin)
        collected_where_batches_are_made(indexed, {"workers": 1, "worker_type": "process"}, begin)
    for begin in (a_derived_iterator, a_stopped_fit):
        collected_where_batches_are_made(stream, thread, begin)
    print("whole")
"""


@pytest.mark.heavy
def test_a_thread_that_loads_a_batch_may_collect_the_iterator_that_waits_for_it(run_forked):
    assert run_forked(COLLECTED, seconds=2 * PROGRAM_SECONDS).endswith("whole\n")


COLLECTED_WHERE_SCENES_ARE_READ = """
    import gc, threading, time, weakref
    import numpy as np, tensorflow as tf
    import kerasfeed as kf

    stopping, gone, calls, collectors = threading.Event(), [], [], []

    def users_code():  # called for every batch; the collector runs in it once the iterator is in a cycle
        calls.append(1)
        if len(calls) == 2:
            stopping.wait(0.5)  # the first batch may need two calls
        if len(calls) > 2:
            assert stopping.wait(60)
        if stopping.is_set() and not collectors:
            collectors.append(threading.current_thread().name)
            gc.collect()

    class Scenes(kf.SceneSequence):
        def __init__(self, length=12): self.length = length
        def __len__(self): return self.length
        def __getitem__(self, index): return np.float32(index)

    class Read(Scenes):
        def __getitem__(self, index):
            users_code()
            return np.float32(index)

    class Hooked(Scenes):
        def on_epoch_begin(self): users_code()

    class Ahead(Scenes):
        def read_ahead(self, indices): users_code()

    def ordered(length, seed, epoch):
        users_code()
        return np.arange(length)

    def generated():
        for index in range(12):
            users_code()
            yield np.float32(index)

    class Stopped(Exception):
        pass

    def stopped(dataset):
        iterator = iter(dataset)
        next(iterator)
        try:
            raise Stopped
        except Stopped as error:
            gone.append(weakref.ref(error))
            stored = error  # whose traceback holds this frame, which holds the iterator, and it

    def collect(feed, change, **epochs):
        stopping.set()
        collectors.append("none yet")
        gc.collect()
        gc.disable()
        dataset = change(feed.to_tf_dataset(**epochs))
        stopping.clear(), gone.clear(), calls.clear(), collectors.clear()
        stopped(dataset)
        stopping.set()
        begun, deadline = time.monotonic(), time.monotonic() + 60
        while gone[0]() is not None:  # and the main thread has nothing to do
            if not collectors and time.monotonic() > begun + 5:
                return False  # the batch ahead was loaded before, and TensorFlow requests no more
            assert time.monotonic() < deadline, (feed, collectors)
            time.sleep(0.01)
        assert collectors and "MainThread" not in collectors
        cycle = Scenes()
        cycle.itself, alive = cycle, weakref.ref(cycle)
        del cycle
        while alive() is not None:  # the other thread's collection may still run, and then this one does nothing
            assert time.monotonic() < deadline, "nothing is collected any more"
            gc.collect()
            time.sleep(0.01)
        gc.enable()
        return True

    inline, thread = {"workers": 0}, {"workers": 1, "worker_type": "thread", "max_queue_size": 1}
    for change in (lambda dataset: dataset, lambda dataset: dataset.map(lambda x: x).prefetch(1)):
        for sequence, options, epochs in (
            (Read(), inline, 1), (Hooked(1), thread, 12), (Ahead(), thread, 1),
            (Scenes(1), {"order": ordered, **thread}, 12),
        ):
            calls.clear()
            with kf.Feed(sequence, 1, **options) as feed:
                assert any(collect(feed, change, epochs=epochs) for _ in range(8))
                assert len(list(feed)) == len(sequence)
        calls.clear()
        with kf.StreamFeed(generated, 1, **inline) as feed:
            assert any(collect(feed, change) for _ in range(8))
            assert len(list(feed)) == 12
    print("collected")
"""


@pytest.mark.heavy
def test_user_code_may_collect_the_iterator_that_waits_for_it(run_forked):
    assert "collected" in run_forked(COLLECTED_WHERE_SCENES_ARE_READ)


ENDING = """
    import time
    import numpy as np, tensorflow as tf
    import kerasfeed as kf

    class Slow(kf.SceneSequence):
        def __len__(self): return 400
        def __getitem__(self, index):
            time.sleep(0.3 * (index > 3))  # so TensorFlow is in a call as the program ends
            return np.zeros(3, np.float32)

    def loop():
        with kf.Feed(Slow(), 4, workers=1, worker_type="thread", output_signature=tf.TensorSpec(3)) as feed:
            dataset = feed.to_tf_dataset()
            if {mapped}:
                dataset = dataset.map(lambda batch: tf.reshape(batch, [tf.cast(batch[0, 0], tf.int32) + 7]))
            for batch in dataset:
                1 / 0

    loop()
"""


@pytest.mark.heavy
@pytest.mark.parametrize("mapped", [pytest.param(False, marks=pytest.mark.versions), True])
def test_a_program_with_an_uncaught_error_of_tensorflow_in_its_loop_ends(mapped, forked, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(ENDING.format(mapped=mapped)))
    done = forked.run(script, tmp_path, seconds=PROGRAM_SECONDS)
    assert done.returncode == 1
    assert ("InvalidArgumentError" if mapped else "ZeroDivisionError") in done.stderr
