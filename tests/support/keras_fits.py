"""Helpers of the tests of `fit`: a model that records its input. Imports Keras."""

import weakref
from typing import ClassVar

import keras
import numpy as np
import pytest
from scenes_frameworks import Numbered

import kerasfeed as kf

BACKEND = keras.backend.backend()
# The loader does not depend on the backend: processes, which take longest, are tested on TensorFlow, and in few tests.
WORKERS = [(0, "thread"), (2, "thread"), (1, "process")][: 3 if BACKEND == "tensorflow" else 2]
# A compiled step is cheapest on JAX, where it is Keras's default; on TensorFlow, XLA takes longest.
JIT = BACKEND == "jax"


def few(cases):
    """Cases that compile a step each: all of them on TensorFlow, two on other backends."""
    return cases if BACKEND == "tensorflow" else cases[:2]


class Consumed(keras.metrics.Metric):
    """Records its labels, in order, until it is reset."""

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


def _compiled(model=None, **arguments):
    consumed = Consumed()
    model = model or keras.Sequential([keras.Input((1,)), identity()])
    arguments = {"loss": "mse", "jit_compile": JIT and not arguments.get("run_eagerly"), **arguments}
    model.compile(optimizer=keras.optimizers.SGD(0.0), metrics=[consumed], **arguments)
    return model, consumed


class Trainer:
    """A model that predicts its input and learns nothing, and the record of its input.

    Without special options, it reuses a model that an earlier test has compiled, which saves most of the time of such a
    test. It is not reused after `fit` raised an exception, because Keras on JAX cannot use it again.
    """

    _idle: ClassVar = []

    def __init__(self, model=None, after_batch=None, **compile_arguments):
        is_plain = model is None and not compile_arguments
        made = self._idle.pop() if is_plain and self._idle else _compiled(model, **compile_arguments)
        self.model, self.consumed = made
        self.record = Record(self.consumed, after_batch)
        self._end = weakref.finalize(self, self._idle.append if is_plain else id, made)
        self._end.atexit = False

    def fit(self, feed, **arguments):
        callbacks = [*arguments.pop("callbacks", []), self.record]
        try:
            return self.model.fit(feed, callbacks=callbacks, verbose=0, **arguments)
        except BaseException:
            self._end.detach()
            raise

    @property
    def trained(self):
        return self.record.trained


class ScalarTrainer(Trainer):
    """One for labels without an axis: TensorFlow drops the rank of a model's inputs once it has seen two."""

    _idle: ClassVar = []


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


MARKS = [pytest.mark.filterwarnings("ignore:__array__ implementation")]  # from Keras, with NumPy 2.4
