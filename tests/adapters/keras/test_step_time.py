"""Measurements of training steps that leave the model unchanged."""

import time
import warnings

import keras
import numpy as np
import pytest
import scenes_costs

import kerasfeed as kf
from kerasfeed.adapters.keras import step_time

BATCH = (np.ones((8, 4), np.float32), np.ones((8, 1), np.float32))


def _model(*, built=True):
    layers = [
        keras.layers.Dense(8),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.5),
        keras.layers.Dense(1),
    ]
    model = keras.Sequential([keras.Input((4,)), *layers] if built else layers)
    model.compile("adam", "mse", metrics=["mae"])
    return model


def _values(variables):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)  # Keras's, of NumPy 2
        return [variable.numpy().tolist() for variable in variables]


def _state(model):
    found = [*model.variables, *model.optimizer.variables, *model.metrics_variables]
    return {variable.path: value for variable, value in zip(found, _values(found), strict=True)}


@pytest.mark.heavy
@pytest.mark.versions
def test_measuring_step_time_does_not_change_the_model():
    model = _model()
    model.fit(*BATCH, verbose=0)
    before = _state(model)
    assert step_time.step_seconds(model, BATCH, 0.05) > 0
    assert _state(model) == before


def test_measuring_an_untrained_model_leaves_its_optimizer_at_zero():
    model = _model(built=False)
    step_time.step_seconds(model, BATCH, 0.02)
    assert int(model.optimizer.iterations) == 0
    assert all(not np.any(value) for path, value in _state(model).items() if "mean_absolute_error" in path)
    assert all(not np.any(value) for path, value in _state(model).items() if "momentum" in path)


def test_measuring_restores_a_model_without_an_optimizer():
    class Counts(keras.Model):
        def __init__(self):
            super().__init__()
            self.count = self.add_weight(shape=(), initializer="zeros", trainable=False)

        def call(self, x):
            return x

        def train_step(self, batch):
            self.count.assign_add(1)
            return {"count": self.count}

    model = Counts()
    model.compile(optimizer=None)
    assert step_time.step_seconds(model, BATCH, 0.02) > 0
    assert float(model.count.numpy()) == 0


@pytest.mark.heavy
@pytest.mark.versions
def test_a_step_that_raises_does_not_change_the_model():
    model = _model()
    model.fit(*BATCH, verbose=0)
    before = _state(model)
    with pytest.raises(Exception, match=r".+"):
        step_time.step_seconds(model, (np.ones((8, 5), np.float32), BATCH[1]), 0.02)
    assert _state(model) == before


@pytest.mark.heavy
@pytest.mark.versions
def test_wait_share_measures_the_time_spent_on_batches():
    def late():
        time.sleep(0.2)
        return BATCH

    assert step_time.wait_share(_model(), late, 0.5) > 0.5
    assert step_time.wait_share(_model(), lambda: BATCH, 0.1) < 0.5


@pytest.mark.heavy
@pytest.mark.versions
def test_a_profile_with_a_model_reports_the_wait_of_training(few_processes):
    inputs = keras.Input((4,))
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    with kf.Feed(scenes_costs.Waits(), 8, workers=1, worker_type="thread") as feed:
        with pytest.raises(ValueError, match=r"call model.compile"):
            kf.profile(feed, model, seconds=1)
        model.compile("sgd", "mse")
        before = _values(model.variables)
        found = kf.profile(feed, model, seconds=1)
    assert _values(model.variables) == before
    assert found.wait_shares.least > 0.5
    assert found.training_rate > found.present.most
    assert found.verdict.startswith("training waits ")
    assert "the model, batches being there" in str(found)


class Loud(kf.InputMonitor):
    """Like `verbose=1`, without the progress bar."""

    def set_params(self, params):
        super().set_params({**params, "verbose": 1})


def test_the_monitor_reports_the_wait_of_each_epoch_and_its_reason(capsys):
    inputs = keras.Input((4,))
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse")
    scenes = scenes_costs.Waits()[:200]
    with kf.Feed(scenes, 20, workers=1, worker_type="thread") as feed:
        model.fit(feed, verbose=0)  # compiles the step, which may take longer than an epoch
        monitor = Loud(feed)
        assert monitor.verdict == ""
        model.fit(feed, epochs=2, verbose=0, callbacks=[monitor])
        said = capsys.readouterr().out
        assert said.count("kerasfeed: training waited") == 2
        assert "of epoch 0 for input: 1 thread loaded" in said
        assert "of epoch 1 for input: 1 thread loaded" in monitor.verdict
        assert "kf.profile(feed, model)" in monitor.verdict
        monitor = kf.InputMonitor(feed)
        model.fit(feed, epochs=1, verbose=0, callbacks=[monitor])
        assert "training waited" not in capsys.readouterr().out
        assert monitor.verdict
