"""A feed as a `tf.data.Dataset`. The only file that knows TensorFlow.

Invariant: the graph holds integers until the last map: key of the feed, epoch and step go in, a whole batch comes out
of one `tf.numpy_function`, which aliases the slot's memory. That call only waits; concurrency is the loader's own.
TensorFlow runs no more such calls at once than its pool has threads (by default the core count, whatever
num_parallel_calls says), so the dataset brings a pool with room for all waiting calls and for the rest of the user's
graph.

The feed lives as long as the dataset, or the graph that the dataset was built in, and no longer. TensorFlow keeps every
function that a `numpy_function` calls until the process ends, so these functions hold the feed's key and not the feed.
"""

import functools
import itertools
import sys
import time
import weakref
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import optree
import tensorflow as tf

from kerasfeed.adapters.raised import Raised, watch_trainer
from kerasfeed.errors import FeedClosedError
from kerasfeed.loaders.failure import note_causes
from kerasfeed.machine import cores
from kerasfeed.spec import ArraySpec, lists_as_tuples

if TYPE_CHECKING:
    from kerasfeed.feed import Feed

_feeds: "weakref.WeakValueDictionary[int, Feed]" = weakref.WeakValueDictionary()
_raised: "weakref.WeakValueDictionary[int, Raised]" = weakref.WeakValueDictionary()
_keys = itertools.count()


def to_tf_dataset(feed: "Feed", *, device: str | None, epochs: int, deterministic: bool) -> Any:
    """See `kerasfeed.Feed.to_tf_dataset`."""
    structure = feed.element_spec
    is_spec: Any = lambda leaf: isinstance(leaf, ArraySpec)  # noqa: E731
    paths = optree.tree_paths(structure, is_leaf=is_spec)
    fields, treespec = optree.tree_flatten(structure, is_leaf=is_spec)
    dtypes = [_tf_dtype(field, path) for field, path in zip(fields, paths, strict=True)]
    key = next(_keys)
    _feeds[key] = feed
    steps = len(feed)
    ahead = feed.look_ahead  # 1 without workers: then these calls load, and one at a time was asked for

    def claim() -> Any:
        epoch = tf.numpy_function(_claim, [np.int64(key)], tf.int64)
        epoch.set_shape(())
        return epoch

    def place(epoch: Any, position: Any) -> Any:
        step = position % steps
        epoch = tf.cond(tf.equal(step, 0), claim, lambda: epoch)
        return epoch, (epoch, step)

    def batch_of(epoch: Any, step: Any) -> Any:
        tensors = tf.numpy_function(_load, [np.int64(key), epoch, step], dtypes)
        if not isinstance(tensors, list):  # executed eagerly, in tf.data's debug mode
            tensors = [tensors]
        for tensor, field in zip(tensors, fields, strict=True):
            tensor.set_shape(field.shape)
        return lists_as_tuples(optree.tree_unflatten(treespec, tensors))

    def batches(epochs: int) -> Any:
        # A scan keeps the cardinality. (assert_cardinality would fail for ever, not once, after `ignore_errors`.)
        places = tf.data.Dataset.range(epochs * steps).scan(np.int64(-1), place)
        return places.map(batch_of, num_parallel_calls=ahead, deterministic=deterministic)

    if feed.has_epoch_hooks:  # the sequence changes between epochs: none may begin before the last is loaded
        dataset = tf.data.Dataset.range(epochs).flat_map(lambda _: batches(1))
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(epochs * steps))
    else:
        dataset = batches(epochs)
    options = tf.data.Options()
    options.threading.private_threadpool_size = ahead + max(2, cores())
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    dataset = _prefetched(untuned(dataset.with_options(options)), device, fields)
    _keep_alive(feed, dataset)
    if tf.executing_eagerly():
        raised = _raised[key] = Raised(ahead)
        dataset.__class__ = _raising(cast(Hashable, type(dataset)))
        dataset.kerasfeed_raised = raised
    return dataset


def untuned(dataset: Any) -> Any:
    """`dataset` without the thread that tunes it: whoever drops an iterator waits for that thread, holding the GIL.

    Seen with TensorFlow 2.21: 0.2 s at the end of every other epoch, rarely 2 to 9 s. Python's own threads, and so the
    loading of the next batches, stand still meanwhile. What users map later with AUTOTUNE runs with TensorFlow's
    default parallelism.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


@functools.cache
def _raising(base: Any) -> Any:
    """`base`, a class of datasets, which loops and Keras see raise what the sequence raised.

    It behaves as `base` in everything else. What is made of such a dataset, by `map` for example, is of TensorFlow's
    own classes again: there, as in a graph, TensorFlow's error arrives, whose text tells all.
    """

    class FeedDataset(base):  # type: ignore[misc]
        def __iter__(self) -> Any:
            iterator = super().__iter__()
            if tf.executing_eagerly() and type(iterator).__name__ == "OwnedIterator":
                iterator.__class__ = _raising_iterator(cast(Hashable, type(iterator)))
                iterator.kerasfeed_raised = self.kerasfeed_raised
            return iterator

        def cardinality(self) -> Any:
            watch_trainer(sys._getframe(1), self.kerasfeed_raised)
            return super().cardinality()

    FeedDataset.__name__ = FeedDataset.__qualname__ = base.__name__
    return FeedDataset


@functools.cache
def _raising_iterator(base: Any) -> Any:
    """`base`, a class of eager iterators, that raises what the sequence raised."""

    class FeedIterator(base):  # type: ignore[misc]
        def __next__(self) -> Any:
            try:
                return super().__next__()
            except tf.errors.OpError as error:
                original = self.kerasfeed_raised.original(error)
                if original is None:
                    raise
            raise original

    FeedIterator.__name__ = FeedIterator.__qualname__ = base.__name__
    return FeedIterator


def _keep_alive(feed: "Feed", dataset: Any) -> None:
    # What is made of a dataset refers to it, iterators included. In a graph the dataset object is a passing thing.
    owner = dataset if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    owner.kerasfeed_feeds = (*getattr(owner, "kerasfeed_feeds", ()), feed)


def _feed_of(key: Any) -> "Feed":
    try:
        return _feeds[int(key)]
    except KeyError:
        raise FeedClosedError(
            "the feed of this dataset is gone: keep a reference to the feed, or to the dataset, while it is iterated"
        ) from None


def _claim(key: Any) -> Any:
    return np.int64(_feed_of(key).begin_epoch())


def _load(key: Any, epoch: Any, step: Any) -> list[Any]:
    feed = _feed_of(key)
    request = feed.request_log.begin(int(step))
    try:
        batch = feed.submit(int(epoch), int(step)).result()
    except BaseException as error:  # noqa: BLE001 - TensorFlow takes some (StopIteration) for the end of the data
        note_causes(error)  # Keras raises it `from None`
        # In a graph nobody can ask for it again, and its text says all.
        raise _raised.get(int(key), Raised()).carrier(error) from None
    leaves = [_plain(leaf) for leaf in optree.tree_leaves(batch)]
    feed.request_log.finish(request, time.perf_counter())
    return leaves


def _plain(leaf: Any) -> Any:
    return np.asarray(leaf, dtype=object) if isinstance(leaf, str | bytes) else leaf


def _tf_dtype(field: ArraySpec, path: tuple[Any, ...]) -> Any:
    if field.is_text:
        return tf.string
    try:
        return tf.as_dtype(field.dtype)
    except TypeError:
        name = ".".join(str(key) for key in path) or "scene"
        raise TypeError(
            f"field {name!r} is {field}, a dtype TensorFlow lacks. Convert it in __getitem__, or loop over the feed"
        ) from None


def _prefetched(dataset: Any, device: str | None, fields: list[ArraySpec]) -> Any:
    if device is None:
        gpus = tf.config.list_logical_devices("GPU")
        placed_elsewhere = tf.distribute.has_strategy() or any(field.is_text for field in fields)
        if gpus and not placed_elsewhere and tf.executing_eagerly():
            device = gpus[0].name
    if device is None or _is_host(device):
        return dataset.prefetch(2)
    # Not prefetch_to_device, which nothing may follow: users map, take and zip what they get.
    return dataset.apply(tf.data.experimental.copy_to_device(device)).prefetch(2)


def _is_host(device: str) -> bool:
    spec = tf.DeviceSpec.from_string(device if device.startswith("/") else f"/{device}")
    return spec.device_type == "CPU" and not spec.device_index
