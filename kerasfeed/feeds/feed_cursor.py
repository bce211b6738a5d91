"""Batches of a feed, by their numbers counted over all epochs.

A `Prefetcher` loads them ahead, and a `FeedCursor` takes them. `EarlyBatches` are requested before there is a consumer.

Invariant: with `in_order`, `next_batch` returns the batch with the next number, whatever was loaded ahead. Closing a
prefetcher cancels its batches, and skips the scenes not yet begun. An iteration of a `tf.data` dataset claims its
batches at its first request.
"""

import itertools
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import suppress
from typing import Any

from kerasfeed.errors import FeedClosedError, WorkerStartError
from kerasfeed.feeds.cursor import EndOfData, RequestLog, check_alive
from kerasfeed.loaders.loader import Loader
from kerasfeed.pool.base import CLOSED_BEFORE_DONE
from kerasfeed.util.polling import NotYet, result_of

Submit = Callable[[int, float | None], "Future[Any]"]


class Prefetcher:
    """Loads consecutive batches ahead.

    Attributes:
        next: Number of the batch that `next_batch` returns. If batches come in any order, the number of batches
            returned so far, plus `first`.
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
        """Load nothing until the first `next_batch`.

        Args:
            submit: Starts to load a batch. Takes its number and the longest wait for memory in seconds; returns a
                future.
            first: Number of the first batch.
            stop: Batches before this number are loaded ahead.
            ahead: Largest number of batches in flight, at least 1.
            border: Steps of an epoch, if its batches may be loaded only after all batches of the previous epoch.
            in_order: Whether batches come in the order of their numbers, or as soon as they are loaded.
            check: Called before a batch is returned; raises if its scenes may have changed since its request.
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
        """Wait for the next batch and return it.

        Args:
            timeout: Longest wait in seconds; None waits without limit.

        Raises:
            NotYet: The batch is not ready.
            FeedClosedError: Another thread has closed this prefetcher or the feed.
            Exception: An exception of the sequence, or of `check`.
        """
        self._fill(timeout)
        try:
            future = self._pending[0]
        except IndexError:  # not loaded ahead, or closed by another thread at this moment
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
            self._remove(future)
            del future  # it holds the exception, whose traceback holds this frame; a reference here would make a cycle
            if closed:
                raise FeedClosedError(CLOSED_BEFORE_DONE) from None
            raise
        self._remove(future)
        self._check()
        return batch

    def _remove(self, future: "Future[Any]") -> None:
        self.next += 1
        with suppress(ValueError):  # another thread has closed this prefetcher
            self._pending.remove(future)

    def _fill(self, timeout: float | None) -> None:
        """Request more batches, but none after a failed batch.

        If all workers have died, a request would start new ones.
        """
        if self._pending and (_has_failed(self._pending[0]) or _has_failed(self._pending[-1])):
            return
        while len(self._pending) < self._ahead:
            number = self.next + len(self._pending)
            if number >= self._stop or (self._border and self._pending and number % self._border == 0):
                return
            try:
                self._pending.append(self._submit(number, timeout))
            except (NotYet, WorkerStartError):  # batches in flight come first, and report the cause
                if not self._pending:
                    raise
                return

    def extend(self, stop: int) -> None:
        """Load the batches before number `stop` ahead."""
        self._stop = stop

    def close(self) -> None:
        """Cancel the batches in flight; idempotent."""
        while self._pending:
            self._pending.popleft().cancel()


def _has_failed(future: "Future[Any]") -> bool:
    return future.done() and (future.cancelled() or future.exception() is not None)


def _first_done(futures: list["Future[Any]"], timeout: float | None) -> "Future[Any]":
    done, _ = wait(futures, timeout, FIRST_COMPLETED)
    if not done:
        raise NotYet
    return done.pop()


class EarlyBatches:
    """The first batches of an epoch, requested before there is a consumer.

    Args:
        loader: Loads the batches, as many as it keeps in flight.
        positions: Epoch and step of the batches.
    """

    def __init__(self, loader: Loader, positions: Iterable[tuple[int, int]]) -> None:
        self._process = os.getpid()
        self._batches: dict[tuple[int, int], Future[Any]] = {}
        with suppress(NotYet):  # max_memory is reached
            for position in itertools.islice(positions, loader.look_ahead):
                self._batches[position] = loader.submit(*position, timeout=0.0)

    def take(self, epoch: int, step: int) -> "Future[Any] | None":
        """Return the future of the batch (epoch, step).

        If that batch was not requested early, return None and cancel all early batches, because they hold memory.
        """
        if os.getpid() != self._process:
            return None  # the workers belong to the process that has forked
        batch = self._batches.pop((epoch, step), None)
        if batch is None:
            self.cancel()
        return batch

    def cancel(self) -> None:
        """Cancel the batches that were not taken."""
        with suppress(KeyError):  # no batch is left
            while True:
                self._batches.popitem()[1].cancel()


class FeedCursor:
    """The cursor of a feed, which it does not keep alive.

    See `kerasfeed.feeds.cursor.Cursor`.
    """

    def __init__(
        self,
        feed: Callable[[], Any],
        numbers: range,
        *,
        ahead_until: int | None = None,
        shuffled: bool | None = False,
        in_order: bool = True,
        log: RequestLog | None = None,
        moves_position: bool = False,
    ) -> None:
        """Create a cursor over some batches of a feed.

        Args:
            feed: A weak reference to the feed.
            numbers: Numbers of the batches.
            ahead_until: Batches before this number are loaded ahead; None for all of `numbers`.
            shuffled: Whether the steps of an epoch are shuffled. A resumed epoch keeps its own order, unless this is
                None, which never shuffles.
            in_order: See `Prefetcher`.
            log: Logs when batches are requested and received.
            moves_position: Whether these batches move the position of the feed.
        """
        known = weakref.proxy(check_alive(feed()))
        self._feed = feed
        self._numbers = numbers
        self._moves_position = moves_position
        self._log = log
        clock, generations = known.clock, known.refreshes.planned
        switches = 0  # of the feed's hooks

        # Functions, because the prefetcher keeps them: methods of this cursor would make a reference cycle.
        def enter(number: int) -> None:
            nonlocal switches
            known.enter_epoch(number // clock.steps)
            switches = known.hooks.switches

        def submit(number: int, timeout: float | None) -> Any:
            if known.hooks.exist:
                if number % clock.steps == 0:
                    enter(number)
                known.hooks.refuse_others(switches)
            epoch, step = divmod(number, clock.steps) if shuffled is None else clock.position(number, shuffled=shuffled)
            return known.submit(epoch, step, patience=timeout)

        def check() -> None:
            known.refreshes.refuse_others(generations)
            known.hooks.refuse_others(switches)

        enter(numbers.start)
        self._window = Prefetcher(
            submit, numbers.start, numbers.stop if ahead_until is None else ahead_until, known.look_ahead,
            len(known) if known.hooks.exist else None, in_order=in_order, check=check,
        )  # fmt: skip

    @property
    def next(self) -> int:
        """Number of the next batch to take."""
        return self._window.next

    def extend(self, stop: int, ahead_until: int) -> None:
        """Continue to the batch before `stop`; load batches before `ahead_until` ahead."""
        self._numbers = range(self._numbers.start, stop)
        self._window.extend(ahead_until)

    def take(self, timeout: float | None) -> tuple[int, Any]:
        """See `kerasfeed.feeds.cursor.Cursor.take`; the position is the number of the batch."""
        while (number := self._window.next) < self._numbers.stop:
            feed = check_alive(self._feed())
            # If this batch begins an epoch, its hooks run after the previous batch is received.
            runs_hooks = feed.hooks.exist and number % feed.clock.steps == 0
            if timeout == 0 and (runs_hooks or not feed.job.workers):
                raise NotYet
            del feed  # hold no feed while waiting
            if self._log is None:
                batch = self._window.next_batch(timeout)
            else:
                batch = self._log.timed(number - self._numbers.start, self._window.next_batch, timeout)
            feed = self._feed()  # None if it was deleted meanwhile: the batch is delivered all the same
            if feed is not None and (number == self._numbers.start or number % feed.clock.steps == 0):
                feed.warn_of_settings()  # after the batch, which may start the workers
            del feed
            if batch is not None:
                return number, batch
        raise EndOfData

    def received(self, position: int | None) -> None:
        """See `kerasfeed.feeds.cursor.LoopCursor.received`."""
        feed = check_alive(self._feed())
        if self._moves_position:
            number = self._numbers.stop if position is None else position + 1  # the last batches may be skipped
            first, epoch = self._numbers.start // feed.clock.steps, (number - 1) // feed.clock.steps
            feed.clock.record_consumed(number, epoch if epoch > first else None)
        else:
            feed.clock.begin_apart(self)
        if position is None:
            last = max(self._numbers.start, self._numbers.stop - 1)
            feed.hooks.leave(last // feed.clock.steps)  # start() may have begun the next epoch
            feed.issue_warnings()

    def close(self) -> None:
        """See `kerasfeed.feeds.cursor.Cursor.close`; the clock of the feed knows which batches come again."""
        self._window.close()
        feed = self._feed()
        if feed is not None:
            feed.clock.end_apart(self)


def claim_batches(feed: Any, *, count: int, in_order: bool, generations: tuple[int, ...]) -> FeedCursor:
    """Return a cursor for an iteration of a dataset.

    Args:
        feed: The feed.
        count: Number of batches.
        in_order: See `Prefetcher`.
        generations: The generations of the sequence that the dataset was made for.

    Raises:
        RuntimeError: The sequence was refreshed after the dataset was made.
    """
    feed.refreshes.refuse_others(generations)
    numbers = feed.clock.claim(count)
    feed.request_log.clear()
    return FeedCursor(weakref.ref(feed), numbers, in_order=in_order, log=feed.request_log)
