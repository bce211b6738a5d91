"""How long a model takes for a step whose batch is there already.

Invariant: weights, optimizer, metrics and random numbers of the model are afterwards what they were before.
"""

import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
from numpy.typing import NDArray

_LEAST_STEPS = 3


@contextmanager
def model_put_back(model: Any, batch: Any) -> Iterator[None]:
    """Have a model stand at the end where it stood at the beginning; built before, if it is not.

    What a train step of the user's own changes beside Keras variables is not known here.
    """
    if not model.built:
        model(keras.tree.map_structure(keras.ops.convert_to_tensor, keras.utils.unpack_x_y_sample_weight(batch)[0]))
    optimizer = model.optimizer
    if optimizer is not None and not optimizer.built:
        optimizer.build(model.trainable_variables)
    variables = _variables(model)
    before = {id(variable): (variable, value) for variable, value in zip(variables, values_of(variables), strict=True)}
    try:
        yield
    finally:
        for variable in _variables(model):
            if id(variable) not in before:  # of metrics that the first step has made
                variable.assign(np.zeros(variable.shape, variable.dtype))
        for variable, value in before.values():
            variable.assign(value)


def values_of(variables: Sequence[Any]) -> list[NDArray[Any]]:
    """Copies of what Keras variables hold."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)  # Keras's, of NumPy 2
        return [np.array(variable.numpy()) for variable in variables]


def _variables(model: Any) -> list[Any]:
    optimizer = [] if model.optimizer is None else model.optimizer.variables
    found = [*model.variables, *optimizer, *model.metrics_variables]
    return list({id(variable): variable for variable in found}.values())


def step_seconds(model: Any, batch: Any, seconds: float) -> float:
    """Median time of a train step with one batch again and again, s; the first, which compiles, not counted.

    Args:
        model: A compiled Keras model.
        batch: `x`, `(x, y)` or `(x, y, sample_weight)`, as a feed gives it.
        seconds: About how long to measure, s.
    """
    with model_put_back(model, batch):
        train = train_on(model)
        train(batch)
        times: list[float] = []
        end = time.perf_counter() + seconds
        while len(times) < _LEAST_STEPS or time.perf_counter() < end:
            begun = time.perf_counter()
            train(batch)
            times.append(time.perf_counter() - begun)
    return statistics.median(times)


def wait_share(model: Any, next_batch: Callable[[], Any], seconds: float) -> float:
    """Share of the time that a training waits for `next_batch`, in [0, 1]."""
    batch = next_batch()
    with model_put_back(model, batch):
        train = train_on(model)
        train(batch)
        waited, begun = 0.0, time.perf_counter()
        while time.perf_counter() - begun < seconds:
            asked = time.perf_counter()
            batch = next_batch()
            waited += time.perf_counter() - asked
            train(batch)
        return waited / (time.perf_counter() - begun)


def train_on(model: Any) -> Callable[[Any], None]:
    """A train step of a model, whose results are waited for.

    Raises:
        ValueError: The model is not compiled.
    """
    if not getattr(model, "compiled", False):
        raise ValueError("kf.profile needs a model that can train: call model.compile(optimizer, loss) before")

    def train(batch: Any) -> None:
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(batch)
        model.train_on_batch(x, y, sample_weight)

    return train
