"""An exception of a scene leaves `fit`, `evaluate`, `predict` unchanged: on TensorFlow here, then JAX and PyTorch."""

import gc

import keras
import numpy as np
import pytest
from error_kinds import CASES, LIGHT, PAIRS, Raising, assert_arrived
from keras_fits import (
    BACKEND,
    JIT,
    identity,
)
from waits import wait_until

import kerasfeed as kf

pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation"),  # Keras's own, under NumPy 2.4
]
on_tensorflow = pytest.mark.skipif(BACKEND != "tensorflow", reason="TensorFlow alone turns exceptions into text")


# On JAX, Keras cannot use a model again whose `fit` was interrupted.
@pytest.fixture(scope="function" if BACKEND == "jax" else "module")
def model():
    model = keras.Sequential([keras.Input((1,)), identity()])
    model.compile("sgd", "mse", jit_compile=JIT)
    return model


# The three methods share one adapter, and on JAX and PyTorch no exception becomes text.
ELSEWHERE = [("fit", pair) for pair in PAIRS]
ON_TENSORFLOW = [("fit", case) for case in CASES] + [(way, pair) for way in ("evaluate", "predict") for pair in PAIRS]


@pytest.mark.light(where=lambda method, case: case in (LIGHT if method == "fit" else LIGHT[:1]))
@pytest.mark.parametrize(
    ("method", "case"), ON_TENSORFLOW if BACKEND == "tensorflow" else ELSEWHERE, indirect=["case"], ids=str
)
def test_keras_methods_raise_the_exception_of_a_scene_unchanged(method, case, model):
    feed, *kind = case
    with pytest.raises(BaseException) as caught:
        getattr(model, method)(feed, verbose=0)
    assert_arrived(caught.value, *kind)


# ---- on TensorFlow, which passes them as text


@pytest.fixture
def feed():
    with kf.Feed(Raising("ordinary"), 6, workers=2, worker_type="thread") as feed:
        yield feed


class Unfit(keras.layers.Layer):
    """A layer that fails within the compiled step."""

    def call(self, x):
        import tensorflow as tf

        with tf.control_dependencies([tf.debugging.assert_less(x, 7.0, message="out of memory, say")]):
            return tf.identity(x)


@on_tensorflow
@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_of_the_model_is_raised_although_a_prefetched_scene_failed(workers):
    import tensorflow as tf

    model = keras.Sequential([keras.Input((1,)), Unfit(), identity()])
    model.compile("sgd", "mse", jit_compile=False)
    with kf.Feed(Raising("ordinary"), 6, workers=workers, worker_type="thread") as feed:
        with pytest.raises(ValueError, match="bad scan"):
            list(feed)
        with pytest.raises(tf.errors.InvalidArgumentError, match="out of memory, say"):
            model.fit(feed, verbose=0, shuffle=False)


@on_tensorflow
@pytest.mark.parametrize("arguments", [{"run_eagerly": True}, {"steps_per_execution": 2}, {"jit_compile": True}])
def test_compiled_and_eager_steps_raise_the_exception_unchanged(feed, arguments):
    model = keras.Sequential([identity()])
    model.compile("sgd", "mse", **{"jit_compile": False, **arguments})
    with pytest.raises(ValueError, match="bad scan") as caught:
        model.fit(feed, epochs=2, verbose=0)
    assert_arrived(caught.value, "ordinary", 2, "thread", epoch=0)


@on_tensorflow
def test_validation_raises_the_exception_of_a_scene_unchanged(feed, model):
    with kf.Feed(np.ones((12, 2, 1), np.float32), 6, workers=1) as training:
        data = training.to_tf_dataset().map(lambda pair: (pair[:, 0], pair[:, 1]))
        with pytest.raises(ValueError, match="bad scan") as caught:
            model.fit(data, validation_data=feed, verbose=0, shuffle=False)
    assert_arrived(caught.value, "ordinary", 2, "thread")


def test_no_exception_is_kept_once_fit_has_ended(feed, model):
    def errors():
        gc.collect()
        return [each for each in gc.get_objects() if type(each) is ValueError and "bad scan" in str(each)]

    def fit():
        with pytest.raises(ValueError, match="bad scan"):
            model.fit(feed, verbose=0)

    fit()
    wait_until(lambda: not errors())  # TensorFlow's threads may still be in a call with it
