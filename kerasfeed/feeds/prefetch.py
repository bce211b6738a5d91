"""Batches loaded ahead of a consumer that takes them in the order of the feed's stream.

Invariant: `take` returns the batch of the next number whatever was loaded ahead, and whoever loaded it. Whoever stops
early closes the window, and the scenes not yet begun are skipped.
"""

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, wait
from contextlib import suppress
from typing import Any

from kerasfeed.errors import FeedClosedError, WorkerStartError
from kerasfeed.pool.base import CLOSED_BEFORE_DONE
from kerasfeed.util.polling import NotYet, result_of, wait_for_exit

_SEVERAL_SECONDS, _ONE_BY_ONE = 0.003, 64
_SEVERAL, _SEVERAL_OF_THREADS = 0.25, 0.75  # of the batches in flight
_MOST_SECONDS = 0.005  # that worker threads load in their turn
# All but the second in times of a batch. Where a consumer pauses for less than the first, it gains less by look-ahead
# than it loses by taking turns with worker threads.
_SHORT_PAUSE, _SHARE_OF_LAST, _LONGEST_PAUSE = 0.25, 0.2, 8
Submit = Callable[[int, float | None], "Future[Any]"]


class Pauses:
    """How long the consumer of a feed has paused between two batches: a running mean."""

    def __init__(self) -> None:
        self._mean: float | None = None  # s; known from the second batch on

    def note(self, seconds: float, batch_seconds: float) -> None:
        """It has paused for `seconds`, and a batch takes `batch_seconds`."""
        pause = min(seconds, _LONGEST_PAUSE * batch_seconds)
        self._mean = pause if self._mean is None else self._mean + _SHARE_OF_LAST * (pause - self._mean)

    def are_short(self, batch_seconds: float) -> bool:
        """Whether they are short beside `batch_seconds`; False as long as none is known."""
        return self._mean is not None and self._mean < _SHORT_PAUSE * batch_seconds


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
        in_threads: bool = False,
        pauses: Pauses | None = None,
        seconds_in_turns: Callable[[], float] = lambda: 0.0,
        load_here: Submit | None = None,
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
            in_threads: Whether worker threads load, which need the interpreter that the consumer has.
            pauses: Those of the consumer so far, where it may take turns with them.
            seconds_in_turns: How long a batch takes where they only take turns with it, s; 0 elsewhere.
            load_here: As `submit`, but the calling thread may load the batch itself; None where it may not.
        """
        self._check = check
        self._submit = submit
        self.next = first
        self._stop = stop
        self._ahead = ahead
        self._border = border
        self._in_order = in_order
        self._pending: deque[Future[Any]] = deque()
        self._pauses = pauses
        self._seconds_in_turns = seconds_in_turns
        self._load_here = load_here
        self._several = _SEVERAL_OF_THREADS if in_threads else _SEVERAL
        self._left: float | None = None  # when it got the last one, or asked in vain
        self._one_by_one = 0  # batches that are waited for by themselves, since several take longer

    def take(self, timeout: float | None = None) -> Any:
        """The next batch; waits for it.

        Args:
            timeout: How long, s; None is for ever.

        Raises:
            NotYet: It was not there for so long.
            FeedClosedError: Another thread has closed the window, or the feed.
            Exception: What the sequence raised.
        """
        try:
            return self._take(timeout)
        except FeedClosedError:
            if timeout is None:  # else TensorFlow calls, which waits for its calls as the program ends
                wait_for_exit()
            raise
        finally:
            if timeout != 0:
                self._left = time.perf_counter()

    def _take(self, timeout: float | None) -> Any:
        in_turns = self._takes_turns(timeout)
        if not in_turns:
            self._fill(timeout)
        elif not self._pending:  # while it takes those that have come, the workers sleep
            if self._load_here is None:
                self._fill(timeout)
            else:
                self._pending.append(self._load_here(self.next, timeout))
        try:
            future = self._pending[0]
        except IndexError:  # beyond the window's end, or closed by another thread, just now
            future = self._submit(self.next, timeout)
            self._pending.append(future)
        if not self._in_order:
            future = _first_done(list(self._pending) or [future], timeout)
        elif self._left is not None and not future.done() and (timeout is None or timeout > _MOST_SECONDS):
            self._await_several(in_turns)  # but for the first batch, which comes as soon as it can
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

    def _takes_turns(self, timeout: float | None) -> bool:
        """Whether this thread and the workers take turns: it pauses too little to gain by what they load meanwhile."""
        if self._pauses is None or timeout == 0:
            return False
        seconds = self._seconds_in_turns()
        if not seconds:
            return False
        if self._left is not None:
            self._pauses.note(time.perf_counter() - self._left, seconds)
        quick = self._load_here is not None or seconds * self._ahead < _MOST_SECONDS
        return quick and self._pauses.are_short(seconds)

    def _await_several(self, in_turns: bool) -> None:
        """Sleep until a few of the batches in flight have come, or all in the workers' turn, if that takes little time.

        Whoever wakes for each batch of tiny scenes takes the interpreter, or a core, from who loads the next. Out of
        turn the last one is not waited for: a worker has something to do meanwhile.
        """
        if self._one_by_one and not in_turns:
            self._one_by_one -= 1
            return
        with suppress(IndexError):  # another thread has closed the window
            count = len(self._pending)
            place = count - 1 if in_turns else max(0, min(int(self._several * count), count - 2))
            try:
                self._pending[place].exception(_MOST_SECONDS if in_turns else _SEVERAL_SECONDS)
            except TimeoutError:
                if not in_turns:
                    self._one_by_one = _ONE_BY_ONE
            except CancelledError:
                pass  # told where it is taken

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
    pauses: Pauses | None = None,
    seconds_in_turns: Callable[[], float] = lambda: 0.0,
) -> Prefetcher:
    """Look-ahead along the batches `numbers` of a feed, given as a weak proxy where the window may outlive it.

    Args:
        feed: The feed.
        numbers: Numbers of batches.
        shuffled: Whether steps are shuffled, but for those of a resumed epoch; None is never.
        in_order: See `Prefetcher`.
        pauses: Those of a consumer that may take turns with worker threads; None of one that may not.
        seconds_in_turns: See `Prefetcher`.
    """
    clock = feed.clock

    def place_of(number: int) -> Any:
        return divmod(number, clock.steps) if shuffled is None else clock.place(number, shuffled=shuffled)

    def submit(number: int, timeout: float | None) -> Any:
        return feed.submit(*place_of(number), patience=timeout)

    def load_here(number: int, timeout: float | None) -> Any:
        return feed.load_here(*place_of(number), patience=timeout)

    border = len(feed) if feed.has_epoch_hooks else None
    generations = feed.refreshes.planned
    feed.begin_reading(numbers.start)
    ahead, in_threads = feed.look_ahead, feed.loads_in_threads
    return Prefetcher(
        submit, numbers.start, numbers.stop, ahead, border, in_order=in_order,
        check=lambda: feed.refreshes.refuse_others(generations), in_threads=in_threads,
        pauses=pauses if in_threads else None, seconds_in_turns=seconds_in_turns,
        load_here=load_here if feed.job.is_plain else None,
    )  # fmt: skip
