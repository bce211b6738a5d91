"""The adapters by name: each is a function from a feed to the batches of an epoch, as NumPy arrays.

Adapters of frameworks that are not installed are left out.
"""

from functools import partial

import optree

from kerasfeed.feeds.batch_loop import BatchLoop


def as_numpy(batch):
    return optree.tree_map(lambda field: field.numpy() if hasattr(field, "numpy") else field, batch)


def loop(feed):
    return iter(feed)


def base_loop(feed):
    from kerasfeed.feeds.base import BaseFeed

    return BaseFeed.__iter__(feed)


def tf_dataset(feed):
    return map(as_numpy, feed.to_tf_dataset())


def to_jax(feed):
    return iter(feed.to_jax())


def to_torch(feed):
    return map(as_numpy, feed.to_torch())


class Ahead:
    """A conversion that changes nothing, three batches ahead of the consumer, like a transfer to a device."""

    ahead = 3

    def begin(self, batch):
        return [batch]

    def finish(self, converted):
        return converted[0]


def loop_ahead(feed, epochs=1):
    return iter(BatchLoop(feed, partial(feed.begin_loop, epochs), Ahead(), epochs))


def of_keras(way):
    """Batches from an iterator of Keras's trainers, which calls the method `way`."""

    def batches(feed):
        from keras.src.trainers.epoch_iterator import EpochIterator

        class Iterator(EpochIterator):
            def __init__(self):
                super().__init__(feed)
                self.dataset = self.data_adapter.get_tf_dataset() if way == "get_tf_dataset" else None

            def _get_iterator(self):
                return getattr(self.data_adapter, way)() if self.dataset is None else self.dataset

        for *_, execution in Iterator().enumerate_epoch():  # Keras 3.10 yields one step, later versions two
            yield as_numpy(execution[0])

    return batches


ADAPTERS = {
    "loop": loop,
    "base loop": base_loop,
    "tf dataset": tf_dataset,
    "loop, ahead": loop_ahead,
    "jax": to_jax,
    "keras, numpy": of_keras("get_numpy_iterator"),
    "keras, jax": of_keras("get_jax_iterator"),
    "keras, tensorflow": of_keras("get_tf_dataset"),
    "torch": to_torch,
    "keras, torch": of_keras("get_torch_dataloader"),
}
