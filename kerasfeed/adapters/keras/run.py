"""The batches that one of Keras's iterators takes from a feed.

Invariant: Keras's iterator may first take batches to build the model, and is then reset; after that the epochs begin.
Batches taken before are not counted, and are delivered again. The user's code runs in the trainer's thread, and its
exceptions are raised there unchanged.
"""

import _thread
import queue
import sys
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from kerasfeed.adapters.keras.trainer import TrainerRequest, execution_of, is_called_by_loop, steps_per_epoch_of
from kerasfeed.errors import FeedClosedError
from kerasfeed.feeds.cursor import Cursor, EndOfData
from kerasfeed.util.error_text import drop_frame, note_causes
from kerasfeed.util.polling import POLL_SECONDS, NotYet
from kerasfeed.util.validate import check_integer


class Handover:
    """Passes batches from Keras's loop to the consumer in the training step.

    On JAX and PyTorch both are in the trainer's thread. On TensorFlow, threads of TensorFlow take batches that `ensure`
    has loaded. If one more batch than requested is ready, `ensure` loads it too: TensorFlow converts and copies that
    batch while the model trains on earlier batches. A `Handover` is a `Cursor`.

    Args:
        run: The run of the batches.
        cursor: Source of the batches.

    Attributes:
        taken_count: Number of batches taken so far, including the one ahead.
    """

    def __init__(self, run: "KerasRun", cursor: Cursor) -> None:
        self._run = run
        self._cursor = cursor
        self._shared = run.in_other_threads
        self._ready: queue.SimpleQueue[tuple[Any, Any] | None] = queue.SimpleQueue()  # None at the end
        self._ended = self._closed = False
        self._error: Exception | None = None  # the error of the batch ahead
        self.taken_count = 0

    def take(self, timeout: float | None) -> tuple[Any, Any]:
        """See `Cursor.take`."""
        if self._closed:
            raise EndOfData
        if not self._shared and self._ready.empty():
            return self._next(timeout)
        try:
            taken = self._ready.get(timeout=timeout)
        except queue.Empty:
            raise NotYet from None
        if taken is None or self._closed:
            self._end()  # so that the next call ends, too
            raise EndOfData
        return taken

    def ensure(self, count: int, *, last: bool = False) -> bool:
        """Wait for `count` batches; return False if there are fewer.

        Args:
            count: Number of batches, counted from the first batch of the cursor.
            last: Whether these are the last batches.

        Raises:
            Exception: The error of a batch.
        """
        error, self._error = self._error, None
        if error is not None:
            raise error
        try:
            while self.taken_count < count:
                with suppress(NotYet):
                    self._ready.put(self._next(POLL_SECONDS))
        except EndOfData:
            return False
        if last:
            self._end()
        elif self._shared and self.taken_count == count:
            try:
                self._ready.put(self._next(0))
            except (NotYet, EndOfData):
                pass
            except Exception as raised:  # noqa: BLE001 - raised by the next call
                drop_frame(raised)
                self._error = raised
        return True

    def close(self) -> None:
        """Stop taking batches; idempotent. The run knows which batches were not used."""
        if not self._closed:
            self._closed, self._error = True, None
            self._end()

    def _end(self) -> None:
        self._ended = True
        self._ready.put(None)

    def _next(self, timeout: float | None) -> tuple[Any, Any]:
        if self._ended or self._closed:
            raise EndOfData
        try:
            number, log = max(0, self.taken_count - self._run.seen_at_begin), self._run.feed.request_log
            position, batch = log.timed(number, self._cursor.take, timeout)
            batch = self._run.convert(batch)
        except EndOfData:
            self._end()
            raise
        except NotYet:
            raise
        except BaseException as error:
            note_causes(error)  # Keras raises it `from None`
            raise
        self.taken_count += 1
        return position, batch


class EpochSteps(int):
    """The number of batches in an epoch, for Keras's loop.

    The loop compares it with the number of steps before each execution. The run answers: it first waits for the
    batches of that execution (`KerasRun.is_over`).
    """

    _run: "KerasRun"

    def __new__(cls, most: int, run: "KerasRun") -> "EpochSteps":
        """Make the int `most`, the batches of the longest epoch."""
        number = super().__new__(cls, most)
        number._run = run
        return number

    def __le__(self, seen: int) -> bool:
        if is_called_by_loop():  # seen >= self
            return self._run.is_over(seen)
        return int(self) <= seen

    def __reduce__(self) -> Any:
        return int, (int(self),)


class UnknownSteps(list):  # type: ignore[type-arg]
    """The number of batches in an epoch of unknown length.

    The number is 0 until an epoch has ended, and infinite for Keras's loop. Keras stores it in `history.params`. In
    JSON, the number becomes the list [] or [known]. The class derives from `list` because no other JSON type lets a
    subclass act as a number (`__bool__`, `__index__`, `__float__`).
    """

    def __init__(self, run: "KerasRun") -> None:
        super().__init__()
        self._run = run

    @property
    def known(self) -> int:
        """Batches of the last complete epoch; 0 before."""
        return self[0] if len(self) else 0

    @known.setter
    def known(self, batches: int) -> None:
        self[:] = [batches]

    def __bool__(self) -> bool:
        return is_called_by_loop() or self.known > 0

    def __index__(self) -> int:
        return sys.maxsize if is_called_by_loop() else self.known

    def __float__(self) -> float:
        return float(self.known)

    def __gt__(self, other: float) -> bool:  # type: ignore[override]
        return is_called_by_loop() or self.known > other

    def __le__(self, seen: int) -> bool:  # type: ignore[override]
        if is_called_by_loop():  # seen >= self
            return self._run.is_over(seen)
        return self.known <= seen

    def __ge__(self, other: float) -> bool:  # type: ignore[override]
        return self.known >= other

    def __lt__(self, other: float) -> bool:  # type: ignore[override]
        return self.known < other

    def __eq__(self, other: object) -> bool:
        return self is other or self.known == other

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)

    def __sub__(self, other: float) -> float:
        return self.known - other

    def __rtruediv__(self, other: float) -> float:
        return other / max(1, self.known)

    def __repr__(self) -> str:
        return str(self.known or "unknown")

    def __reduce__(self) -> Any:
        return int, (self.known,)


class KerasRun(ABC):
    """The use of a feed by one Keras iterator; keeps neither alive.

    Args:
        feed: The feed.
        iterator: Keras's iterator.
        request: The purpose of the iterator.
        most: Batches of the longest epoch; None if unknown.

    Attributes:
        feed: A weak proxy of the feed.
        feed_reference: A weak reference to it.
        request: As given.
        steps: The number of batches for Keras.
        steps_per_epoch: Batches per epoch set by the user, or by Keras's debugging switch; None for all.
        execution: Batches of an execution.
        has_epoch_cursors: Whether every epoch has its own cursor; otherwise all epochs share one.
        is_running: Whether Keras is iterating over the data.
        built: Whether the model is built, and epochs count.
        convert: Converts a batch for Keras.
        in_other_threads: Whether TensorFlow's threads take batches; the user's code must not run there.
        cursor: The present source of batches.
        seen_at_begin: Batches of the cursor that Keras had taken when the epoch began.
        superseded: Whether another fit or loop has begun, so that no epoch follows.
    """

    def __init__(self, feed: Any, iterator: Any, request: TrainerRequest, most: int | None) -> None:
        self.feed: Any = weakref.proxy(feed)
        self.feed_reference = weakref.ref(feed)
        self.request = request
        self._iterator = weakref.ref(iterator)
        self.steps = UnknownSteps(self) if most is None else EpochSteps(most, self)
        self.steps_per_epoch: int | None = steps_per_epoch_of(iterator)
        if self.steps_per_epoch:  # for Keras, 0 means all
            others = "validation_steps" if request.method == "fit" else "steps"
            check_integer("steps_per_epoch" if request.trains else others, self.steps_per_epoch, 1)
        self.execution = execution_of(iterator)
        self.has_epoch_cursors = not self.steps_per_epoch
        self.built = False
        self.in_other_threads = False
        self.convert: Callable[[Any], Any] = lambda batch: batch
        self.cursor: Handover | None = None
        self.is_running = self.superseded = False
        self._epoch = 0
        self._count: int | None = None
        self.seen_at_begin = 0
        self._asked = -1  # steps seen at the last call of `is_over`
        self._waits = False  # for the batches of an execution
        weakref.finalize(iterator, _close, self).atexit = False

    # ---- implemented by feeds and streams

    closed = "the feed is closed, or another fit of it has begun, so this one gets no more batches"

    @abstractmethod
    def begin_taking(self) -> Cursor:
        """Begin to take batches; the run closes the cursor."""

    @abstractmethod
    def begin_epoch(self, epoch: int) -> int | None:
        """Begin epoch `epoch`; return its number of batches, None if unknown.

        If the model is not built yet, the position of the feed does not change.
        """

    @abstractmethod
    def end_epoch(self) -> None:
        """End the epoch."""

    @abstractmethod
    def supersede(self) -> None:
        """Stop: another fit or loop begins. This one may have been interrupted."""

    # ---- called by Keras

    def reset(self) -> None:
        """Called before the first real epoch."""
        self.close()
        self.built, self._epoch = True, 0
        self.is_running = False  # Keras does not end the epoch that built the model

    def on_epoch_begin(self) -> None:
        """Called when Keras begins to iterate over the data."""
        if self.superseded:
            raise FeedClosedError(self.closed)
        self.is_running, self._asked = True, -1
        if self.cursor is not None and self.has_epoch_cursors:
            self.close()  # an epoch that was not finished
        self._count = count = self.begin_epoch(self._epoch)
        self.feed.request_log.clear()
        trains = self.request.trains and self.built
        if trains and not self.has_epoch_cursors and count is not None and count % self.execution:
            raise ValueError(
                f"the resumed epoch has {count:,} batches left, but with "
                f"steps_per_epoch={self.steps_per_epoch} Keras takes {self.execution} batches at a time, even across "
                f"the end of an epoch: compile with steps_per_execution=1, or resume at a multiple of {self.execution}"
            )
        if self.cursor is None:
            self.seen_at_begin = 0
            self.cursor = Handover(self, self.begin_taking())

    def on_epoch_end(self) -> None:
        """Called when Keras has reached the end of the epoch."""
        if not self.is_running:
            return  # Keras also calls this when it resets its iterator
        self.is_running = False
        self._epoch += 1
        if isinstance(self.steps, UnknownSteps):
            self.steps.known = self._asked - self.seen_at_begin
        self.end_epoch()
        if self.has_epoch_cursors:
            self.close()

    def is_over(self, seen: int) -> bool:
        """Whether the epoch is over; waits for the next execution's batches.

        Raises:
            Exception: The error of a batch.
        """
        if self._asked < 0:
            self.seen_at_begin = seen
            for number in range(0 if self.cursor is None else self.cursor.taken_count - seen):  # of the last epoch
                self.feed.request_log.timed(number, lambda _: None, None)
        asked_before, self._asked = self._asked, seen
        within, most = seen - self.seen_at_begin, self._count
        wanted = self.steps_per_epoch or (None if isinstance(self.steps, UnknownSteps) else int(self.steps))
        if wanted is not None and within >= wanted:
            # Keras calls this after the last step. If executions need more batches than are left, the next epoch
            # restarts.
            return self.has_epoch_cursors and bool(self.steps_per_epoch)
        if most is not None and within >= most:
            # A second call after the loop comes from an iterator over epochs of `steps_per_epoch` steps.
            return asked_before != seen or bool(self.steps_per_epoch and self.has_epoch_cursors)
        if self.cursor is None:
            raise FeedClosedError(self.closed)
        # Building a model takes one batch; TensorFlow's threads may take a whole execution.
        execution = self.execution if self.built or self.in_other_threads else 1
        count = seen + execution if most is None else min(seen + execution, self.seen_at_begin + most)
        last = self.has_epoch_cursors and most is not None and count >= self.seen_at_begin + most
        cursor, self._waits = self.cursor, True
        try:
            over = not cursor.ensure(count, last=last) and cursor.taken_count <= seen
        except BaseException as error:  # also Ctrl-C, whose traceback may keep this run alive
            if self.cursor is cursor:
                self.close()
                raise
            if not isinstance(error, Exception):
                raise
        if self.cursor is not cursor:  # another thread closed it
            raise FeedClosedError(self.closed)
        self._waits = False
        return over and asked_before != seen

    def used(self, *, before: bool = False) -> int:
        """Batches of the present cursor that training has used."""
        runs = self.is_running and self._asked >= 0 and not self._waits
        execution = self.execution if runs and not before else 0
        return max(0, self._asked) + execution

    def serves(self, iterator: Any) -> bool:
        """Whether this is the run of `iterator`, one of Keras's."""
        return self._iterator() is iterator

    def close(self) -> None:
        """Stop taking batches from the present cursor."""
        cursor, self.cursor = self.cursor, None
        if cursor is not None:
            cursor.close()


def _close(run: KerasRun) -> None:
    """Close the run after Keras's iterator was deleted.

    The garbage collector may call this while a thread holds locks.
    """
    if run.cursor is not None:
        try:
            _thread.start_new_thread(run.close, ())  # threading.Thread would take locks
        except RuntimeError:  # the interpreter is shutting down and starts no threads
            run.close()
