"""An exception of a scene through `to_tf_dataset`: an error of TensorFlow that has its whole text."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from error_kinds import LIGHT, PAIRS, Raising, assert_told
from keras_fits import identity

import kerasfeed as kf


@pytest.fixture(scope="module")
def model():
    model = keras.Sequential([keras.Input((1,)), identity()])
    model.compile("sgd", "mse", jit_compile=False)
    return model


def _raised_in_a_loop(dataset):
    with pytest.raises(BaseException) as caught:
        for _ in dataset:
            pass
    return caught.value


@pytest.mark.light(where=lambda case: case in PAIRS)
def test_an_exception_arrives_in_a_loop_as_an_error_of_tensorflow_with_its_whole_text(case):
    feed, *kind = case
    error = _raised_in_a_loop(feed.to_tf_dataset())
    assert isinstance(error, tf.errors.UnknownError)
    assert_told(str(error), *kind)


# The loop above tests all cases; `fit`, `evaluate` and `predict` only iterate, and use the same text in messages.
each_pair = pytest.mark.parametrize("case", PAIRS, indirect=True, ids=str)


@pytest.mark.light(where=lambda method, case: case in (LIGHT if method == "fit" else LIGHT[:1]))
@each_pair
@pytest.mark.parametrize("method", ["fit", "evaluate", "predict"])
def test_the_error_of_a_keras_method_has_the_whole_text(method, case, model):
    feed, *kind = case
    arguments = {"shuffle": False} if method == "fit" else {}
    with pytest.raises(BaseException) as caught:
        getattr(model, method)(feed.to_tf_dataset(), verbose=0, **arguments)
    assert_told(str(caught.value), *kind)


@pytest.mark.light(where=lambda case: case in LIGHT)
@each_pair
def test_the_error_of_a_graph_has_the_whole_text(case):
    feed, *kind = case
    dataset = feed.to_tf_dataset()

    @tf.function
    def total():
        found = tf.constant(0.0)
        for x, _ in dataset:
            found += tf.reduce_sum(x)
        return found

    with pytest.raises(tf.errors.UnknownError) as caught:
        total()
    assert_told(str(caught.value), *kind)


# ---- other uses of a dataset


@pytest.fixture
def feed():
    with kf.Feed(Raising("ordinary"), 6, workers=2, worker_type="thread") as feed:
        yield feed


@pytest.fixture
def sound():
    with kf.Feed(np.arange(24.0), 6, workers=2) as feed:
        yield feed


def _values(dataset):
    return [float(value) for batch in dataset for value in batch.numpy().ravel()]


def test_the_dataset_is_an_ordinary_dataset_of_tensorflow(sound):
    dataset = sound.to_tf_dataset()
    assert isinstance(dataset, tf.data.Dataset)
    assert type(dataset).__module__.startswith("tensorflow.")
    assert int(dataset.cardinality()) == len(dataset) == 4
    zipped = tf.data.Dataset.zip((dataset, dataset.take(2)))
    assert len(list(zipped)) == 2
    assert _values(dataset.concatenate(dataset.skip(1))) == [*range(24), *range(6, 24)]
    assert _values(dataset.options().merge(tf.data.Options()) and dataset) == list(range(24))


def test_its_iterator_is_an_argument_of_a_function_traced_once(sound):
    traces = []

    @tf.function
    def step(iterator):
        traces.append(1)
        return next(iterator)

    dataset = sound.to_tf_dataset()
    for _ in range(2):
        iterator = iter(dataset)
        assert [float(step(iterator)[0]) for _ in range(4)] == [0, 6, 12, 18]
        with pytest.raises(tf.errors.OutOfRangeError):
            step(iterator)
    assert len(traces) == 1
    assert iter(dataset).get_next_as_optional().has_value()


def test_the_dataset_is_distributed_by_a_strategy(sound):
    strategy = tf.distribute.MirroredStrategy(["CPU:0"])
    assert _values(strategy.experimental_distribute_dataset(sound.to_tf_dataset())) == list(range(24))


def test_the_dataset_is_saved_and_snapshot(sound, tmp_path):
    sound.to_tf_dataset().save(str(tmp_path / "saved"))
    assert _values(tf.data.Dataset.load(str(tmp_path / "saved"))) == list(range(24))


def test_an_iterator_continues_after_an_exception(feed):
    iterator = iter(feed.to_tf_dataset())
    found = []
    while True:
        try:
            found.append(float(next(iterator)[0][0, 0]))
        except StopIteration:
            break
        except tf.errors.UnknownError:
            found.append("bad scan")
    assert found == [0, 6, "bad scan", 18]


def test_an_error_of_a_later_step_of_the_graph_is_unchanged(feed):
    def refuse(x, y):
        with tf.control_dependencies([tf.debugging.assert_less(x, 7.0, message="too large")]):
            return tf.identity(x)

    assert "bad scan" in str(_raised_in_a_loop(feed.to_tf_dataset()))
    error = _raised_in_a_loop(feed.to_tf_dataset().map(refuse))
    assert isinstance(error, tf.errors.InvalidArgumentError)
    assert "too large" in str(error)
    assert error.__cause__ is None
