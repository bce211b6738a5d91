"""Repetitions of a stream, and cursors of the loops over it.

Invariant: each batch carries the position after it, and a cursor knows the position after the last batch received. A
repetition is closed, never repaired: it closes when its loop ends and after Ctrl-C. Its unreceived batches are lost,
except batches read for a spec or to build a model.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from itertools import islice
from typing import Any

from kerasfeed.errors import FeedClosedError, FeedWarning
from kerasfeed.feeds.cursor import EndOfData, check_alive
from kerasfeed.feeds.stream_loader import StreamLoader
from kerasfeed.feeds.stream_merge import SourceRun, StreamPosition
from kerasfeed.loaders.batches.slots import failed_future
from kerasfeed.pool.resource_errors import start_thread
from kerasfeed.util.error_text import is_the_programs
from kerasfeed.util.polling import NotYet, result_of

EMPTY = (
    "the stream is empty: it ended before its first batch, which must be full with drop_remainder=True. Check what its "
    "generators read; a generator that was made once, outside make_generator, is exhausted after one repetition"
)
_JOIN_SECONDS = 5.0

# A batch and the position after it; at the end of a repetition, its error or `EndOfData`, and no position.
Entry = tuple[Future[Any], StreamPosition | None]


class Repetition:
    """One run of the generators.

    A thread reads ahead if the feed has workers.

    Attributes:
        start: Its first position.
        read: The position after the last batch read.
        used: Whether the consumer received a batch.
        closed: Whether `close` was called.
        peeked: Number of batches that the consumer took but leaves to the next consumer.
        warnings: Warnings for the user.
    """

    def __init__(self, loader: StreamLoader, start: StreamPosition) -> None:
        """Create a repetition that begins at `start`; `begin` starts it."""
        self.start = self.read = start
        self.used = self.closed = False
        self.peeked = 0
        self._loader = loader
        self.warnings = loader.failure_log.deferred_warnings
        self._run: SourceRun | None = None
        self._entries: deque[Entry] = deque()
        # Use the lock, not the condition: Ctrl-C inside `Condition.__enter__` (Python code) would leave it acquired.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._reading = self._read()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Start the thread that reads ahead, if any.

        The feed calls this after it has stored the repetition.
        """
        if self._loader.ahead:
            self._thread = threading.Thread(target=self._read_ahead, name="kerasfeed-stream", daemon=True)
            start_thread(self._thread, "a stream feed that reads ahead")

    # ---- in the reading thread, or without one in the consumer's thread

    def _read_ahead(self) -> None:
        position: StreamPosition | None = self.start
        while position is not None:
            future, position = self._next_entry()
            with self._lock:
                if self.closed:
                    future.cancel()
                    return
                self._entries.append((future, position))
                self._changed.notify_all()
                del future  # a waiting thread must not keep a batch alive
                self._changed.wait_for(lambda: self.closed or len(self._entries) < self._loader.ahead)

    def _next_entry(self) -> Entry:
        try:
            return next(self._reading, None) or (failed_future(EndOfData()), None)
        except BaseException as error:
            if is_the_programs(error):
                raise
            return failed_future(error), None

    def _read(self) -> Iterator[Entry]:
        """Read items, and submit their batches once the spec is known."""
        loader, plan = self._loader, self._loader.plan
        waiting: deque[tuple[list[Any], int, StreamPosition]] = deque()  # batches read before the spec is known
        raised: list[BaseException] = []  # the error that ends the repetition, raised after the earlier batches
        unreadable: list[BaseException] = []
        self._run, items = loader.begin(self.start)
        run, over = self._run, False
        try:
            while not over:
                scenes = _next_items(items, plan.rows, raised)
                if self.closed:
                    return
                over = len(scenes) < plan.rows
                if scenes and not (over and plan.drop_remainder):
                    step = self.read.step
                    if not raised:  # else the batch is cut short, and comes again, complete, after a resume
                        self.read = StreamPosition(self.start.repetition, step + 1, run.merge.ended)
                    waiting.append((scenes, step, self.read))
                    unreadable += loader.infer(step, scenes)  # if it fails, a later batch shows the spec
                del scenes  # a suspended generator must not keep them alive, nor a future
                while waiting and loader.inferred:
                    yield loader.submit(*waiting.popleft())
        finally:
            run.close()
        if raised or waiting:
            raise (raised or unreadable).pop(0)  # pop: the traceback holds this frame: a reference would be a cycle
        loader.warn_of_steps(self.read)

    # ---- the consumer

    def take(self, timeout: float | None, *, peeks: bool) -> tuple[StreamPosition, Any]:
        """Return the position after the next batch, and the batch.

        The batch is None if all its scenes were skipped.

        Args:
            timeout: How long to wait, s; None waits without limit, and 0 reports neither an error nor the end. Without
                a reading thread, this call makes the batch regardless of the timeout.
            peeks: Whether the batch stays for the next consumer; the feed then resets `peeked`.

        Raises:
            NotYet: The batch was not ready in time.
            EndOfData: The repetition has ended.
            FeedClosedError: The repetition is closed.
            Exception: An error of the generators or of the functions.
        """
        if timeout == 0 and self._thread is None:
            raise NotYet
        future, position = self._entry(self.peeked, timeout)
        try:
            if timeout == 0 and not _is_batch(future):
                raise NotYet
            batch = result_of(future, timeout)
        except CancelledError:
            raise _ended_error(self.start.repetition) from None
        finally:
            del future  # the traceback of its error would hold this frame
        assert position is not None  # else the future raised
        with self._lock:
            if peeks:
                self.peeked += 1
            elif self._entries:  # else another thread closed the repetition
                self.used = True
                self._entries.popleft()
                self._changed.notify_all()
        return position, batch

    def _entry(self, number: int, timeout: float | None) -> Entry:
        if self._thread is None and len(self._entries) == number and not self.closed:
            self._entries.append(self._next_entry())
        with self._lock:
            if not self._changed.wait_for(lambda: self.closed or len(self._entries) > number, timeout):
                raise NotYet
            if self.closed:
                raise _ended_error(self.start.repetition)
            return self._entries[number]

    def close(self) -> None:
        """End the repetition; idempotent, even if Ctrl-C interrupted an earlier call."""
        with self._lock:
            self.closed = True
            entries = list(self._entries)
            self._entries.clear()
            self._reading = iter(())  # free the shuffle buffer
            self._changed.notify_all()
        if self._run is not None:
            self._run.close()
        for future, _ in entries:
            future.cancel()
        thread = self._thread
        if thread is not None and thread.is_alive() and thread is not threading.current_thread():
            thread.join(_JOIN_SECONDS)
        self._run = None  # it holds the memory of blocks

    @property
    def is_stuck(self) -> bool:
        """Whether the generators still run after `close`."""
        return self.closed and self._thread is not None and self._thread.is_alive()


def _next_items(items: Iterator[Any], count: int, raised: list[BaseException]) -> list[Any]:
    """Return up to `count` items.

    There are fewer at the end, or at an exception, which is added to `raised`.
    """
    taken: list[Any] = []
    try:
        taken.extend(islice(items, count))  # keeps the items before an exception
    except Exception as error:  # noqa: BLE001 - raised after the items before it
        raised.append(error)
    return taken


def _is_batch(future: Future[Any]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


def _ended_error(number: int) -> FeedClosedError:
    return FeedClosedError(
        f"repetition {number} of the stream has ended: the feed was closed, or another loop has begun the next one. A "
        "stream is read by one loop at a time; make a feed for each"
    )


class StreamCursor:
    """A loop over the next repetitions of a stream; see `kerasfeed.feeds.cursor.Cursor`.

    It does not keep the stream alive.

    Attributes:
        taken: Batches taken so far.
        building: See `__init__`.
    """

    def __init__(
        self,
        feed: Callable[[], Any],
        repetitions: int | None = 1,
        *,
        required: bool = False,
        building: bool = False,
        known_positions: int = 0,
    ) -> None:
        """Take batches of a stream.

        Args:
            feed: A weak reference to the stream.
            repetitions: Number of repetitions, at least 1. None continues until a repetition is empty.
            required: Whether an empty stream is an error.
            building: Whether Keras builds a model with the batches, which then stay for the next loop.
            known_positions: Number of earlier positions that `position_after` can return.
        """
        self._feed = feed
        self._repetitions = repetitions  # still to begin, or running
        self._required = required
        self.building = building
        self._repetition: Repetition | None = None
        self._positions: deque[StreamPosition] = deque(maxlen=known_positions + 1)  # around the last batches
        self.taken = 0
        self._lock = threading.Lock()

    def take(self, timeout: float | None) -> tuple[StreamPosition, Any]:
        """See `kerasfeed.feeds.cursor.Cursor.take`. An error ends the repetition; no batch follows it.

        Raises:
            NotYet: The next batch is not ready.
            EndOfData: The repetitions, or the loop, have ended.
            ValueError: The stream is empty but `required`.
            Exception: An error of the stream.
        """
        with self._lock:
            feed = check_alive(self._feed())
            while self._repetitions != 0:
                repetition = self._repetition or self._begin(feed)
                try:
                    position, batch = repetition.take(timeout, peeks=self.building)
                    feed.issue_warnings()
                except NotYet:
                    raise
                except EndOfData:
                    self._end(repetition)
                    feed.issue_warnings()
                    continue
                except BaseException:
                    self._repetitions = 0
                    repetition.close()
                    raise
                if batch is not None:
                    self.taken += 1
                    self._positions.append(position)
                    return position, batch
            raise EndOfData

    def _begin(self, feed: Any) -> Repetition:
        repetition: Repetition = feed.begin_repetition()
        self._repetition = repetition
        if not self._positions:
            self._positions.append(repetition.start)
        return repetition

    def _end(self, repetition: Repetition) -> None:
        """Close a finished repetition; warn if it was empty.

        Raises:
            ValueError: The stream is empty but `required`.
        """
        self._repetition = None
        repetition.close()
        empty = repetition.read == repetition.start
        if empty and repetition.start.step:  # resumed at its end
            return
        explained = any(map(repetition.warnings.is_known, ("dealt", "steps")))
        if empty and not self._required and not explained:
            repetition.warnings.defer("empty", EMPTY, FeedWarning)
        if self._repetitions is None:
            self._repetitions = 0 if empty else None
        else:
            self._repetitions -= 1
            if not self._repetitions:
                self._positions[-1] = StreamPosition(repetition.start.repetition + 1)
        if self._repetitions == 0 and self._required and not self.taken:
            raise ValueError(EMPTY) from None

    def received(self, position: StreamPosition | None) -> None:
        """See `kerasfeed.feeds.cursor.LoopCursor.received`."""
        feed = check_alive(self._feed())
        if position is None:
            position = self._positions[-1] if self._positions else None
            feed.issue_warnings()
        if position is not None:
            feed.position = position

    def position_after(self, used: int) -> StreamPosition | None:
        """Return the position after `used` batches; None if unknown."""
        behind = max(0, self.taken - used)
        return self._positions[-1 - behind] if behind < len(self._positions) else None

    def close(self) -> None:
        """See `kerasfeed.feeds.cursor.Cursor.close`; batches that were taken and not received are lost."""
        with self._lock:
            self._repetitions = 0
            repetition, self._repetition = self._repetition, None
            feed = self._feed()  # None if garbage-collected before Keras's generator
            if repetition is not None and (repetition.used or feed is None or not feed.keep(repetition)):
                repetition.close()
