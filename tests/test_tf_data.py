"""`Feed.to_tf_dataset`: static specs, the feed's batches bit for bit, epochs, errors, lifetimes, strategies."""

import collections
import gc
import random
import re
import threading
import time
import weakref

import keras
import numpy as np
import optree
import pytest
import scenes
import tensorflow as tf
from scenes_frameworks import (
    Deadly,
    Nesting,
    Numbered,
    Pair,
    Stateful,
    Waiting,
    frameworks_left_alone,
    let_tensorflow_free_memory,
    run_script,
)

import kerasfeed as kf
from kerasfeed.errors import FeedClosedError

WORKERS = [(0, "thread"), (3, "thread"), (2, "process")]


@pytest.fixture(scope="module", autouse=True)
def quick_collector():
    with frameworks_left_alone():
        yield


@pytest.fixture(autouse=True)
def memory_freed():
    """Before `nothing_leaks` looks."""
    yield
    let_tensorflow_free_memory()


def _encoded(leaf):
    encoded = [text.encode() if isinstance(text, str) else text for text in leaf.flat]
    return np.array(encoded, object).reshape(leaf.shape)


def _assert_batches_equal(from_tf, from_feed):
    """Compare batches leaf by leaf, in optree's order: lists have become tuples, and str has become bytes."""
    from_tf, from_feed = list(from_tf), list(from_feed)
    assert len(from_tf) == len(from_feed)
    for one, other in zip(from_tf, from_feed, strict=True):
        leaves, others = [tensor.numpy() for tensor in optree.tree_leaves(one)], optree.tree_leaves(other)
        for a, b in zip(leaves, others, strict=True):
            if b.dtype == object:
                assert a.tolist() == _encoded(b).tolist()
            else:
                assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


def _indices(dataset):
    """The scenes of a dataset of batches (points, indices), in order."""
    return np.concatenate([batch[-1].numpy().ravel() for batch in dataset]).astype(int).tolist()


def _order(feed, epoch):
    return np.concatenate([feed.plan.indices(epoch, step) for step in range(len(feed))]).tolist()


# ---- specs


def test_every_field_has_a_static_shape_and_dtype_in_the_nesting_of_the_scene():
    with kf.Feed(Nesting(), 5, workers=2, worker_type="thread") as feed:
        spec = feed.to_tf_dataset().element_spec
    assert set(spec) == {"pair", "list", "text", "raw", "words", "flag", "nothing"}
    assert spec["pair"] == Pair(tf.TensorSpec((5, 2, 3), tf.float16), tf.TensorSpec((5,), tf.int32))
    assert isinstance(spec["pair"], Pair)
    assert spec["list"] == (tf.TensorSpec((5,), tf.uint8), {"deep": tf.TensorSpec((5, 2), tf.complex64)})
    assert spec["text"] == spec["raw"] == tf.TensorSpec((5,), tf.string)
    assert spec["words"] == tf.TensorSpec((5, 2), tf.string)
    assert spec["flag"] == tf.TensorSpec((5,), tf.bool)


def test_a_scene_of_one_array_is_a_dataset_of_one_tensor():
    with kf.Feed(np.arange(12.0).reshape(6, 2), 3, workers=1) as feed:
        dataset = feed.to_tf_dataset()
        assert dataset.element_spec == tf.TensorSpec((3, 2), tf.float64)
        _assert_batches_equal(dataset, feed.epoch(0))


def test_a_scene_that_is_a_list_is_a_dataset_of_tuples():
    with kf.Feed([[np.float32(k), k] for k in range(4)], 2, workers=1) as feed:
        dataset = feed.to_tf_dataset()
        assert dataset.element_spec == (tf.TensorSpec((2,), tf.float32), tf.TensorSpec((2,), tf.int64))
        assert all(isinstance(batch, tuple) for batch in dataset)


@pytest.mark.parametrize(("drop_remainder", "rows"), [(False, None), (True, 8)])
def test_the_batch_axis_is_unknown_only_where_the_last_batch_is_short(drop_remainder, rows):
    with kf.Feed(scenes.Clouds(37), 8, drop_remainder=drop_remainder, workers=1, worker_type="thread") as feed:
        dataset = feed.to_tf_dataset()
        assert dataset.element_spec == (tf.TensorSpec((rows, 4, 3), tf.float32), tf.TensorSpec((rows,), tf.int64))
        assert [int(tf.shape(labels)[0]) for _, labels in dataset][-1] == (8 if drop_remainder else 5)


def test_an_axis_that_differs_between_scenes_is_unknown_and_arrives_whole():
    with kf.Feed(scenes.Sized(), 1, workers=2, worker_type="thread") as feed:
        dataset = feed.to_tf_dataset()
        assert dataset.element_spec[0] == tf.TensorSpec((1, None), tf.float32)
        _assert_batches_equal(dataset, feed.epoch(0))


@pytest.mark.parametrize("epochs", [1, 3])
def test_the_cardinality_is_known(epochs):
    with kf.Feed(scenes.Clouds(37), 8, workers=1, worker_type="thread") as feed:
        dataset = feed.to_tf_dataset(epochs=epochs)
        assert int(dataset.cardinality()) == len(dataset) == 5 * epochs
        assert sum(1 for _ in dataset) == 5 * epochs


NUMERIC = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "complex64", "complex128",
]  # fmt: skip


@pytest.mark.parametrize("name", [*NUMERIC, ">f4", "bfloat16"])
def test_every_dtype_of_tensorflow_arrives_unharmed(name):
    dtype = tf.bfloat16.as_numpy_dtype if name == "bfloat16" else np.dtype(name)
    values = np.arange(12).reshape(6, 2).astype(dtype)
    with kf.Feed(values, 3, workers=1) as feed:
        dataset = feed.to_tf_dataset()
        assert dataset.element_spec.dtype == tf.as_dtype(np.dtype(dtype).newbyteorder("="))
        assert np.array_equal(np.concatenate([batch.numpy() for batch in dataset]), values)


def test_a_dtype_that_tensorflow_lacks_is_refused_with_the_name_of_the_field():
    for value in (np.longdouble(1), np.zeros(2, np.clongdouble), np.zeros((), [("a", "i4"), ("b", "f8")])):
        with kf.Feed([{"x": {"y": value}}] * 4, 2, workers=1) as feed:
            with pytest.raises(TypeError, match=r"field 'x\.y' is .*, a dtype TensorFlow lacks\. Convert it"):
                feed.to_tf_dataset()
            assert len(list(feed)) == 2


@pytest.mark.parametrize(("workers", "worker_type"), WORKERS)
def test_text_arrives_as_strings_unharmed(workers, worker_type):
    with kf.Feed(scenes.Nested(), 5, workers=workers, worker_type=worker_type) as feed:
        batch = next(iter(feed.to_tf_dataset()))
    assert batch["name"].dtype == batch["raw"].dtype == batch["words"].dtype == tf.string
    assert batch["name"].numpy().tolist() == [f"scene é {index}".encode() for index in range(5)]
    assert batch["raw"].numpy().tolist() == [bytes([0, index, 0]) for index in range(5)]
    assert batch["words"].numpy().tolist() == [[b"a" * (index % 4), b"b"] for index in range(5)]


@pytest.mark.parametrize("value", ["née", b"\0a\0", np.array([["a", "bc"]]), np.array(b"x\0y", object)])
def test_text_of_ready_made_batches_arrives_unharmed(value):
    with kf.Feed([value] * 3, None, workers=1) as feed:
        batches = list(feed.to_tf_dataset())
    expected = _encoded(np.array(value, object)).tolist()
    assert [np.array(batch.numpy(), object).tolist() for batch in batches] == [expected] * 3


def test_dicts_of_every_kind_are_plain_dicts_with_their_own_keys():
    scene = collections.OrderedDict(b=np.zeros((0, 3)), a={1: np.float32(2), 0: np.zeros(2)})
    scene["c"] = collections.defaultdict(list, q=np.int8(7))
    with kf.Feed([scene] * 6, 4, workers=1) as feed:
        dataset = feed.to_tf_dataset()
        assert type(dataset.element_spec) is dict
        assert dataset.element_spec["b"] == tf.TensorSpec((None, 0, 3), tf.float64)
        assert set(dataset.element_spec["a"]) == {0, 1}
        assert next(iter(dataset))["c"]["q"].numpy().tolist() == [7] * 4


# ---- the same batches


@pytest.mark.parametrize(("workers", "worker_type"), WORKERS)
def test_the_batches_are_those_of_the_feed_bit_for_bit(workers, worker_type):
    for sequence, batch_size in ((scenes.Augmented(), 8), (Nesting(), 6)):
        with kf.Feed(sequence, batch_size, shuffle=True, seed=1, workers=workers, worker_type=worker_type) as feed:
            dataset = feed.to_tf_dataset()
            for epoch in range(2):
                _assert_batches_equal(dataset, feed.epoch(epoch))


def test_a_new_iteration_of_the_dataset_is_a_new_epoch_of_the_feed():
    with kf.Feed(scenes.Clouds(), 8, shuffle=True, seed=1, workers=2, worker_type="thread") as feed:
        dataset = feed.to_tf_dataset()
        for epoch in range(3):
            assert _indices(dataset) == _order(feed, epoch)
        assert next(iter(feed))[1].tolist() == feed.plan.indices(3, 0).tolist()
        assert _indices(feed.to_tf_dataset()) == _order(feed, 4)


def test_several_epochs_follow_each_other_in_one_iteration():
    with kf.Feed(scenes.Clouds(), 8, shuffle=True, seed=1, workers=3, worker_type="thread") as feed:
        dataset = feed.to_tf_dataset(epochs=3)
        for first in (0, 3):
            assert _indices(dataset) == [index for epoch in range(first, first + 3) for index in _order(feed, epoch)]


@pytest.mark.parametrize("epochs", [0, -1, 1.5, True])
def test_a_number_of_epochs_that_is_none_is_refused(epochs):
    refused = pytest.raises((TypeError, ValueError), match="epochs must be")
    with kf.Feed(scenes.Clouds(), 8, workers=1, worker_type="thread") as feed, refused:
        feed.to_tf_dataset(epochs=epochs)


def test_without_an_order_every_scene_is_delivered_once():
    class Uneven(Numbered):
        def __getitem__(self, index):
            time.sleep(random.Random(index).random() / 100)
            return index

    with kf.Feed(Uneven(60), 2, shuffle=True, workers=8, worker_type="thread") as feed:
        for _ in range(2):
            found = [index for batch in feed.to_tf_dataset(deterministic=False) for index in batch.numpy().tolist()]
            assert sorted(found) == list(range(60))


def test_two_iterators_of_one_dataset_are_two_epochs_at_once():
    with kf.Feed(scenes.Clouds(), 8, shuffle=True, seed=1, workers=2, worker_type="thread") as feed:
        dataset = feed.to_tf_dataset()
        one, other = [], []
        for a, b in zip(iter(dataset), iter(dataset), strict=True):
            one.extend(a[1].numpy().tolist())
            other.extend(b[1].numpy().tolist())
    assert {tuple(one), tuple(other)} == {tuple(_order(feed, 0)), tuple(_order(feed, 1))}


# ---- hooks of a Keras-style class


@pytest.mark.parametrize(("workers", "worker_type"), WORKERS)
def test_hooks_are_called_once_an_epoch_and_no_batch_sees_another_epochs_state(workers, worker_type):
    sequence = Stateful(12)
    with kf.Feed(sequence, None, workers=workers, worker_type=worker_type) as feed:
        dataset = feed.to_tf_dataset(epochs=3)
        for first in range(0, 24, 3):  # often: the order of TensorFlow's threads differs from run to run
            states = [int(state[0, 0]) for _, state in dataset]
            assert states == [100 * (epoch + 1) + epoch for epoch in range(first, first + 3) for _ in range(12)]
    assert sequence.began == 24


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_a_keras_style_class_reshuffles_between_the_epochs_of_a_dataset(worker_type):
    with kf.Feed(scenes.Reshuffled(), None, workers=2, worker_type=worker_type) as feed:
        found = [int(x) for batch, _ in feed.to_tf_dataset(epochs=3) for x in batch.numpy().ravel()]
    assert found == [0, 1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 0, 2, 3, 4, 5, 0, 1]


def test_a_keras_dataset_of_batches_is_taken_as_it_is():
    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return np.full((3, 2), index, np.float32), np.full(3, index)

    with kf.Feed(Batches(), None, workers=2, worker_type="thread") as feed:
        dataset = feed.to_tf_dataset()
        assert dataset.element_spec == (tf.TensorSpec((3, 2), tf.float32), tf.TensorSpec((3,), tf.int64))
        assert _indices(dataset) == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]


# ---- further transformations


@pytest.fixture
def feed():
    with kf.Feed(scenes.Clouds(40), 8, shuffle=True, seed=1, workers=2, worker_type="thread") as feed:
        yield feed


def test_the_dataset_can_be_mapped_and_filtered(feed):
    doubled = feed.to_tf_dataset().map(lambda points, labels: (points * 2, labels), num_parallel_calls=tf.data.AUTOTUNE)
    expected = [points * 2 for points, _ in feed.epoch(0)]
    assert all(np.array_equal(a.numpy(), b) for (a, _), b in zip(doubled, expected, strict=True))
    even = feed.to_tf_dataset().unbatch().filter(lambda _, label: label % 2 == 0)
    assert sorted(int(label) for _, label in even) == list(range(0, 40, 2))


def test_the_dataset_can_be_taken_from_and_skipped(feed):
    order = _order(feed, 0)
    assert _indices(feed.to_tf_dataset().take(2)) == order[:16]
    assert _indices(feed.to_tf_dataset().skip(3)) == _order(feed, 1)[24:]
    assert len(feed.to_tf_dataset().take(2)) == 2


def test_every_repetition_of_the_dataset_is_a_new_epoch(feed):
    assert _indices(feed.to_tf_dataset().repeat(3)) == [i for epoch in range(3) for i in _order(feed, epoch)]
    endless = iter(feed.to_tf_dataset().repeat())
    assert [i for _ in range(11) for i in next(endless)[1].numpy().tolist()][:80] == _order(feed, 3) + _order(feed, 4)
    del endless


def test_the_dataset_can_be_cut_into_other_batches(feed):
    assert _indices(feed.to_tf_dataset().unbatch().batch(10)) == _order(feed, 0)
    rebatched = feed.to_tf_dataset().rebatch(5)
    assert _indices(rebatched) == _order(feed, 1)
    assert {batch[1].shape[0] for batch in rebatched} == {5}
    stacked = next(iter(feed.to_tf_dataset().batch(5)))
    assert stacked[0].shape == (5, 8, 4, 3)


def test_the_dataset_can_be_cached_shuffled_and_enumerated(feed):
    cached = feed.to_tf_dataset().cache()
    assert _indices(cached) == _indices(cached) == _order(feed, 0)
    assert sorted(_indices(feed.to_tf_dataset().shuffle(3))) == list(range(40))
    assert [int(step) for step, _ in feed.to_tf_dataset().enumerate()] == [0, 1, 2, 3, 4]


def test_cached_batches_beyond_the_memory_are_copied_out_and_stay_right():
    with kf.Feed(scenes.Clouds(200), 4, max_memory=6 * 4096, workers=2, worker_type="thread") as feed:
        cached = feed.to_tf_dataset().cache()
        assert _indices(cached) == _indices(cached) == list(range(200))
        assert all(np.array_equal(points[:, 0, 0], 100.0 * labels.numpy()) for points, labels in _numpy_pairs(cached))
        assert feed.stats().slots <= 6
        assert feed.stats().copied > 0


def _numpy_pairs(dataset):
    return [(points.numpy(), labels) for points, labels in dataset]


def test_datasets_of_two_feeds_are_zipped(feed):
    with kf.Feed(scenes.Nested(), 4, shuffle=True, seed=2, workers=2, worker_type="process") as other:
        zipped = tf.data.Dataset.zip((feed.to_tf_dataset(), other.to_tf_dataset()))
        assert len(zipped) == 5
        pairs = list(zipped)
        _assert_batches_equal([one for one, _ in pairs], feed.epoch(0))
        _assert_batches_equal([two for _, two in pairs], list(other.epoch(0))[:5])


def test_datasets_of_two_feeds_are_interleaved_and_concatenated(feed):
    with kf.Feed(scenes.Clouds(40), 8, workers=1, worker_type="thread") as other:
        both = feed.to_tf_dataset().concatenate(other.to_tf_dataset())
        assert _indices(both) == _order(feed, 0) + list(range(40))
        mixed = tf.data.Dataset.sample_from_datasets([feed.to_tf_dataset(), other.to_tf_dataset()], seed=1)
        assert sorted(_indices(mixed)) == sorted(2 * list(range(40)))
        chosen = tf.data.Dataset.range(2).interleave(lambda _: other.to_tf_dataset(), cycle_length=2)
        assert sorted(_indices(chosen)) == sorted(2 * list(range(40)))


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


def test_the_dataset_is_made_in_a_tf_function(feed):
    @tf.function
    def first():
        found = tf.zeros([0], tf.int64)
        for _, labels in feed.to_tf_dataset():
            tf.autograph.experimental.set_loop_options(shape_invariants=[(found, tf.TensorShape([None]))])
            found = tf.concat([found, labels], 0)
        return found

    assert first().numpy().tolist() == _order(feed, 0)
    gc.collect()
    assert first().numpy().tolist() == _order(feed, 1)


def test_an_iterator_is_an_argument_of_a_tf_function(feed):
    @tf.function(reduce_retracing=True)
    def step(iterator):
        return next(iterator)[1]

    iterator = iter(feed.to_tf_dataset())
    assert [i for _ in range(5) for i in step(iterator).numpy().tolist()] == _order(feed, 0)
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
                assert found == _order(feed, epoch)
                with pytest.raises(tf.errors.OutOfRangeError):
                    session.run(labels)


def test_a_script_of_tensorflow_1_trains_on_the_dataset(tmp_path):
    printed = run_script(
        tmp_path,
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


def test_a_device_may_be_named(feed):
    for device in ("/cpu:0", "cpu:0"):
        epoch = feed._clock._next
        dataset = feed.to_tf_dataset(device=device)
        assert dataset.element_spec == (tf.TensorSpec((8, 4, 3), tf.float32), tf.TensorSpec((8,), tf.int64))
        assert len(dataset) == 5
        assert _indices(dataset.map(lambda points, labels: labels[None]).take(9)) == _order(feed, epoch)


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


def test_a_mirrored_strategy_sees_every_scene_once_an_epoch(tmp_path):
    printed = run_script(
        tmp_path,
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

        # To build the model, Keras reads one batch of a dataset, which is an epoch of its own; of a feed it is not.
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


# ---- errors


@pytest.mark.parametrize(("workers", "worker_type"), WORKERS)
def test_the_message_of_an_error_carries_type_place_and_traceback(workers, worker_type):
    with kf.Feed(scenes.Failing(13, ValueError("bad scan")), 8, workers=workers, worker_type=worker_type) as feed:
        iterator = iter(feed.to_tf_dataset())
        next(iterator)
        with pytest.raises(tf.errors.UnknownError) as caught:
            next(iterator)
        message = str(caught.value)
        assert "ValueError: bad scan" in message
        assert "kerasfeed: scene 13, epoch 0, step 1, in " in message
        assert "scenes.py" in message
        assert "in __getitem__" in message
        assert "raise self.error" in message


ERRORS = [
    StopIteration("early"), IndexError("beyond"), KeyError("points"), MemoryError("much"), NotImplementedError("later"),
    TypeError("kind"), AssertionError("no"), GeneratorExit(), OSError(5, "input/output"), EOFError("short"),
]  # fmt: skip


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_no_error_of_a_scene_ends_the_dataset_in_silence(error):
    with kf.Feed(scenes.Failing(13, error), 8, workers=2, worker_type="thread") as feed:
        iterator = iter(feed.to_tf_dataset())
        next(iterator)
        with pytest.raises(tf.errors.UnknownError, match=re.escape(f"{type(error).__name__}: {error}")):
            next(iterator)
        with pytest.raises(tf.errors.UnknownError, match="scene 13"):
            list(feed.to_tf_dataset())
        with pytest.raises(tf.errors.UnknownError, match="scene 13"):
            list(feed.to_tf_dataset(deterministic=False))


def test_a_scene_unlike_the_spec_is_named_in_the_message():
    class Odd(Numbered):
        def __getitem__(self, index):
            return np.zeros(3 if index == 7 else 2)

    refused = pytest.raises(tf.errors.UnknownError, match=r"scene 7: field 'scene': expected float64\[2\], received")
    with kf.Feed(Odd(), 6, workers=2, worker_type="thread") as feed, refused:
        list(feed.to_tf_dataset())


def test_the_other_batches_survive_when_errors_are_ignored():
    with kf.Feed(scenes.Failing(13, ValueError("bad scan")), 8, workers=2, worker_type="thread") as feed:
        assert _indices(feed.to_tf_dataset().ignore_errors()) == [*range(8), *range(16, 37)]


def test_an_error_while_the_spec_is_inferred_is_the_users_own():
    with kf.Feed(scenes.Failing(0, ValueError("bad scan")), 8, workers=2, worker_type="thread") as feed:
        with pytest.raises(ValueError, match="bad scan") as caught:
            feed.to_tf_dataset()
        assert "scene 0, while inferring the spec" in caught.value.__notes__[0]


def test_a_killed_worker_is_an_error_and_the_next_epoch_is_whole(tmp_path):
    (tmp_path / "flag").touch()
    with kf.Feed(Deadly(tmp_path / "flag"), 4, workers=2, worker_type="process") as feed:
        dataset = feed.to_tf_dataset()
        with pytest.raises(tf.errors.UnknownError, match=r"WorkerDiedError: worker process . .* killed by SIGKILL"):
            list(dataset)
        assert [index for batch in dataset for index in batch.numpy().tolist()] == list(range(24))


def test_a_feed_closed_in_mid_epoch_is_an_error_and_never_a_hang():
    with kf.Feed(scenes.Slow(200, 0.002), 2, workers=2, worker_type="thread") as feed:
        dataset = feed.to_tf_dataset()
        iterator = iter(dataset)
        next(iterator)
    with pytest.raises(tf.errors.UnknownError, match=r"the feed (is|was) closed|Cancelled"):
        list(iterator)
    with pytest.raises(tf.errors.UnknownError, match="the feed is closed"):
        list(dataset)
    with pytest.raises(FeedClosedError, match="the feed is closed"):
        feed.to_tf_dataset()


# ---- concurrency and lifetimes


@pytest.mark.parametrize(("workers", "most"), [(0, 1), (1, 1), (3, 3)])
def test_scenes_are_read_by_no_more_than_the_workers_at_once(workers, most):
    class Counting(Numbered):
        def __getitem__(self, index):
            with lock:
                at_once.append(at_once[-1] + 1)
            time.sleep(0.001)
            with lock:
                at_once.append(at_once[-1] - 1)
            return super().__getitem__(index)

    lock, at_once = threading.Lock(), [0]
    with kf.Feed(Counting(120), 2, workers=workers, worker_type="thread") as feed:
        assert sum(x.shape[0] for x, _ in feed.to_tf_dataset()) == 120
    assert max(at_once) == most


def test_waiting_workers_are_not_limited_by_the_cores():
    def seconds(workers, length):
        with kf.Feed(Waiting(length, 0.01), 2, workers=workers, worker_type="thread") as feed:
            dataset = feed.to_tf_dataset()
            started = time.perf_counter()
            assert sum(batch.shape[0] for batch in dataset) == length
            return time.perf_counter() - started

    assert seconds(16, 320) < 320 * 0.01 / 4  # one worker would take 3.2 s, 16 ideally 0.2 s


def test_waiting_feeds_leave_room_for_the_rest_of_the_graph():
    with kf.Feed(Waiting(64, 0.02), 1, workers=8, worker_type="thread") as feed:
        dataset = feed.to_tf_dataset()
        dataset = dataset.map(lambda index: tf.numpy_function(lambda i: i * 2, [index], tf.int64), num_parallel_calls=8)
        started = time.perf_counter()
        assert [int(value[0]) for value in dataset] == list(range(0, 128, 2))
        assert time.perf_counter() - started < 64 * 0.02 / 2


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_an_iterator_abandoned_half_way_leaks_nothing_and_the_next_epoch_is_whole(worker_type):
    with kf.Feed(scenes.Slow(100, 0.001), 2, shuffle=True, workers=2, worker_type=worker_type) as feed:
        dataset = feed.to_tf_dataset()
        for epoch in range(3):
            iterator = iter(dataset)
            next(iterator)
            del iterator
            gc.collect()
            assert feed._clock._next == epoch + 1
        assert _indices(dataset) == _order(feed, 3)
        assert feed.stats().slots <= 40


def _assert_let_go(alive):
    """TensorFlow's threads let go of an iterator, and so of the feed, a moment after Python does."""
    deadline = time.monotonic() + 20
    while alive() is not None and time.monotonic() < deadline:
        let_tensorflow_free_memory()
        time.sleep(0.05)
    if alive() is not None:
        alive().close()
        pytest.fail("the feed outlives its dataset")


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_the_dataset_keeps_the_feed_alive_and_lets_it_go(worker_type):
    feed = kf.Feed(scenes.Clouds(), 8, workers=2, worker_type=worker_type)
    alive = weakref.ref(feed)
    dataset = feed.to_tf_dataset().map(lambda points, labels: (points, labels)).repeat(1).prefetch(1)
    del feed
    gc.collect()
    assert _indices(dataset) == list(range(37))
    iterator = iter(dataset)
    del dataset
    gc.collect()
    assert _indices(iterator) == list(range(37))
    del iterator
    _assert_let_go(alive)


def test_a_feed_that_never_was_a_dataset_for_long_is_let_go():
    feed = kf.Feed(scenes.Clouds(), 8, workers=1, worker_type="thread")
    alive = weakref.ref(feed)
    for _ in range(5):
        feed.to_tf_dataset()
    assert _indices(feed.to_tf_dataset()) == list(range(37))
    del feed
    _assert_let_go(alive)


def test_the_graph_of_a_session_keeps_the_feed_alive_and_lets_it_go():
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


def test_a_dataset_of_a_function_outlives_the_tracing_of_it():
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
        threads = [threading.Thread(target=lambda: found.append(tuple(_indices(dataset)))) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(found) == {tuple(_order(feed, epoch)) for epoch in range(4)}


def test_no_thread_tunes_the_dataset():
    """Whoever drops an iterator would wait for it, for seconds now and then, holding the GIL."""
    with kf.Feed(Numbered(8), 4, workers=2, worker_type="thread") as feed:
        assert feed.to_tf_dataset().options().autotune.enabled is False
