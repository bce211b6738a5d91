"""`evaluate` over shards: with padding, weighted metrics are exact, and the loss matches docs/how-to/evaluate.md."""

import keras
import numpy as np
import pytest
from keras_fits import JIT, MARKS, few
from scenes_padding import Regression

import kerasfeed as kf

pytestmark = MARKS


class Evaluation:
    """A model, its metrics, and their values for a whole sequence."""

    def __init__(self, loss="mse"):
        self.metrics = [
            keras.metrics.MeanSquaredError(name="squares"),
            keras.metrics.MeanAbsoluteError(name="distances"),
            keras.metrics.MeanMetricWrapper(keras.losses.huber, name="huber"),
            keras.metrics.RootMeanSquaredError(name="roots"),
            keras.metrics.BinaryAccuracy(name="hits", threshold=0.5),
        ]
        self.model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="ones")])
        self.model.compile("sgd", loss, weighted_metrics=self.metrics, jit_compile=JIT)

    def exact(self, sequence):
        found = sequence.x.sum(axis=1, keepdims=True, dtype=np.float64)
        off = np.abs(found - sequence.y)
        squares = float(np.average(off[:, 0] ** 2, weights=sequence.weights))
        return {
            "squares": squares,
            "distances": float(np.average(off[:, 0], weights=sequence.weights)),
            "huber": float(np.average(np.where(off <= 1, off**2 / 2, off - 0.5)[:, 0], weights=sequence.weights)),
            "roots": squares**0.5,
            "hits": float(np.average(((found > 0.5) == sequence.y)[:, 0], weights=sequence.weights)),
        }

    def evaluate(self, sequence, batch_size, **arguments):
        arguments = {"seed": 2, "workers": 0, "pad_remainder": True, **arguments}
        with kf.Feed(sequence, batch_size, **arguments) as feed:
            return self.model.evaluate(feed, verbose=0, return_dict=True)

    def state(self):
        return [[keras.ops.convert_to_numpy(value) for value in metric.variables] for metric in self.metrics]

    def merged(self, states):
        """The metrics of all shards, whose states are given: their variables add up."""
        for metric, *values in zip(self.metrics, *states, strict=True):
            for variable, *parts in zip(metric.variables, *values, strict=True):
                variable.assign(sum(parts))
        return {metric.name: float(metric.result()) for metric in self.metrics}


@pytest.fixture(scope="module")
def evaluation():
    return Evaluation()


@pytest.mark.parametrize(
    ("length", "batch_size", "weighted"),
    few([(1, 4, True), (17, 4, False), (17, 4, True), (17, 17, False), (17, 40, True), (32, 8, False), (59, 7, True)]),
)
def test_weighted_metrics_are_exact_at_any_batch_size(evaluation, length, batch_size, weighted):
    sequence = Regression(length, weighted=weighted)
    found = evaluation.evaluate(sequence, batch_size, shuffle=length % 2 == 0)
    for name, expected in evaluation.exact(sequence).items():
        assert found[name] == pytest.approx(expected, rel=2e-5), name


@pytest.mark.heavy
@pytest.mark.parametrize(("length", "batch_size", "shard_count"), [(2, 4, 3), (17, 4, 2), (26, 4, 5), (60, 8, 3)])
@pytest.mark.parametrize("shuffle", [False, True])
def test_weighted_metrics_over_all_shards_are_exact(evaluation, length, batch_size, shard_count, shuffle):
    sequence = Regression(length, weighted=shuffle)
    states = []
    for shard in range(shard_count):
        evaluation.evaluate(sequence, batch_size, shuffle=shuffle, shard=(shard, shard_count))
        states.append(evaluation.state())
    found = evaluation.merged(states)
    for name, expected in evaluation.exact(sequence).items():
        assert found[name] == pytest.approx(expected, rel=2e-5), name


class Steps(kf.SceneSequence):
    """float32[n, 3], float32[n, 1] and a weight for each of the n in 1 to 5."""

    def __len__(self):
        return 13

    def __getitem__(self, index):
        rng, length = np.random.default_rng(int(index)), 1 + 2 * index % 5
        x = rng.normal(size=(length, 3)).astype(np.float32)
        return x, rng.normal(size=(length, 1)).astype(np.float32), rng.random(length, dtype=np.float32)


@pytest.mark.parametrize("arguments", [{}, {"order": kf.Bucketed([1 + 2 * index % 5 for index in range(13)], [3])}])
@pytest.mark.parametrize("batch_size", few([5, 20, 2]))
def test_weighted_metrics_are_exact_if_scenes_are_padded_to_one_length(batch_size, arguments):
    model = keras.Sequential([keras.Input((6, 3)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile("sgd", "mse", weighted_metrics=[keras.metrics.MeanSquaredError(name="squares")], jit_compile=JIT)
    scenes = [Steps()[index] for index in range(13)]
    off = np.concatenate([x.sum(axis=1, keepdims=True, dtype=np.float64) - y for x, y, _ in scenes])
    exact = np.average(off[:, 0] ** 2, weights=np.concatenate([weights for _, _, weights in scenes]))
    arguments = {"collate": kf.Pad(length=6), "pad_remainder": True, "seed": 2, "workers": 0, **arguments}
    with kf.Feed(Steps(), batch_size, **arguments) as feed:
        found = model.evaluate(feed, verbose=0, return_dict=True)
    assert found["squares"] == pytest.approx(exact, rel=2e-5)


def test_loss_and_metrics_without_padding_rows_are_exact(evaluation):
    sequence = Regression(17)
    found = evaluation.evaluate(sequence, 4, pad_remainder=False)
    assert found["squares"] == pytest.approx(evaluation.exact(sequence)["squares"], rel=2e-5)
    assert found["loss"] == pytest.approx(evaluation.exact(sequence)["squares"], rel=2e-5)


@pytest.mark.parametrize("length", [1, 17, 30])
def test_the_loss_divides_by_all_rows_and_its_metric_by_the_scenes(evaluation, length):
    sequence = Regression(length)
    exact = evaluation.exact(sequence)["squares"]
    found = evaluation.evaluate(sequence, 8)
    rows = -(-length // 8) * 8
    assert found["loss"] == pytest.approx(exact * length / rows, rel=2e-5)
    assert found["squares"] == pytest.approx(exact, rel=2e-5)


def test_a_loss_divided_by_the_weights_counts_short_and_full_batches_equally():
    evaluation = Evaluation(keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"))
    sequence = Regression(17)
    found = evaluation.evaluate(sequence, 8)
    exact = evaluation.exact(sequence)["squares"]
    off = (sequence.x.sum(axis=1) - sequence.y[:, 0]) ** 2
    of_batches = [off[start : start + 8].mean() for start in (0, 8, 16)]
    assert found["loss"] == pytest.approx(np.mean(of_batches), rel=2e-5)
    assert abs(found["loss"] - exact) > 0.02 * exact
    assert found["squares"] == pytest.approx(exact, rel=2e-5)


@pytest.mark.heavy
def test_fit_trains_on_batches_with_padding_rows_and_validates_exactly():
    evaluation = Evaluation()
    sequence, held_out = Regression(22), Regression(13)
    with (
        kf.Feed(sequence, 8, shuffle=True, seed=1, workers=2, worker_type="thread", pad_remainder=True) as feed,
        kf.Feed(held_out, 8, workers=0, pad_remainder=True) as validation,
    ):
        history = evaluation.model.fit(feed, epochs=2, validation_data=validation, verbose=0).history
        predictions = evaluation.model.predict(validation, verbose=0)
    assert len(history["loss"]) == 2
    assert len(predictions) == 16
    expected = ((predictions[:13] - held_out.y) ** 2).mean()
    assert history["val_squares"][-1] == pytest.approx(expected, rel=2e-5)
