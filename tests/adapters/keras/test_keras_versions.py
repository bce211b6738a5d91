"""Versions of Keras whose `fit` names its variables differently: supported behaviour, and errors."""

import threading

import keras
import numpy as np
import pytest
from fit_renamed import fit_of_3_10, renamed_fit
from keras.src.trainers.epoch_iterator import EpochIterator
from keras_fits import BACKEND, MARKS, Trainer, order_of
from resumable import chain_of, make_feed, make_model, result_of, stream

import kerasfeed as kf
from kerasfeed.adapters.keras.trainer import data_adapter_class

pytestmark = MARKS
MOST = 1 if BACKEND == "torch" else 3  # steps of an execution


class Stopped(Exception):
    """The training was stopped."""


class At(keras.callbacks.Callback):
    """Calls a function after a given batch, counted over all epochs."""

    def __init__(self, count, function):
        super().__init__()
        self.left = count
        self.function = function

    def get_state(self):
        return {}

    def set_state(self, state):
        pass

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if self.left == 0:
            self.function()


def stop():
    raise Stopped


def trained(folder, fit, callbacks, **arguments):
    keras.utils.set_random_seed(0)
    model = make_model(**arguments)
    with make_feed() as feed:
        fit(
            model,
            feed,
            epochs=6,
            verbose=0,
            callbacks=[*callbacks, kf.BackupAndRestore(feed, folder / "backup", save_freq=2)],
        )
    return result_of(model)


@pytest.mark.heavy
@pytest.mark.parametrize("steps_per_execution", range(1, min(2, MOST) + 1))
def test_a_fit_with_the_loop_of_keras_3_10_resumes_at_the_exact_batch(tmp_path, steps_per_execution):
    fit = fit_of_3_10()
    with pytest.raises(Stopped):
        trained(tmp_path, fit, [At(7 // steps_per_execution, stop)], steps_per_execution=steps_per_execution)
    found = trained(tmp_path, fit, [], steps_per_execution=steps_per_execution)
    with make_feed() as feed:
        assert found == (chain_of(stream(feed, 24)), 24)


@pytest.mark.parametrize(("steps_per_execution", "after", "step"), [(1, 3, 3), (2, 1, 2), (3, 1, 3)][:MOST])
def test_the_state_of_a_feed_is_correct_in_the_loop_of_keras_3_10(steps_per_execution, after, step):
    model, states = make_model(steps_per_execution=steps_per_execution), []
    with make_feed() as feed:
        note = At(after, lambda: states.append(feed.get_state()))
        fit_of_3_10()(model, feed, epochs=1, verbose=0, callbacks=[note])
    assert [(state["epoch"], state["step"]) for state in states] == [(0, step)]


def test_a_fit_with_a_renamed_step_variable_trains_and_has_a_state():
    fit, trainer, states = renamed_fit({"begin_step": "first_step"}), Trainer(), []
    with make_feed(batch_size=6, length=24) as feed:
        ask = At(2, lambda: states.append(feed.get_state()))
        fit(trainer.model, feed, epochs=2, verbose=0, callbacks=[ask, trainer.record])
        assert trainer.trained == [order_of(feed, epoch) for epoch in range(2)]
    assert [(state["epoch"], state["step"]) for state in states] == [(0, 2)]


@pytest.mark.parametrize("name", ["epoch_iterator", "initial_epoch"])
def test_a_fit_with_unknown_epochs_is_refused(name):
    trainer = Trainer()
    with make_feed() as feed, pytest.raises(RuntimeError, match=f"no variable {name}.*train_on_batch in a loop"):
        renamed_fit({name: f"the_{name}"})(trainer.model, feed, verbose=0)


def test_without_external_data_adapters_fit_uses_a_dataset_and_warns(monkeypatch):
    monkeypatch.setattr("keras.src.trainers.data_adapters.data_adapter.DataAdapter", type("Another", (), {}))
    trainer = Trainer()
    with make_feed(batch_size=6, length=24) as feed:
        with pytest.warns(kf.FeedWarning, match="supports no external data adapters, .* nothing can be resumed"):
            trainer.fit(feed, epochs=3, shuffle=False)
        assert trainer.trained == [order_of(feed, epoch) for epoch in range(3)]


def test_a_keras_with_another_training_loop_gets_no_adapter(monkeypatch):
    assert issubclass(kf.Feed, data_adapter_class())
    monkeypatch.setattr("kerasfeed.adapters.keras.trainer.LOOP", "another_name")
    assert not issubclass(kf.Feed, data_adapter_class())


def test_without_external_data_adapters_keras_starts_no_worker_threads(monkeypatch):
    monkeypatch.setattr("keras.src.trainers.data_adapters.data_adapter.DataAdapter", type("Another", (), {}))
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    rows = np.zeros((8, 1), np.float32)
    threads, get_batch = set(), kf.Feed.__getitem__

    def watched(feed, step):
        threads.add(threading.current_thread().name)
        return get_batch(feed, step)

    monkeypatch.setattr(kf.Feed, "__getitem__", watched)
    with kf.Feed(kf.Zip(rows, rows), 2, workers=3, worker_type="thread") as feed:
        with pytest.warns(kf.FeedWarning, match="supports no external data adapters"):
            model.fit(feed, verbose=0)
        assert feed.workers == 3
        assert threads
        assert not [name for name in threads if "worker" in name]


@pytest.mark.parametrize("name", ["y", "sample_weight"])
def test_targets_and_weights_with_a_feed_raise_the_error_of_keras(name):
    trainer = Trainer()
    with make_feed() as feed, pytest.raises(ValueError, match=f"`{name}` should not be passed"):
        trainer.fit(feed, **{name: [1.0]})


def test_the_short_epoch_option_of_keras_applies_to_a_feed():
    trainer = Trainer()
    with make_feed(batch_size=6, length=24) as feed:
        keras.config.set_max_steps_per_epoch(2)
        try:
            with pytest.warns(UserWarning, match="Limiting steps_per_epoch to 2"):
                trainer.fit(feed, epochs=3)
        finally:
            keras.config.set_max_steps_per_epoch(None)
        assert [len(epoch) for epoch in trainer.trained] == [12] * 3


def test_a_batch_taken_to_build_the_model_is_delivered_again():
    """Keras 3.16 on JAX takes a batch of its iterator to build the model, and then resets the iterator."""
    trainer = {"__name__": "keras.trainer_of_3_16"}
    exec("def _maybe_symbolic_build(iterator):\n    return next(iterator.data_adapter.get_jax_iterator())", trainer)
    row = kf.ArraySpec((1,), np.dtype(np.float32))
    rows = [(np.full(1, number, np.float32),) for number in range(3)]
    with (
        kf.StreamFeed(lambda: rows, 1, output_signature=(row,)) as stream,
        kf.Feed(np.arange(3.0), 1, workers=0) as feed,
    ):
        for data in (stream, feed):
            iterator = EpochIterator(x=data)
            assert trainer["_maybe_symbolic_build"](iterator)[0].ravel().tolist() == [0]
            iterator.reset()
            assert [float(batch[0].ravel()[0]) for _, _, batches in iterator for batch in batches] == [0, 1, 2]
