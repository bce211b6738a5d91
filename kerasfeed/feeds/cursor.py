"""`Cursor`: batches taken one after the other, by plain loops, loops of frameworks, `tf.data` and Keras alike.

Invariant: the feed stands where its consumer does: behind the last batch that the consumer has received, not the last
one that was taken.

TensorFlow must not wait for long and may never say that it has ended; see `kerasfeed.util.polling`. Whoever lets go of
what it takes from neither waits nor takes a lock: it may be the garbage collector, in any thread and in the midst of
anything. What there is to do then is done by another thread.
"""

import _thread
import contextvars
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from kerasfeed.errors import FeedClosedError
from kerasfeed.pool.resource_errors import start_thread
from kerasfeed.util.error_text import drop_frame
from kerasfeed.util.polling import POLL_SECONDS, NotYet, wait_for_exit

Owner = TypeVar("Owner")
_NOTED = 1 << 16  # batches
_GONE = "the feed of this dataset is gone: keep a reference to the feed, or to the dataset, while it is iterated"


class EndOfData(Exception):
    """Internal: there is no further batch."""


def check_alive(owner: Owner | None, text: str = _GONE) -> Owner:
    """What a weak reference has given: a feed, or what else batches come from.

    Raises:
        FeedClosedError: It is no more; `text` says so, and what to do.
    """
    if owner is None:
        raise FeedClosedError(text)
    return owner


class Cursor(Protocol):
    """The batches of one iteration, for one thread at a time."""

    def take(self, timeout: float | None) -> tuple[Any, Any]:
        """The next batch with its place, for `received`. Batches whose scenes were all skipped are left out.

        Args:
            timeout: How long to wait for it, s; None is for ever. 0 asks for what others have loaded ahead of batches
                that the consumer has not received: nothing is loaded by this call, and none is given of a repetition,
                or of an epoch with hooks, behind theirs. What a stream raises it raises in its turn.

        Raises:
            NotYet: It was not there for so long; the next call gives it.
            EndOfData: There is none.
            Exception: What the batch raised; the next call gives the one after it.
        """

    def received(self, place: Any) -> None:
        """The consumer has the batch of this place; None: it has all of them, and knows that there are no more.

        Of a consumer that never says so, such as TensorFlow, the feed knows no position.
        """

    def close(self, returned: list[Any]) -> None:
        """No more is taken, at the end as well as before; idempotent.

        Args:
            returned: Batches that were taken last and that the consumer has not received, in their order.
        """


def batches_of(begin: Callable[[], Cursor]) -> Iterator[Any]:
    """The batches of a cursor that is made when the first is asked for: a plain loop over a feed."""
    cursor = begin()
    try:
        while taken := next_of(cursor):
            cursor.received(taken[0])
            yield taken.pop()  # what has been left in the middle then holds no batch
        cursor.received(None)
    finally:
        cursor.close([])


def next_of(cursor: Cursor) -> list[Any]:
    """Wait for the next batch, as long as it takes: place and batch; nothing at the end."""
    try:
        return list(cursor.take(None))
    except EndOfData:
        return []
    except FeedClosedError:
        wait_for_exit()
        raise


_background_calls: list[Any] = []  # locks of what runs elsewhere; a child of a fork runs nothing of it
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_background_calls.clear)
Convert = Callable[[Cursor], Cursor]  # adds the conversion of batches to a cursor
Begin = Callable[[Convert], Cursor]  # makes the cursor of an iteration of a dataset


def run_in_background(function: Callable[..., Any], *arguments: Any) -> None:
    """Run `function` soon, in another thread: for whoever may hold locks that it takes, and for the collector."""
    over = _thread.allocate_lock()
    over.acquire()
    _background_calls.append(over)
    try:
        _thread.start_new_thread(_run, (over, function, arguments))  # threading.Thread takes locks, too
    except RuntimeError:  # the interpreter ends: no more threads
        _run(over, function, arguments)


def _run(over: Any, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        function(*arguments)
    finally:
        _background_calls.remove(over)
        over.release()


def wait_for_background(seconds: float = 5.0) -> None:
    """Wait until all that runs in the background has run, and what that has begun, but no longer than so many seconds.

    For whoever goes on with what was let go of a moment ago. Not for TensorFlow's calls, which it may wait for.
    """
    deadline = time.monotonic() + seconds
    while _background_calls and (left := deadline - time.monotonic()) > 0:
        with suppress(IndexError):  # it has just ended
            over = _background_calls[0]
            if over.acquire(timeout=left):
                over.release()


class CursorThread:
    """A cursor whose batches its own thread takes, one ahead, so that the user's code runs there.

    Args:
        begin: Makes the cursor; called in the thread.
        context: Context variables to run it with; a thread gets a copy.
    """

    def __init__(self, begin: Callable[[], Cursor], context: contextvars.Context) -> None:
        self._asked: queue.SimpleQueue[bool] = queue.SimpleQueue()  # one batch each; False is the end
        self._asked.put(True)
        self._found: queue.SimpleQueue[tuple[Any, Any] | BaseException] = queue.SimpleQueue()  # one at most
        self._closed = False
        self._returned: list[Any] = []
        self._thread = threading.Thread(
            target=context.copy().run, args=(self._serve, begin), name="kerasfeed-cursor", daemon=True
        )
        start_thread(self._thread, "an iterator over a dataset of a feed")

    def take(self, timeout: float | None) -> tuple[Any, Any]:
        """See `Cursor.take`."""
        try:
            found = self._found.get(timeout=timeout)
        except queue.Empty:
            raise NotYet from None
        self._asked.put(True)
        if not isinstance(found, BaseException):
            return found
        try:
            raise found
        finally:
            del found  # its traceback holds this frame: only the collector would free them

    def received(self, place: Any) -> None:
        """See `Cursor.received`; TensorFlow does not say so."""

    def close(self, returned: list[Any]) -> None:
        """See `Cursor.close`; the thread closes what it takes from. Returns at once."""
        self._returned = returned
        self._closed = True
        self._asked.put(False)

    @property
    def is_alive(self) -> bool:
        """Whether its thread runs."""
        return self._thread.is_alive()

    def join_closed(self) -> None:
        """Wait until the thread has ended, where this was closed; returns at once in the thread itself."""
        if self._closed and self._thread is not threading.current_thread():
            self._thread.join()

    def _serve(self, begin: Callable[[], Cursor]) -> None:
        cursor: Cursor | None = None
        while self._asked.get():
            try:
                cursor = begin() if cursor is None else cursor
                self._found.put(self._take_from(cursor))
            except BaseException as raised:  # noqa: BLE001 - for the caller
                drop_frame(raised)  # this one
                self._found.put(raised)
        if cursor is not None:
            returned = self._returned
            with suppress(queue.Empty):  # nobody has fetched what was asked for last
                found = self._found.get_nowait()
                returned = returned if isinstance(found, BaseException) else [*returned, found[1]]
            cursor.close(returned)

    def _take_from(self, cursor: Cursor) -> tuple[Any, Any]:
        while True:
            with suppress(NotYet):
                return cursor.take(POLL_SECONDS)
            if self._closed:
                raise EndOfData


class CursorThreads:
    """The threads that take from one feed. Thread-safe."""

    def __init__(self) -> None:
        self._known: list[CursorThread] = []

    def begin(self, begin: Callable[[], Cursor], context: contextvars.Context) -> CursorThread:
        """A cursor with a thread of its own; see `CursorThread`."""
        self._known = [each for each in self._known if each.is_alive]
        found = CursorThread(begin, context)
        self._known.append(found)
        return found

    def wait(self) -> None:
        """Wait for those that were let go of in the midst of a batch: two at once would run what users wrote."""
        for each in self._known:
            each.join_closed()


class RequestLog:
    """When each batch of an epoch was asked for, and when it came, by its number in the epoch; of the last 65,536."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """An epoch begins; batches that are still waited for belong to the one before."""
        self._begun: dict[int, float] = {}
        self._finished: dict[int, float] = {}

    def timed(self, number: int, take: Callable[[float | None], Any], timeout: float | None) -> Any:
        """What `take(timeout)` gives: batch `number` of the epoch; it may raise `NotYet`, and be asked again."""
        begun, finished = self._begun, self._finished
        begun.setdefault(number, time.perf_counter())
        batch = take(timeout)
        finished[number] = time.perf_counter()
        for moments in (begun, finished):
            moments.pop(number - _NOTED, None)
        return batch

    def begun(self, number: int) -> float | None:
        """Moment at which batch `number` was asked for, s of `time.perf_counter`; None when it has not been."""
        return self._begun.get(number)

    def finished(self, number: int) -> float | None:
        """Moment at which batch `number` came; None when it has not."""
        return self._finished.get(number)
