"""Padded and ragged batches in `tf.data` and in `fit`, on TensorFlow here, and in `fit` on JAX and PyTorch again."""

import keras
import numpy as np
import pytest
from keras_fits import (
    BACKEND,
    MARKS,
    few,
)
from scenes_sized import Lengths

import kerasfeed as kf

pytestmark = MARKS

# The first batches of 4 agree in length, as Keras on TensorFlow expects of all.
LENGTHS = [4] * 8 + [9, 3, 2, 7, 12, 5, 1, 6]


class Counted(Lengths):
    """Scenes (ones float32[n, 3], float32 n)."""

    def __getitem__(self, index):
        points, _ = super().__getitem__(index)
        return np.ones_like(points), np.float32(len(points))


def _feed(collate, batch_size=4, **arguments):
    return kf.Feed(Counted(LENGTHS), batch_size, collate=collate, workers=2, worker_type="thread", **arguments)


def _identity():
    return keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")


def _sum_over(mask_too):
    points = keras.Input((None, 3))
    mask = keras.Input((None,), dtype="bool")
    kept = points[..., 0]
    if mask_too:
        kept = keras.ops.where(mask, kept, keras.ops.zeros_like(kept))
    total = _identity()(keras.ops.sum(kept, axis=1, keepdims=True))
    return keras.Model([points, mask] if mask_too else points, total)


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("collate", "mask_too"),
    few(
        [
            pytest.param(kf.Pad(0), False, id="padded"),
            pytest.param(kf.Pad(7, mask="0"), True, id="masked"),
            pytest.param(kf.Pad(7, mask="0", length=16), True, id="length"),
        ]
    ),
)
def test_a_model_is_fitted_and_evaluated_on_padded_batches(collate, mask_too):
    model = _sum_over(mask_too)
    model.compile(loss="mse")
    with _feed(collate) as feed:
        model.fit(feed, epochs=2, verbose=0, shuffle=False)
        assert model.evaluate(feed, verbose=0) == 0.0
        assert model.predict(feed, verbose=0)[:, 0].tolist() == LENGTHS
        assert model.evaluate(feed.to_tf_dataset(), verbose=0) == 0.0


def test_class_weights_apply_to_padded_batches():
    model = _sum_over(False)
    model.compile(loss="mse")
    with _feed("pad") as feed:
        assert model.fit(feed, verbose=0, class_weight={4: 2.0, 9: 0.5}).history["loss"] == [0.0]


def test_a_failed_scene_of_a_padded_batch_is_masked():
    class Failing(Counted):
        def __getitem__(self, index):
            if index == 9:
                raise ValueError("broken")
            return super().__getitem__(index)

    model = _sum_over(True)
    model.compile(loss="mse")
    with kf.Feed(Failing(LENGTHS), 4, collate=kf.Pad(7, mask="0"), workers=0, on_error="mask") as feed:
        assert model.evaluate(feed, verbose=0) == 0.0


class Joined(keras.Model):
    """Sums the rows of a `RaggedArray`."""

    def __init__(self):
        super().__init__()
        self.identity = _identity()

    def call(self, inputs):
        values, splits = inputs
        total = keras.ops.concatenate([keras.ops.zeros((1,)), keras.ops.cumsum(values[:, 0])])
        ends = keras.ops.take(total, splits)
        return self.identity((ends[1:] - ends[:-1])[:, None])


@pytest.mark.heavy
def test_a_model_takes_ragged_batches_as_values_and_row_splits():
    model = Joined()
    model.compile(loss="mse")
    with _feed("ragged") as feed:
        model.fit(feed, epochs=2, verbose=0)
        assert model.evaluate(feed, verbose=0) == 0.0


@pytest.mark.heavy
@pytest.mark.skipif(BACKEND != "tensorflow", reason="there are ragged tensors in TensorFlow alone")
def test_a_dataset_holds_ragged_tensors_that_models_and_tf_data_take():
    import tensorflow as tf

    ragged = keras.Input((None, 3), ragged=True)
    total = keras.layers.Lambda(lambda tensor: tf.reduce_sum(tensor[..., 0], axis=1)[:, None], output_shape=(1,))
    model = keras.Model(ragged, _identity()(total(ragged)))
    model.compile(loss="mse")
    with _feed("ragged", drop_remainder=True) as feed:
        dataset = feed.to_tf_dataset()
        spec = tf.RaggedTensorSpec(tf.TensorShape([4, None, 3]), tf.float32, 1, tf.int64)
        assert dataset.element_spec[0].is_compatible_with(spec)
        model.fit(dataset, epochs=2, verbose=0, shuffle=False)
        assert model.evaluate(dataset, verbose=0) == 0.0
        found = [points.row_lengths().numpy().tolist() for points, _ in feed.to_tf_dataset()]
        assert np.concatenate(found).tolist() == LENGTHS
        sums = feed.to_tf_dataset().map(lambda points, _: tf.reduce_sum(points.to_tensor()[..., 0], axis=1)).unbatch()
        assert [int(number) for number in sums] == LENGTHS


@pytest.mark.skipif(BACKEND != "tensorflow", reason="one backend proves it")
def test_a_dataset_of_padded_batches_knows_which_axes_vary():
    import tensorflow as tf

    with _feed(kf.Pad(mask="0"), drop_remainder=True) as feed:
        (points, mask), labels = feed.to_tf_dataset().element_spec
        assert points == tf.TensorSpec([4, None, 3], tf.float32)
        assert mask == tf.TensorSpec([4, None], tf.bool)
        assert labels == tf.TensorSpec([4], tf.float32)
    with _feed(kf.Pad(length=12), drop_remainder=True) as feed:
        assert feed.to_tf_dataset().element_spec[0] == tf.TensorSpec([4, 12, 3], tf.float32)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="one backend proves it")
def test_a_dataset_holds_the_batches_of_a_collate_function():
    import tensorflow as tf

    def joined(scenes):
        splits = np.cumsum([0, *(len(points) for points, _ in scenes)])
        points = kf.RaggedArray(np.concatenate([points for points, _ in scenes]), splits)
        return points, np.array([length for _, length in scenes])

    with _feed(joined) as feed:
        for points, lengths in feed.to_tf_dataset():
            assert isinstance(points, tf.RaggedTensor)
            assert points.row_lengths().numpy().tolist() == lengths.numpy().tolist()
