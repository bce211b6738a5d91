"""`BackupAndRestore`: a killed training ends with the same state as an uninterrupted one, on every backend.

A kill is an exception here, after which only the files on the disk are used. The next run of the script begins with
another seed, so that state that is not restored differs.
"""

import functools

import exact_script
import keras
import ml_dtypes
import numpy as np
import pytest
from keras_fits import MARKS
from resumable import make_feed, make_model

import kerasfeed as kf
from kerasfeed.adapters.keras.backup import CallbackStates
from kerasfeed.adapters.keras.saved_files import ArrayFile, DamagedFileError, write_arrays
from kerasfeed.adapters.keras.trained_model import arrays_of, optimized_by, set_arrays, variables_of

pytestmark = MARKS
STEPS = 16  # four epochs; then EarlyStopping ends it


class Killed(BaseException):
    """Stands for a killed process."""


def kill_at(batch):
    """A callback that ends the process at the end of a batch, from 1, or of an epoch, from -1."""
    count = {"batch": 0, "epoch": 0}

    def note(kind, number):
        count[kind] += 1
        if count[kind] == number:
            raise Killed

    return keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda step, logs: note("batch", batch),
        on_epoch_end=lambda epoch, logs: note("epoch", -batch),
    )


@functools.cache
def undisturbed(folder, behind, run_eagerly):
    return exact_script.train(folder / "whole", behind=behind, run_eagerly=run_eagerly)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("undisturbed")


# Each position in an epoch, with the kill before and after the backup; each epoch; and ends of epochs.
KILLS = [
    (2, True),
    (5, True),
    pytest.param(7, True, marks=pytest.mark.versions),
    (9, False),
    (11, False),
    (12, True),
    (14, False),
    (16, False),
]
KILLS += [(-2, True), (-4, False)]
COMPILED = [(7, True), (16, False)]  # takes half as long again


@pytest.mark.heavy
@pytest.mark.parametrize(("batch", "behind"), KILLS)
def test_a_training_killed_at_any_step_gives_the_result_of_an_uninterrupted_one(batch, behind, tmp_path, folder):
    eager = (batch, behind) not in COMPILED
    with pytest.raises(Killed):
        exact_script.train(tmp_path / "backup", behind=behind, others=[kill_at(batch)], run_eagerly=eager)
    found = exact_script.train(tmp_path / "backup", behind=behind, seed=1, run_eagerly=eager)
    assert found[1:] == ([0, 3], 3, 3)
    assert found == undisturbed(folder, behind, eager)


@pytest.mark.heavy
@pytest.mark.parametrize("save_freq", [3, "epoch"])
def test_a_rarely_saved_training_killed_twice_gives_the_same_result(save_freq, tmp_path, folder):
    eager = {"save_freq": save_freq, "run_eagerly": True}
    for seed, batch in enumerate((10, 5)):
        with pytest.raises(Killed):
            exact_script.train(tmp_path / "backup", seed=seed, others=[kill_at(batch)], **eager)
    assert exact_script.train(tmp_path / "backup", seed=2, **eager) == undisturbed(folder, False, True)


class Two(keras.Model):
    """Trains alternately with two optimizers, which are built in its steps."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1, kernel_initializer="ones")
        self.dense.build((None, 1))
        self.built = True
        self.pair = {"weights": keras.optimizers.Adam(0.1), "bias": keras.optimizers.Adam(0.2)}

    def call(self, x):
        return self.dense(x)


def test_optimizers_in_a_dict_built_during_steps_are_restored(tmp_path):
    def state_of(model):
        return {name: keras.ops.convert_to_numpy(each).tolist() for name, each in variables_of(model).items()}

    model, again = Two(), Two()
    for name, optimizer in model.pair.items():
        variables = [model.dense.kernel if name == "weights" else model.dense.bias]
        optimizer.build(variables)
        optimizer.variables[-1].assign(np.full(tuple(optimizer.variables[-1].shape), 3, np.float32))
    path = tmp_path / "state.npz"
    write_arrays(path, {"optimizers": optimized_by(model)}, arrays_of(model))
    set_arrays(again, ArrayFile(path), None)
    assert len(state_of(again)) == 2 + 2 * 4
    assert state_of(again) == state_of(model)


def test_a_model_with_other_layers_is_refused(tmp_path):
    def saved(**arguments):
        with make_feed() as feed:
            backup = kf.BackupAndRestore(feed, tmp_path / "backup", delete_checkpoint=False)
            make(**arguments).fit(feed, epochs=1, callbacks=[backup], verbose=0)

    def make(units=1, layers=1):
        dense = [keras.layers.Dense(units) for _ in range(layers)]
        model = keras.Sequential([keras.Input((1,)), *dense])
        model.compile("adam", "mse", run_eagerly=True)
        return model

    saved()
    with pytest.raises(ValueError, match=r"latest.npz does not fit the model: .*/kernel is float32\[1, 2\], but was"):
        saved(units=2)
    with pytest.raises(ValueError, match="does not fit the model: its model has 4 variables, but had 2"):
        saved(layers=2)


class Keeping(keras.callbacks.Callback):
    """Has a state that is saved."""

    def get_state(self):
        return {}

    def set_state(self, state):
        pass


@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.callbacks.SwapEMAWeights(swap_on_epoch=True),
        lambda: keras.callbacks.EarlyStopping("loss"),
        lambda: keras.callbacks.ReduceLROnPlateau("loss"),
        lambda: keras.callbacks.ModelCheckpoint("{epoch}.keras"),
        Keeping,
    ],
)
def test_stateful_callbacks_after_the_backup_are_refused(tmp_path, make):
    with make_feed() as feed:
        backup, other = kf.BackupAndRestore(feed, tmp_path / "backup"), make()
        message = f"{type(other).__name__} comes after BackupAndRestore, .*: put BackupAndRestore last"
        with pytest.raises(ValueError, match=message):
            make_model().fit(feed, callbacks=[backup, other], verbose=0)


@pytest.mark.heavy
def test_a_finished_training_keeps_the_best_weights_of_early_stopping(tmp_path):
    def fit():
        rising = keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 * 10.0**epoch)
        stop = keras.callbacks.EarlyStopping("loss", mode="min", patience=9, restore_best_weights=True)
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="ones")])
        model.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=True)
        with make_feed() as feed:
            backup = kf.BackupAndRestore(feed, tmp_path / "backup", delete_checkpoint=False)
            model.fit(feed, epochs=3, callbacks=[rising, stop, backup], verbose=0)
        return [np.asarray(weight).tolist() for weight in model.get_weights()]

    first = fit()
    with pytest.warns(kf.FeedWarning, match="nothing is trained"):
        assert fit() == first


@pytest.mark.heavy
def test_training_for_more_epochs_equals_one_longer_training(tmp_path):
    def fit(folder, epochs):
        keras.utils.set_random_seed(0)
        reduce = keras.callbacks.ReduceLROnPlateau("loss", factor=0.5, patience=1, min_delta=1e9)
        model = make_model(run_eagerly=True)
        with make_feed() as feed:
            backup = kf.BackupAndRestore(feed, tmp_path / folder, delete_checkpoint=False)
            model.fit(feed, epochs=epochs, callbacks=[reduce, backup], verbose=0)
        return float(model.optimizer.learning_rate), reduce.wait, [np.asarray(each).tolist() for each in model.weights]

    fit("a", 3)
    assert fit("a", 6) == fit("b", 6)


def test_a_training_ended_by_early_stopping_does_not_continue(tmp_path):
    def fit():
        stop = keras.callbacks.EarlyStopping(monitor="loss", patience=1, min_delta=1e9)
        with make_feed() as feed:
            backup = kf.BackupAndRestore(feed, tmp_path / "backup", delete_checkpoint=False)
            return make_model(run_eagerly=True).fit(feed, epochs=9, callbacks=[stop, backup], verbose=0).epoch

    assert fit() == [0, 1]
    with pytest.warns(kf.FeedWarning, match="EarlyStopping ended the training saved in .*: nothing is tra"):
        assert fit() == []


class Remembering(keras.callbacks.Callback):
    """Has state that no method saves."""

    def __init__(self):
        super().__init__()
        self.seen = []
        self.started = False
        self.name = "constant"

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append(batch)
        self.started = True


def test_a_warning_names_a_callback_with_unsaved_state(tmp_path):
    with make_feed() as feed:
        backup = kf.BackupAndRestore(feed, tmp_path / "backup", save_freq=1)
        with pytest.warns(kf.FeedWarning, match="the callback Remembering changes its seen and started in tr") as found:
            make_model(run_eagerly=True).fit(feed, epochs=2, callbacks=[Remembering(), backup], verbose=0)
    assert [each.category for each in found].count(kf.FeedWarning) == 1


def test_callback_states_return_to_callbacks_of_the_same_class_in_order():
    class Telling(keras.callbacks.Callback):
        def __init__(self, **state):
            super().__init__()
            self.state = state

        def get_state(self):
            return self.state

        def set_state(self, state):
            self.state = state

    first = Telling(n=1, text="a", pair=(1.5, None), deep={"x": [np.arange(3, dtype="int8")]}, scalar=np.float32(0.1))
    reduce = keras.callbacks.ReduceLROnPlateau()
    reduce.wait, reduce.best, reduce.min_delta = 4, np.float32(0.25), -3
    arrays = {}
    states = CallbackStates([first, reduce, Telling(n=2)], None).get(arrays)
    again = [Telling(), keras.callbacks.ReduceLROnPlateau(), Telling(), Telling(n=3)]
    CallbackStates(again, None).set(states, arrays)
    one, restored, two, new = again
    assert (one.state["n"], one.state["text"], one.state["pair"]) == (1, "a", [1.5, None])
    assert one.state["deep"]["x"][0].tolist() == [0, 1, 2]
    assert (one.state["scalar"], type(one.state["scalar"])) == (np.float32(0.1), np.float32)
    assert (restored.wait, restored.best, restored.min_delta) == (4, np.float32(0.25), 1e-4)
    assert (two.state, new.state) == ({"n": 2}, {"n": 3})
    with pytest.raises(
        TypeError, match=r"callbacks/Telling/get_state\(\)/n cannot be saved, because it is a object: return"
    ):
        CallbackStates([Telling(n=object())], None).get({})


def test_a_truncated_or_changed_file_of_arrays_is_refused(tmp_path):
    path = tmp_path / "arrays.npz"
    arrays = {"a/0": np.arange(100.0), "b": np.ones((), ml_dtypes.bfloat16) * 3, "c": np.array("text")}
    write_arrays(path, {"hook": "batch"}, arrays.items())
    file = ArrayFile(path)
    assert (file.header["hook"], file.names) == ("batch", ["a/0", "b", "c"])
    for name, array in file.read(file.names):
        np.testing.assert_array_equal(array, arrays[name])
        assert array.dtype == arrays[name].dtype
    whole = path.read_bytes()
    for size in range(0, len(whole), 97):
        path.write_bytes(whole[:size])
        with pytest.raises(DamagedFileError, match=r"arrays.npz is damaged .*: delete the folder to start over"):
            ArrayFile(path)
    path.write_bytes(whole[:300] + bytes([whole[300] ^ 1]) + whole[301:])
    with pytest.raises(DamagedFileError):
        dict(ArrayFile(path).read(["a/0"]))
