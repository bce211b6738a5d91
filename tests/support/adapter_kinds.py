"""The ways to a framework by name: each is a function from a feed to the batches of an epoch, as NumPy arrays.

What a framework is not installed for is left out.
"""

import importlib.util

import optree


def as_numpy(batch):
    return optree.tree_map(lambda field: field.numpy() if hasattr(field, "numpy") else field, batch)


def loop(feed):
    return iter(feed)


def base_loop(feed):
    from kerasfeed.feeds.base import BaseFeed

    return BaseFeed.__iter__(feed)


def tf_dataset(feed):
    return map(as_numpy, feed.to_tf_dataset())


def keras_numpy(feed):
    """As Keras's trainers do it on no particular backend, and users of its data adapters."""
    return feed.get_numpy_iterator()


def keras_jax(feed):
    return feed.get_jax_iterator()


def keras_tensorflow(feed):
    return map(as_numpy, feed.get_tf_dataset())


def keras_torch(feed):
    return map(as_numpy, feed.get_torch_dataloader())


ADAPTERS = {
    "loop": loop,
    "base loop": base_loop,
    "tf dataset": tf_dataset,
    "keras, numpy": keras_numpy,
    "keras, jax": keras_jax,
    "keras, tensorflow": keras_tensorflow,
    **({"keras, torch": keras_torch} if importlib.util.find_spec("torch") else {}),
}
