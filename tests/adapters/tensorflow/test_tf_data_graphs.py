"""`Feed.to_tf_dataset` in graphs, in Keras and on devices."""

import gc
import threading

import keras
import numpy as np
import optree
import pytest
import scenes
import tensorflow as tf
from scenes_frameworks import Numbered
from tf_batches import indices_of, order_of
from waits import wait_until

import kerasfeed as kf


@pytest.fixture
def feed():
    with kf.Feed(scenes.Clouds(40), 8, shuffle=True, seed=1, workers=2, worker_type="thread") as feed:
        yield feed


# ---- graphs


def test_the_dataset_is_iterated_in_a_tf_function(feed):
    dataset = feed.to_tf_dataset()

    @tf.function
    def total():
        found = tf.constant(0, tf.int64)
        for _, labels in dataset:
            found += tf.reduce_sum(labels)
        return found

    assert int(total()) == int(total()) == sum(range(40))
    assert next(iter(feed))[1].tolist() == feed.plan.indices(2, 0).tolist()


def own_threads():
    return [thread for thread in threading.enumerate() if thread.name == "kerasfeed-cursor"]


def test_an_iteration_ends_with_its_iterator_even_if_its_graph_is_deleted_first(feed):
    keras.utils.clear_session()
    iterator = iter(feed.to_tf_dataset().map(lambda points, labels: labels))
    next(iterator)
    assert own_threads()
    gc.disable()  # in TensorFlow's threads: none may end the iterator within a call that it waits for
    try:
        cycle = [iterator]
        cycle.append(cycle)
        del iterator, cycle
        keras.utils.clear_session()  # drops TensorFlow's data of a function without other references
        gc.collect()
    finally:
        gc.enable()
    wait_until(lambda: not own_threads())


@pytest.mark.heavy
def test_the_dataset_is_made_in_a_tf_function(feed):
    @tf.function
    def first():
        found = tf.zeros([0], tf.int64)
        for _, labels in feed.to_tf_dataset():
            tf.autograph.experimental.set_loop_options(shape_invariants=[(found, tf.TensorShape([None]))])
            found = tf.concat([found, labels], 0)
        return found

    assert first().numpy().tolist() == order_of(feed, 0)
    gc.collect()
    assert first().numpy().tolist() == order_of(feed, 1)


def test_an_iterator_is_an_argument_of_a_tf_function(feed):
    @tf.function(reduce_retracing=True)
    def step(iterator):
        return next(iterator)[1]

    iterator = iter(feed.to_tf_dataset())
    assert [i for _ in range(5) for i in step(iterator).numpy().tolist()] == order_of(feed, 0)
    with pytest.raises(tf.errors.OutOfRangeError):
        step(iterator)


@pytest.mark.parametrize("sequence", [Numbered(24), np.arange(24.0)], ids=["pair", "array"])
def test_the_dataset_runs_in_the_debug_mode_of_tf_data(sequence):
    from tensorflow.python.data.ops import debug_mode

    tf.data.experimental.enable_debug_mode()
    try:
        with kf.Feed(sequence, 5, shuffle=True, seed=1, workers=2, worker_type="thread") as feed:
            assert sum(len(optree.tree_leaves(batch)[0]) for batch in feed.to_tf_dataset(epochs=2)) == 48
    finally:
        debug_mode.toggle_debug_mode(False)


def test_a_session_of_tensorflow_1_initialises_the_iterator_for_every_epoch(feed):
    with tf.Graph().as_default():
        dataset = feed.to_tf_dataset()
        iterator = tf.compat.v1.data.make_initializable_iterator(dataset)
        _, labels = iterator.get_next()
        assert labels.shape.as_list() == [8]
        with tf.compat.v1.Session() as session:
            for epoch in range(2):
                session.run(iterator.initializer)
                found = [index for _ in range(5) for index in session.run(labels).tolist()]
                assert found == order_of(feed, epoch)
                with pytest.raises(tf.errors.OutOfRangeError):
                    session.run(labels)


@pytest.mark.heavy
def test_a_script_of_tensorflow_1_trains_on_the_dataset(run_forked):
    printed = run_forked(
        """
        import tensorflow as tf2
        import tensorflow.compat.v1 as tf
        tf.disable_v2_behavior()
        import gc, scenes, kerasfeed as kf

        with kf.Feed(scenes.Clouds(40), 8, shuffle=True, seed=1, workers=2, worker_type="process") as feed:
            dataset = feed.to_tf_dataset().map(lambda points, labels: (points / 100, labels))
            iterator = tf.data.make_initializable_iterator(dataset)
            points, labels = iterator.get_next()
            weight = tf.get_variable("weight", [])
            loss = tf.reduce_mean((tf.reduce_mean(points, [1, 2]) * weight - tf.cast(labels, tf.float32)) ** 2)
            train = tf.train.GradientDescentOptimizer(1e-4).minimize(loss)
            del dataset
            gc.collect()
            with tf.Session() as session:
                session.run(tf.global_variables_initializer())
                losses = []
                for epoch in range(2):
                    session.run(iterator.initializer)
                    found = []
                    while True:
                        try:
                            _, value, some = session.run([train, loss, labels])
                        except tf.errors.OutOfRangeError:
                            break
                        losses.append(value)
                        found += some.tolist()
                    order = [i for step in range(5) for i in feed.plan.indices(epoch, step).tolist()]
                    assert found == order, (found, order)
            assert losses[-1] < losses[0], losses
        print("trained", not tf2.executing_eagerly())
        """,
    )
    assert "trained True" in printed


def test_the_dataset_takes_a_device(feed):
    for device in ("/cpu:0", "cpu:0"):
        epoch = feed.clock.taken // len(feed)
        dataset = feed.to_tf_dataset(device=device)
        assert dataset.element_spec == (tf.TensorSpec((8, 4, 3), tf.float32), tf.TensorSpec((8,), tf.int64))
        assert len(dataset) == 5
        assert indices_of(dataset.map(lambda points, labels: labels[None]).take(9)) == order_of(feed, epoch)


@pytest.mark.heavy
def test_a_dataset_on_another_device_gives_fit_its_batches_there(run_forked):
    printed = run_forked(
        """
        import tensorflow as tf
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        import keras
        import kerasfeed as kf
        from scenes_frameworks import Numbered

        class Recording(keras.Model):
            def train_step(self, data):
                seen.append((data[1].numpy().ravel().astype(int).tolist(), data[1].device[-5:]))
                return {"loss": 0.0}

        with kf.Feed(Numbered(22), 6, shuffle=True, seed=1, workers=2, worker_type="thread") as feed:
            order = [feed.plan.indices(epoch, step).tolist() for epoch in range(4) for step in range(4)]
            dataset = feed.to_tf_dataset(device="/cpu:1")
            assert int(dataset.cardinality()) == tf.data.UNKNOWN_CARDINALITY
            seen = [labels.numpy().ravel().astype(int).tolist() for _, labels in dataset]
            assert seen == order[:4], seen
            seen = []
            model = Recording()
            model.compile(run_eagerly=True)
            model.fit(dataset, epochs=3, shuffle=False, verbose=0)
            assert seen == [(labels, "CPU:1") for labels in order[4:]], seen
            del dataset
        print("placed")
        """,
    )
    assert "placed" in printed


# ---- Keras on a dataset


def test_fit_evaluate_and_predict_take_the_dataset(feed):
    def scaled(points, labels):
        return tf.reshape(points, [-1, 12]) / 4000, tf.cast(labels, tf.float32)

    model = keras.Sequential([keras.Input((12,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    history = model.fit(feed.to_tf_dataset().map(scaled), epochs=2, shuffle=False, verbose=0)
    assert len(history.history["loss"]) == 2
    assert next(iter(feed))[1].tolist() == feed.plan.indices(2, 0).tolist()
    loss = model.evaluate(feed.to_tf_dataset().map(scaled), verbose=0)
    assert np.isfinite(loss)
    predicted = model.predict(feed.to_tf_dataset().map(scaled), verbose=0)
    assert predicted.shape == (40, 1)


def test_every_epoch_of_fit_is_a_new_epoch_of_the_feed():
    seen = []

    class Recording(keras.Model):
        def train_step(self, data):
            seen.append(data[1].numpy().ravel().astype(int).tolist())
            return {"loss": 0.0}

    with kf.Feed(Numbered(), 6, shuffle=True, seed=1, workers=2, worker_type="thread") as feed:
        model = Recording()
        model.compile(run_eagerly=True)
        model.fit(feed.to_tf_dataset(), epochs=3, shuffle=False, verbose=0)
    expected = [feed.plan.indices(epoch, step).tolist() for epoch in range(3) for step in range(4)]
    assert seen == expected


@pytest.mark.heavy
def test_a_mirrored_strategy_sees_every_scene_once_an_epoch(run_forked):
    printed = run_forked(
        """
        import gc
        import tensorflow as tf
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
        import keras, numpy as np
        import kerasfeed as kf
        from scenes_frameworks import Numbered

        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        assert strategy.num_replicas_in_sync == 2

        def values(batch):
            return [int(v) for part in strategy.experimental_local_results(batch[1]) for v in part.numpy().ravel()]

        for length in (24, 22):  # of 22 the last batch is short
            with kf.Feed(Numbered(length), 6, shuffle=True, seed=1, workers=2, worker_type="thread") as feed:
                distributed = strategy.experimental_distribute_dataset(feed.to_tf_dataset())
                gc.collect()
                for epoch in range(2):
                    found = [value for batch in distributed for value in values(batch)]
                    order = [i for step in range(len(feed)) for i in feed.plan.indices(epoch, step).tolist()]
                    assert sorted(found) == list(range(length)), found
                    if length == 24:
                        assert found == order, (found, order)
                iterator = iter(strategy.experimental_distribute_dataset(feed.to_tf_dataset()))
                del distributed
                gc.collect()
                assert len(values(next(iterator))) == 6  # the iterator alone keeps the feed's dataset
                del iterator

        class Recording(keras.Model):
            def __init__(self):
                super().__init__()
                self.dense = keras.layers.Dense(1)
            def call(self, x):
                return self.dense(x)
            def train_step(self, data):
                tf.numpy_function(lambda y: seen.extend(y.ravel().astype(int).tolist()), [data[1]], [])
                return {"loss": 0.0}

        # To build a model, Keras reads one batch. That takes no epoch of a feed, but one of a dataset.
        for make, first in ((lambda feed: feed.to_tf_dataset(), 1), (lambda feed: feed, 0)):
            with kf.Feed(Numbered(24), 6, shuffle=True, seed=1, workers=2, worker_type="thread") as feed:
                with strategy.scope():
                    model = Recording()
                    model.compile("sgd", "mse")
                seen, ends = [], []
                note = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: ends.append(len(seen)))
                model.fit(make(feed), epochs=3, shuffle=False, verbose=0, callbacks=[note])
                assert ends == [24, 48, 72], ends
                for epoch in range(3):  # the two replicas of a step note their halves in either order
                    part = seen[24 * epoch : 24 * epoch + 24]
                    found = [sorted(part[k : k + 6]) for k in range(0, 24, 6)]
                    order = [sorted(feed.plan.indices(first + epoch, step).tolist()) for step in range(4)]
                    assert found == order, (epoch, found, order)
        print("distributed")
        """,
    )
    assert "distributed" in printed
