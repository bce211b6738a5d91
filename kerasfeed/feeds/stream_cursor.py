"""Repetitions of a stream, and the batches that one loop takes of them: of the user's, of Keras's or of a dataset.

Invariant: each batch carries the position behind it, and a cursor knows the position of the last batch received. A
repetition is thrown away, never repaired: it is closed when its loop is left and after Ctrl-C. Batches that were made
ahead and not received do not come again, except those read for a spec or to build a model.
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
from kerasfeed.feeds.stream_merge import StreamPosition
from kerasfeed.feeds.stream_source import Left, SourceRun
from kerasfeed.loaders.batches.spec_inference import NothingReadError
from kerasfeed.pool.resource_errors import start_thread
from kerasfeed.util.error_text import counted, is_the_programs
from kerasfeed.util.polling import NotYet, result_of

SUPERSEDED = "another fit, or loop, of the stream has begun. A stream is read by one at a time; make a feed for each"
EMPTY = (
    "the stream is empty: it ended before its first scene. Check what its generators read; a generator made once and "
    "for all, outside make_generator, is exhausted after one repetition"
)
KEPT = 8  # more than Keras and its backends take ahead of what they use
_JOIN_SECONDS = 5.0

# A batch with the position behind it; at the end of a repetition what ended it, or None.
Entry = tuple[Future[Any] | BaseException | None, StreamPosition]


class Repetition:
    """One run of the generators: batches in their order, made ahead by a thread if the feed has workers."""

    def __init__(self, core: StreamLoader, start: StreamPosition) -> None:
        """Begin at `start`; nothing is read before `begin`.

        Attributes:
            start: As it was given.
            read: The position behind the last batch that was read.
            used: Whether a batch was received.
            closed: Whether it was ended.
        """
        self.start = self.read = start
        self.used = self.closed = False
        self._core = core
        self._run: SourceRun | None = None
        self._entries: deque[Entry] = deque()
        # Entered by itself: Ctrl-C may come when `Condition.__enter__`, which is Python, has acquired it.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._reading = self._read()
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Start the thread that reads ahead, if there is to be one. The feed knows the repetition by then."""
        if self._core.ahead:
            self._thread = threading.Thread(target=self._read_ahead, name="kerasfeed-stream", daemon=True)
            start_thread(self._thread, "a stream feed that reads ahead")

    # ---- the reading thread, or the consumer's if there is none

    def _read_ahead(self) -> None:
        more = True
        while more:
            entry = self._next_entry()
            more = isinstance(entry[0], Future)
            with self._lock:
                if self.closed:
                    if isinstance(entry[0], Future):
                        entry[0].cancel()
                    return
                self._entries.append(entry)
                self._changed.notify_all()
                del entry  # the traceback of an error holds this frame
                self._changed.wait_for(lambda: self.closed or len(self._entries) < self._core.ahead)

    def _next_entry(self) -> Entry:
        try:
            return next(self._reading, (None, self.read))
        except BaseException as error:
            if is_the_programs(error):
                raise
            return error, self.read

    def _read(self) -> Iterator[Entry]:
        """Read items, and submit batches of them as soon as the spec is known."""
        core, plan = self._core, self._core.plan
        waiting: deque[tuple[list[Any], StreamPosition]] = deque()  # no spec followed from these batches
        raised: list[BaseException] = []  # what ends the repetition, after the batches before it
        unreadable: list[BaseException] = []
        self._run, items = core.begin(self.start)
        run, count, over = self._run, self.start.step * plan.rows, False
        try:
            while not (over or self.closed):
                scenes = _next_items(items, plan.rows, raised)
                count += len(scenes)
                over = len(scenes) < plan.rows
                if scenes and not (over and plan.drop_remainder):
                    self.read = StreamPosition(self.start.repetition, self.read.step + 1, run.ended)
                    waiting.append((scenes, self.read))
                    try:
                        core.infer(self.read.step - 1, scenes)
                    except NothingReadError as error:  # the spec follows from one of the next batches
                        assert error.__cause__ is not None
                        unreadable.append(error.__cause__)
                del scenes  # they are not kept while this waits
                while waiting and core.inferred:
                    yield self._submitted(*waiting.popleft())
        except Left:
            return
        finally:
            run.leave()
        if waiting and not raised:
            raised = unreadable[:1]
        if raised:
            raise raised.pop()  # its traceback holds this frame, which must not hold it
        if core.is_share and not self.closed:
            self._warn_of_steps(count)

    def _submitted(self, items: list[Any], position: StreamPosition) -> Entry:
        return self._core.submit(position.repetition, position.step - 1, items), position

    def _warn_of_steps(self, scenes: int) -> None:
        """Report how many steps, and scenes, this shard had."""
        plan = self._core.plan
        self._core.failure_log.deferred_warnings.defer(
            "steps",
            f"repetition {self.start.repetition} had {counted(self.read.step, 'step')} ({counted(scenes, 'scene')}) on "
            f"shard {plan.shard_index} of {plan.shard_count}. The others run other generators, and may have more or "
            "fewer: a training step that waits for all shards would then hang. Pass steps_per_epoch to fit, or count=1 "
            "for generators that all shards run, with the scenes dealt in turn, to all the same number of steps",
            FeedWarning,
        )

    # ---- the consumer

    def take(self, number: int, timeout: float | None) -> tuple[StreamPosition, Any]:
        """Return batch `number` of the queue, and the position behind it; None if all scenes of the batch were skipped.

        Args:
            number: 0 unless batches before it were taken, and stay until they are `pop`ped.
            timeout: How long to wait, s; None is for ever, and 0 never gives an error or an end. Without a thread that
                reads ahead, the batch is made now all the same.

        Raises:
            NotYet: It was not there for so long.
            EndOfData: There is none.
            FeedClosedError: The repetition is closed.
            Exception: What the source raised, or whatever made a scene of an item.
        """
        entry, position = self._entry(number, timeout)
        try:
            if timeout == 0 and not _is_batch(entry):
                raise NotYet
            if entry is None:
                raise EndOfData
            if isinstance(entry, BaseException):
                raise entry
            return position, result_of(entry, timeout)
        except CancelledError:
            raise _ended(self.start.repetition) from None
        finally:
            del entry  # it may hold an error whose traceback holds this frame

    def pop(self) -> None:
        """The first batch was received."""
        with self._lock:
            self.used = True
            if self._entries:
                self._entries.popleft()
            self._changed.notify_all()

    def peek(self) -> bool:
        """Wait until the first batch was read; whether there is one.

        Raises:
            Exception: What the source raised before it.
        """
        entry = self._entry(0, None)[0]
        if isinstance(entry, BaseException):
            raise entry
        return entry is not None

    def _entry(self, number: int, timeout: float | None) -> Entry:
        if self._thread is None and len(self._entries) == number and not self.closed:
            self._entries.append(self._next_entry())
        with self._lock:
            if not self._changed.wait_for(lambda: self.closed or len(self._entries) > number, timeout):
                raise NotYet
            if self.closed:
                raise _ended(self.start.repetition)
            return self._entries[number]

    def close(self) -> None:
        """End the repetition; idempotent, also after Ctrl-C in an earlier call."""
        with self._lock:
            self.closed = True
            entries = list(self._entries)
            self._entries.clear()
            self._reading = iter(())  # a shuffle buffer is freed
            self._changed.notify_all()
        if self._run is not None:
            self._run.leave()
        for entry, _ in entries:
            if isinstance(entry, Future):
                entry.cancel()
        thread = self._thread
        if thread is not None and thread.is_alive() and thread is not threading.current_thread():
            thread.join(_JOIN_SECONDS)

    @property
    def is_stuck(self) -> bool:
        """Whether it was closed, and the generators still do not return."""
        return self.closed and self._thread is not None and self._thread.is_alive()


def _next_items(items: Iterator[Any], count: int, raised: list[BaseException]) -> list[Any]:
    """The next items, at most `count`; fewer at the end, or if there is an exception, which is added to `raised`."""
    found: list[Any] = []
    try:
        found.extend(islice(items, count))  # keeps the items before an exception
    except Exception as error:  # noqa: BLE001 - raised after the items before it
        raised.append(error)
    return found


def _is_batch(entry: Future[Any] | BaseException | None) -> bool:
    return isinstance(entry, Future) and entry.done() and not entry.cancelled() and entry.exception() is None


def _ended(number: int) -> FeedClosedError:
    return FeedClosedError(
        f"repetition {number} of the stream has ended: the feed was closed, or another loop has begun the next one. A "
        "stream is read by one loop at a time; make a feed for each"
    )


class StreamCursor:
    """The next repetitions of a stream, which this does not keep alive; see `kerasfeed.feeds.cursor.Cursor`."""

    def __init__(
        self,
        feed: Callable[[], Any],
        repetitions: int | None = 1,
        *,
        required: bool = False,
        building: bool = False,
        kept: int = 0,
    ) -> None:
        """Take batches of a stream.

        Args:
            feed: A weak reference to it.
            repetitions: How many, at least 1. None is one after the other, until one of them is empty.
            required: Whether it is an error that there is nothing.
            building: Whether Keras takes only to build a model: the batches stay for the next loop.
            kept: How many positions are kept, for `position_after`.

        Attributes:
            left: Whether no more is taken.
            superseded: Whether that is because another fit, or a loop, has begun.
            taken: Batches taken so far.
            building: As it was given.
        """
        self._feed = feed
        self._repetitions = repetitions
        self._required = required
        self.building = building
        self._repetition: Repetition | None = None
        self._positions: deque[StreamPosition] = deque(maxlen=kept + 1)  # behind each of the last batches, and before
        self.taken = 0
        self._taken_before = 0  # of them, before the repetition
        self._staying = 0  # entries that were taken and stay in the repetition
        self._over = False
        self.left = self.superseded = False
        self._lock = threading.Lock()

    def take(self, timeout: float | None) -> tuple[StreamPosition, Any]:
        """See `kerasfeed.feeds.cursor.Cursor.take`. An error ends the repetition; there is no batch after it.

        Raises:
            NotYet: See there.
            EndOfData: There is none, or this cursor was left.
            FeedClosedError: Another fit, or a loop, has begun.
            ValueError: There is nothing, and something is required.
            Exception: What the stream raised.
        """
        with self._lock:
            feed = check_alive(self._feed())
            if timeout == 0 and not feed.reads_ahead:
                raise NotYet
            while not (self.left or self._over):
                repetition = self._repetition or self._begin(feed)
                try:
                    position, batch = repetition.take(self._staying, timeout)
                    feed.issue_warnings()
                except NotYet:
                    raise
                except EndOfData:
                    self._end(repetition)
                    continue
                except BaseException:
                    self._over = True
                    repetition.close()
                    raise
                if self.building:
                    self._staying += 1
                else:
                    repetition.pop()
                if batch is not None:
                    self.taken += 1
                    self._positions.append(position)
                    return position, batch
            if self.superseded:
                raise FeedClosedError(SUPERSEDED)
            if self._required and not (self.taken or self.left):
                raise ValueError(EMPTY)
            raise EndOfData

    def _begin(self, feed: Any) -> Repetition:
        repetition: Repetition = feed.begin_repetition()
        self._repetition = repetition
        self._taken_before, self._staying = self.taken, 0
        if not self._positions:
            self._positions.append(repetition.start)
        return repetition

    def _end(self, repetition: Repetition) -> None:
        """The repetition is over."""
        self._repetition = None
        repetition.close()
        empty = self.taken == self._taken_before
        if empty and repetition.start.step:  # resumed at its end
            return
        if self._repetitions is None:
            self._over = empty
            return
        self._repetitions -= 1
        if not self._repetitions:
            self._over = True
            self._positions[-1] = StreamPosition(repetition.start.repetition + 1)

    def received(self, place: StreamPosition | None) -> None:
        """See `kerasfeed.feeds.cursor.Cursor.received`."""
        feed = check_alive(self._feed())
        if place is None:
            place = self._positions[-1] if self._positions else None
            feed.issue_warnings()
        if place is not None:
            feed.note_position(place)

    def position_after(self, used: int) -> StreamPosition | None:
        """The position of a consumer that has used so many batches; None if nothing was taken, or it is unknown."""
        behind = max(0, self.taken - used)
        return self._positions[-1 - behind] if behind < len(self._positions) else None

    def close(self, returned: list[Any]) -> None:
        """See `kerasfeed.feeds.cursor.Cursor.close`; the `returned` batches do not come again."""
        with self._lock:
            self.left = True
            repetition, self._repetition = self._repetition, None
            feed = self._feed()  # None: collected before Keras's generator
            if repetition is not None and (repetition.used or feed is None or not feed.keep(repetition)):
                repetition.close()
