"""What a loop of a framework takes from a feed, batch after batch, where some are taken ahead of the consumer.

Invariant: the feed stands where the consumer does: behind the last batch that it has received, not the last one that
was taken. Of a stream, what was taken and not received comes again.
"""

from typing import Any, Protocol

from kerasfeed.feeds.cursor import EndOfData
from kerasfeed.feeds.streams.place import Place
from kerasfeed.util.polling import NotYet


class LoopCursor(Protocol):
    """The batches of one iteration, for one thread."""

    @property
    def reads_ahead(self) -> bool:
        """Whether others load what is taken; else `take` does so, however short its timeout."""

    def take(self, timeout: float) -> tuple[Any, Any]:
        """The next batch, and its place, for `received`.

        Args:
            timeout: How long to wait for it, s. 0 is for batches ahead of those that the consumer has not received:
                none of a repetition, or of an epoch with hooks, behind theirs.

        Raises:
            NotYet: It was not there for so long; the next call gives it.
            EndOfData: There is none.
            Exception: What stands in its place.
        """

    def received(self, place: Any) -> None:
        """The consumer has the batch of this place."""

    def end(self) -> None:
        """The consumer has received every batch, and was told so."""

    def close(self, returned: list[Any]) -> None:
        """No more is taken; idempotent.

        Args:
            returned: Batches that were taken last and that the consumer has not received, in their order.
        """


class EpochsCursor:
    """The next epochs of a feed; the first of them is what is left of one that was resumed."""

    def __init__(self, feed: Any, epochs: int) -> None:
        self._feed = feed
        feed.follow_sequence()
        self._numbers = feed.clock.claim_epoch(epochs)
        self._window = feed.begin_window(self._numbers)

    @property
    def reads_ahead(self) -> bool:
        """See `LoopCursor.reads_ahead`."""
        return bool(self._feed.job.workers)

    def take(self, timeout: float) -> tuple[int, Any]:
        """See `LoopCursor.take`. Batches whose scenes were all skipped are left out."""
        while (number := self._window.next) < self._numbers.stop:
            if timeout == 0 and self._feed.has_epoch_hooks and number % self._feed.clock.steps == 0:
                raise NotYet  # the hooks would run before the last epoch is received, and be waited for
            batch = self._window.take(timeout)
            if batch is not None:
                return number, batch
        raise EndOfData

    def received(self, place: int) -> None:
        """See `LoopCursor.received`."""
        clock = self._feed.clock
        first, epoch = self._numbers.start // clock.steps, place // clock.steps
        clock.note_consumed(place + 1, epoch if epoch > first else None)

    def end(self) -> None:
        """See `LoopCursor.end`."""
        self._feed.clock.note_consumed(self._numbers.stop)  # on_error="skip" may have left out the last one
        self._feed.hooks.leave()
        self._feed.issue_warnings()

    def close(self, returned: list[Any]) -> None:
        """See `LoopCursor.close`; the feed's clock knows which batches come again."""
        self._window.close()


class RepetitionsCursor:
    """The next repetitions of a stream."""

    def __init__(self, feed: Any, workers: int, epochs: int) -> None:
        """Take `epochs` repetitions of `feed`, whose batches are made by so many workers."""
        self._feed = feed
        self._left = epochs
        self._workers = workers
        self._repetition: Any = None
        feed.end_fit()

    @property
    def reads_ahead(self) -> bool:
        """See `LoopCursor.reads_ahead`."""
        return bool(self._workers)

    def take(self, timeout: float) -> tuple[Place, Any]:
        """See `LoopCursor.take`. Batches whose scenes were all skipped are left out."""
        while True:
            if self._repetition is None:
                self._repetition = self._feed.begin_repetition(timeout=timeout)
            try:
                batch = self._repetition.take(timeout)
            except EndOfData:
                if self._left == 1:
                    raise
                if timeout == 0:  # what was taken of this repetition must not come again in the next
                    raise NotYet from None
                self._left -= 1
                self._repetition.close()
                self._repetition = None
                continue
            try:
                self._feed.issue_warnings()
            except BaseException:  # Ctrl-C, or a warning that is an error: nobody has had the batch
                self._repetition.put_back([batch])
                raise
            if batch is not None:
                return self._repetition.place, batch

    def received(self, place: Place) -> None:
        """See `LoopCursor.received`."""
        self._feed.note_place(place)

    def end(self) -> None:
        """See `LoopCursor.end`."""
        repetition, self._repetition = self._repetition, None
        self._feed.note_place(Place(repetition.number + 1))
        repetition.close()
        self._feed.issue_warnings()

    def close(self, returned: list[Any]) -> None:
        """See `LoopCursor.close`. What is left of the repetition comes again where the feed says so."""
        repetition, self._repetition = self._repetition, None
        if repetition is not None:
            repetition.put_back(returned)
            self._feed.keep_repetition(repetition, chained=False, untouched=False)
