"""The batches of a feed that one iteration of a `tf.data` dataset takes, and what loops over it consume.

Invariant: an iteration claims its batches when the first is asked for. A loop that begins within an epoch ends with it,
like a loop over the feed; what TensorFlow loaded beyond is given back to the feed.
"""

import contextvars
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from kerasfeed.feeds.cursor import Cursor, EndOfData, check_alive
from kerasfeed.feeds.epoch_clock import EpochClock
from kerasfeed.feeds.hooks import RequestLog, TimedTake
from kerasfeed.feeds.prefetch import window_of
from kerasfeed.orders.base import Sequential, Shuffled
from kerasfeed.orders.blocks import BlockShuffled
from kerasfeed.util.optional_methods import ahead_reader
from kerasfeed.util.polling import NotYet


def begin_cursor(
    feed: Any, count: int, in_order: bool, generations: tuple[int, ...], context: contextvars.Context
) -> Cursor:
    """A cursor of the next `count` batches of `feed`, planned at these generations, for a call that must not wait.

    Where `submit` would run what users wrote (scenes, hooks, orders), a thread of its own runs it.
    """
    begin = partial(_claimed, weakref.ref(feed), count, in_order, generations)
    return begin() if only_submits(feed) else feed.cursors.begin(begin, context)


def only_submits(feed: Any) -> bool:
    """Whether asking a feed for batches runs nothing that users wrote."""
    job = feed.job
    quick = isinstance(job.plan.order, Sequential | Shuffled | BlockShuffled)
    return bool(job.workers) and quick and not feed.has_epoch_hooks and ahead_reader(job.sequence) is None


def claim(feed: Any, count: int) -> int:
    """Take the next `count` batches of `feed` for a dataset, which submits its own steps; returns the first one."""
    first: int = feed.clock.claim(count)
    feed.enter_epoch(first // feed.clock.steps)
    feed.request_log.clear()
    return first


def _claimed(feed: Callable[[], Any], count: int, in_order: bool, generations: tuple[int, ...]) -> "FeedCursor":
    known = check_alive(feed())
    known.refreshes.refuse_others(generations)
    first = claim(known, count)
    return FeedCursor(feed, range(first, first + count), in_order=in_order, log=known.request_log)


class FeedCursor:
    """Batches of a feed, which it does not keep alive; see `kerasfeed.feeds.cursor.Cursor`."""

    def __init__(
        self,
        feed: Callable[[], Any],
        numbers: range,
        *,
        shuffled: bool | None = False,
        in_order: bool = True,
        log: RequestLog | None = None,
        counted: bool = False,
    ) -> None:
        """Take batches of a feed.

        Args:
            feed: A weak reference to it.
            numbers: Numbers of the batches.
            shuffled: See `window_of`.
            in_order: See `window_of`.
            log: Where the moments are noted at which batches are asked for, and come.
            counted: Whether the feed stands where the consumer of these batches does.
        """
        known = check_alive(feed())
        self._feed = feed
        self._numbers = numbers
        self._counted = counted
        self._window = window_of(weakref.proxy(known), numbers, shuffled, in_order=in_order)
        self._timed = None if log is None else TimedTake(self._window.take, log)

    def take(self, timeout: float | None) -> tuple[int, Any]:
        """See `kerasfeed.feeds.cursor.Cursor.take`; the place is the batch's number."""
        while (number := self._window.next) < self._numbers.stop:
            feed = check_alive(self._feed())
            if timeout == 0 and not (feed.job.workers and self._may_load_ahead(feed, number)):
                raise NotYet
            del feed  # while this waits it holds no feed
            if self._timed is None:
                batch = self._window.take(timeout)
            else:
                batch = self._timed(number - self._numbers.start, timeout)
            if batch is not None:
                return number, batch
        raise EndOfData

    def _may_load_ahead(self, feed: Any, number: int) -> bool:
        """Whether batch `number` begins no epoch whose hooks would run before the last one is received."""
        return not feed.has_epoch_hooks or number % feed.clock.steps > 0

    def received(self, place: int) -> None:
        """See `kerasfeed.feeds.cursor.Cursor.received`."""
        if self._counted:
            clock = check_alive(self._feed()).clock
            first, epoch = self._numbers.start // clock.steps, place // clock.steps
            clock.note_consumed(place + 1, epoch if epoch > first else None)

    def end(self) -> None:
        """See `kerasfeed.feeds.cursor.Cursor.end`."""
        feed = check_alive(self._feed())
        if self._counted:
            feed.clock.note_consumed(self._numbers.stop)  # on_error="skip" may have left out the last one
        feed.hooks.leave()
        feed.issue_warnings()

    def close(self, returned: list[Any]) -> None:
        """See `kerasfeed.feeds.cursor.Cursor.close`; the feed's clock knows which batches come again."""
        self._window.close()


class FeedLoop:
    """What one loop over a feed's dataset tells the feed."""

    def __init__(self, clock: EpochClock, batches: int, *, counted: bool) -> None:
        """A loop begins.

        Args:
            clock: Where the feed's consumers stand.
            batches: How many one iteration of the dataset has.
            counted: Whether they come in the order of the feed.
        """
        self._clock = clock
        self._batches = batches
        self._counted = counted
        self._numbers: range | None = None
        self._got = 0

    def goes_on(self) -> bool:
        """A batch is about to be asked for; False where the loop is over."""
        if self._numbers is None:
            self._numbers = self._clock.loop_numbers(self._batches)
        numbers = self._numbers
        if self._got < len(numbers) or len(numbers) == self._batches:
            return True
        self._clock.end_claim(numbers.stop, numbers.start + self._batches)
        return False

    def got(self) -> None:
        """The batch is there."""
        self._got += 1
        if self._counted and self._numbers is not None:
            self._clock.note_consumed(self._numbers.start + self._got)
