"""The demo's classifier: the plain form of PointNet (Qi et al. 2017, arXiv:1612.00593), no transforms.

Invariant: nothing but Keras, so it trains on every backend; its weights are a function of the seed.
"""

from typing import Any

import keras
from keras import layers

_WIDTHS = (32, 64, 256)
_PEAK_RATE = 2e-3  # of 5e-4 to 6e-3 tried on BIMNet10, 2e-3 to 3e-3 did best


def build_classifier(classes: int, *, steps: int, seed: int) -> Any:
    """A compiled Keras model from points float32[B, N, 3] to logits float32[B, classes], for any N.

    Every point goes through the same dense layers, and the maximum over the points is what the head sees, so
    the order of the points does not matter.

    Args:
        classes: Number of classes.
        steps: Training steps in all, over which the learning rate falls to 0 along a cosine.
        seed: Integer >= 0 behind the initial weights and the dropout.
    """
    inputs = keras.Input((None, 3), name="points")
    hidden = inputs
    for number, width in enumerate(_WIDTHS):
        hidden = _normalized_dense(width, _initial(seed, number))(hidden)
    hidden = layers.GlobalMaxPooling1D()(hidden)
    hidden = _normalized_dense(128, _initial(seed, 10))(hidden)
    hidden = layers.Dropout(0.3, seed=seed)(hidden)
    logits = layers.Dense(classes, kernel_initializer=_initial(seed, 11), name="logits")(hidden)
    model = keras.Model(inputs, logits, name="pointnet")
    model.compile(
        optimizer=keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(_PEAK_RATE, steps)),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def _normalized_dense(width: int, initial: Any) -> Any:
    return keras.Sequential(
        [
            layers.Dense(width, use_bias=False, kernel_initializer=initial),
            # Keras's momentum of 0.99 remembers more steps than a small file has in ten epochs.
            layers.BatchNormalization(momentum=0.9),
            layers.ReLU(),
        ]
    )


def _initial(seed: int, layer: int) -> Any:
    return keras.initializers.GlorotUniform(seed=100 * seed + layer)
