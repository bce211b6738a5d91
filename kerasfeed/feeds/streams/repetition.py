"""One run of a source from its beginning: batches in the order of their items, read ahead of the consumer.

Invariant: whoever takes a batch has it, or it comes again: an entry stays where it is until its batch was handed out,
so that Ctrl-C in whoever waits, or closing by another thread, neither loses nor repeats one.
"""

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

from kerasfeed.errors import FeedClosedError
from kerasfeed.feeds.cursor import EndOfData
from kerasfeed.feeds.streams.place import Departure, Start, StreamPlace
from kerasfeed.feeds.streams.plan import StreamPlan
from kerasfeed.feeds.streams.source import Source
from kerasfeed.loaders.batches.spec_inference import NothingReadError
from kerasfeed.loaders.failures.exceptions import without_reproduction
from kerasfeed.pool.resource_errors import start_thread
from kerasfeed.util.error_notes import can_travel, wrapped
from kerasfeed.util.error_text import cause_of, is_the_programs
from kerasfeed.util.polling import NotYet, result_of

_JOIN_SECONDS = 5.0
_KNOWN_STEPS = 4096  # of batches that were handed out last; more are never given back


class Batches(Protocol):
    """What makes batches of a source's items; see `StreamLoader`."""

    source: Source
    plan: StreamPlan
    ahead: int
    inferred: bool

    def infer(self, step: int, items: list[Any]) -> None:
        """Read a few items of a batch, if the spec of a scene is not known yet."""

    def submit(self, epoch: int, step: int, items: list[Any]) -> "Future[Any]":
        """Promise the batch of these items."""


@dataclass
class RepetitionLog:
    """What is known of a repetition, also when it is over.

    Attributes:
        place: Where it began.
        departures: The generators that have left it so far.
        steps: The step after that of the last batch of which all items have been read.
    """

    place: StreamPlace
    departures: Sequence[Departure] = ()
    steps: int = 0

    def __post_init__(self) -> None:
        self.departures, self.steps = self.place.departures, self.place.step


class Repetition:
    """One run of the source from its beginning, as the consumer sees it: batches in their order, loaded ahead."""

    def __init__(self, core: Batches, place: StreamPlace) -> None:
        """Begin at `place`.

        Attributes:
            number: Of the repetition.
            log: What is known of it.
        """
        self.number = place.repetition
        self.log = RepetitionLog(place)
        self._core = core
        self._first_step = self._step = place.step
        self._handed = place.step  # the step after that of the last entry that was handed out
        self._steps: deque[int] = deque(maxlen=_KNOWN_STEPS)  # of the batches that were, without empty ones
        self._begun = self._over = self._source_over = False
        self._error: BaseException | None = None
        self._unreadable: BaseException | None = None
        self._items: list[Any] = []  # of the batch that is being collected
        self._held: deque[tuple[int, list[Any]]] = deque()  # batches to submit once one has told the spec
        self._awaited: Future[Any] | None = None  # at the head of the entries
        # Promises of batches; behind the last one None, or what ended the repetition.
        self._entries: deque[Future[Any] | BaseException | None] = deque()
        self._returned: deque[tuple[int, Any]] = deque()  # step and batch
        self._condition = threading.Condition()
        self._stopped = False
        self._first = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to read ahead, where that is wanted."""
        if self._core.ahead:
            self._thread = threading.Thread(target=self._read_ahead, name="kerasfeed-stream", daemon=True)
            start_thread(self._thread, "a stream feed that reads ahead")

    # ---- the reading thread, or the consumer's where there is none

    def _read_ahead(self) -> None:
        while True:
            entry = None if self._stopped else self._read()
            with self._condition:
                if self._stopped:
                    if isinstance(entry, Future):
                        entry.cancel()
                    return
                self._entries.append(entry)
                self._first.set()
                self._condition.notify_all()
                is_last = not isinstance(entry, Future)
                del entry  # what was raised has a traceback that holds this frame
                if is_last:
                    return
                self._condition.wait_for(self._wants_more)

    def _wants_more(self) -> bool:
        return self._stopped or len(self._entries) - (self._awaited is not None) < self._core.ahead

    def _read(self) -> "Future[Any] | BaseException | None":
        """The promise of the next batch, what went wrong instead, or None at the end."""
        try:
            return self._submit_next()
        except BaseException as error:
            if self._thread is None and is_the_programs(error):  # Ctrl-C of the consumer: nothing has ended
                raise
            self._over = True
            return error if can_travel(error) else wrapped(error, "the stream raised ")

    def _submit_next(self) -> Future[Any] | None:
        plan = self._core.plan
        while not self._held or not self._core.inferred:
            items = [] if self._over else self._collect()
            if not items or (plan.drop_remainder and len(items) < plan.rows):
                self._held.clear()
                error, self._error = self._error or (None if self._core.inferred else self._unreadable), None
                try:
                    if error is not None:
                        raise error
                    return None
                finally:
                    del error  # whose traceback holds this frame
            self._held.append((self._step, items))
            self._step += 1
            self.log.steps = self._step
            try:
                self._core.infer(*self._held[-1])
            except NothingReadError as error:  # one of the next batches will tell
                self._unreadable = self._unreadable or cause_of(error)
        future = self._core.submit(self.number, *self._held[0])
        self._held.popleft()
        try:
            return future
        finally:
            del future  # see `StreamLoader.submit`

    def _collect(self) -> list[Any]:
        source, rows = self._core.source, self._core.plan.rows
        items = self._items
        try:
            if not self._begun:
                self._begun = True
                source.begin(self.number, Start(self._step * rows, self.log.departures))
                self.log.departures = source.departures
            while len(items) < rows:
                found = source.take(rows - len(items))
                if not found:
                    self._over = self._source_over = True
                    break
                items += found
        except Exception as error:  # noqa: BLE001 - raised after the scenes that came before it
            self._over = self._source_over = True
            self._error = error
        self._items = []
        return items

    # ---- the consumer

    def take(self, timeout: float | None = None) -> Any:
        """The next batch; waits for it. None where every scene of it was skipped.

        Args:
            timeout: How long to wait, s; None is for ever. Where no thread reads ahead, it is read now all the same.

        Raises:
            NotYet: It was not there for so long.
            EndOfData: There is none.
            Exception: What the source raised, or whatever made a scene of an item.
        """
        with suppress(IndexError):
            step, batch = self._returned.popleft()
            self._steps.append(step)
            return batch
        entry = self._next_entry(timeout)
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
                self._steps.append(self._handed - 1)
            return batch
        finally:
            del entry  # it holds what is raised, whose traceback holds this frame: only the collector would free them

    def _next_entry(self, timeout: float | None) -> "Future[Any] | BaseException | None":
        """What is next. It stays where it is, so that Ctrl-C in whoever waits for it loses nothing."""
        self._read_if_alone()
        with self._condition:
            if not self._condition.wait_for(lambda: self._entries or self._stopped, timeout):
                raise NotYet
            if self._stopped or not self._entries:
                raise _ended(self.number)
            entry = self._entries[0]
            self._awaited = entry if isinstance(entry, Future) else None
            self._condition.notify_all()
            try:
                return entry
            finally:
                del entry  # the traceback of what the source raised ends in this frame

    def _read_if_alone(self) -> None:
        """Read what is next, if that is not there and no thread reads ahead."""
        if not self._core.ahead and not self._entries and not self._stopped:
            self._entries.append(self._read())

    def _remove(self, entry: "Future[Any]") -> None:
        with self._condition:
            self._awaited = None
            if self._entries and self._entries[0] is entry:
                self._entries.popleft()
                self._handed += 1

    def peek(self) -> None:
        """Wait until the first batch was submitted, or there is none.

        Raises:
            Exception: What the source raised before the first batch.
        """
        if self._core.ahead:
            self._first.wait()
        elif not self._returned:
            self._read_if_alone()
        with self._condition:
            entry = self._entries[0] if self._entries else None
        if isinstance(entry, BaseException):
            raise entry

    def is_used_up(self, timeout: float | None) -> bool:
        """Whether of a repetition that had something only the end is left; waits until that is known.

        Raises:
            NotYet: It was not known for `timeout` s.
        """
        if not self._returned:
            self._read_if_alone()
        with self._condition:
            if not self._condition.wait_for(lambda: self._entries or self._returned or self._stopped, timeout):
                raise NotYet
            return not self._returned and self._step > 0 and bool(self._entries) and self._entries[0] is None

    def put_back(self, batches: list[Any]) -> None:
        """Return batches that were taken last and not used, in their order: they come again, but for empty ones."""
        for batch in reversed([each for each in batches if each is not None]):
            self._returned.appendleft((self._steps.pop(), batch))

    @property
    def place(self) -> StreamPlace:
        """Where whoever has taken all that was handed out stands."""
        step = self._returned[0][0] if self._returned else self._handed
        return StreamPlace(self.number, step, self.log.departures)

    @property
    def is_resumed(self) -> bool:
        """Whether it did not begin at its beginning."""
        return self._first_step > 0

    def close(self) -> None:
        """End the repetition where it stands; idempotent."""
        with self._condition:
            stopped, self._stopped = self._stopped, True
            entries = list(self._entries)
            self._entries.clear()
            self._condition.notify_all()
        self._first.set()
        if stopped:
            return
        self._returned.clear()
        if self._begun and not self._source_over:
            self._core.source.leave()
        for entry in entries:
            if isinstance(entry, Future):
                entry.cancel()
        if self._thread is not None and self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_SECONDS)

    @property
    def is_stuck(self) -> bool:
        """Whether it was closed, and the source still does not return."""
        return self._stopped and self._thread is not None and self._thread.is_alive()


def _ended(number: int) -> FeedClosedError:
    return FeedClosedError(
        f"repetition {number} of the stream has ended: the feed was closed, or another loop has begun the next one. A "
        "stream is read by one loop at a time; make a feed for each"
    )
