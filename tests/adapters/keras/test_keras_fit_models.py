"""Kinds of models, structures and Keras-style classes in `fit`: on TensorFlow here, and on JAX and PyTorch again."""

import collections
import contextlib
import threading

import keras
import numpy as np
import pytest
import scenes
from keras_fits import (
    BACKEND,
    JIT,
    MARKS,
    WORKERS,
    Trainer,
    identity,
    make_feed,
    order_of,
)
from scenes_frameworks import (
    Numbered,
    Pair,
    Stateful,
)

import kerasfeed as kf

pytestmark = MARKS


@pytest.fixture
def feed():
    with make_feed() as feed:
        yield feed


# ---- kinds of models


@pytest.mark.heavy
def test_an_unbuilt_model_trains_on_every_scene(feed):
    trainer = Trainer(model=keras.Sequential([identity()]))
    trainer.fit(feed, epochs=2, shuffle=False)
    assert trainer.trained == [order_of(feed, 0), order_of(feed, 1)]


@pytest.mark.heavy
@pytest.mark.parametrize("arguments", [{"jit_compile": True}, {"jit_compile": "auto"}, {"run_eagerly": True}])
def test_compiled_and_eager_steps_train_on_the_same_scenes(feed, arguments):
    if BACKEND == "torch" and arguments.get("jit_compile") is True:
        pytest.skip("torch.compile needs a C++ compiler and takes a minute")
    trainer = Trainer(**arguments)
    trainer.fit(feed, epochs=2, shuffle=False)
    assert trainer.trained == [order_of(feed, 0), order_of(feed, 1)]


@pytest.mark.heavy
def test_a_model_that_overrides_fit_trains_on_the_same_scenes(feed):
    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = identity()

        def call(self, x):
            return self.dense(x)

        def fit(self, *args, epoch=77, **kwargs):  # a local variable with a name from Keras's own fit
            return super().fit(*args, **kwargs)

    trainer = Trainer(model=Own())
    trainer.fit(feed, initial_epoch=2, epochs=4, shuffle=False)
    assert trainer.trained == [order_of(feed, 2), order_of(feed, 3)]


def test_a_fit_in_another_thread_trains_on_the_same_scenes(feed):
    trainer = Trainer(run_eagerly=True)
    thread = threading.Thread(target=trainer.fit, args=(feed,), kwargs={"epochs": 2, "shuffle": False})
    thread.start()
    thread.join(60)
    assert trainer.trained == [order_of(feed, 0), order_of(feed, 1)]


@pytest.mark.heavy
def test_nested_fits_have_separate_epochs(feed):
    with make_feed(12) as inner:
        other = Trainer(run_eagerly=True)

        def train_other(batch):
            if batch == 0:
                other.fit(inner, epochs=1, shuffle=False)

        trainer = Trainer(after_batch=train_other, run_eagerly=True)
        trainer.fit(feed, epochs=2, shuffle=False)
        assert trainer.trained == [order_of(feed, 0), order_of(feed, 1)]
        assert other.trained == [order_of(inner, 0), order_of(inner, 1)]


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
    """Equal scenes."""

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
        self.dense = identity()

    def call(self, inputs):
        assert isinstance(inputs, Pair)
        return self.dense(inputs.x + inputs.y)


@pytest.mark.heavy
@pytest.mark.parametrize("name", STRUCTURES)
def test_fit_accepts_every_structure_of_keras(name):
    a, b = keras.Input((1,), name="a"), keras.Input((1,), name="b")
    total = keras.layers.Add()([a, b])
    scene = STRUCTURES[name]()
    inputs, loss, outputs = a, "mse", identity()(a)
    if isinstance(scene[0], dict):
        inputs, outputs = {"a": a, "b": b}, identity()(total)
    elif isinstance(scene[0], tuple | list):
        inputs, outputs = [a, b], identity()(total)
    if isinstance(scene[1], dict):
        outputs, loss = {"one": outputs, "two": identity()(a)}, {"one": "mse", "two": "mse"}
    model = Summed() if isinstance(scene[0], Pair) else keras.Model(inputs, outputs)
    model.compile(keras.optimizers.SGD(0.0), loss, jit_compile=JIT)
    with kf.Feed(Structured(name), 4, workers=2, worker_type="thread") as feed:
        history = model.fit(feed, epochs=2, verbose=0)
        expected = {"weights": 2.0, "named triple": 2.0, "dict of targets": 8.0}
        error = 0.0 if isinstance(scene[0], dict | list | tuple) else expected.get(name, 4.0)
        assert history.history["loss"] == pytest.approx([error] * 2)
        assert model.evaluate(feed, return_dict=True, verbose=0)["loss"] == pytest.approx(error)
        predicted = model.predict(feed, verbose=0)
        parts = predicted.values() if isinstance(predicted, dict) else [predicted]
        assert all(np.shape(part) == (8, 1) for part in parts)


@pytest.mark.parametrize("form", [tuple, list])
@pytest.mark.parametrize("data", [lambda feed: feed, lambda feed: feed.to_tf_dataset()], ids=["feed", "dataset"])
def test_class_weights_weigh_the_classes(form, data):
    class Classes(Numbered):
        def __getitem__(self, index):
            return form((np.zeros(1, np.float32), np.int64(index % 2)))

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(2, activation="softmax")])
    model.compile(keras.optimizers.SGD(0.0), "sparse_categorical_crossentropy", jit_compile=JIT)
    with kf.Feed(Classes(8), 4, workers=2, worker_type="thread") as feed:
        options = {"epochs": 1, "verbose": 0, "shuffle": False}
        plain = model.fit(data(feed), **options).history["loss"][0]
        weighted = model.fit(data(feed), class_weight={0: 1.0, 1: 3.0}, **options).history["loss"][0]
    assert plain == pytest.approx(np.log(2), rel=1e-5)
    assert weighted == pytest.approx(2 * np.log(2), rel=1e-5)


# ---- Keras-style classes


@pytest.mark.heavy
@pytest.mark.parametrize(("workers", "worker_type"), WORKERS)
@pytest.mark.parametrize("built", [True, False])
def test_hooks_run_once_per_epoch_and_workers_see_their_changes(workers, worker_type, built):
    sequence = Stateful()
    with kf.Feed(sequence, None, workers=workers, worker_type=worker_type) as feed:
        trainer = Trainer(model=None if built else keras.Sequential([identity()]))
        trainer.fit(feed, epochs=3)
        assert trainer.trained == [[100] * 6, [201] * 6, [302] * 6]
        assert (sequence.began, sequence.ended) == (3, 3)
        trainer.fit(feed, epochs=2)
        assert trainer.trained[3:] == [[403] * 6, [504] * 6]
        assert (sequence.began, sequence.ended) == (5, 5)


@pytest.mark.heavy
def test_hooks_run_once_per_epoch_if_a_callback_starts_the_next_epoch():
    sequence = Stateful()
    with kf.Feed(sequence, None, workers=0) as feed:
        trainer = Trainer(after_batch=lambda batch: feed.start() if batch == 5 else None)
        trainer.fit(feed, epochs=2)
        assert trainer.trained == [[100] * 6, [201] * 6]
        assert (sequence.began, sequence.ended) == (3, 2)


@pytest.mark.heavy
def test_validation_does_not_trigger_hooks_of_the_training_sequence():
    sequence, other = Stateful(), Stateful(3)
    with (
        kf.Feed(sequence, None, workers=2, worker_type="thread") as feed,
        kf.Feed(other, None, workers=2, worker_type="thread") as validation,
    ):
        trainer = Trainer()
        trainer.fit(feed, epochs=3, validation_data=validation)
    assert trainer.trained == [[100] * 6, [201] * 6, [302] * 6]
    assert (sequence.began, sequence.ended) == (3, 3)


@pytest.mark.heavy
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


class OfDicts(keras.Model):
    """A model that takes dicts, with the loss of its `train_step` or of Keras's."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, inputs):
        return self.dense(inputs["x"])


class StepOfDicts(OfDicts):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return keras.ops.mean((y_pred - x["y"]) ** 2)


def test_the_error_for_dicts_of_x_and_y_asks_for_a_pair():
    scenes_of_dicts = kf.Zip(x=np.zeros((8, 3), np.float32), y=np.zeros((8, 1), np.float32))
    with kf.Feed(scenes_of_dicts, 4, workers=0) as feed:
        model = OfDicts()
        model.compile("sgd", "mse")
        draws = pytest.warns(kf.FeedWarning, match=r'a tuple instead of the dict: \(scene\["x"\], scene\["y"\]\)')
        with draws, contextlib.suppress(ValueError, TypeError, AttributeError):  # Keras's own errors, which say less
            model.fit(feed, verbose=0)
        own = StepOfDicts()
        own.compile("sgd", "mse")
        own.fit(feed, verbose=0)  # draws no warning


X = np.zeros((8, 3), np.float32)


@pytest.mark.parametrize(
    ("sequence", "told"),
    [
        (X, "fit uses all fields of a scene as inputs"),
        ([(x,) for x in X], "fit uses all fields of a scene as inputs"),
        ([(x, None) for x in X], "fit uses all fields of a scene as inputs"),
        (kf.Zip(x=X, label=X[:, 0]), "scenes are dicts with the keys x, label, and fit uses them all as inputs"),
    ],
    ids=["array", "tuple of one", "None", "dict"],
)
def test_scenes_without_targets_for_a_model_with_a_loss_are_reported(sequence, told):
    text = f"{told}, but the model has a loss, which needs targets. Return a tuple from __getitem__: .inputs, targets"
    model = OfDicts() if isinstance(sequence, kf.Zip) else keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with kf.Feed(sequence, 4, workers=0) as feed:
        with pytest.warns(kf.FeedWarning, match=text), contextlib.suppress(ValueError, TypeError, AttributeError):
            model.fit(feed, verbose=0)
        model.predict(feed, verbose=0)  # draws no warning
