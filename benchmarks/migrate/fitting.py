"""Scenes/s of `fit`."""

import time
from typing import Any

import keras

from benchmarks.migrate.scenes import BATCH_SIZE, SHAPE, STEPS


class _Clock(keras.callbacks.Callback):
    """Scenes/s from the end of the first epoch until the time is up."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds
        self.began = 0.0
        self.rate = 0.0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        now = time.perf_counter()
        if not epoch:
            self.began = now
            return
        self.rate = epoch * STEPS * BATCH_SIZE / (now - self.began)
        if now - self.began > self.seconds:
            self.model.stop_training = True


def fit_rate(data: Any, seconds: float) -> float:
    """Scenes/s that a small model trains on."""
    layers = [keras.Input(SHAPE), keras.layers.GlobalAveragePooling1D(), keras.layers.Dense(10)]
    model = keras.Sequential(layers)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    clock = _Clock(seconds)
    model.fit(data, steps_per_epoch=STEPS, epochs=10_000, shuffle=False, verbose=0, callbacks=[clock])
    return clock.rate
