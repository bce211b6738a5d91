"""`Cursor`: the batches of one iteration, in order, for any consumer.

Invariant: the position of a feed is after the last batch that its consumer received, not the last batch taken.

A call by TensorFlow must not wait long, and TensorFlow may never report the end of an iteration; see
`kerasfeed.util.polling`. Closing a `CursorThread` neither waits nor takes a lock, because the garbage collector may
close it, in any thread and at any point of the program. The thread closes its cursor.
"""

import contextvars
import queue
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from kerasfeed.errors import FeedClosedError
from kerasfeed.pool.resource_errors import start_thread
from kerasfeed.util.error_text import drop_frame
from kerasfeed.util.polling import POLL_SECONDS, NotYet, wait_for_exit

Owner = TypeVar("Owner")
_LOGGED = 1 << 16  # batches
_GONE = "the feed of this dataset was deleted: keep a reference to the feed, or to the dataset, while it is iterated"


class EndOfData(Exception):
    """Internal: there are no more batches."""


def check_alive(owner: Owner | None, text: str = _GONE) -> Owner:
    """Return `owner`, the target of a weak reference, if it exists.

    Raises:
        FeedClosedError: The target no longer exists; `text` is the message.
    """
    if owner is None:
        raise FeedClosedError(text)
    return owner


class Cursor(Protocol):
    """The batches of one iteration.

    Only one thread may use it at a time.
    """

    def take(self, timeout: float | None) -> tuple[Any, Any]:
        """Return the position and the arrays of the next batch.

        Batches whose scenes were all skipped are left out.

        Args:
            timeout: Longest wait in seconds; None waits without limit. With 0, this call loads nothing: it returns a
                batch only if it was loaded ahead. It then never returns the first batch of a later repetition, or of a
                later epoch with hooks: the consumer must receive all batches before it.

        Raises:
            NotYet: The batch is not ready; the next call returns it.
            EndOfData: There are no more batches.
            Exception: The batch failed; the next call returns the batch after it.
        """

    def close(self) -> None:
        """Stop taking batches; idempotent.

        Called at the end of an iteration or before it.
        """


class LoopCursor(Cursor, Protocol):
    """The cursor of a loop, which reports the batches it has received.

    Without these reports, as from TensorFlow, the feed does not know the consumer's position.
    """

    def received(self, position: Any) -> None:
        """Report that the consumer has the batch at `position`.

        None reports the end of the iteration.
        """


def batches_of(begin: Callable[[], LoopCursor]) -> Iterator[Any]:
    """Iterate over a cursor, which `begin` makes at the first batch."""
    cursor = begin()
    try:
        while taken := next_of(cursor):
            cursor.received(taken[0])
            yield taken.pop()  # an unfinished loop then holds no batch
        cursor.received(None)
    finally:
        cursor.close()


def next_of(cursor: Cursor) -> list[Any]:
    """Wait for the next batch.

    Return its position and arrays, or [] at the end.
    """
    try:
        return list(cursor.take(None))
    except EndOfData:
        return []
    except FeedClosedError:
        wait_for_exit()
        raise


Convert = Callable[[Cursor], Cursor]  # adds the conversion of batches to a cursor
Begin = Callable[[Convert], Cursor]  # makes the cursor of an iteration of a dataset


class CursorThread:
    """A cursor with its own thread, which takes one batch ahead.

    The user's code runs in that thread.

    Args:
        begin: Makes the cursor; called in the thread.
        context: Context variables to run it with; a thread gets a copy.
    """

    def __init__(self, begin: Callable[[], Cursor], context: contextvars.Context) -> None:
        self._requests: queue.SimpleQueue[bool] = queue.SimpleQueue()  # True for each batch; False ends the thread
        self._requests.put(True)
        self._results: queue.SimpleQueue[tuple[Any, Any] | BaseException] = queue.SimpleQueue()  # at most one
        self._closed = False
        self._thread = threading.Thread(
            target=context.copy().run, args=(self._serve, begin), name="kerasfeed-cursor", daemon=True
        )
        start_thread(self._thread, "an iterator over a dataset of a feed")

    def take(self, timeout: float | None) -> tuple[Any, Any]:
        """See `Cursor.take`."""
        try:
            result = self._results.get(timeout=timeout)
        except queue.Empty:
            raise NotYet from None
        self._requests.put(True)
        if not isinstance(result, BaseException):
            return result
        try:
            raise result
        finally:
            del result  # its traceback holds this frame; a reference here would make a cycle

    def close(self) -> None:
        """See `Cursor.close`.

        The thread closes its cursor; this call does not wait for it.
        """
        self._closed = True
        self._requests.put(False)

    @property
    def is_alive(self) -> bool:
        """Whether the thread is running."""
        return self._thread.is_alive()

    @property
    def is_closed_here(self) -> bool:
        """Whether this is the thread of a closed cursor."""
        return self._closed and self._thread is threading.current_thread()

    def join_closed(self) -> None:
        """If this cursor was closed, wait until its thread ends.

        In that thread itself, do nothing.
        """
        if self._closed and self._thread is not threading.current_thread():
            self._thread.join()

    def _serve(self, begin: Callable[[], Cursor]) -> None:
        cursor: Cursor | None = None
        while self._requests.get():
            try:
                cursor = begin() if cursor is None else cursor
                self._results.put(self._take_from(cursor))
            except BaseException as raised:  # noqa: BLE001 - take() raises it
                drop_frame(raised)  # the traceback must not hold this frame
                self._results.put(raised)
        with suppress(queue.Empty):  # an unclaimed batch would hold its memory
            self._results.get_nowait()
        if cursor is not None:
            cursor.close()

    def _take_from(self, cursor: Cursor) -> tuple[Any, Any]:
        while True:
            with suppress(NotYet):
                return cursor.take(POLL_SECONDS)
            if self._closed:
                raise EndOfData


class CursorThreads:
    """The threads of the cursors of one feed. Thread-safe."""

    def __init__(self) -> None:
        self._known: list[CursorThread] = []

    def begin(self, begin: Callable[[], Cursor], context: contextvars.Context) -> CursorThread:
        """Start a cursor in its own thread; see `CursorThread`."""
        for each in list(self._known):
            if not each.is_alive:
                with suppress(ValueError):  # another thread has removed it
                    self._known.remove(each)
        started = CursorThread(begin, context)
        self._known.append(started)
        return started

    def wait(self) -> None:
        """Wait for the threads of closed cursors.

        Otherwise two threads could run the user's code at once.

        Raises:
            EndOfData: The calling thread is the thread of a closed cursor.
        """
        known = list(self._known)
        if any(each.is_closed_here for each in known):
            raise EndOfData  # two closed threads would wait for each other
        for each in known:
            each.join_closed()


def begin_in_thread(
    feed: Any, make: Callable[[Any], Cursor], context: contextvars.Context, convert: Convert
) -> CursorThread:
    """Begin a dataset's iteration; its thread does not keep `feed` alive.

    Args:
        feed: The feed.
        make: Makes the cursor of the feed; called in the thread.
        context: See `CursorThread`.
        convert: Adds the conversion of batches to a cursor.
    """
    reference = weakref.ref(feed)
    threads: CursorThreads = feed.cursors
    return threads.begin(lambda: convert(make(check_alive(reference()))), context)


class RequestLog:
    """Times of request and receipt of an epoch's last 65,536 batches."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Begin an epoch. Requests in progress belong to the previous one."""
        self._begun: dict[int, float] = {}
        self._finished: dict[int, float] = {}

    def timed(self, number: int, take: Callable[[float | None], Any], timeout: float | None) -> Any:
        """Return `take(timeout)`, batch `number` of the epoch, and log the times.

        If `take` raises `NotYet`, the caller calls this again.
        """
        begun, finished = self._begun, self._finished
        begun.setdefault(number, time.perf_counter())
        batch = take(timeout)
        finished[number] = time.perf_counter()
        for moments in (begun, finished):
            moments.pop(number - _LOGGED, None)
        return batch

    def begun(self, number: int) -> float | None:
        """Time of the request for batch `number` (`time.perf_counter`), or None."""
        return self._begun.get(number)

    def finished(self, number: int) -> float | None:
        """Time at which batch `number` was received, or None."""
        return self._finished.get(number)
