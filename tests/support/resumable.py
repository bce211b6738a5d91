"""A training whose model keeps a hash of its batches, in order. Imports Keras."""

import keras
import numpy as np
from scenes_frameworks import Numbered

import kerasfeed as kf


class Chain(keras.layers.Layer):
    """Passes scenes on, and adds them in training to an int32 hash that is saved with the model."""

    def __init__(self):
        super().__init__()
        self.link = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False, name="link")
        self.count = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False, name="count")

    def call(self, scenes, training=False):
        if training:
            labels = keras.ops.reshape(keras.ops.cast(scenes, "int32"), (-1,)) + 1
            places = keras.ops.arange(1, keras.ops.shape(labels)[0] + 1, dtype="int32")
            folded = keras.ops.cast(keras.ops.sum(labels * places * places), "int32")
            self.link.assign(self.link * 31 + folded)
            self.count.assign(self.count + 1)
        return scenes


def chain_of(batches):
    """The same hash for lists of indices."""
    link = 0
    for batch in batches:
        link = link * 31 + sum((index + 1) * (place + 1) ** 2 for place, index in enumerate(batch))
    return (link + 2**31) % 2**32 - 2**31


def stream(feed, count):
    """The indices of the first `count` batches of a feed, over all epochs."""
    return [feed.plan.indices(*divmod(number, len(feed))).tolist() for number in range(count)]


def make_feed(**arguments):
    arguments = {"length": 22, "batch_size": 6, "shuffle": True, "seed": 7, "workers": 0, **arguments}
    return kf.Feed(Numbered(arguments.pop("length")), arguments.pop("batch_size"), **arguments)  # 4 steps


def make_model(optimizer=None, **arguments):
    chain = Chain()
    dense = keras.layers.Dense(1, use_bias=False)
    model = keras.Sequential([keras.Input((1,)), chain, dense])
    arguments = {"loss": "mse", "jit_compile": False, **arguments}
    model.compile(optimizer=optimizer or keras.optimizers.Adam(1e-3), **arguments)
    model.chain = chain
    return model


def result_of(model):
    return int(np.asarray(model.chain.link.value)), int(np.asarray(model.chain.count.value))


def undisturbed(count, **feed):
    """The state of a model that was trained on the first `count` batches."""
    with make_feed(**feed) as made:
        return chain_of(stream(made, count)), count
