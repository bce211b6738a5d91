"""A feed's side of Keras's trainers: which batches an epoch of `fit` takes, and what it has consumed.

Invariant: Keras's hooks are never counted, because they fire more often than epochs pass (to infer a signature, to
build the model, around evaluation): the `fit` that runs is asked which epoch it is in. Every epoch of a `fit` has a
generator of its own, which knows the numbers of its batches from the start, so whatever TensorFlow prefetches beyond
the end of an epoch, nothing of it is lost or taken twice.
"""

import sys
import time
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError
from functools import partial
from types import FrameType
from typing import Any, NamedTuple

from kerasfeed.epochs import RequestLog, SequenceHooks
from kerasfeed.lookahead import Window, Windows
from kerasfeed.stream import EpochClock
from kerasfeed.trainer import cut_iterator, self_of, tame, trainer_position


def window_of(
    feed: Any, clock: EpochClock, numbers: range, shuffled: bool | None = False, *, in_order: bool = True
) -> Window:
    """Look-ahead along the batches `numbers` of a feed, given as a weak proxy where the window may outlive it.

    Args:
        feed: The feed.
        clock: Where it stands.
        numbers: Numbers of batches.
        shuffled: Whether steps are shuffled, but for those of a resumed epoch; None is never.
        in_order: See `Window`.
    """

    def submit(number: int, patience: float | None) -> Any:
        place = divmod(number, clock.steps) if shuffled is None else clock.place(number, shuffled=shuffled)
        return feed.submit(*place, patience=patience)

    border = len(feed) if feed.has_epoch_hooks else None
    return Window(submit, numbers.start, numbers.stop, feed.look_ahead, border, in_order=in_order)


class Asking(NamedTuple):
    """What a Keras adapter asks for.

    Attributes:
        numbers: The batch, and those to look ahead for.
        shuffled: Whether the adapter shuffles batches; None for one that is not a `fit`'s, and never does.
        closings: How often the windows had been closed.
        request: What the request log needs when it is there.
    """

    numbers: range
    shuffled: bool | None
    closings: int
    request: tuple[Any, int]


class KerasSide:
    """What a feed does when Keras calls it.

    Args:
        feed: A weak proxy of the feed.
        clock: Where the feed stands in its stream.
        hooks: The sequence's own.
        log: When batches were asked for.
    """

    def __init__(self, feed: Any, clock: EpochClock, hooks: SequenceHooks, log: RequestLog) -> None:
        self._feed = feed
        self.clock = clock
        self._hooks = hooks
        self._log = log
        self.windows = Windows()
        self._stop = 0
        self._hooked_epoch_runs = False

    @staticmethod
    def supported() -> bool:
        """Whether the installed Keras asks its adapters for batches in the way that `tame` knows."""
        module = sys.modules.get("keras.src.trainers.data_adapters.py_dataset_adapter")
        adapter = getattr(module, "PyDatasetAdapter", None)
        return callable(getattr(adapter, "_get_iterator", None)) and callable(
            getattr(adapter, "_standardize_batch", None)
        )

    # ---- a trainer begins

    def prepare(self, feed: Any, caller: FrameType, *, ordered: bool) -> str | None:
        """A trainer may be about to begin, and asks for the number of batches; returns its method.

        Args:
            feed: The feed.
            caller: The frame that asks.
            ordered: Whether the feed brings an order of its own, or is a shard. Keras's shuffling of batches would then
                add nothing, and put the shards of a step out of step.
        """
        position = trainer_position()
        if position is None:
            return None
        if position.method == "fit" and position.epoch is None:
            self.windows.close()
            self.clock.prepare(
                self_of(caller.f_back), position.initial_epoch, position.steps_per_epoch or self.clock.steps
            )
        tame(feed, self, caller, in_fit=position.method == "fit", ordered=ordered)
        return position.method

    def numbers(self, in_fit: bool) -> range:
        """The batches of the epoch that begins."""
        steps = self.clock.steps
        first = self.clock.current * steps
        return self.clock.fit_numbers if in_fit else range(first, first + steps)

    def ask(self, adapter: Any, number: int, numbers: range, in_fit: bool) -> "Asking":
        """Ask for batch `number`, one of `numbers`, for a Keras adapter."""
        stop = max(numbers.stop, self._stop) if in_fit else numbers.stop
        request = self._log.begin(number - numbers.start)
        return Asking(range(number, stop), adapter.shuffle if in_fit else None, self.windows.closings, request)

    def take(self, adapter: Any, asking: "Asking", patience: float | None) -> Any:
        """The batch that was asked for; waits for it, see `Window.take`."""
        numbers, shuffled = asking.numbers, asking.shuffled
        if asking.closings != self.windows.closings:  # another fit has begun: this one gets what a wait would end with
            raise CancelledError
        batch = self.windows.take(
            adapter, numbers.start, lambda: window_of(self._feed, self.clock, numbers, shuffled), patience
        )
        self._log.finish(asking.request, time.perf_counter())
        return self._feed.as_keras_takes(batch)

    # ---- hooks

    def begin(self) -> None:
        """Keras's adapter calls the feed's `on_epoch_begin`."""
        position = trainer_position()
        if position is None:
            self.clock.begin_other()
        elif position.method == "fit" and position.epoch is not None:
            shuffled = getattr(getattr(position.iterator, "data_adapter", None), "shuffle", False)
            numbers = self.clock.begin(position.epoch, shuffled=bool(shuffled))
            self._stop = self.clock.numbers(max(position.epochs - 1, position.epoch)).stop
            if position.iterator is not None:
                cut_iterator(position.iterator, len(numbers), ends_there=True)
        else:
            return
        self._hooked_epoch_runs = True

    def end(self) -> None:
        """Keras's adapter calls the feed's `on_epoch_end`."""
        self._log.clear()
        position = trainer_position()
        if position is not None and position.method != "fit":
            return
        began, self._hooked_epoch_runs = self._hooked_epoch_runs, False
        if position is None and not began:
            self.clock.begin_other()
        if position is None or (began and position.epoch is not None):
            self.clock.end()
            if self.clock.fit_numbers.stop % self.clock.steps == 0:
                self._hooks.leave()

    def consumed(self) -> int:
        """Number of the batch after the last one consumed.

        Raises:
            RuntimeError: Only the consumer knows.
        """
        position = trainer_position("fit")
        if position is not None and self.clock.serves(position.iterator):
            epoch = position.initial_epoch if position.epoch is None else position.epoch
            return position.trained(self.clock.numbers(epoch))
        if self.clock.consumed is None:
            raise RuntimeError(
                "only the consumer knows which batch is next: a dataset loads ahead, and a fit was stopped or takes a "
                "dataset made of the feed's. Say feed.get_state(epoch=..., step=...) of the next batch, or use "
                "kf.FeedCheckpoint in fit"
            )
        return self.clock.consumed

    def resume(self, number: int, *, shuffled: bool, rest: int | None = None) -> None:
        """Go on with batch `number`; see `EpochClock.resume`."""
        self.windows.close()
        self.clock.resume(number, shuffled=shuffled, rest=rest)

    # ---- datasets

    def claim(self, count: int) -> int:
        """Take the next `count` batches for a dataset, which submits its own steps; returns the number of the first."""
        first = self.clock.claim(count)
        self._hooks.enter(first // self.clock.steps)
        self._log.clear()
        return first

    def prepare_dataset(self, iterator: Any, batches: int | None) -> None:
        """A `fit` may be about to begin on a dataset of the feed, or on one that was made of it.

        Args:
            iterator: Keras's iterator of it.
            batches: Batches in one iteration of the dataset; None where there is no end.

        Raises:
            ValueError: Neither `batches` nor Keras's `steps_per_epoch` is known.
        """
        position = trainer_position()
        if position is None or position.method != "fit" or position.epoch is not None:
            return
        steps = position.steps_per_epoch or batches
        if not steps:
            raise ValueError(
                "how many batches an epoch of this dataset has is not known: pass steps_per_epoch to fit, or "
                "apply tf.data.experimental.assert_cardinality to the dataset"
            )
        if batches and steps > batches:
            return  # Keras ends its epochs early, and warns
        self.clock.prepare(iterator, position.initial_epoch, steps)
        adapter = iterator.data_adapter
        adapter.on_epoch_begin = partial(_begin_dataset, weakref.ref(self), weakref.ref(iterator), batches)
        adapter.on_epoch_end = partial(_end_dataset, weakref.ref(self))

    def begin_dataset(self, iterator: Any, batches: int | None) -> None:
        """An epoch of `fit` on a dataset of so many batches begins."""
        position = trainer_position()
        if position is None or position.method != "fit" or position.epoch is None:
            return
        numbers = self.clock.begin(position.epoch)
        self.clock.rewind(numbers.start)  # the dataset claims them
        cut_iterator(iterator, len(numbers), ends_there=len(numbers) == batches)

    def end_dataset(self) -> None:
        """An epoch of `fit` on a dataset is over."""
        position = trainer_position()
        if position is None or position.method != "fit" or position.epoch is None:
            return
        self.clock.end()
        if not position.goes_on:
            self.clock.end_claim(self.clock.fit_numbers.stop, self.clock.cursor)

    def asked_by(self, caller: FrameType, batches: int) -> None:
        """Somebody, in this frame, asks for the number of batches of the feed's dataset; perhaps Keras."""
        if caller.f_code.co_name == "num_batches":
            iterator = self_of(caller.f_back)
            if hasattr(iterator, "data_adapter"):
                self.prepare_dataset(iterator, batches)

    def loop_over_dataset(self, count: int) -> range | None:
        """The batches of a loop over the feed's dataset that is about to begin; None for Keras, which counts itself.

        A loop that begins within an epoch ends with one.

        Args:
            count: Batches in one iteration.
        """
        first = self.clock.free
        return None if trainer_position() is not None else range(first, first + count - first % self.clock.steps)


def _begin_dataset(side: Callable[[], KerasSide | None], iterator: Callable[[], Any], batches: int | None) -> None:
    known, of = side(), iterator()
    if known is not None and of is not None:
        known.begin_dataset(of, batches)


def _end_dataset(side: Callable[[], KerasSide | None]) -> None:
    known = side()
    if known is not None:
        known.end_dataset()
