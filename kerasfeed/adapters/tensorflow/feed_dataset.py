"""The class of kerasfeed's datasets, whose loops raise what the scenes raised and tell the feed what they consume.

Invariant: it is a `tf.data.Dataset` over the variant tensor of another, and what is made of it is of TensorFlow's own
classes. TensorFlow's iterator of it is never part of a cycle of references that the user has made. So the collector,
which runs in any thread, also inside a call that the iterator waits for, never ends it there: that call would wait for
itself.

What is not public here: `tf.data.Dataset` asks its subclasses for `_inputs`, and functions of TensorFlow that are given
an iterator read attributes of its own class. `FeedIterator` is of that class, which is had from `tf.data.IteratorSpec`,
and passes on what it lacks. Where a later TensorFlow would look elsewhere, loops go on and such functions fail.
"""

import _thread
import contextvars
import weakref
from collections.abc import Callable
from typing import Any

from kerasfeed.adapters.tensorflow.framework import tf
from kerasfeed.adapters.tensorflow.iteration import BatchSource
from kerasfeed.feeds.cursor import run_in_background
from kerasfeed.feeds.feed_cursor import FeedLoop
from kerasfeed.util.error_text import short_tracebacks
from kerasfeed.util.polling import POLL_SECONDS

_TensorFlowIterator: Any = tf.data.IteratorSpec(tf.TensorSpec(())).value_type


BeginLoop = Callable[[], FeedLoop]


class FeedDataset(tf.data.Dataset):  # type: ignore[misc]
    """The batches of a feed.

    Args:
        dataset: TensorFlow's dataset of them, which does not hold the feed.
        source: Where they come from.
        count: How many there are; None where that is not known. A copy to a device does not know it.
        begin_loop: Makes what is told of a loop, as that begins.
    """

    def __init__(self, dataset: Any, source: BatchSource, count: int | None, begin_loop: BeginLoop | None) -> None:
        self._tensors = dataset
        self._source = source
        self._count = count
        self._begin_loop = begin_loop
        super().__init__(tf.data.experimental.to_variant(dataset))

    def _inputs(self) -> list[Any]:
        return [self._tensors]

    @property
    def element_spec(self) -> Any:
        """See `tf.data.Dataset.element_spec`."""
        return self._tensors.element_spec

    def __iter__(self) -> Any:
        if not tf.executing_eagerly():
            return super().__iter__()
        self._source.context = contextvars.copy_context()
        return FeedIterator(self, None if self._begin_loop is None else self._begin_loop())

    def cardinality(self) -> Any:
        """See `tf.data.Dataset.cardinality`."""
        return super().cardinality() if self._count is None else tf.constant(self._count, tf.int64)


class FeedIterator(_TensorFlowIterator):  # type: ignore[misc]
    """An eager iterator of a `FeedDataset`."""

    def __init__(self, dataset: FeedDataset, loop: FeedLoop | None) -> None:
        # Not the base's: it would make TensorFlow's iterator part of this object.
        self._dataset = dataset
        self._loop = loop
        self._held = [iter(dataset._tensors)]
        weakref.finalize(self, _let_go, self._held)

    def __getattr__(self, name: str) -> Any:
        if name == "_held":
            raise AttributeError(name)  # in the midst of __init__
        return getattr(self._held[0], name)

    def __next__(self) -> Any:
        if not tf.executing_eagerly():
            return super().__next__()
        if self._loop is not None and not self._loop.goes_on():
            raise StopIteration
        try:
            batch = next(self._held[0])
        except tf.errors.OpError as error:
            original = self._dataset._source.raised.original(error)
            if original is None:
                raise
        else:
            if self._loop is not None:
                self._loop.got()
            return batch
        with short_tracebacks:
            raise original


def _let_go(held: list[Any]) -> None:
    """Have another thread drop what only `held` holds, and wait for that as long as is safe.

    This thread may be in a call of TensorFlow that the drop waits for, or hold a lock that such a call waits for.
    """
    dropped = _thread.allocate_lock()
    dropped.acquire()
    run_in_background(_drop, held, dropped)
    dropped.acquire(timeout=POLL_SECONDS)


def _drop(held: list[Any], dropped: Any) -> None:
    held.clear()
    dropped.release()
