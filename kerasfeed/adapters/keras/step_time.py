"""The time of a training step whose batch is already loaded.

Invariant: weights, optimizer, metrics and random numbers of the model are restored afterwards.
"""

import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np

from kerasfeed.adapters.keras.trained_model import as_array, variables_of

_LEAST_STEPS = 3


@contextmanager
def model_put_back(model: Any, batch: Any) -> Iterator[None]:
    """Restore the model at the end; build it first if necessary.

    Changes by a custom train step outside Keras variables are not restored.
    """
    if not model.built:
        model(keras.tree.map_structure(keras.ops.convert_to_tensor, keras.utils.unpack_x_y_sample_weight(batch)[0]))
    optimizer = model.optimizer
    if optimizer is not None and not optimizer.built:
        optimizer.build(model.trainable_variables)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)  # from Keras, NumPy 2
        before = {id(variable): np.array(as_array(variable)) for variable in variables_of(model).values()}
    try:
        yield
    finally:
        for name, variable in variables_of(model).items():
            if id(variable) in before:
                variable.assign(before[id(variable)])
            elif name.startswith("metrics/"):  # made by the first step
                variable.assign(np.zeros(variable.shape, variable.dtype))


def step_seconds(model: Any, batch: Any, seconds: float) -> float:
    """Median time of train steps on one batch, without compiling, s.

    Args:
        model: A compiled Keras model.
        batch: `x`, `(x, y)` or `(x, y, sample_weight)`, as returned by a feed.
        seconds: About how long to measure, s.
    """
    return statistics.median(_times(model, lambda: batch, seconds)[1])


def wait_share(model: Any, next_batch: Callable[[], Any], seconds: float) -> float:
    """Share of the time that training waits for `next_batch`, in [0, 1]."""
    waits, steps = _times(model, next_batch, seconds)
    return sum(waits) / (sum(waits) + sum(steps))


def _times(model: Any, next_batch: Callable[[], Any], seconds: float) -> tuple[list[float], list[float]]:
    """Measure waits and steps, s, without the first step, which compiles."""
    train, batch = train_on(model), next_batch()
    waits: list[float] = []
    steps: list[float] = []
    with model_put_back(model, batch):
        train(batch)
        end = time.perf_counter() + seconds
        while len(steps) < _LEAST_STEPS or time.perf_counter() < end:
            asked = time.perf_counter()
            batch = next_batch()
            begun = time.perf_counter()
            train(batch)
            waits.append(begun - asked)
            steps.append(time.perf_counter() - begun)
    return waits, steps


def train_on(model: Any) -> Callable[[Any], None]:
    """Return a train step of a model that waits for its results.

    Raises:
        ValueError: The model is not compiled.
    """
    if not getattr(model, "compiled", False):
        raise ValueError("kf.profile needs a model that can train: call model.compile(optimizer, loss) first")

    def train(batch: Any) -> None:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        model.train_on_batch(x, y, sample_weight)

    return train
