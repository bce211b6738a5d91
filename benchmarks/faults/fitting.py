"""A model that shows the batches it is trained on."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np


class _Receiving(keras.Model):
    def __init__(self, take: Callable[[Any, Any], None], **arguments: Any) -> None:
        super().__init__(**arguments)
        self._take = take

    def train_step(self, data: Any) -> Any:
        points, labels, _ = keras.utils.unpack_x_y_sample_weight(data)
        self._take(points, labels)
        return super().train_step(data)


def receiving_model(scene: tuple[np.ndarray, ...], take: Callable[[Any, Any], None]) -> keras.Model:
    """A tiny model that runs eagerly, so that each training step calls `take(points, labels)` exactly once.

    Args:
        scene: One scene, for the shapes.
        take: Called with each batch; its exception ends `fit`.
    """
    inputs = keras.Input(scene[0].shape, dtype=scene[0].dtype.name)
    outputs = keras.layers.Dense(1)(inputs[:, :4])
    model = _Receiving(take, inputs=inputs, outputs=outputs)
    model.compile("sgd", loss="mse", run_eagerly=True)
    return model
