"""`fit` of one small dense model over any peer.

Invariant: the model, its loss and its optimizer are the same for every peer, and so small that input
dominates.
"""

import math
import time
from typing import Any

import keras
import numpy as np

from benchmarks.measure import Opener, collect_garbage, cpu_seconds
from benchmarks.peers.job import Job

KEPT = 16
"""The model uses one in `KEPT` positions of every long axis, so that it costs little compared with its input."""
EPOCHS = 100_000
"""More epochs than any measurement needs: `EpochClock` ends the training."""
SLOW_EPOCH = 3.0
"""See `EpochClock`."""


def dense_model(scene: tuple[np.ndarray, ...], steps_per_execution: int) -> keras.Model:
    """A linear model with one output that learns the mean of the target.

    Args:
        scene: One scene, for the shape and dtype of the input.
        steps_per_execution: Batches trained in one call of the graph, at least 1.
    """
    inputs = keras.Input(scene[0].shape, dtype=scene[0].dtype.name)
    thin = (slice(None), *(slice(None, None, KEPT if length > KEPT else 1) for length in scene[0].shape))
    hidden = keras.layers.Flatten()(keras.ops.cast(inputs[thin], "float32"))
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile("sgd", loss=_mean_error, jit_compile=False, steps_per_execution=steps_per_execution)
    return model


def _mean_error(target: Any, output: Any) -> Any:
    axes = tuple(range(1, len(target.shape)))
    mean = keras.ops.mean(keras.ops.cast(target, "float32"), axis=axes)
    return keras.ops.mean(keras.ops.square(keras.ops.tanh(output[:, 0]) - keras.ops.tanh(mean)))


class EpochClock(keras.callbacks.Callback):
    """Wall time of the epochs after the first; stops the training once it has measured enough.

    Args:
        seconds: Minimum time over which whole epochs are measured.
        steps: Batches in an epoch, at least 2.
        slow_epoch: If the first epoch is longer than this many seconds, it is stopped and its time extrapolated.
    """

    def __init__(self, seconds: float, steps: int, slow_epoch: float = SLOW_EPOCH) -> None:
        super().__init__()
        self.seconds = seconds
        self.steps = steps
        self.slow_epoch = slow_epoch
        self.ends: list[float] = []
        self.first: tuple[int, float] | None = None
        self.extrapolated: float | None = None
        self.cpu_seconds = 0.0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.ends:
            return
        now = time.perf_counter()
        if self.first is None:
            self.first = (batch, now)
        elif now - self.first[1] > self.slow_epoch and batch < self.steps - 1:
            self.extrapolated = (now - self.first[1]) / (batch - self.first[0]) * self.steps
            self.model.stop_training = True

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if not self.ends:
            collect_garbage()
            self.cpu_seconds = -cpu_seconds()
        self.ends.append(time.perf_counter())
        if len(self.ends) > 1 and self.ends[-1] - self.ends[0] >= self.seconds:
            self.cpu_seconds += cpu_seconds()
            self.model.stop_training = True

    @property
    def epoch_seconds(self) -> float:
        """Mean wall time of an epoch, from the end of one to the end of the next."""
        if self.extrapolated is not None:
            return self.extrapolated
        return (self.ends[-1] - self.ends[0]) / (len(self.ends) - 1)


def fit_figures(
    model: keras.Model, opener: Opener, job: Job, seconds: float, slow_epoch: float = SLOW_EPOCH
) -> dict[str, float]:
    """Trains `model` on the batches of a peer.

    Returns:
        `epoch_s`, the wall time of an epoch after the first; `scenes_per_s`, the scenes of an epoch over it; `cpu_ms`,
        milliseconds of processor time per scene in the whole process tree, NaN if the epoch is extrapolated;
        `extrapolated`, 1.0 if the epoch was too long to wait for.
    """
    clock = EpochClock(seconds, job.steps, slow_epoch)
    with opener(job) as batches:
        model.fit(batches, epochs=EPOCHS, verbose=0, callbacks=[clock], shuffle=False)
    scenes, epochs = job.steps * job.batch_size, len(clock.ends) - 1
    return {
        "epoch_s": clock.epoch_seconds,
        "scenes_per_s": scenes / clock.epoch_seconds,
        "cpu_ms": 1000 * clock.cpu_seconds / (scenes * epochs) if epochs > 0 else math.nan,
        "extrapolated": float(clock.extrapolated is not None),
    }
