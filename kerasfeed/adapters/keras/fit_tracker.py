"""What a feed knows of the `fit` that takes its batches: which of them an epoch has, and which are consumed.

Invariant: Keras's hooks are never counted, because they fire more often than epochs pass (to infer a signature, to
build the model, around evaluation): the `fit` that runs is asked which epoch it is in. Every epoch of a `fit` knows the
numbers of its batches from the start, so whatever TensorFlow prefetches beyond the end of an epoch, nothing of it is
lost or taken twice.
"""

from typing import Any

from kerasfeed.adapters.keras.run import RunningFit
from kerasfeed.adapters.keras.trainer import trainer_position
from kerasfeed.feeds.epoch_clock import EpochClock
from kerasfeed.feeds.hooks import RequestLog, SequenceHooks


class FitTracker(RunningFit):
    """What a feed does when Keras calls it.

    Args:
        feed: The feed, of which this holds parts.
    """

    def __init__(self, feed: Any) -> None:
        super().__init__()
        self.clock: EpochClock = feed.clock
        self._hooks: SequenceHooks = feed.hooks
        self._log: RequestLog = feed.request_log
        self._hooked_epoch_runs = False

    # ---- trainers

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
            asked = None if run is None or run.has_epoch_cursors else run.steps_per_epoch
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
            self._log.clear()
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
        return self.clock.check_consumed()

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
