"""A feed's side of Keras's trainers: which batches an epoch of `fit` takes, and what it has consumed.

Invariant: Keras's hooks are never counted, because they fire more often than epochs pass (to infer a signature, to
build the model, around evaluation): the `fit` that runs is asked which epoch it is in. Every epoch of a `fit` has a
generator of its own, which knows the numbers of its batches from the start, so whatever TensorFlow prefetches beyond
the end of an epoch, nothing of it is lost or taken twice.
"""

import weakref
from collections.abc import Callable
from typing import Any

from kerasfeed.epochs import RequestLog, SequenceHooks
from kerasfeed.lookahead import Window
from kerasfeed.stream import EpochClock
from kerasfeed.trainer import trainer_position


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
        self.log = log
        self._run: Callable[[], Any] = lambda: None  # of the last fit
        self._hooked_epoch_runs = False

    # ---- trainers

    def begin_run(self, run: Any) -> None:
        """A `fit` is about to begin, or, having built its model, to begin anew; no other goes on."""
        known = self._run()
        if known is not None and known is not run:
            known.supersede()
        self._run = weakref.ref(run)

    def shuffles(self, iterator: Any) -> bool:
        """Whether the `fit` of `iterator`, Keras's, shuffles the batches of the feed."""
        run = self._run()
        return run is not None and run.serves(iterator) and run.shuffled

    def ends_early(self, number: int, *, followed: bool) -> bool:
        """Whether the epoch of `fit` that ends before batch `number` has fewer steps than Keras goes on to.

        It was begun before. Where `steps_per_epoch` is no multiple of an execution, the data end, and Keras warns.

        Args:
            number: Of the batch.
            followed: Whether Keras knows nothing of the feed: what it takes was made of a dataset of it.
        """
        run, numbers = self._run(), self.clock.fit_numbers
        if followed:
            asked: int | None = self.clock.fit_steps
        else:
            asked = None if run is None or run.begins_anew else run.steps_per_epoch
        return asked is not None and len(numbers) < asked and number >= numbers.stop

    def give_up(self) -> None:
        """Give up what a `fit` has loaded ahead."""
        run = self._run()
        if run is not None:
            run.close()

    def end_epoch(self) -> None:
        """An epoch of a trainer is over."""
        self.clock.end()
        if self.clock.fit_numbers.stop % self.clock.steps == 0:
            self._hooks.leave()

    def hooked(self, *, begins: bool) -> None:
        """Somebody calls the feed's hooks of Keras who is not one of Keras's iterators of it."""
        position = trainer_position()
        if position is not None and (position.method != "fit" or position.epoch is None):
            return
        began, self._hooked_epoch_runs = self._hooked_epoch_runs, begins
        if begins:
            self.clock.begin_other()
        elif began:
            self.log.clear()
            self.end_epoch()

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
        """Go on with batch `number`; see `EpochClock.resume`.

        Raises:
            RuntimeError: A `fit` is in the midst of an epoch.
        """
        position = trainer_position("fit")
        if position is not None and position.epoch is not None and self.clock.serves(position.iterator):
            raise RuntimeError(
                "set_state in the midst of a fit on the feed: Keras goes on with the epoch that it has begun. Call it "
                "before fit, or in on_train_begin"
            )
        self.give_up()
        self.clock.resume(number, shuffled=shuffled, rest=rest)

    # ---- datasets

    def claim(self, count: int) -> int:
        """Take the next `count` batches for a dataset, which submits its own steps; returns the number of the first."""
        first = self.clock.claim(count)
        self._hooks.enter(first // self.clock.steps)
        self.log.clear()
        return first

    def loop_over_dataset(self, count: int) -> range:
        """The batches of a loop over the feed's dataset that is about to begin.

        A loop that begins within an epoch ends with one.

        Args:
            count: Batches in one iteration.
        """
        first = self.clock.free
        return range(first, first + count - first % self.clock.steps)
