"""A stream as a `tf.data.Dataset`.

Invariant: batches go to TensorFlow one by one, in their order, over memory that it aliases. The functions that
TensorFlow keeps until the process ends hold the feed by its key and not itself; the dataset holds the feed.
"""

import functools
import itertools
import weakref
from collections.abc import Iterator
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Any

import optree
import tensorflow as tf

from kerasfeed.adapters.patient import patient_generator
from kerasfeed.adapters.raised import Raised
from kerasfeed.adapters.tf_data import (
    keep_alive,
    keras_signature,
    make_raising,
    plain,
    prefetched,
    ragged,
    tensor_specs,
    untuned,
)
from kerasfeed.errors import FeedClosedError
from kerasfeed.loaders.failure import note_causes
from kerasfeed.patience import NOT_YET, PATIENCE, NotYet
from kerasfeed.spec import lists_as_tuples
from kerasfeed.streams.repetition import EndOfRepetition

if TYPE_CHECKING:
    from kerasfeed.batch_stream import BatchStream

_feeds: "weakref.WeakValueDictionary[int, BatchStream]" = weakref.WeakValueDictionary()
_raised: "weakref.WeakValueDictionary[int, Raised]" = weakref.WeakValueDictionary()
_keys = itertools.count()


def to_tf_dataset(feed: "BatchStream", *, device: str | None) -> Any:
    """See `kerasfeed.StreamFeed.to_tf_dataset`."""
    structure = feed.element_spec
    specs, treespec = tensor_specs(structure)
    key = next(_keys)
    _feeds[key] = feed
    tensors = patient_generator(_Batches(key), tuple(specs))
    dataset = tensors.map(lambda *leaves: ragged(lists_as_tuples(optree.tree_unflatten(treespec, leaves))))
    dataset = prefetched(untuned(_not_divided(dataset)), device, structure)
    keep_alive(feed, dataset)
    if tf.executing_eagerly():
        raised = _raised[key] = Raised()
        make_raising(dataset, raised, _NotCounted())
    return dataset


class _NotCounted:
    """In place of `kerasfeed.adapters.tf_data.Counting`."""

    batches = None

    def consumption(self, dataset: Any) -> "_NotCounted":
        return self

    def asked(self, caller: FrameType, batches: int) -> None:
        pass

    def begin(self) -> bool:
        return True

    def end(self) -> None:
        pass


class _Batches:
    """The generator function of one dataset."""

    def __init__(self, key: int) -> None:
        self._key = key

    def __call__(self) -> Iterator[Any]:
        feed = _feeds.get(self._key)
        if feed is None:
            raise FeedClosedError(
                "the feed of this dataset is gone: keep a reference to it, or to the dataset, while that is iterated"
            )
        feed.end_fit()
        repetition = None
        while repetition is None:
            with suppress(NotYet):
                repetition = feed.begin_repetition(patience=PATIENCE)
            if repetition is None:
                yield NOT_YET
        used = False
        try:
            while True:
                batch: Any = NOT_YET
                with suppress(NotYet):
                    batch = repetition.take(PATIENCE)
                if batch is NOT_YET:
                    yield NOT_YET
                    continue
                if batch is None:
                    continue
                feed.tell()
                used = True
                yield tuple(plain(leaf) for leaf in optree.tree_leaves(batch))
                del batch
        except EndOfRepetition:
            return
        except GeneratorExit:
            feed.keep_repetition(repetition, chained=False, untouched=not used)
            raise
        except BaseException as error:  # noqa: BLE001 - of which TensorFlow keeps the text alone
            feed.keep_repetition(repetition, chained=False, untouched=False)  # as a loop that an error has ended
            note_causes(error)
            raise _raised.get(self._key, Raised()).carrier(error) from None


def keras_dataset(adapter: Any) -> Any:
    """The dataset that the Keras adapter of a stream makes: of whatever batches the stream may have, and not tuned."""
    dataset = patient_generator(functools.partial(adapter._get_iterator, patience=PATIENCE), keras_signature(adapter))
    return untuned(_not_divided(dataset)).prefetch(1)


def _not_divided(dataset: Any) -> Any:
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return dataset.with_options(options)
