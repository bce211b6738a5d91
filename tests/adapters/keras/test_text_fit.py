"""Text in `fit`, `evaluate` and `predict`: trained on with TensorFlow, refused by name on JAX and PyTorch."""

import keras
import numpy as np
import pytest
from keras_fits import BACKEND, MARKS, WORKERS
from scenes_frameworks import WORDS, Texts

import kerasfeed as kf

pytestmark = MARKS
on_tensorflow = pytest.mark.skipif(BACKEND != "tensorflow", reason="text is TensorFlow's alone")


def rows_of(word):
    return np.array([word])


def text_feed(workers, kind, form=str):
    return kf.Feed(Texts(form), 3, workers=workers, worker_type=kind)


def text_stream(workers, kind):
    def scenes():
        yield from Texts()

    return kf.StreamFeed(scenes, 3, workers=workers, worker_type=kind)


FEEDS = {"feed": text_feed, "stream": text_stream}


def model_of_texts(shape=()):
    texts = keras.Input(shape, dtype="string", name="text")
    numbers = keras.layers.TextVectorization(
        vocabulary=WORDS, standardize=None, split=None, output_mode="int", output_sequence_length=None
    )(texts)
    numbers = keras.layers.Reshape((1,))(keras.ops.cast(numbers, "float32"))
    model = keras.Model({"text": texts}, keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")(numbers))
    model.compile(keras.optimizers.SGD(0.0), "mae", jit_compile=False)
    return model


@pytest.mark.heavy
@on_tensorflow
@pytest.mark.parametrize(("workers", "kind"), WORKERS)
@pytest.mark.parametrize("name", FEEDS)
def test_fit_evaluate_and_predict_accept_text(name, workers, kind):
    model = model_of_texts()
    with FEEDS[name](workers, kind) as feed:
        losses = model.fit(feed, epochs=2, verbose=0).history["loss"]
        losses.append(model.evaluate(feed, verbose=0))
        predicted = model.predict(feed, verbose=0)
    assert losses == [0.0] * 3
    np.testing.assert_array_equal(predicted[:, 0], np.arange(len(WORDS)) + 2)


@on_tensorflow
@pytest.mark.parametrize(("form", "shape"), [(str.encode, ()), (np.str_, ()), (rows_of, (1,))])
def test_fit_accepts_every_form_of_text(form, shape):
    with text_feed(0, "thread", form) as feed:
        assert model_of_texts(shape).fit(feed, verbose=0).history["loss"] == [0.0]


@on_tensorflow
def test_class_weights_apply_to_text():
    model = model_of_texts()
    with text_feed(0, "thread") as feed:
        assert model.fit(feed, class_weight={2: 0.0}, verbose=0).history["loss"] == [0.0]


@pytest.mark.skipif(BACKEND == "tensorflow", reason="there text is trained on")
@pytest.mark.parametrize("method", ["fit", "evaluate", "predict"])
@pytest.mark.parametrize("name", FEEDS)
def test_text_is_refused_with_its_field_and_a_remedy(name, method):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with FEEDS[name](0, "thread") as feed, pytest.raises(TypeError, match=r"field '0.text' is text") as caught:
        getattr(model, method)(feed, verbose=0)
    assert {"jax": "JAX has no dtype for text", "torch": "PyTorch has no dtype for text"}[BACKEND] in str(caught.value)
    assert "KERAS_BACKEND=tensorflow" in str(caught.value)
