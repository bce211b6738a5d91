"""`kf.evaluate`: each batch alone, with an unchanged model; on TensorFlow here, and again on JAX and PyTorch."""

import itertools

import keras
import numpy as np
import pytest
from keras_fits import BACKEND, MARKS

import kerasfeed as kf
from kerasfeed.adapters.keras.evaluate import _weighted_rows

pytestmark = MARKS


class Values(kf.SceneSequence):
    """Scenes (x, y), or (x, y, weight), of a model that predicts x; the loss of a scene is (x - y)**2."""

    def __init__(self, length=22, weights=None, noisy=False):
        self.length = length
        self.weights = weights
        self.noisy = noisy

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        y = np.full(1, index % 7, np.float32)
        if self.noisy:
            y += self.rng.normal(size=1).astype(np.float32)
        scene = (np.full(1, index, np.float32), y)
        return scene if self.weights is None else (*scene, np.float32(self.weights[index]))


def identity_model(**arguments):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
    arguments = {"loss": "mse", "metrics": [keras.metrics.MeanAbsoluteError(name="mae")], **arguments}
    model.compile(optimizer="sgd", **arguments)
    return model


@pytest.fixture(scope="module")
def model():
    return identity_model()


def losses(feed, epoch):
    """The loss of each batch of an epoch, by hand."""
    return [float(np.mean((x - y) ** 2)) for x, y in feed.epoch(epoch)]


def test_evaluate_measures_each_batch_separately_in_every_repeat(model):
    with kf.Feed(Values(noisy=True), 8, shuffle=True, seed=4, workers=2, worker_type="thread") as feed:
        found = kf.evaluate(model, feed, repeats=3)
        by_hand = [losses(feed, epoch) for epoch in range(3)]
        later = kf.evaluate(model, feed, first_epoch=2)
    assert set(found) == {"loss", "mae"}
    assert found["loss"].values == pytest.approx(list(itertools.chain(*by_hand)), rel=1e-5)
    assert found["loss"].rows.tolist() == [8, 8, 6] * 3
    assert found["loss"].repeats.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert len(set(found["loss"].values)) == 9
    assert later["loss"].values == pytest.approx(by_hand[2], rel=1e-5)


def test_the_mean_equals_the_result_of_keras_evaluate(model):
    with kf.Feed(Values(), 8, seed=4, workers=0) as feed:
        found = kf.evaluate(model, feed)
        keras_says = model.evaluate(feed, verbose=0, return_dict=True)
    assert {name: metric.mean for name, metric in found.items()} == pytest.approx(keras_says, rel=1e-5)


def test_evaluate_changes_neither_the_model_nor_the_epoch_of_the_feed(model):
    model.evaluate(np.ones((3, 1)), np.zeros((3, 1)), verbose=0)
    state = [np.array(keras.ops.convert_to_numpy(variable.value)) for variable in model.variables]
    metrics = [np.array(keras.ops.convert_to_numpy(variable.value)) for variable in model.metrics_variables]
    with kf.Feed(Values(), 8, shuffle=True, seed=4, workers=0) as feed:
        first = next(iter(feed.epoch(0)))[0].tolist()
        kf.evaluate(model, feed, repeats=2)
        assert next(iter(feed))[0].tolist() == first
    for before, variables in ((state, model.variables), (metrics, model.metrics_variables)):
        for value, variable in zip(before, variables, strict=True):
            assert np.array_equal(value, keras.ops.convert_to_numpy(variable.value))


@pytest.mark.heavy
def test_a_callback_may_evaluate_in_the_middle_of_an_epoch():
    trained = {}
    for evaluates in (False, True):
        model = identity_model()

        class InTheMiddle(keras.callbacks.Callback):
            def on_train_batch_end(self, batch, logs=None):
                if evaluates and batch == 1:  # noqa: B023 - called before the next turn
                    found.append(kf.evaluate(self.model, feed))  # noqa: B023

        found = []
        with kf.Feed(Values(), 8, workers=0) as feed:
            history = model.fit(
                np.ones((24, 1)), 2 * np.ones((24, 1)), batch_size=8, verbose=0, callbacks=[InTheMiddle()]
            )
        trained[evaluates] = {name: values[0] for name, values in history.history.items()}
        assert len(found) == evaluates
    assert trained[True] == pytest.approx(trained[False], rel=1e-6)


def test_evaluate_skips_rows_of_weight_zero(model):
    weights = np.ones(22)
    weights[[1, 2]] = 0
    weights[8:16] = 0
    with kf.Feed(Values(weights=weights), 8, workers=0) as feed:
        found = kf.evaluate(model, feed)
    y = np.arange(22) % 7
    assert found["loss"].rows.tolist() == [6, 6]
    by_hand = [np.mean([(x - y[x]) ** 2 for x in chosen]) for chosen in ([0, 3, 4, 5, 6, 7], range(16, 22))]
    assert found["loss"].values == pytest.approx(by_hand, rel=1e-5)


def test_failed_scenes_that_are_masked_do_not_count(model):
    class Bad(Values):
        def __getitem__(self, index):
            if index == 20:
                raise OSError("lost")
            return super().__getitem__(index)

    with kf.Feed(Bad(), 8, workers=0, on_error="mask", max_failures=3) as feed:
        found = kf.evaluate(model, feed)
    assert found["loss"].rows.tolist() == [8, 8, 5]
    with kf.Feed(Values(22), 8, workers=0) as feed:
        assert found["loss"].values[:2] == pytest.approx(kf.evaluate(model, feed)["loss"].values[:2])


class Ones(keras.Model):
    """Predicts 1 for each row of a `RaggedArray`."""

    def call(self, x):
        splits = x.row_splits
        return keras.ops.ones((keras.ops.shape(splits)[0] - 1, 1))


def test_evaluate_counts_rows_of_ragged_batches_not_values():
    model = Ones()
    model.compile(loss="mse", run_eagerly=True)
    scenes = [(np.ones((k % 3 + 1, 1), np.float32), np.full(1, k, np.float32)) for k in range(7)]
    with kf.Feed(scenes, 4, collate="ragged", workers=0) as feed:
        found = kf.evaluate(model, feed)["loss"]
    assert found.rows.tolist() == [4, 3]
    assert found.values == pytest.approx([(1 + 0 + 1 + 4) / 4, (9 + 16 + 25) / 3])
    with kf.Feed(scenes, 4, collate="ragged", pad_remainder=True, workers=0) as feed:
        padded = kf.evaluate(model, feed)["loss"]
    assert (padded.rows.tolist(), padded.values) == ([4, 3], pytest.approx(found.values))


def test_evaluate_drops_whole_rows_of_ragged_fields():
    ragged = kf.RaggedArray(np.arange(6.0), np.array([0, 1, 3, 3, 6]))
    x, y, weight, count = _weighted_rows(ragged, np.arange(4), np.array([0.0, 1, 1, 0]))
    assert [part.tolist() for part in (*x, y, weight)] == [[1, 2], [0, 2, 2], [1, 2], [1, 1]]
    assert count == 2


@pytest.mark.skipif(BACKEND != "tensorflow", reason="there are ragged tensors in TensorFlow alone")
def test_evaluate_drops_whole_rows_of_ragged_tensors():
    import tensorflow as tf

    ragged = tf.ragged.constant([[0.0], [1, 2], [], [3, 4, 5]])
    x, _, _, count = _weighted_rows(ragged, None, np.array([0.0, 1, 1, 0]))
    assert (x.to_list(), count) == ([[1, 2], []], 2)
    assert _weighted_rows(ragged, None, None)[3] == 4


def test_evaluate_supports_several_outputs_and_array_metrics():
    class PerClass(keras.metrics.Metric):
        def __init__(self):
            super().__init__(name="per_class")
            self.seen = self.add_variable((2,), initializer="zeros", name="seen")

        def update_state(self, y_true, y_pred, sample_weight=None):
            self.seen.assign(self.seen + keras.ops.stack([keras.ops.sum(y_true), keras.ops.sum(y_pred)]))

        def result(self):
            return self.seen + 0.0

    inputs = {"a": keras.Input((1,), name="a"), "b": keras.Input((1,), name="b")}
    outputs = {
        "one": keras.layers.Identity(name="one")(inputs["a"]),
        "two": keras.layers.Identity(name="two")(inputs["b"]),
    }
    model = keras.Model(inputs, outputs)
    model.compile(loss={"one": "mse", "two": "mae"}, metrics={"one": [PerClass()]})
    scenes = [
        (
            {"a": np.full(1, k, np.float32), "b": np.full(1, 2 * k, np.float32)},
            {"one": np.full(1, 1, np.float32), "two": np.full(1, 2, np.float32)},
        )
        for k in range(5)
    ]
    with kf.Feed(scenes, 2, workers=0) as feed:
        found = kf.evaluate(model, feed)
    assert found["loss"].values == pytest.approx([0.5 + 1.0, 2.5 + 3.0, 9.0 + 6.0])
    assert found["one_per_class[0]"].values.tolist() == [2, 2, 1]
    assert found["one_per_class[1]"].values.tolist() == [1, 5, 4]


def test_evaluate_supports_unlabelled_scenes_with_a_custom_loss():
    class Self(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1, kernel_initializer="ones", use_bias=False)

        def call(self, x):
            return self.dense(x)

        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return keras.ops.mean(y_pred)

    model = Self()
    model.compile(optimizer="sgd")
    for scenes in (np.arange(5, dtype=np.float32)[:, None], [(np.full(1, k, np.float32),) for k in range(5)]):
        with kf.Feed(scenes, 2, workers=0) as feed:
            assert kf.evaluate(model, feed)["loss"].values == pytest.approx([0.5, 2.5, 4.0])


@pytest.mark.heavy
@pytest.mark.skipif(BACKEND == "torch", reason="Keras refuses it on PyTorch")
def test_evaluate_runs_single_steps_despite_steps_per_execution():
    model = identity_model(steps_per_execution=3)
    with kf.Feed(Values(), 8, workers=0) as feed:
        model.evaluate(feed, verbose=0)
        found = kf.evaluate(model, feed)
        assert found["loss"].values == pytest.approx(losses(feed, 0), rel=1e-5)
        assert model.steps_per_execution == 3
        assert model.evaluate(feed, verbose=0, return_dict=True)["loss"] == pytest.approx(found["loss"].mean, rel=1e-5)


def test_evaluations_of_shards_merge_into_the_evaluation_of_all_scenes(model):
    shards = []
    for shard in range(2):
        with kf.Feed(Values(), 4, shard_index=shard, shard_count=2, workers=0) as feed:
            shards.append(kf.evaluate(model, feed))
    with kf.Feed(Values(), 8, workers=0) as feed:
        whole = kf.evaluate(model, feed)
    merged = shards[0].merge(shards[1])
    assert merged["loss"].mean == pytest.approx(whole["loss"].mean, rel=1e-5)
    assert merged["loss"].rows.tolist() == [4, 4, 3, 4, 4, 3]


def test_evaluate_accepts_any_iterable_of_batches_and_a_number_of_steps(model):
    batches = [(np.full((n, 1), n, np.float32), np.zeros((n, 1), np.float32)) for n in (4, 2, 3)]
    assert kf.evaluate(model, batches, repeats=2, steps=2)["loss"].values.tolist() == [16, 4, 16, 4]

    class WithNumber(list):
        epoch = 3  # like other loaders

    assert kf.evaluate(model, WithNumber(batches))["loss"].rows.tolist() == [4, 2, 3]


def unbuilt():
    return keras.Sequential([keras.layers.Dense(1)])


WRONG = [
    (
        lambda model: kf.evaluate("model", []),
        TypeError,
        r"needs a keras\.Model first, received a str\. For a torch\.nn\.Module, loop over feed\.to_torch",
    ),
    (lambda model: kf.evaluate(unbuilt(), []), ValueError, r"not compiled.*model.compile\(loss"),
    (lambda model: kf.evaluate(model, Values()), TypeError, r"Values holds single scenes: write kf.Feed"),
    (
        lambda model: kf.evaluate(model, (np.ones(4), np.ones(4))),
        TypeError,
        "the items of this tuple as batches",
    ),
    (lambda model: kf.evaluate(model, np.ones((4, 1))), TypeError, "items of this ndarray as batches"),
    (lambda model: kf.evaluate(model, iter([])), TypeError, "received a list_iterator"),
    (lambda model: kf.evaluate(model, 5), TypeError, "needs a kerasfeed.Feed, received a int"),
    (lambda model: kf.evaluate(model, []), ValueError, "no row has a nonzero weight"),
    (lambda model: kf.evaluate(model, [], 0), ValueError, "repeats must be at least 1"),
    (lambda model: kf.evaluate(model, [], steps=0), ValueError, "steps must be at least 1"),
]


@pytest.mark.parametrize(("call", "kind", "says"), WRONG)
def test_bad_arguments_of_evaluate_are_refused(model, call, kind, says):
    with pytest.raises(kind, match=says):
        call(model)


def test_evaluate_closes_its_loop_when_a_batch_fails(model, monkeypatch):
    def fail(*_, **__):
        raise ZeroDivisionError

    monkeypatch.setattr(model, "test_on_batch", fail)
    with kf.Feed(Values(), 8, workers=0) as feed:
        with pytest.raises(ZeroDivisionError) as held:
            kf.evaluate(model, feed)
        assert not list(feed._loops)
        del held
