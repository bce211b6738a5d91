"""Batches of a feed in the order of its stream: loaded ahead, taken by one iteration, and consumed by loops.

Invariant: `next_batch` returns the batch of the next number whatever was loaded ahead, and whoever loaded it. Whoever
stops early closes the window, and the scenes not yet begun are skipped. An iteration of a `tf.data` dataset claims its
batches when the first is asked for.
"""

import contextvars
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from functools import partial
from typing import Any

from kerasfeed.errors import FeedClosedError, WorkerStartError
from kerasfeed.feeds.cursor import Convert, Cursor, CursorThreads, EndOfData, RequestLog, check_alive
from kerasfeed.pool.base import CLOSED_BEFORE_DONE
from kerasfeed.util.polling import NotYet, result_of

Submit = Callable[[int, float | None], "Future[Any]"]


class Prefetcher:
    """Some consecutive batches of the stream in flight.

    Attributes:
        next: Number of the batch that `next_batch` returns; where they come in any order, of the first not yet counted.
    """

    def __init__(
        self,
        submit: Submit,
        first: int,
        stop: int,
        ahead: int,
        border: int | None = None,
        *,
        in_order: bool = True,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        """Look ahead from the first `next_batch` on.

        Args:
            submit: From a batch's number, and how long to wait for memory, s, to a promise of it.
            first: Number of the first batch.
            stop: Number after that of the last batch worth loading ahead.
            ahead: Most batches in flight, at least 1.
            border: Steps of an epoch, where none of its batches may be begun before the last epoch's are loaded.
            in_order: Whether batches come in the order of their numbers, or whichever is loaded first.
            check: Raises where a batch that has come must not be given, for its scenes may be others than were meant.
        """
        self._check = check
        self._submit = submit
        self.next = first
        self._stop = stop
        self._ahead = ahead
        self._border = border
        self._in_order = in_order
        self._pending: deque[Future[Any]] = deque()

    def next_batch(self, timeout: float | None = None) -> Any:
        """The next batch; waits for it.

        Args:
            timeout: How long, s; None is for ever.

        Raises:
            NotYet: It was not there for so long.
            FeedClosedError: Another thread has closed the window, or the feed.
            Exception: What the sequence raised.
        """
        self._fill(timeout)
        try:
            future = self._pending[0]
        except IndexError:  # beyond the window's end, or closed by another thread, just now
            future = self._submit(self.next, timeout)
            self._pending.append(future)
        if not self._in_order:
            future = _first_done(list(self._pending) or [future], timeout)
        try:
            batch = result_of(future, timeout)
        except NotYet:
            raise
        except BaseException:
            closed = future.cancelled()
            self._pass(future)
            del future  # it holds what is raised, whose traceback holds this frame: only the collector would free them
            if closed:
                raise FeedClosedError(CLOSED_BEFORE_DONE) from None
            raise
        self._pass(future)
        self._check()
        return batch

    def _pass(self, future: "Future[Any]") -> None:
        self.next += 1
        with suppress(ValueError):  # another thread has closed the window
            self._pending.remove(future)

    def _fill(self, timeout: float | None) -> None:
        """Ask for more; not behind one that has failed, since all workers may be gone, and would be started anew."""
        if self._pending and (_has_failed(self._pending[0]) or _has_failed(self._pending[-1])):
            return
        while len(self._pending) < self._ahead:
            number = self.next + len(self._pending)
            if number >= self._stop or (self._border and self._pending and number % self._border == 0):
                return
            try:
                self._pending.append(self._submit(number, timeout))
            except (NotYet, WorkerStartError):  # those that are in flight come first, and tell why
                if not self._pending:
                    raise
                return

    def extend(self, stop: int) -> None:
        """Look ahead up to the batch before number `stop`."""
        self._stop = stop

    def close(self) -> None:
        """Give up what is in flight; idempotent."""
        while self._pending:
            self._pending.popleft().cancel()


def _has_failed(future: "Future[Any]") -> bool:
    return future.done() and (future.cancelled() or future.exception() is not None)


def _first_done(futures: list["Future[Any]"], timeout: float | None) -> "Future[Any]":
    done, _ = wait(futures, timeout, FIRST_COMPLETED)
    if not done:
        raise NotYet
    return done.pop()


def begin_cursor(
    feed: Any, count: int, in_order: bool, generations: tuple[int, ...], context: contextvars.Context, convert: Convert
) -> Cursor:
    """Return a cursor of the next `count` batches of `feed` for a dataset, with its own thread.

    Args:
        feed: The feed.
        count: Number of batches.
        in_order: See `Prefetcher`.
        generations: The generations of the sequence that the dataset was made for.
        context: Context variables of the thread.
        convert: Adds the conversion of batches to a cursor.
    """
    threads: CursorThreads = feed.cursors
    return threads.begin(partial(_claimed, weakref.ref(feed), count, in_order, generations, convert), context)


def _claimed(
    feed: Callable[[], Any], count: int, in_order: bool, generations: tuple[int, ...], convert: Convert
) -> Cursor:
    known = check_alive(feed())
    known.refreshes.refuse_others(generations)
    numbers = known.clock.claim(count)
    known.request_log.clear()
    return convert(FeedCursor(feed, numbers, in_order=in_order, log=known.request_log))


class FeedCursor:
    """Batches of a feed, which it does not keep alive; see `kerasfeed.feeds.cursor.Cursor`."""

    def __init__(
        self,
        feed: Callable[[], Any],
        numbers: range,
        *,
        ahead_until: int | None = None,
        shuffled: bool | None = False,
        in_order: bool = True,
        log: RequestLog | None = None,
        counted: bool = False,
    ) -> None:
        """Take batches of a feed.

        Args:
            feed: A weak reference to it.
            numbers: Numbers of the batches.
            ahead_until: Number after that of the last batch worth loading ahead; None is the end of `numbers`.
            shuffled: Whether steps are shuffled, but for those of a resumed epoch; None is never.
            in_order: See `Prefetcher`.
            log: Where the moments are noted at which batches are asked for, and come.
            counted: Whether the feed stands where the consumer of these batches does.
        """
        known = weakref.proxy(check_alive(feed()))
        self._feed = feed
        self._numbers = numbers
        self._counted = counted
        self._log = log
        clock, generations = known.clock, known.refreshes.planned
        switches = [0]  # of the feed's hooks; not an attribute, for what refers to itself lives until it is collected

        def enter(number: int) -> None:
            known.enter_epoch(number // clock.steps)
            switches[0] = known.hooks.switches

        def submit(number: int, timeout: float | None) -> Any:
            if known.hooks.exist:
                if number % clock.steps == 0:
                    enter(number)
                known.hooks.refuse_others(switches[0])
            place = divmod(number, clock.steps) if shuffled is None else clock.place(number, shuffled=shuffled)
            return known.submit(*place, patience=timeout)

        def check() -> None:
            known.refreshes.refuse_others(generations)
            known.hooks.refuse_others(switches[0])

        enter(numbers.start)
        self._window = Prefetcher(
            submit, numbers.start, numbers.stop if ahead_until is None else ahead_until, known.look_ahead,
            len(known) if known.hooks.exist else None, in_order=in_order, check=check,
        )  # fmt: skip

    @property
    def next(self) -> int:
        """Number of the batch that is taken next."""
        return self._window.next

    def extend(self, stop: int, ahead_until: int) -> None:
        """Give the batches before number `stop`, and load ahead those before `ahead_until`."""
        self._numbers = range(self._numbers.start, stop)
        self._window.extend(ahead_until)

    def take(self, timeout: float | None) -> tuple[int, Any]:
        """See `kerasfeed.feeds.cursor.Cursor.take`; the place is the batch's number."""
        while (number := self._window.next) < self._numbers.stop:
            feed = check_alive(self._feed())
            # Hooks of the epoch that this batch begins run once the one before it is received.
            runs_hooks = feed.hooks.exist and number % feed.clock.steps == 0
            if timeout == 0 and (runs_hooks or not feed.job.workers):
                raise NotYet
            del feed  # while this waits it holds no feed
            if self._log is None:
                batch = self._window.next_batch(timeout)
            else:
                batch = self._log.timed(number - self._numbers.start, self._window.next_batch, timeout)
            if batch is not None:
                return number, batch
        raise EndOfData

    def received(self, place: int | None) -> None:
        """See `kerasfeed.feeds.cursor.Cursor.received`."""
        feed = check_alive(self._feed())
        if self._counted:
            number = self._numbers.stop if place is None else place + 1  # on_error="skip" may leave out the last ones
            first, epoch = self._numbers.start // feed.clock.steps, (number - 1) // feed.clock.steps
            feed.clock.note_consumed(number, epoch if epoch > first else None)
        else:
            feed.clock.note_apart(self)
        if place is None:
            feed.hooks.leave()
            feed.issue_warnings()

    def close(self, returned: list[Any]) -> None:
        """See `kerasfeed.feeds.cursor.Cursor.close`; the feed's clock knows which batches come again."""
        self._window.close()
        feed = self._feed()
        if feed is not None:
            feed.clock.end_apart(self)
