"""A training with a model and callbacks that hold every kind of state. Imports Keras."""

import keras
import numpy as np
from resumable import make_feed

import kerasfeed as kf

BACKEND = keras.backend.backend()


class Counting(keras.metrics.Metric):
    """Counts batches over all epochs."""

    def __init__(self):
        super().__init__(name="counting")
        self.batches = self.add_variable((), initializer="zeros", dtype="float32", name="batches")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.batches.assign(self.batches + 1)

    def result(self):
        return self.batches * 1.0

    def reset_state(self):
        pass


class NoisyLoss(keras.losses.Loss):
    """Weighs each batch with a random number. Keras tracks no variables of losses, so this does not work on JAX."""

    def __init__(self):
        super().__init__(name="noisy")
        self.generator = keras.random.SeedGenerator(5)

    def call(self, y_true, y_pred):
        weight = keras.random.uniform((), seed=self.generator) if BACKEND != "jax" else 1.0
        return keras.ops.mean(keras.ops.square(y_true - y_pred), axis=-1) * weight / 100


class Warmup(keras.callbacks.Callback):
    """Raises the learning rate after each batch; keeps a number as state."""

    def __init__(self):
        super().__init__()
        self.batches = 0

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1
        optimizer = self.model.optimizer
        optimizer.learning_rate = float(optimizer.learning_rate) * (1 + 0.01 / self.batches)

    def get_state(self):
        return {"batches": self.batches}

    def set_state(self, state):
        self.batches = state["batches"]


def make_model(seed, **arguments):
    """A small model with all kinds of layers that keep variables."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(seed)
    layers = [
        keras.layers.Dense(4),
        keras.layers.BatchNormalization(),
        keras.layers.GaussianNoise(0.5),
        keras.layers.Dropout(0.5),
        keras.layers.Dense(1),
    ]
    model = keras.Sequential([keras.Input((1,)), *layers])
    adam = keras.optimizers.Adam(1e-3, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=3)
    optimizer = keras.optimizers.LossScaleOptimizer(adam, initial_scale=2.0**14, dynamic_growth_steps=3)
    model.compile(optimizer, NoisyLoss(), metrics=[Counting(), "mae"], jit_compile=False, **arguments)
    return model


def make_callbacks():
    """Callbacks that decide by their history."""
    return [
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * 0.9),
        keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=1, factor=0.5, min_delta=1e3),
        keras.callbacks.EarlyStopping(monitor="loss", patience=3, min_delta=1e3, restore_best_weights=True),
        Warmup(),
    ]


def train(folder, *, behind=False, save_freq=1, epochs=6, others=(), seed=0, **compiled):
    """Train; return every number that the training has changed."""
    model, callbacks = make_model(seed, **compiled), make_callbacks()
    with make_feed() as feed:
        backup = kf.BackupAndRestore(feed, folder, save_freq)
        listed = [*callbacks, backup, *others] if behind else [*callbacks, *others, backup]
        history = model.fit(feed, epochs=epochs, callbacks=listed, verbose=0)
    variables = [*model.variables, *model.optimizer.variables, *model.metrics_variables, model.loss.generator.state]
    values = [np.asarray(keras.ops.convert_to_numpy(each)).tolist() for each in variables]
    return values, [each.wait for each in callbacks[1:3]], callbacks[2].stopped_epoch, history.epoch[-1]
