"""A stream's side of Keras's trainers: which repetition an epoch takes, and what becomes of batches taken in vain.

Invariant: an epoch of `fit` without `steps_per_epoch` is a repetition of the stream; so is an `evaluate`, a `predict`.
With `steps_per_epoch` the epochs of all `fit`s take one batch after the other, through as many repetitions as that
needs. What Keras takes to build a model, and what its backend has taken beyond the last step, comes again.
"""

import functools
import sys
import time
import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from types import FrameType
from typing import Any, cast

from kerasfeed.adapters.raised import Raised, watch_trainer
from kerasfeed.loaders.failure import note_causes
from kerasfeed.patience import NOT_YET, NotYet
from kerasfeed.stream_taking import Taking
from kerasfeed.streams.repetition import EndOfRepetition
from kerasfeed.trainer import refuse_text, self_of, trainer_position

EMPTY = (
    "the stream is empty: it ended before its first scene. Check what its generators read; a generator made once and "
    "for all, outside make_generator, is exhausted after one repetition"
)


class AdapterSide:
    """What one Keras adapter of a stream does. It refers to the feed weakly, as `kerasfeed.trainer.tame` says why.

    Args:
        feed: The feed.
        iterator: Keras's iterator, whose adapter it is.
        in_fit: Whether it is that of a `fit`, and not of its validation.

    Attributes:
        used: Batches of the present taking that were part of epochs which are over.
        steps_seen: Batches that Keras's trainer has been given of the present taking.
    """

    def __init__(self, feed: Any, iterator: Any, *, in_fit: bool) -> None:
        self._feed = weakref.ref(feed)
        self._iterator = weakref.ref(iterator)
        self._in_fit = in_fit
        self._endless = bool(iterator.steps_per_epoch)
        self._building = self._running = False
        self.used = 0
        self.steps_seen = 0
        self._taking: Taking | None = None
        iterator.__class__ = _counted(cast(Hashable, type(iterator)))
        iterator.kerasfeed_side = self

    @property
    def feed(self) -> Any:
        """The feed; None when it is gone."""
        return self._feed()

    def epoch_begins(self) -> None:
        """Keras begins to go through the data, perhaps only to build a model on its first batch."""
        iterator = self._iterator()
        if iterator is None:
            return
        if not iterator.steps_per_epoch:
            iterator._num_batches = None  # as long as the repetition that begins, not as the last one
            iterator._interrupted_warning = _no_warning
        self._building = _is_building()
        self._running = True

    def epoch_ends(self) -> None:
        """Keras has gone through as many batches as it wanted."""
        iterator = self._iterator()
        running, self._running = self._running, False
        if iterator is not None and running and not self._building:
            self.used += iterator.steps_per_epoch or 0

    def begin(self) -> Taking | None:
        """Keras has a new iterator of the data."""
        feed = self._feed()
        if feed is None:
            return None
        self.leave(self._taking)
        self._taking = Taking(
            weakref.proxy(feed), endless=self._endless, afresh=not self._in_fit, building=self._building
        )
        self.used = 0
        return self._taking

    def leave(self, taking: Taking | None) -> None:
        """Keras takes no more of `taking`."""
        if taking is not None and taking is self._taking:
            self._taking = None
            # A fit may end within an epoch, where a callback or an error stops it.
            taking.leave(0 if taking.building else max(self.used, self.steps_seen))

    def supersede(self) -> None:
        """Another fit or loop begins: where this one was stopped, Keras may let go of the data only much later."""
        taking = self._taking
        if taking is not None:
            taking.superseded = True
            self.leave(taking)

    def interrupted(self, taking: Taking) -> None:
        """An error has ended `taking`: a stream that goes on where it was left does so, others begin anew."""
        feed = self._feed()
        if feed is not None and feed.goes_on:
            self.leave(taking)


@functools.cache
def _counted(base: Any) -> Any:
    """`base`, a class of Keras's iterators, which tell how many batches they have given to the trainer.

    The count must outlive the iterator: a fit that is stopped lets go of it before the data.
    """

    class CountedIterator(base):  # type: ignore[misc]
        @property
        def _steps_seen(self) -> int:
            return int(self.kerasfeed_side.steps_seen)

        @_steps_seen.setter
        def _steps_seen(self, count: int) -> None:
            self.kerasfeed_side.steps_seen = count

    CountedIterator.__name__ = CountedIterator.__qualname__ = base.__name__
    return CountedIterator


class StreamSide:
    """The adapters that Keras has made of one stream."""

    def __init__(self) -> None:
        self._sides: weakref.WeakKeyDictionary[Any, AdapterSide] = weakref.WeakKeyDictionary()
        self._fit: Callable[[], AdapterSide | None] = lambda: None  # the last one's

    def prepare(self, feed: Any, caller: FrameType) -> str | None:
        """A trainer may be about to begin, and asks, in the frame `caller`, for the number of batches.

        Returns:
            Its method.
        """
        position = trainer_position()
        if position is None or caller.f_code.co_name != "num_batches":
            return None
        adapter, iterator = self_of(caller), self_of(caller.f_back)
        known = hasattr(adapter, "py_dataset") and hasattr(iterator, "steps_per_epoch")
        if known and adapter.py_dataset is feed and adapter.enqueuer is None:
            self._tame(feed, caller, adapter, iterator, in_fit=position.method == "fit" and position.epoch is None)
        return position.method

    def _tame(self, feed: Any, caller: FrameType, adapter: Any, iterator: Any, *, in_fit: bool) -> None:
        side = self._sides[adapter] = AdapterSide(feed, iterator, in_fit=in_fit)
        if in_fit:
            self.end_fit()
            self._fit = weakref.ref(side)
        raised = Raised()
        known = weakref.ref(raised) if watch_trainer(caller, raised) else None
        adapter.py_dataset = weakref.proxy(feed)
        adapter.shuffle = False
        adapter._get_iterator = functools.partial(_batches, weakref.ref(adapter), side, known)
        adapter.get_tf_dataset = functools.partial(_tf_dataset, weakref.ref(adapter))

    def end_fit(self) -> None:
        """Something else begins to take the stream's batches: no fit can still do so."""
        side = self._fit()
        if side is not None:
            side.supersede()

    def begins(self) -> None:
        """Keras calls the feed's `on_epoch_begin`."""
        side = self._running()
        if side is not None:
            side.epoch_begins()

    def ends(self) -> None:
        """Keras calls the feed's `on_epoch_end`."""
        side = self._running()
        if side is not None:
            side.epoch_ends()

    def _running(self) -> AdapterSide | None:
        adapter = self_of(sys._getframe(3))  # whose hook calls that of the feed, which calls the one above
        try:
            return self._sides.get(adapter)
        except TypeError:  # nobody's hook
            return None


def _is_building() -> bool:
    """Whether Keras goes through the data only to build a model."""
    position = trainer_position()
    if position is not None and position.method == "fit" and position.epoch is None:
        return True
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name.endswith("symbolic_build"):
            return True
        frame = frame.f_back
    return False


def _no_warning() -> None:
    """In place of Keras's warning that the data have ended: so they are meant to."""


def _batches(
    reference: Callable[[], Any],
    side: AdapterSide,
    raised: Callable[[], Raised | None] | None,
    patience: float | None = None,
) -> Iterator[Any]:
    adapter, taking = reference(), side.begin()
    if adapter is None or taking is None:
        return
    request = None
    try:
        while True:
            feed = side.feed
            if feed is None:
                return
            request = request or feed.request_log.begin(max(0, taking.taken - side.used))
            batch = NOT_YET
            with suppress(NotYet):
                batch = feed.as_keras_takes(taking.take(patience) if taking.taken else _first(taking, patience))
                feed.request_log.finish(request, time.perf_counter())
                if taking.taken == 1:
                    refuse_text(feed)
                request = None
            del feed  # while it waits it holds no feed: TensorFlow may keep it
            yield batch if batch is NOT_YET else adapter._standardize_batch(batch)
            del batch
    except EndOfRepetition:
        return
    except GeneratorExit:
        side.leave(taking)
        raise
    except BaseException as error:
        side.interrupted(taking)
        note_causes(error)
        known = None if raised is None else raised()
        if known is None:
            raise
        raise known.carrier(error) from None


def _first(taking: Taking, patience: float | None) -> Any:
    try:
        return taking.take(patience)
    except EndOfRepetition:
        if taking.left:
            raise
        raise ValueError(EMPTY) from None


def _tf_dataset(reference: Callable[[], Any]) -> Any:
    from kerasfeed.adapters.tf_keras import keras_stream_dataset  # Keras asks on TensorFlow alone

    adapter = reference()
    assert adapter is not None  # it is the one that asks
    try:
        return keras_stream_dataset(adapter)
    except Exception as error:
        note_causes(error)  # of the first scenes, which are read here
        raise
