"""What Keras takes of a feed: the numbers of an epoch's batches in the feed's stream, and look-ahead along them.

Invariant: which batches an epoch of `fit` takes is decided as it begins, so whatever is loaded ahead changes nothing.
"""

from typing import Any

from kerasfeed.adapters.keras.run import KerasRun
from kerasfeed.adapters.keras.trainer import TrainerRequest, trainer_position
from kerasfeed.errors import FeedClosedError
from kerasfeed.feeds.cursor import EndOfData
from kerasfeed.feeds.feed_cursor import Prefetcher, only_submits, window_of


class FeedRun(KerasRun):
    """What one of Keras's iterators takes of a `Feed`.

    Args:
        feed: The feed.
        iterator: Keras's iterator.
        request: What it was made for.
        shuffled: Whether Keras shuffles the steps of each epoch of `fit`.
        batches: Batches that Keras takes for an epoch; None is those of an epoch of the feed.
        in_order: Whether batches come in the order of their numbers, or whichever is loaded first.
    """

    def __init__(
        self,
        feed: Any,
        iterator: Any,
        request: TrainerRequest,
        *,
        shuffled: bool,
        batches: int | None = None,
        in_order: bool = True,
    ) -> None:
        super().__init__(feed, iterator, request, len(feed) if batches is None else batches)
        self._batches = batches
        self._in_order = in_order
        self.shuffled = request.trains and shuffled
        self.superseded = False
        self.window: Prefetcher | None = None
        self.numbers = range(0)
        self.has_epoch_cursors = not self.steps_per_epoch or self.steps_per_epoch % self.execution > 0
        self.stop = 0  # number after that of the last batch worth loading ahead
        self.other = not request.method  # a trainer that is not Keras's
        self._claimed: range | None = None  # of a dataset, for an evaluation or a prediction
        if request.trains:
            self._prepare()

    def _prepare(self) -> None:
        self.feed.running_fit.begin_run(self)
        self.feed.clock.prepare(self._iterator(), self.request.initial_epoch, self.steps_per_epoch or int(self.steps))

    def reset(self) -> None:
        """See `KerasRun.reset`."""
        super().reset()
        if self.request.trains:
            self._prepare()

    def begin_epoch(self, epoch: int) -> int | None:
        """See `KerasRun.begin_epoch`."""
        feed = self.feed
        clock = feed.clock
        feed.request_log.clear()
        if self.request.trains and self.built:
            position = trainer_position("fit")
            number = epoch + self.request.initial_epoch
            last = number
            if position is not None and position.epoch is not None:
                number, last = position.epoch, max(position.epochs - 1, position.epoch)
            self.numbers = clock.begin(number, shuffled=self.shuffled)
            if not self.has_epoch_cursors and len(self.numbers) % self.execution:
                raise ValueError(
                    f"the epoch that is resumed has {len(self.numbers):,} batches left, and with "
                    f"steps_per_epoch={self.steps_per_epoch} Keras takes {self.execution} at a time, also of the next "
                    "epoch: compile with steps_per_execution=1, or resume at a multiple of it"
                )
            self.stop = clock.numbers(last).stop
        elif self.request.trains:
            self.numbers = clock.fit_numbers
            self.stop = self.numbers.start + 1  # the model is built on one batch
        elif self.other and self.built:
            clock.begin_other()
            self.numbers = clock.fit_numbers
            self.stop = self.numbers.stop
        else:
            first = clock.current * clock.steps
            most = int(self.steps)
            if self._batches is not None:  # a dataset: each iteration of it is the feed's next epochs
                if self._claimed is None:
                    self._claimed = clock.loop_numbers(self._batches)
                    clock.claim(len(self._claimed))
                first, most = self._claimed.start, len(self._claimed)
            self.numbers = range(first, first + min(most, self.steps_per_epoch or most))
            self.stop = self.numbers.stop
        if self.window is not None:
            self.window.extend(self.stop)
        return len(self.numbers)

    def end_epoch(self) -> None:
        """See `KerasRun.end_epoch`."""
        self._claimed = None
        if self.built and (self.request.trains or self.other):
            self.feed.end_fit_epoch()

    def begin_taking(self) -> None:
        """See `KerasRun.begin_taking`."""
        if self.window is not None and self.window.next != self.numbers.start:
            self.window.close()
            self.window = None
        if self.window is None:
            shuffled = self.shuffled if self.request.trains else None
            numbers = range(self.numbers.start, self.stop)
            self.window = window_of(self.feed, numbers, shuffled, in_order=self._in_order)

    def take(self, timeout: float | None) -> tuple[int, Any]:
        """See `KerasRun.take`; the place is the batch's number."""
        window = self.window
        if self.superseded or window is None:
            raise FeedClosedError(self.closed)
        number = window.next
        if number >= (self.numbers.stop if self.has_epoch_cursors else self.stop):
            raise EndOfData
        return number, self.feed.request_log.timed(max(0, number - self.numbers.start), window.take, timeout)

    @property
    def runs_what_users_wrote(self) -> bool:
        """See `KerasRun.runs_what_users_wrote`."""
        return not only_submits(self.feed)

    def close(self) -> None:
        """See `KerasRun.close`; what was loaded ahead of the end of an epoch is kept for the next."""
        over = self.window is not None and self.window.next == self.numbers.stop < self.stop
        if not over and self.window is not None:
            self.window.close()  # whoever waits for a batch of it stops waiting
            self.window = None
        super().close()

    def number(self, *, before: bool) -> int:
        """Number of the next batch that is trained on, `before` the execution that runs or behind it."""
        used = max(0, self.used(before=before) - self.seen_at_begin)
        return min(self.numbers.start + used, self.numbers.stop)

    def supersede(self) -> None:
        """See `KerasRun.supersede`."""
        self.superseded = True
        if self.window is not None:
            self.window.close()
