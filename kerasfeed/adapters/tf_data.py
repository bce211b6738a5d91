"""A feed as a `tf.data.Dataset`.

Invariant: the graph holds integers until the last map: key of the feed and number of a batch go in, a whole batch comes
out of a `tf.numpy_function`, which aliases the slot's memory. That call only waits, for a moment, and is made again
until the batch is there; concurrency is the loader's own. TensorFlow runs no more such calls at once than its pool has
threads (by default the core count, whatever num_parallel_calls says), so the dataset brings a pool with room for all
waiting calls and for the rest of the user's graph.

The feed lives as long as the dataset, or the graph that the dataset was built in, and no longer. TensorFlow keeps every
function that a `numpy_function` calls until the process ends, so these functions hold the feed's key and not the feed.
"""

import functools
import itertools
import sys
import time
import weakref
from collections.abc import Hashable
from types import FrameType
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import optree
import tensorflow as tf

from kerasfeed.adapters.consumption import Consumption
from kerasfeed.adapters.patient import Asked, AskedBatches, asked_until_there, blanks, patient_generator
from kerasfeed.adapters.raised import Raised, watch_trainer
from kerasfeed.errors import FeedClosedError
from kerasfeed.forms import RaggedArray
from kerasfeed.loaders.failure import note_causes
from kerasfeed.machine import cores
from kerasfeed.patience import PATIENCE, NotYet, result_of
from kerasfeed.spec import ArraySpec, lists_as_tuples

if TYPE_CHECKING:
    from kerasfeed.feed import Feed

_feeds: "weakref.WeakValueDictionary[int, Feed]" = weakref.WeakValueDictionary()
_raised: "weakref.WeakValueDictionary[int, Raised]" = weakref.WeakValueDictionary()
_asked = AskedBatches()
_keys = itertools.count()


def to_tf_dataset(feed: "Feed", *, device: str | None, epochs: int, deterministic: bool) -> Any:
    """See `kerasfeed.Feed.to_tf_dataset`."""
    structure = feed.element_spec
    is_spec: Any = lambda leaf: isinstance(leaf, ArraySpec)  # noqa: E731
    paths = optree.tree_paths(structure, is_leaf=is_spec)
    fields, treespec = optree.tree_flatten(structure, is_leaf=is_spec)
    dtypes = [tf_dtype(field, path) for field, path in zip(fields, paths, strict=True)]
    key = next(_keys)
    _feeds[key] = feed
    steps = len(feed)
    ahead = feed.look_ahead  # 1 without workers: then these calls load, and one at a time was asked for

    def claim(count: int) -> Any:
        first = tf.numpy_function(_claim, [np.int64(key), np.int64(count)], tf.int64)
        first.set_shape(())
        return first

    def place(count: int, first: Any, position: Any) -> Any:
        first = tf.cond(tf.equal(position, 0), lambda: claim(count), lambda: first)
        return first, (first, position)

    load = functools.partial(_load, blanks(dtypes))

    def batch_of(first: Any, position: Any) -> Any:
        tensors = asked_until_there(load, [np.int64(key), first, position], dtypes)
        for tensor, field in zip(tensors, fields, strict=True):
            tensor.set_shape(field.shape)
        return ragged(lists_as_tuples(optree.tree_unflatten(treespec, tensors)))

    def batches(epochs: int) -> Any:
        # A scan keeps the cardinality. (assert_cardinality would fail for ever, not once, after `ignore_errors`.)
        count = epochs * steps
        places = tf.data.Dataset.range(count).scan(np.int64(-1), functools.partial(place, count))
        return places.map(batch_of, num_parallel_calls=ahead, deterministic=deterministic)

    if feed.has_epoch_hooks:  # the sequence changes between epochs: none may begin before the last is loaded
        dataset = tf.data.Dataset.range(epochs).flat_map(lambda _: batches(1))
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(epochs * steps))
    else:
        dataset = batches(epochs)
    options = tf.data.Options()
    options.threading.private_threadpool_size = ahead + max(2, cores())
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    dataset = prefetched(untuned(dataset.with_options(options)), device, structure)
    keep_alive(feed, dataset)
    if tf.executing_eagerly():
        raised = _raised[key] = Raised(ahead)
        counting = Counting(feed, epochs * steps, deterministic)
        make_raising(dataset, raised, counting)
    return dataset


class Counting:
    """Who counts what is consumed of a feed's dataset.

    Args:
        feed: The feed.
        batches: How many one iteration of the dataset has. A copy to a device does not know its cardinality.
        counted: Whether batches come in the order of the feed.
    """

    def __init__(self, feed: "Feed", batches: int, counted: bool) -> None:
        self._feed = feed
        self.batches = batches
        self._counted = counted

    def consumption(self, dataset: Any) -> Any:
        """What counts for a new iterator."""
        return Consumption(self._feed, self.batches, self._counted)

    def asked(self, caller: FrameType, batches: int) -> None:
        """Somebody asks, in the frame `caller`, for the cardinality, which is `batches`."""
        self._feed.keras_side.asked_by(caller, batches)


def make_raising(dataset: Any, raised: Raised, counting: Any) -> None:
    """Have loops over `dataset`, and Keras, raise what the scenes raised, and `counting` told what is consumed."""
    dataset.__class__ = _raising(cast(Hashable, type(dataset)))
    dataset.kerasfeed_raised = raised
    dataset.kerasfeed_counting = counting


def keras_dataset(adapter: Any) -> Any:
    """The dataset that the Keras adapter of a feed makes: of whatever batches the feed may have, and not tuned."""
    patient = functools.partial(adapter._get_iterator, patience=PATIENCE)
    return untuned(patient_generator(patient, keras_signature(adapter)).prefetch(tf.data.AUTOTUNE))


def keras_signature(adapter: Any) -> Any:
    """Specs of the batches that a Keras adapter gives to TensorFlow, of any number of rows.

    By itself Keras takes the shapes of the first two batches for those of all, and knows no text.
    """
    specs, treespec = tensor_specs(adapter.py_dataset.element_spec)
    loose = [tf.TensorSpec([None, *spec.shape[1:]] if spec.shape.rank else [], spec.dtype) for spec in specs]
    signature = lists_as_tuples(optree.tree_unflatten(treespec, loose))
    if not isinstance(signature, tuple | dict):
        signature = (signature,)
    if adapter.class_weight is not None and isinstance(signature, tuple) and len(signature) == 2:
        signature = (*signature, tf.TensorSpec([None], sys.modules["keras"].config.floatx()))
    return signature


def tensor_specs(structure: Any) -> tuple[list[Any], Any]:
    """A `tf.TensorSpec` for each `ArraySpec` of `structure`, and the nesting."""
    is_spec: Any = lambda leaf: isinstance(leaf, ArraySpec)  # noqa: E731
    paths = optree.tree_paths(structure, is_leaf=is_spec)
    fields, treespec = optree.tree_flatten(structure, is_leaf=is_spec)
    found = [tf.TensorSpec(field.shape, tf_dtype(field, path)) for field, path in zip(fields, paths, strict=True)]
    return found, treespec


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
                iterator.kerasfeed_consumption = self.kerasfeed_counting.consumption(self)
            return iterator

        def cardinality(self) -> Any:
            watch_trainer(sys._getframe(1), self.kerasfeed_raised)
            known = self.kerasfeed_counting.batches
            cardinality = super().cardinality() if known is None else tf.constant(known, tf.int64)
            self.kerasfeed_counting.asked(sys._getframe(1), int(cardinality))
            return cardinality

    FeedDataset.__name__ = FeedDataset.__qualname__ = base.__name__
    return FeedDataset


@functools.cache
def _raising_iterator(base: Any) -> Any:
    """`base`, a class of eager iterators, that raises what the sequence raised."""

    class FeedIterator(base):  # type: ignore[misc]
        def __next__(self) -> Any:
            if not self.kerasfeed_consumption.begin():
                raise StopIteration
            try:
                batch = super().__next__()
                self.kerasfeed_consumption.end()
                return batch
            except tf.errors.OpError as error:
                original = self.kerasfeed_raised.original(error)
                if original is None:
                    raise
            raise original

    FeedIterator.__name__ = FeedIterator.__qualname__ = base.__name__
    return FeedIterator


def keep_alive(feed: Any, dataset: Any) -> None:
    """Have `dataset`, or the graph that it was built in, hold `feed`."""
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


def _claim(key: Any, count: Any) -> Any:
    return np.int64(_feed_of(key).keras_side.claim(int(count)))


def _load(blank: list[Any], key: Any, first: Any, position: Any, *, keep: bool, patience: float | None) -> list[Any]:
    feed, place = _feed_of(key), (int(key), int(first), int(position))
    asked = _asked.take(place) or Asked(feed.request_log.begin(place[2]))
    try:
        if asked.future is None:
            asked.future = feed.submit(*feed.keras_side.clock.place(place[1] + place[2]), patience=patience)
        batch = result_of(asked.future, patience)
    except NotYet:
        _asked.keep(place, asked)
        return [np.False_] if keep else [np.False_, *blank]
    except BaseException as error:  # noqa: BLE001 - TensorFlow takes some (StopIteration) for the end of the data
        note_causes(error)  # Keras raises it `from None`
        # In a graph nobody can ask for it again, and its text says all.
        raise _raised.get(int(key), Raised()).carrier(error) from None
    if keep:
        _asked.keep(place, asked)
        return [np.True_]
    leaves = [plain(leaf) for leaf in optree.tree_leaves(batch)]
    feed.request_log.finish(asked.request, time.perf_counter())
    return [np.True_, *leaves]


def plain(leaf: Any) -> Any:
    """`leaf` as TensorFlow takes it."""
    return np.asarray(leaf, dtype=object) if isinstance(leaf, str | bytes) else leaf


def tf_dtype(field: ArraySpec, path: tuple[Any, ...]) -> Any:
    """TensorFlow's dtype of the field at `path`."""
    if field.is_text:
        return tf.string
    try:
        return tf.as_dtype(field.dtype)
    except TypeError:
        name = ".".join(str(key) for key in path) or "scene"
        raise TypeError(
            f"field {name!r} is {field}, a dtype TensorFlow lacks. Convert it in __getitem__, or loop over the feed"
        ) from None


def ragged(batch: Any) -> Any:
    """The batch with a `tf.RaggedTensor` for every `RaggedArray`."""
    return optree.tree_map(
        lambda leaf: tf.RaggedTensor.from_row_splits(*leaf, validate=False) if isinstance(leaf, RaggedArray) else leaf,
        batch,
        is_leaf=lambda leaf: isinstance(leaf, RaggedArray),
    )


def prefetched(dataset: Any, device: str | None, structure: Any) -> Any:
    """`dataset` with its batches prefetched to `device`; None is the first GPU, if there is one, or the host."""
    if device is None:
        gpus = tf.config.list_logical_devices("GPU")
        placed_elsewhere = tf.distribute.has_strategy() or _has_no_place_on_a_device(structure)
        if gpus and not placed_elsewhere and tf.executing_eagerly():
            device = gpus[0].name
    if device is None or _is_host(device):
        return dataset.prefetch(2)
    # Not prefetch_to_device, which nothing may follow: users map, take and zip what they get.
    return dataset.apply(tf.data.experimental.copy_to_device(device)).prefetch(2)


def _has_no_place_on_a_device(structure: Any) -> bool:
    leaves = optree.tree_leaves(structure, is_leaf=lambda leaf: isinstance(leaf, RaggedArray))
    return any(isinstance(leaf, RaggedArray) or leaf.is_text for leaf in leaves)


def _is_host(device: str) -> bool:
    spec = tf.DeviceSpec.from_string(device if device.startswith("/") else f"/{device}")
    return spec.device_type == "CPU" and not spec.device_index
