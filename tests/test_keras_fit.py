"""A feed in `fit`, `evaluate` and `predict`: on TensorFlow here, and the same tests again on JAX and on PyTorch.

What a model consumes is recorded inside the compiled step, by a metric that notes every label.
"""

import collections
import gc
import importlib.util
import random
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path

import keras
import numpy as np
import pytest
import scenes
from scenes_frameworks import (
    Fragile,
    Numbered,
    Pair,
    Stateful,
    environment_of,
    frameworks_left_alone,
    let_tensorflow_free_memory,
)

import kerasfeed as kf
from kerasfeed.scene import scene_rng

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation")  # Keras's own, under NumPy 2.4
BACKEND = keras.backend.backend()
OTHERS = ["jax", "torch"]
WORKERS = [(0, "thread"), (2, "thread"), (2, "process")]


@pytest.fixture(scope="module", autouse=True)
def quick_collector():
    with frameworks_left_alone():
        yield


@pytest.fixture(autouse=True)
def memory_freed():
    """Before `nothing_leaks` looks."""
    yield
    let_tensorflow_free_memory()


@pytest.fixture(scope="module")
def other_runs():
    """Exit code and output of this file's tests on the other backends, run side by side."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", __file__]
    running = {
        backend: subprocess.Popen(
            command, env=environment_of(KERAS_BACKEND=backend), cwd=Path(__file__).parents[1],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )
        for backend in OTHERS
        if importlib.util.find_spec(backend) is not None
    }  # fmt: skip
    try:
        return {name: (process.communicate(timeout=220)[0], process.returncode) for name, process in running.items()}
    finally:
        for process in running.values():
            process.kill()
            process.wait()


@pytest.mark.timeout(240)
@pytest.mark.skipif(BACKEND != "tensorflow", reason="TensorFlow's run starts the others")
@pytest.mark.parametrize("backend", OTHERS)
def test_all_of_this_holds_on(backend, other_runs):
    if backend not in other_runs:
        pytest.skip(f"{backend} is not installed")
    output, code = other_runs[backend]
    assert code == 0, output[-8000:]


class Consumed(keras.metrics.Metric):
    """Notes the labels it is given, in order, until it is reset."""

    def __init__(self):
        super().__init__(name="consumed")
        self.order = self.add_variable((256,), initializer="zeros", dtype="float32", name="order")
        self.count = self.add_variable((), initializer="zeros", dtype="int32", name="count")

    def update_state(self, y_true, y_pred, sample_weight=None):
        labels = keras.ops.reshape(keras.ops.cast(y_true, "float32"), (-1,))
        places = self.count + keras.ops.arange(keras.ops.shape(labels)[0], dtype="int32")
        self.order.assign(keras.ops.scatter_update(self.order, places[:, None], labels))
        self.count.assign_add(keras.ops.cast(keras.ops.shape(labels)[0], "int32"))

    def result(self):
        return keras.ops.cast(self.count, "float32")

    def labels(self):
        count = int(np.asarray(self.count.value))
        return np.asarray(self.order.value)[:count].astype(int).tolist()


class Record(keras.callbacks.Callback):
    """The labels of every epoch and of every evaluation; a function to call after each batch."""

    def __init__(self, consumed, after_batch=None):
        super().__init__()
        self.consumed = consumed
        self.after_batch = after_batch
        self.trained = []
        self.tested = []
        self._training = False

    def on_epoch_begin(self, epoch, logs=None):
        self._training = True

    def on_train_batch_end(self, batch, logs=None):
        if self.after_batch is not None:
            self.after_batch(batch)

    def _note(self):
        if self._training:
            self._training = False
            self.trained.append(self.consumed.labels())

    def on_test_begin(self, logs=None):
        self._note()

    def on_test_end(self, logs=None):
        self.tested.append(self.consumed.labels())

    def on_epoch_end(self, epoch, logs=None):
        self._note()


class Trainer:
    """A model that predicts its input and learns nothing, and the record of what it saw."""

    def __init__(self, model=None, after_batch=None, **compile_arguments):
        self.consumed = Consumed()
        self.model = model or keras.Sequential([keras.Input((1,)), _identity()])
        arguments = {"loss": "mse", "jit_compile": False, **compile_arguments}
        self.model.compile(optimizer=keras.optimizers.SGD(0.0), metrics=[self.consumed], **arguments)
        self.record = Record(self.consumed, after_batch)

    def fit(self, feed, **arguments):
        callbacks = [*arguments.pop("callbacks", []), self.record]
        return self.model.fit(feed, callbacks=callbacks, verbose=0, **arguments)

    @property
    def trained(self):
        return self.record.trained


def _identity():
    return keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")


def _batches(feed, epoch):
    return [feed.plan.indices(epoch, step).tolist() for step in range(len(feed))]


def _order(feed, epoch):
    return [index for batch in _batches(feed, epoch) for index in batch]


def _cut(order, rows):
    return sorted(order[start : start + rows] for start in range(0, len(order), rows))


def _make_feed(length=24, batch_size=6, **arguments):
    arguments = {"shuffle": True, "seed": 1, "workers": 2, "worker_type": "thread", **arguments}
    return kf.Feed(Numbered(length), batch_size, **arguments)


@pytest.fixture
def feed():
    with _make_feed() as feed:
        yield feed


@pytest.mark.skipif(BACKEND != "tensorflow", reason="the others have no dataset to tune")
def test_no_thread_tunes_the_dataset_that_keras_makes_of_a_feed(feed, monkeypatch):
    import tensorflow as tf

    made = []
    original = tf.data.Dataset.with_options
    monkeypatch.setattr(tf.data.Dataset, "with_options", lambda *a: made.append(original(*a)) or made[-1])
    Trainer().fit(feed, epochs=1)
    assert any(dataset.options().autotune.enabled is False for dataset in made)


# ---- epochs


@pytest.mark.parametrize(("workers", "worker_type"), WORKERS)
def test_every_epoch_of_fit_is_a_new_shuffle_of_every_scene(workers, worker_type):
    for length in (24, 22):
        with _make_feed(length, workers=workers, worker_type=worker_type) as feed:
            trainer = Trainer()
            trainer.fit(feed, epochs=3, shuffle=False)
            assert trainer.trained == [_order(feed, epoch) for epoch in range(3)]
            assert len({tuple(order) for order in trainer.trained}) == 3


def test_keras_shuffles_the_batches_of_a_feed_without_an_order_and_nothing_else():
    random.seed(3)
    with _make_feed(shuffle=False) as feed:
        trainer = Trainer()
        trainer.fit(feed, epochs=3)
        assert [_cut(order, 6) for order in trainer.trained] == [sorted(_batches(feed, epoch)) for epoch in range(3)]
        assert trainer.trained != [_order(feed, epoch) for epoch in range(3)]


def test_the_order_of_a_shuffled_feed_is_its_own_in_fit_too(feed):
    trainer = Trainer()
    trainer.fit(feed, epochs=3)  # shuffle=True is Keras's default
    assert trainer.trained == [_order(feed, epoch) for epoch in range(3)]


def test_the_shards_of_an_unshuffled_feed_stay_in_step():
    with _make_feed(shuffle=False, shard_index=1, shard_count=2, batch_size=3) as feed:
        trainer = Trainer()
        trainer.fit(feed, epochs=2)
        assert trainer.trained == [_order(feed, 0)] * 2


class Noted(Numbered):
    """Notes the epoch of every scene that is loaded; a scene's random numbers tell it."""

    def __init__(self, length):
        super().__init__(length)
        self.loaded = []

    def __getitem__(self, index):
        self.loaded.append((index, float(self.rng.random())))
        return super().__getitem__(index)


@pytest.mark.parametrize("hooked", [False, True])
def test_workers_go_on_with_the_next_epoch_while_keras_ends_this_one(hooked):
    sequence = Noted(24)
    if hooked:  # a sequence that changes between epochs must not be read ahead
        sequence = type("Hooked", (Noted,), {"on_epoch_end": lambda self: None})(24)
    with kf.Feed(sequence, 6, shuffle=True, seed=1, workers=2, worker_type="thread") as feed:
        ahead = []

        def look(epoch, logs):
            expected = {(int(i), float(scene_rng(1, epoch + 1, int(i)).random())) for i in _batches(feed, epoch + 1)[0]}
            deadline = time.monotonic() + (0.2 if hooked or epoch == 2 else 10)
            while not expected <= set(sequence.loaded) and time.monotonic() < deadline:
                time.sleep(0.01)
            ahead.append(expected <= set(sequence.loaded))

        trainer = Trainer()
        trainer.fit(feed, epochs=3, callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=look)])
        assert ahead == ([False] * 3 if hooked else [True, True, False])
        assert trainer.trained == [_order(feed, epoch) for epoch in range(3)]
        trainer.fit(feed, epochs=4, initial_epoch=3)
        assert trainer.trained[-1] == _order(feed, 3)


def test_the_epochs_are_those_of_keras_from_the_initial_epoch_on(feed):
    trainer = Trainer()
    trainer.fit(feed, initial_epoch=5, epochs=7, shuffle=False)
    assert trainer.trained == [_order(feed, 5), _order(feed, 6)]


def test_a_second_fit_goes_on_with_new_epochs(feed):
    trainer = Trainer()
    trainer.fit(feed, epochs=2, shuffle=False)
    trainer.fit(feed, epochs=2, shuffle=False)
    trainer.fit(feed, initial_epoch=4, epochs=5, shuffle=False)
    trainer.fit(feed, initial_epoch=9, epochs=10, shuffle=False)
    assert trainer.trained == [_order(feed, epoch) for epoch in (0, 1, 2, 3, 4, 9)]
    assert next(iter(feed))[1].ravel().tolist() == _batches(feed, 10)[0]


def test_loops_and_fits_take_turns_in_the_epochs(feed):
    trainer = Trainer()
    assert [int(y) for _, labels in feed for y in labels.ravel()] == _order(feed, 0)
    trainer.fit(feed, epochs=2, shuffle=False)
    assert trainer.trained == [_order(feed, 1), _order(feed, 2)]
    assert [int(y) for _, labels in feed for y in labels.ravel()] == _order(feed, 3)


def test_a_resumed_training_resumes_the_epochs(feed, tmp_path):
    class Crash(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 3:
                raise InterruptedError("the machine went away")

    backup = tmp_path / "backup"
    trainer = Trainer()
    with pytest.raises(InterruptedError):
        trainer.fit(feed, epochs=6, shuffle=False, callbacks=[keras.callbacks.BackupAndRestore(backup), Crash()])
    assert trainer.trained == [_order(feed, epoch) for epoch in range(3)]
    with _make_feed() as again:
        trainer = Trainer()
        trainer.fit(again, epochs=5, shuffle=False, callbacks=[keras.callbacks.BackupAndRestore(backup)])
        assert trainer.trained == [_order(feed, 3), _order(feed, 4)]


def test_an_interrupted_fit_is_followed_by_whole_and_new_epochs(feed):
    def interrupt(batch):
        if batch == 1:
            raise KeyboardInterrupt

    trainer = Trainer(after_batch=interrupt)
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(feed, epochs=3, shuffle=False)
    trainer = Trainer()
    trainer.fit(feed, epochs=2, shuffle=False)
    assert trainer.trained == [_order(feed, 1), _order(feed, 2)]


def test_a_fit_stopped_within_an_epoch_is_followed_by_whole_epochs(feed):
    def stop(batch):
        if batch == 1:
            trainer.model.stop_training = True

    trainer = Trainer(after_batch=stop)
    trainer.fit(feed, epochs=3, shuffle=False)
    assert trainer.trained == [_order(feed, 0)[:12]]
    trainer = Trainer()
    trainer.fit(feed, epochs=2, shuffle=False)
    assert trainer.trained == [_order(feed, 1), _order(feed, 2)]


@pytest.mark.parametrize("steps", [2, 4])
def test_fewer_steps_an_epoch_than_the_feed_has_cut_it_into_parts(steps):
    with _make_feed(48) as feed:
        trainer = Trainer()
        trainer.fit(feed, epochs=8 // steps, steps_per_epoch=steps, shuffle=False)
        assert [len(order) for order in trainer.trained] == [6 * steps] * (8 // steps)
        assert sorted(index for order in trainer.trained for index in order) == list(range(48))


def test_as_many_steps_an_epoch_as_the_feed_has_change_nothing(feed):
    trainer = Trainer()
    trainer.fit(feed, epochs=3, steps_per_epoch=4, shuffle=False)
    assert trainer.trained == [_order(feed, epoch) for epoch in range(3)]


@pytest.mark.skipif(BACKEND == "torch", reason="Keras on PyTorch takes one step an execution")
@pytest.mark.parametrize("executions", [2, 3, 4])
def test_several_steps_an_execution_change_nothing(executions):
    with _make_feed(72) as feed:
        trainer = Trainer(steps_per_execution=executions)
        trainer.fit(feed, epochs=2, shuffle=False)
        assert trainer.trained == [_order(feed, 0), _order(feed, 1)]


def test_the_shards_of_a_step_make_up_its_global_batch():
    seen = []
    for shard in range(2):
        with _make_feed(shard_index=shard, shard_count=2, batch_size=3) as feed:
            trainer = Trainer()
            trainer.fit(feed, epochs=2, shuffle=False)
            seen.append(trainer.trained)
    with _make_feed() as whole:
        for epoch in range(2):
            both = [seen[shard][epoch][start : start + 3] for start in range(0, 12, 3) for shard in range(2)]
            assert [index for part in both for index in part] == _order(whole, epoch)


# ---- evaluation and prediction


def test_validation_leaves_the_epochs_of_training_alone(feed):
    with kf.Feed(Numbered(10), 4, workers=2, worker_type="thread") as validation:
        trainer = Trainer()
        history = trainer.fit(feed, epochs=3, shuffle=False, validation_data=validation)
        assert trainer.trained == [_order(feed, epoch) for epoch in range(3)]
        assert trainer.record.tested == [list(range(10))] * 3
        assert history.history["val_consumed"] == [10, 10, 10]
        assert validation._clock.current == 0


def test_a_few_steps_of_validation_are_the_first_ones_every_time(feed):
    with kf.Feed(Numbered(20), 4, workers=2, worker_type="thread") as validation:
        trainer = Trainer()
        trainer.fit(feed, epochs=3, shuffle=False, validation_data=validation, validation_steps=2, validation_freq=2)
        trainer.fit(feed, epochs=2, shuffle=False, validation_data=validation, validation_steps=2)
        assert trainer.trained == [_order(feed, epoch) for epoch in range(5)]
        assert trainer.record.tested == [list(range(8))] * 3


def test_a_feed_may_be_validated_on_itself(feed):
    trainer = Trainer()
    trainer.fit(feed, epochs=2, shuffle=False, validation_data=feed)
    assert trainer.trained == [_order(feed, 0), _order(feed, 1)]
    assert [sorted(order) for order in trainer.record.tested] == [list(range(24))] * 2


def test_evaluate_and_predict_read_every_scene_and_do_not_advance(feed):
    trainer = Trainer()
    for _ in range(2):
        trainer.model.evaluate(feed, callbacks=[trainer.record], verbose=0)
        predicted = trainer.model.predict(feed, verbose=0)
        assert predicted.ravel().astype(int).tolist() == _order(feed, 0)
    assert trainer.record.tested == [_order(feed, 0)] * 2
    trainer.fit(feed, epochs=1, shuffle=False)
    assert trainer.trained == [_order(feed, 0)]
    assert trainer.model.predict(feed, verbose=0).ravel().astype(int).tolist() == _order(feed, 1)
    trainer.fit(feed, epochs=1, shuffle=False)
    assert trainer.trained[1] == _order(feed, 1)


def test_an_evaluation_within_an_epoch_leaves_it_alone(feed):
    other = Trainer()

    def evaluate(batch):
        if batch == 1:
            other.model.evaluate(feed, callbacks=[other.record], verbose=0)

    trainer = Trainer(after_batch=evaluate)
    trainer.fit(feed, epochs=3, shuffle=False)
    assert trainer.trained == [_order(feed, epoch) for epoch in range(3)]
    assert [sorted(order) for order in other.record.tested] == [list(range(24))] * 3


def test_a_callback_that_peeks_into_the_feed_leaves_the_epoch_alone(feed):
    def peek(batch):
        assert len(next(iter(feed))[0]) == 6
        assert feed[0][0].shape == (6, 1)

    trainer = Trainer(after_batch=peek)
    trainer.fit(feed, epochs=2, shuffle=False)
    assert [sorted(order) for order in trainer.trained] == [list(range(24))] * 2
    assert trainer.trained[0] != trainer.trained[1]


def test_a_single_array_is_predicted_on():
    with kf.Feed(np.arange(10, dtype=np.float32)[:, None], 4, workers=1) as feed:
        assert Trainer().model.predict(feed, verbose=0).ravel().tolist() == list(range(10))
        assert Trainer().model.predict(feed, steps=2, verbose=0).ravel().tolist() == list(range(8))


# ---- the ways of a model


def test_a_model_that_is_not_built_yet_loses_no_scene(feed):
    trainer = Trainer(model=keras.Sequential([_identity()]))
    trainer.fit(feed, epochs=2, shuffle=False)
    assert trainer.trained == [_order(feed, 0), _order(feed, 1)]


@pytest.mark.parametrize("arguments", [{"jit_compile": True}, {"jit_compile": "auto"}, {"run_eagerly": True}])
def test_compiled_and_eager_steps_see_the_same(feed, arguments):
    if BACKEND == "torch" and arguments.get("jit_compile") is True:
        pytest.skip("torch.compile needs a C++ compiler and takes a minute")
    trainer = Trainer(**arguments)
    trainer.fit(feed, epochs=2, shuffle=False)
    assert trainer.trained == [_order(feed, 0), _order(feed, 1)]


def test_a_model_with_a_fit_of_its_own_sees_the_same(feed):
    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = _identity()

        def call(self, x):
            return self.dense(x)

        def fit(self, *args, epoch=77, **kwargs):  # a local variable of a name that Keras's own fit has
            return super().fit(*args, **kwargs)

    trainer = Trainer(model=Own())
    trainer.fit(feed, initial_epoch=2, epochs=4, shuffle=False)
    assert trainer.trained == [_order(feed, 2), _order(feed, 3)]


def test_a_fit_in_another_thread_sees_the_same(feed):
    trainer = Trainer(run_eagerly=True)
    thread = threading.Thread(target=trainer.fit, args=(feed,), kwargs={"epochs": 2, "shuffle": False})
    thread.start()
    thread.join(60)
    assert trainer.trained == [_order(feed, 0), _order(feed, 1)]


def test_a_fit_within_a_fit_has_epochs_of_its_own(feed):
    with _make_feed(12) as inner:
        other = Trainer(run_eagerly=True)

        def train_other(batch):
            if batch == 0:
                other.fit(inner, epochs=1, shuffle=False)

        trainer = Trainer(after_batch=train_other, run_eagerly=True)
        trainer.fit(feed, epochs=2, shuffle=False)
        assert trainer.trained == [_order(feed, 0), _order(feed, 1)]
        assert other.trained == [_order(inner, 0), _order(inner, 1)]


Three = collections.namedtuple("Three", ["inputs", "targets", "weights"])
A, B, Y = np.float32([1.0]), np.float32([2.0]), np.float32([3.0])
STRUCTURES = {
    "tuple": lambda: (A, Y),
    "list": lambda: [A, Y],
    "named tuple": lambda: Pair(A, Y),
    "weights": lambda: (A, Y, np.float32(0.5)),
    "named triple": lambda: Three(A, Y, np.float32(0.5)),
    "Python numbers": lambda: (A, 3.0),
    "dict of inputs": lambda: ({"a": A, "b": B}, Y),
    "tuple of inputs": lambda: ((A, B), Y),
    "list of inputs": lambda: ([A, B], Y),
    "named tuple of inputs": lambda: (Pair(A, B), Y),
    "dict of targets": lambda: (A, {"one": Y, "two": Y}),
}


class Structured(kf.SceneSequence):
    """Scenes that are all alike."""

    def __init__(self, name):
        self.name = name

    def __len__(self):
        return 8

    def __getitem__(self, index):
        return STRUCTURES[self.name]()


class Summed(keras.Model):
    """A functional model would insist on a list."""

    def __init__(self):
        super().__init__()
        self.dense = _identity()

    def call(self, inputs):
        assert isinstance(inputs, Pair)
        return self.dense(inputs.x + inputs.y)


@pytest.mark.parametrize("name", STRUCTURES)
def test_every_structure_that_keras_takes_is_trained_on(name):
    a, b = keras.Input((1,), name="a"), keras.Input((1,), name="b")
    total = keras.layers.Add()([a, b])
    scene = STRUCTURES[name]()
    inputs, loss, outputs = a, "mse", _identity()(a)
    if isinstance(scene[0], dict):
        inputs, outputs = {"a": a, "b": b}, _identity()(total)
    elif isinstance(scene[0], tuple | list):
        inputs, outputs = [a, b], _identity()(total)
    if isinstance(scene[1], dict):
        outputs, loss = {"one": outputs, "two": _identity()(a)}, {"one": "mse", "two": "mse"}
    model = Summed() if isinstance(scene[0], Pair) else keras.Model(inputs, outputs)
    model.compile(keras.optimizers.SGD(0.0), loss, jit_compile=False)
    with kf.Feed(Structured(name), 4, workers=2, worker_type="thread") as feed:
        history = model.fit(feed, epochs=2, verbose=0)
        expected = {"weights": 2.0, "named triple": 2.0, "dict of targets": 8.0}
        error = 0.0 if isinstance(scene[0], dict | list | tuple) else expected.get(name, 4.0)
        assert history.history["loss"] == pytest.approx([error] * 2)
        assert model.evaluate(feed, return_dict=True, verbose=0)["loss"] == pytest.approx(error)
        predicted = model.predict(feed, verbose=0)
        parts = predicted.values() if isinstance(predicted, dict) else [predicted]
        assert all(np.shape(part) == (8, 1) for part in parts)


def test_class_weights_weigh_the_classes():
    class Classes(Numbered):
        def __getitem__(self, index):
            return np.zeros(1, np.float32), np.int64(index % 2)

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(2, activation="softmax")])
    model.compile(keras.optimizers.SGD(0.0), "sparse_categorical_crossentropy", jit_compile=False)
    with kf.Feed(Classes(8), 4, workers=2, worker_type="thread") as feed:
        plain = model.fit(feed, epochs=1, verbose=0).history["loss"][0]
        weighted = model.fit(feed, epochs=1, verbose=0, class_weight={0: 1.0, 1: 3.0}).history["loss"][0]
    assert plain == pytest.approx(np.log(2), rel=1e-5)
    assert weighted == pytest.approx(2 * np.log(2), rel=1e-5)


# ---- Keras-style classes


@pytest.mark.parametrize(("workers", "worker_type"), WORKERS)
@pytest.mark.parametrize("built", [True, False])
def test_hooks_are_called_once_an_epoch_and_workers_see_their_state(workers, worker_type, built):
    sequence = Stateful()
    with kf.Feed(sequence, None, workers=workers, worker_type=worker_type) as feed:
        trainer = Trainer(model=None if built else keras.Sequential([_identity()]))
        trainer.fit(feed, epochs=3)
        assert trainer.trained == [[100] * 6, [201] * 6, [302] * 6]
        assert (sequence.began, sequence.ended) == (3, 3)
        trainer.fit(feed, epochs=2)
        assert trainer.trained[3:] == [[403] * 6, [504] * 6]
        assert (sequence.began, sequence.ended) == (5, 5)


def test_hooks_stay_in_step_with_training_when_there_is_validation():
    sequence, other = Stateful(), Stateful(3)
    with (
        kf.Feed(sequence, None, workers=2, worker_type="thread") as feed,
        kf.Feed(other, None, workers=2, worker_type="thread") as validation,
    ):
        trainer = Trainer()
        trainer.fit(feed, epochs=3, validation_data=validation)
    assert trainer.trained == [[100] * 6, [201] * 6, [302] * 6]
    assert (sequence.began, sequence.ended) == (3, 3)


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_a_keras_style_class_reshuffles_itself_between_epochs(worker_type):
    class Labelled(scenes.Reshuffled):
        def __getitem__(self, index):
            values = super().__getitem__(index)[0]
            return values, values

    with kf.Feed(Labelled(), None, workers=2, worker_type=worker_type) as feed:
        trainer = Trainer()
        trainer.fit(feed, epochs=3, shuffle=False)
    assert trainer.trained == [[0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 0], [2, 3, 4, 5, 0, 1]]


def test_an_existing_keras_dataset_trains_unchanged():
    class Batches(keras.utils.PyDataset):
        def __init__(self):
            super().__init__(workers=3, use_multiprocessing=True)
            self.epochs = 0

        def __len__(self):
            return 4

        def __getitem__(self, index):
            batch = np.full((3, 1), index, np.float32)
            return batch, batch + 10 * self.epochs

        def on_epoch_end(self):
            self.epochs += 1

    with kf.Feed(Batches(), None, workers=2, worker_type="thread") as feed:
        trainer = Trainer()
        trainer.fit(feed, epochs=2, shuffle=False)
    assert trainer.trained == [[k for k in range(4) for _ in range(3)], [10 + k for k in range(4) for _ in range(3)]]


# ---- errors


def _raised_by_fit(feed, error, text):
    """Keras on TensorFlow raises its own type, with the text of the original; the others raise the original."""
    trainer = Trainer()
    with pytest.raises(Exception, match=text) as caught:
        trainer.fit(feed, epochs=2)
    if BACKEND != "tensorflow":
        assert type(caught.value) is error
        return "\n".join([*caught.value.__notes__, str(caught.value.__cause__)])
    assert error.__name__ in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(("workers", "worker_type"), WORKERS)
@pytest.mark.parametrize("error", [ValueError("bad scan"), IndexError("bad scan"), OSError("bad scan")])
def test_an_exception_reaches_the_caller_of_fit(workers, worker_type, error):
    with kf.Feed(Fragile(None, error), 6, workers=workers, worker_type=worker_type) as feed:
        text = _raised_by_fit(feed, type(error), "bad scan")
        assert "scene 13, epoch 0, step 2" in text
        assert "in __getitem__" in text or (BACKEND != "tensorflow" and worker_type == "thread")


def test_a_stop_iteration_in_a_scene_does_not_end_the_epoch_in_silence():
    with kf.Feed(Fragile(None, StopIteration("early")), 6, workers=2, worker_type="thread") as feed:
        _raised_by_fit(feed, kf.SceneError, "the sequence raised StopIteration: early")


def test_training_goes_on_after_an_exception(tmp_path):
    flag = tmp_path / "flag"
    flag.touch()
    with kf.Feed(Fragile(flag, OSError("no disk")), 6, workers=2, worker_type="thread") as feed:
        _raised_by_fit(feed, OSError, "no disk")
        flag.unlink()
        trainer = Trainer()
        trainer.fit(feed, epochs=2, shuffle=False)
        assert [sorted(order) for order in trainer.trained] == [list(range(24))] * 2


def test_a_closed_feed_is_refused_by_fit(feed):
    feed.close()
    with pytest.raises(Exception, match="the feed is closed"):
        Trainer().fit(feed)


def test_a_feed_closed_within_an_epoch_ends_fit_with_an_error():
    feed = kf.Feed(scenes.Slow(4000, 0.0005), 2, workers=2, worker_type="thread")
    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(1)])
    trainer = Trainer(model=model, after_batch=lambda _: feed.close())
    with pytest.raises(Exception, match=r"(?i)closed|cancelled"):
        trainer.fit(feed)


def test_as_little_memory_as_two_batches_suffices():
    with _make_feed(max_memory=2 * 4096) as feed:
        trainer = Trainer()
        trainer.fit(feed, epochs=2, shuffle=False)
        assert trainer.trained == [_order(feed, 0), _order(feed, 1)]
        assert feed.stats().slots <= 2


# ---- life


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_a_feed_is_let_go_after_fit(worker_type):
    feed = _make_feed(worker_type=worker_type)
    alive = weakref.ref(feed)
    trainer = Trainer()
    trainer.fit(feed, epochs=2, validation_data=feed)
    trainer.model.evaluate(feed, verbose=0)
    trainer.model.predict(feed, verbose=0)
    del feed, trainer
    keras.backend.clear_session()
    let_tensorflow_free_memory()
    gc.collect()
    try:
        assert alive() is None
    finally:
        if alive() is not None:
            alive().close()


@pytest.mark.skipif(BACKEND != "tensorflow", reason="once is enough: it takes 5 s")
def test_a_script_that_closes_nothing_ends_cleanly(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import keras, kerasfeed as kf\n"
        "from scenes_frameworks import Numbered\n"
        "feed = kf.Feed(Numbered(), 6, shuffle=True, workers=2, worker_type='process')\n"
        "model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])\n"
        "model.compile('sgd', 'mse', jit_compile=False)\n"
        "model.fit(feed, epochs=2, verbose=0)\n"
        "print('trained')\n"
    )
    environment = environment_of(KERAS_BACKEND=BACKEND)
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "trained" in done.stdout
    assert "Traceback" not in done.stderr
