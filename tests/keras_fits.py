"""What the tests of `fit` share: a model that records what it consumes. Imports Keras."""

import keras
import numpy as np
import pytest
from scenes_frameworks import Numbered

import kerasfeed as kf

BACKEND = keras.backend.backend()
WORKERS = [(0, "thread"), (2, "thread"), (2, "process")]


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
        self.model = model or keras.Sequential([keras.Input((1,)), identity()])
        arguments = {"loss": "mse", "jit_compile": False, **compile_arguments}
        self.model.compile(optimizer=keras.optimizers.SGD(0.0), metrics=[self.consumed], **arguments)
        self.record = Record(self.consumed, after_batch)

    def fit(self, feed, **arguments):
        callbacks = [*arguments.pop("callbacks", []), self.record]
        return self.model.fit(feed, callbacks=callbacks, verbose=0, **arguments)

    @property
    def trained(self):
        return self.record.trained


def identity():
    return keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")


def batches_of(feed, epoch):
    return [feed.plan.indices(epoch, step).tolist() for step in range(len(feed))]


def order_of(feed, epoch):
    return [index for batch in batches_of(feed, epoch) for index in batch]


def cut(order, rows):
    return sorted(order[start : start + rows] for start in range(0, len(order), rows))


def make_feed(length=24, batch_size=6, **arguments):
    arguments = {"shuffle": True, "seed": 1, "workers": 2, "worker_type": "thread", **arguments}
    return kf.Feed(Numbered(length), batch_size, **arguments)


MARKS = [
    pytest.mark.filterwarnings("ignore:__array__ implementation"),  # Keras's own, under NumPy 2.4
    pytest.mark.usefixtures("quick_collector", "memory_freed"),
]


def assert_passed(runs, backend):
    """`runs` are those of `runs_on_other_backends`."""
    if backend not in runs:
        pytest.skip(f"{backend} is not installed")
    output, code = runs[backend]
    assert code == 0, output[-8000:]


@pytest.mark.timeout(600)
@pytest.mark.skipif(BACKEND != "tensorflow", reason="TensorFlow's run starts the others")
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_all_of_this_holds_on(backend, runs_on_other_backends):
    assert_passed(runs_on_other_backends, backend)
