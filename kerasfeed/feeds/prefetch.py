"""Batches loaded ahead of a consumer that takes them in the order of the feed's stream.

Invariant: `take` returns the batch of the next number whatever was loaded ahead, and whoever loaded it. Whoever stops
early closes the window, and the scenes not yet begun are skipped.
"""

from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from typing import Any

from kerasfeed.errors import FeedClosedError, WorkerStartError
from kerasfeed.pool.base import CLOSED_BEFORE_DONE
from kerasfeed.util.polling import NotYet, result_of

Submit = Callable[[int, float | None], "Future[Any]"]


class Prefetcher:
    """Some consecutive batches of the stream in flight.

    Attributes:
        next: Number of the batch that `take` returns next; where they come in any order, of the first not yet counted.
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
        """Look ahead from the first `take` on.

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

    def take(self, timeout: float | None = None) -> Any:
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
    done = next((future for future in futures if future.done()), None)
    if done is None:
        found, _ = wait(futures, timeout, FIRST_COMPLETED)
        if not found:
            raise NotYet
        done = found.pop()
    return done


def window_of(
    feed: Any,
    numbers: range,
    shuffled: bool | None = False,
    *,
    in_order: bool = True,
) -> Prefetcher:
    """Look-ahead along the batches `numbers` of a feed, given as a weak proxy where the window may outlive it.

    Args:
        feed: The feed.
        numbers: Numbers of batches.
        shuffled: Whether steps are shuffled, but for those of a resumed epoch; None is never.
        in_order: See `Prefetcher`.
    """
    clock = feed.clock

    def place_of(number: int) -> Any:
        return divmod(number, clock.steps) if shuffled is None else clock.place(number, shuffled=shuffled)

    def submit(number: int, timeout: float | None) -> Any:
        return feed.submit(*place_of(number), patience=timeout)

    border = len(feed) if feed.has_epoch_hooks else None
    generations = feed.refreshes.planned
    feed.begin_reading(numbers.start)
    return Prefetcher(
        submit, numbers.start, numbers.stop, feed.look_ahead, border, in_order=in_order,
        check=lambda: feed.refreshes.refuse_others(generations),
    )  # fmt: skip
