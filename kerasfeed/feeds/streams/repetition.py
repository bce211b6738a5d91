"""Runs of a source from its beginning: batches in the order of their items, read ahead of the consumer.

Invariant: whoever takes a batch has it, or it comes again: an entry stays where it is until its batch was handed out,
so that Ctrl-C in whoever waits, or closing by another thread, neither loses nor repeats one. One thread at a time reads
the source, that of the running repetition. Of a repetition that was left, each batch comes again once, or never: it is
given to one taker, or closed.
"""

import threading
from collections import deque
from concurrent.futures import CancelledError, Future
from typing import Any

from kerasfeed.errors import FeedClosedError, FeedWarning
from kerasfeed.feeds.cursor import EndOfData
from kerasfeed.feeds.streams.pipeline import StreamLoader
from kerasfeed.feeds.streams.source import StreamPlace
from kerasfeed.loaders.batches.spec_inference import NothingReadError
from kerasfeed.loaders.failures.exceptions import without_reproduction
from kerasfeed.pool.base import CLOSED
from kerasfeed.pool.resource_errors import start_thread
from kerasfeed.util.error_text import can_travel, counted, is_the_programs, wrapped
from kerasfeed.util.polling import NotYet, result_of

_JOIN_SECONDS = 5.0
_KNOWN = 8  # repetitions, of which places can be told
_KNOWN_STEPS = 4096  # of batches that were handed out last; more are never given back


class Repetition:
    """One run of the source from its beginning, as the consumer sees it: batches in their order, loaded ahead."""

    def __init__(self, core: StreamLoader, place: StreamPlace) -> None:
        """Begin at `place`; nothing is read yet.

        Attributes:
            number: Of the repetition.
            departures: The generators that have left it so far.
            steps: The step after that of the last batch of which all items have been read.
        """
        self.number = place.repetition
        self.departures = place.departures
        self._core = core
        self.steps = place.step
        self._handed = place.step  # the step after that of the last entry that was handed out
        self._given: deque[int] = deque(maxlen=_KNOWN_STEPS)  # of the batches that were, without empty ones
        self._begun = self._over = False
        self._error: BaseException | None = None
        self._unreadable: BaseException | None = None
        self._items: list[Any] = []  # of the batch that is being collected
        self._held: deque[tuple[int, list[Any]]] = deque()  # batches to submit once one has told the spec
        # Promises of batches, those that were put back among them; behind the last one None, or what ended it.
        self._entries: deque[Future[Any] | BaseException | None] = deque()
        # Always entered as the lock, never as the condition: Ctrl-C that strikes at the end of the `__enter__` of a
        # condition, which is no C, would leave the lock taken.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._stopped = False
        self._thread: threading.Thread | None = None  # that reads

    def read_ahead(self) -> None:
        """Have a thread read from now on, where that is wanted; idempotent, also where Ctrl-C has ended a call."""
        if self._core.ahead and self._thread is None:
            thread = threading.Thread(target=self._read_ahead, name="kerasfeed-stream", daemon=True)
            start_thread(thread, "a stream feed that reads ahead")

    # ---- the reading thread, or the consumer's where there is none

    def _read_ahead(self) -> None:
        with self._lock:
            if self._thread is not None:
                return
            self._thread = threading.current_thread()
        while True:
            entry = None if self._stopped else self._read()
            with self._lock:
                if self._stopped:
                    if isinstance(entry, Future):
                        entry.cancel()
                    return
                self._entries.append(entry)
                self._changed.notify_all()
                is_last = not isinstance(entry, Future)
                del entry  # what was raised has a traceback that holds this frame
                if is_last:
                    return
                self._changed.wait_for(lambda: self._stopped or len(self._entries) < self._core.ahead)

    def _read(self) -> "Future[Any] | BaseException | None":
        """The promise of the next batch, what went wrong instead, or None at the end."""
        try:
            return self._submit_next()
        except BaseException as error:
            if is_the_programs(error):  # Ctrl-C of the consumer: nothing has ended
                raise
            self._over = True
            return error if can_travel(error) else wrapped(error, "the stream raised ")

    def _submit_next(self) -> Future[Any] | None:
        plan = self._core.plan
        while not self._held or not self._core.inferred:
            items = self._items if self._over else self._collect()
            if not items or (plan.drop_remainder and len(items) < plan.rows):
                self._held.clear()
                if self._error is None and not self._core.inferred:
                    self._error = self._unreadable
                if self._error is None:
                    return None
                raised, self._error = [self._error], None
                raise raised.pop()  # whose traceback holds this frame, which must not hold it
            # The call comes last: Ctrl-C strikes after calls.
            self._items = []
            self.steps += 1
            self._held.append((self.steps - 1, items))
            try:
                self._core.infer(*self._held[-1])
            except NothingReadError as error:  # one of the next batches will tell
                self._unreadable = error.__cause__ if self._unreadable is None else self._unreadable
        promised = [self._core.submit(self.number, *self._held[0])]
        self._held.popleft()
        return promised.pop()  # see `StreamLoader.submit`

    def _collect(self) -> list[Any]:
        """The items of the next batch, which stay in `_items` until they are held."""
        source, rows = self._core.source, self._core.plan.rows
        items = self._items
        try:
            if not self._begun:
                source.begin(self.number, self.steps * rows, self.departures)
                self.departures, self._begun = source.departures, True
            while len(items) < rows:
                found = source.take(rows - len(items))
                if not found:
                    self._over = True
                    if source.is_share and not self._stopped:
                        self._tell_steps(len(items))
                    break
                items += found
        except Exception as error:  # noqa: BLE001 - raised after the scenes that came before it
            self._over = True
            self._error = error
        except BaseException:  # Ctrl-C, which has ended the generator that it struck: what it gave is made again
            self._items, self._begun, self._over = [], False, False
            raise
        return items

    def _tell_steps(self, rest: int) -> None:
        """Tell how many steps this shard had, of which the last, if any, has `rest` items."""
        plan = self._core.plan
        steps = self.steps + (rest > 0 and not plan.drop_remainder)
        scenes = self.steps * plan.rows + rest
        self._core.source.deferred_warnings.defer(
            "steps",
            f"repetition {self.number} had {counted(steps, 'step')} ({counted(scenes, 'scene')}) on "
            f"shard {plan.shard_index} of {plan.shard_count}. The others run other generators, and may have more or "
            "fewer: a training step that waits for all shards would then hang. Pass steps_per_epoch to fit, or count=1 "
            "for generators that all shards run, with the scenes dealt in turn, to all the same number of steps",
            FeedWarning,
        )

    # ---- the consumer

    def next_batch(self, timeout: float | None = None) -> Any:
        """The next batch; waits for it. None where every scene of it was skipped.

        Args:
            timeout: How long to wait, s; None is for ever. Where no thread reads ahead, it is read now all the same.

        Raises:
            NotYet: It was not there for so long.
            EndOfData: There is none.
            Exception: What the source raised, or whatever made a scene of an item.
        """
        entry = self._head(timeout)
        if entry is None:
            raise EndOfData
        try:
            if not isinstance(entry, Future):
                without_reproduction(entry)
                raise entry
            try:
                batch = result_of(entry, timeout)
            except NotYet:
                raise
            except CancelledError:
                raise _ended(self.number) from None
            except Exception as error:
                self._remove(entry)
                without_reproduction(error)
                raise
            self._remove(entry)
            if batch is not None:
                self._given.append(self._handed - 1)
            return batch
        finally:
            del entry  # it holds what is raised, whose traceback holds this frame: only the collector would free them

    def _head(self, timeout: float | None) -> "Future[Any] | BaseException | None":
        """What is next; waits `timeout` s. It stays where it is: Ctrl-C in whoever waits for it loses nothing."""
        if not self._core.ahead and not self._entries and not self._stopped:  # no thread reads
            self._entries.append(self._read())
        with self._lock:
            if not self._changed.wait_for(lambda: self._entries or self._stopped, timeout):
                raise NotYet
            if self._stopped:
                raise _ended(self.number)
            return self._entries[0]  # never a local: the traceback of what the source raised may hold this frame

    def _remove(self, entry: "Future[Any]") -> None:
        with self._lock:
            if self._entries and self._entries[0] is entry:
                self._entries.popleft()
                self._handed += 1
                self._changed.notify_all()

    @property
    def has_batch(self) -> bool:
        """Whether the next batch is there; False also where an error, or the end, is next."""
        with self._lock:
            entry = self._entries[0] if self._entries else None
        return isinstance(entry, Future) and entry.done() and not entry.cancelled() and entry.exception() is None

    def peek(self) -> None:
        """Wait until the first batch was submitted, or there is none.

        Raises:
            Exception: What the source raised before the first batch.
        """
        entry = self._head(None)
        if isinstance(entry, BaseException):
            raise entry

    def is_used_up(self, timeout: float | None) -> bool:
        """Whether of a repetition that had something only the end is left; waits until that is known.

        Raises:
            NotYet: It was not known for `timeout` s.
        """
        return not self._stopped and self._head(timeout) is None and self.steps > 0

    def put_back(self, batches: list[Any]) -> None:
        """Return batches that were taken last and not used, in their order: they come again, but for empty ones."""
        for batch in reversed([each for each in batches if each is not None]):
            step = self._given.pop()
            with self._lock:
                self._entries.extendleft(map(_done, [None] * (self._handed - step - 1)))
                self._entries.appendleft(_done(batch))
                self._handed = step

    @property
    def place(self) -> StreamPlace:
        """Where whoever has taken all that was handed out stands."""
        return StreamPlace(self.number, self._handed, self.departures)

    def close(self) -> None:
        """End the repetition where it stands; idempotent."""
        with self._lock:
            stopped, self._stopped = self._stopped, True
            entries = list(self._entries)
            self._entries.clear()
            self._changed.notify_all()
        if stopped:
            return
        self._core.source.leave()
        for entry in entries:
            if isinstance(entry, Future):
                entry.cancel()
        if self._thread is not None and self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_SECONDS)

    @property
    def is_used(self) -> bool:
        """Whether a batch of it was handed out and not put back; batches of which nothing is left do not count."""
        return bool(self._given)

    @property
    def is_stuck(self) -> bool:
        """Whether it was closed, and the source still does not return."""
        return self._stopped and self._thread is not None and self._thread.is_alive()


def _done(batch: Any) -> "Future[Any]":
    future: Future[Any] = Future()
    future.set_result(batch)
    return future


class Repetitions:
    """The repetitions of one feed, one after the other: the last one that was begun, and which comes next.

    Attributes:
        known: The last ones, also those that are over, for their places.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._last: Repetition | None = None
        self._is_kept = False  # the last one was left, to be gone on with
        self._is_chained = False  # by who asks for what was chained; else by whoever comes next
        self._next = 0
        self._resumed: StreamPlace | None = None  # where the next repetition that is asked for begins
        self._closed = False
        self.known: deque[Repetition] = deque(maxlen=_KNOWN)

    @property
    def resumed_number(self) -> int | None:
        """Number of the repetition that is gone on with by a state; None where none is."""
        return None if self._resumed is None else self._resumed.repetition

    def begin(self, core: StreamLoader, *, chained: bool, timeout: float | None) -> Repetition:
        """What is kept of a repetition, or the next one; see `kerasfeed.feeds.stream_feed.BaseStreamFeed`.

        Args:
            core: Makes the batches.
            chained: Whether what is kept is wanted, also of one of which something was used.
            timeout: How long to wait for the source to tell whether anything is left of it, s; None is for ever.

        Raises:
            NotYet: What is kept of one has told nothing for so long.
            FeedClosedError: The feed is closed.
        """
        with self._lock:
            if self._resumed is not None:
                self._begin(core, self._resumed)
                self._resumed, self._is_kept, self._is_chained = None, True, False
            kept = self._last if self._is_kept and (chained or not self._is_chained) else None
            self._is_kept = False
        try:
            if kept is not None:
                kept.read_ahead()
                if not kept.is_used_up(timeout):
                    return kept
        except BaseException:  # NotYet, or Ctrl-C while it waited for the source
            self._is_kept = kept is self._last
            raise
        return self._begin(core, StreamPlace(self._next))

    def _begin(self, core: StreamLoader, place: StreamPlace) -> Repetition:
        with self._lock:
            if self._closed:
                raise FeedClosedError(CLOSED)
            if self._last is not None:
                self._last.close()
                if self._last.is_stuck:
                    raise RuntimeError(
                        "the stream cannot begin anew: what was left of the repetition before still waits for its "
                        "source, which does not return. Give generators a timeout, or make a new feed"
                    )
            # Kept until it reads: Ctrl-C that strikes meanwhile leaves it to whoever comes next.
            begun = Repetition(core, place)
            self._last, self._next, self._is_kept, self._is_chained = begun, place.repetition + 1, True, False
            self.known.append(begun)
            begun.read_ahead()
            self._is_kept = False
            return begun

    def keep(self, repetition: Repetition, *, chained: bool, whole: bool) -> None:
        """Keep a repetition that was left, for whoever comes next, or close it.

        Args:
            repetition: It.
            chained: Whether it is gone on with later by who asks for that, also where a part of it was used.
            whole: Whether all batches that were not used come again.
        """
        with self._lock:
            again = whole and (chained or not repetition.is_used) and repetition is self._last
            if again:
                self._is_kept, self._is_chained = True, repetition.is_used
        if not again:
            repetition.close()

    def resume(self, place: StreamPlace) -> None:
        """The next repetition begins at `place`; what is kept of one is closed."""
        with self._lock:
            kept, self._is_kept = self._last if self._is_kept else None, False
            self._resumed = place
        if kept is not None:
            kept.close()

    def close(self) -> None:
        """End the last one, and let none be begun; idempotent."""
        with self._lock:
            self._closed = True
            last, self._last = self._last, None
        if last is not None:
            last.close()


def _ended(number: int) -> FeedClosedError:
    return FeedClosedError(
        f"repetition {number} of the stream has ended: the feed was closed, or another loop has begun the next one. A "
        "stream is read by one loop at a time; make a feed for each"
    )
