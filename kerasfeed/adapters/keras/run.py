"""What one of Keras's iterators takes of a feed: the batches of its epochs, and when one of them is over.

Invariant: Keras's iterator first goes through the data to build the model, perhaps, and is reset; what it takes after
that are the epochs proper. What it has taken before counts for nothing, and comes again. What users wrote runs in the
trainer's thread, and its exceptions are raised there, as themselves.
"""

import queue
import sys
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from kerasfeed.adapters.keras.trainer import TrainerRequest, asked_by_the_loop, asked_steps, execution_of
from kerasfeed.errors import FeedClosedError
from kerasfeed.feeds.cursor import Cursor, EndOfData, run_in_background
from kerasfeed.util.error_text import drop_frame, note_causes
from kerasfeed.util.polling import POLL_SECONDS, NotYet
from kerasfeed.util.validate import check_integer


class Handover:
    """Batches between Keras's loop, which waits until they are there, and whoever takes them for the training step.

    On JAX and PyTorch both are the trainer's thread. On TensorFlow its threads take what `ensure` has taken, which is
    one batch more than is asked for where it is there: they convert and copy it while the model is trained on those
    before. It is a `Cursor`.

    Args:
        run: Whose batches they are.
        cursor: What it takes from.

    Attributes:
        counted: Batches that were taken so far, with the one ahead.
    """

    def __init__(self, run: "KerasRun", cursor: Cursor) -> None:
        self._run = run
        self._cursor = cursor
        self._shared = run.in_other_threads
        self._ready: queue.SimpleQueue[tuple[Any, Any] | None] = queue.SimpleQueue()  # None is the end
        self._ended = self._closed = False
        self._error: Exception | None = None  # of the batch ahead
        self.counted = 0

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
            self._end()  # for whoever asks again
            raise EndOfData
        return taken

    def ensure(self, count: int, *, last: bool = False) -> bool:
        """Wait until `count` batches were taken; False where there are fewer.

        Args:
            count: How many.
            last: Whether there are no more.

        Raises:
            Exception: What one of them raised.
        """
        error, self._error = self._error, None
        if error is not None:
            raise error
        try:
            while self.counted < count:
                with suppress(NotYet):
                    self._ready.put(self._next(POLL_SECONDS))
        except EndOfData:
            return False
        if last:
            self._end()
        elif self._shared and self.counted == count:
            try:
                self._ready.put(self._next(0))
            except (NotYet, EndOfData):
                pass
            except Exception as raised:  # noqa: BLE001 - raised in its turn
                drop_frame(raised)
                self._error = raised
        return True

    def received(self, place: Any) -> None:
        """See `Cursor.received`; Keras tells the run."""

    def close(self, returned: list[Any]) -> None:
        """No more is taken; idempotent. Whoever gives the batches knows what comes again."""
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
            number, log = max(0, self.counted - self._run.seen_at_begin), self._run.feed.request_log
            place, batch = log.timed(number, self._cursor.take, timeout)
            batch = self._run.convert(batch)
        except EndOfData:
            self._end()
            raise
        except NotYet:
            raise
        except BaseException as error:
            note_causes(error)  # Keras raises it `from None`
            raise
        self.counted += 1
        return place, batch


class EpochSteps(int):
    """The number of batches in an epoch: an int, but where Keras's loop compares it with the steps it has seen.

    The loop does so before each execution. The answer is the run's, which first waits for the batches of that execution
    (`KerasRun.is_over`).
    """

    _run: "KerasRun"

    def __new__(cls, most: int, run: "KerasRun") -> "EpochSteps":
        """`most`: batches of the longest epoch."""
        made = super().__new__(cls, most)
        made._run = run
        return made

    def __le__(self, seen: int) -> bool:
        if asked_by_the_loop():  # seen >= self
            return self._run.is_over(seen)
        return int(self) <= seen

    def __reduce__(self) -> Any:
        return int, (int(self),)


class UnknownSteps(list):  # type: ignore[type-arg]
    """The number of batches in an epoch that ends where its data do: 0 until one has ended; for Keras's loop, no end.

    Keras puts it into `history.params`, which people write as JSON, where it is the list [] or [known]: of the types
    that JSON takes, only a list lets its class answer as a number (`__bool__`, `__index__`, `__float__`).
    """

    def __init__(self, run: "KerasRun") -> None:
        super().__init__()
        self._run = run

    @property
    def known(self) -> int:
        """Batches of the last epoch that is over; 0 before."""
        return self[0] if len(self) else 0

    @known.setter
    def known(self, batches: int) -> None:
        self[:] = [batches]

    def __bool__(self) -> bool:
        return asked_by_the_loop() or self.known > 0

    def __index__(self) -> int:
        return sys.maxsize if asked_by_the_loop() else self.known

    def __float__(self) -> float:
        return float(self.known)

    def __gt__(self, other: float) -> bool:  # type: ignore[override]
        return asked_by_the_loop() or self.known > other

    def __le__(self, seen: int) -> bool:  # type: ignore[override]
        if asked_by_the_loop():  # seen >= self
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
    """One of Keras's iterators over a feed: what it takes, and where it stands. It keeps neither of them alive.

    Args:
        feed: The feed.
        iterator: Keras's iterator.
        request: What it was made for.
        most: Batches of the longest epoch; None where that is not known.

    Attributes:
        feed: A weak proxy of the feed.
        feed_reference: A weak reference to it.
        request: As it was given.
        steps: What Keras is told of the number of batches.
        steps_per_epoch: Batches of an epoch as the user, or the debugging switch of Keras, has asked for; None for all.
        execution: Batches of an execution.
        has_epoch_cursors: Whether every epoch has a cursor of its own, and not a part of one that goes on and on.
        is_running: Whether Keras goes through the data.
        built: Whether the model is built, and epochs count.
        convert: Makes of a batch what Keras takes.
        in_other_threads: Whether threads of TensorFlow take, in which nothing may run that users wrote.
        cursor: What is being taken.
        seen_at_begin: Batches of it that Keras had seen as the epoch began.
        superseded: Whether there is no further epoch, as another fit or loop has begun.
    """

    def __init__(self, feed: Any, iterator: Any, request: TrainerRequest, most: int | None) -> None:
        self.feed: Any = weakref.proxy(feed)
        self.feed_reference = weakref.ref(feed)
        self.request = request
        self._iterator = weakref.ref(iterator)
        self.steps = UnknownSteps(self) if most is None else EpochSteps(most, self)
        self.steps_per_epoch: int | None = asked_steps(iterator)
        if self.steps_per_epoch:  # of 0 Keras makes all
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
        self._asked = -1  # steps seen as was asked last
        self._waits = False  # for the batches of an execution, perhaps in vain
        weakref.finalize(iterator, _close, self).atexit = False

    # ---- what feeds and streams do in their own ways

    closed = "the feed is closed, or another fit of it has begun: this one gets no more batches"

    @abstractmethod
    def begin_taking(self) -> Cursor:
        """The batches from the epoch that begins on; the run closes what it gives."""

    @abstractmethod
    def begin_epoch(self, epoch: int) -> int | None:
        """Epoch `epoch` of this run begins, from 0; returns how many batches it has, None where nobody knows.

        Where the model is not built yet, it only looks as if.
        """

    @abstractmethod
    def end_epoch(self) -> None:
        """The epoch is over."""

    @abstractmethod
    def supersede(self) -> None:
        """Another fit or loop begins: this one, perhaps interrupted, takes no more."""

    # ---- what Keras says

    def reset(self) -> None:
        """Keras is about to begin the epochs proper."""
        self.close()
        self.built, self._epoch = True, 0
        self.is_running = False  # what Keras has begun to build the model it never ends

    def on_epoch_begin(self) -> None:
        """Keras begins to go through the data."""
        if self.superseded:
            raise FeedClosedError(self.closed)
        self.is_running, self._asked = True, -1
        if self.cursor is not None and self.has_epoch_cursors:
            self.close()  # of an epoch that was left
        self._count = count = self.begin_epoch(self._epoch)
        self.feed.request_log.clear()
        trains = self.request.trains and self.built
        if trains and not self.has_epoch_cursors and count is not None and count % self.execution:
            raise ValueError(
                f"the epoch that is resumed has {count:,} batches left, and with "
                f"steps_per_epoch={self.steps_per_epoch} Keras takes {self.execution} at a time, also of the next "
                "epoch: compile with steps_per_execution=1, or resume at a multiple of it"
            )
        if self.cursor is None:
            self.seen_at_begin = 0
            self.cursor = Handover(self, self.begin_taking())

    def on_epoch_end(self) -> None:
        """Keras has come to the end of the data, or of as many as it wanted."""
        if not self.is_running:
            return  # Keras says so as it resets its iterator, too
        self.is_running = False
        self._epoch += 1
        if isinstance(self.steps, UnknownSteps):
            self.steps.known = self._asked - self.seen_at_begin
        self.end_epoch()
        if self.has_epoch_cursors:
            self.close()

    def is_over(self, seen: int) -> bool:
        """Whether the epoch has no further execution; waits for the batches of one.

        Raises:
            Exception: What one of the batches raised.
        """
        if self._asked < 0:
            self.seen_at_begin = seen
            for number in range(0 if self.cursor is None else self.cursor.counted - seen):  # there since the last epoch
                self.feed.request_log.timed(number, lambda _: None, None)
        asked_before, self._asked = self._asked, seen
        within, most = seen - self.seen_at_begin, self._count
        wanted = self.steps_per_epoch or (None if isinstance(self.steps, UnknownSteps) else int(self.steps))
        if wanted is not None and within >= wanted:
            # Asked behind the last. Where executions would take more than the epoch has, the next one begins anew.
            return self.has_epoch_cursors and bool(self.steps_per_epoch)
        if most is not None and within >= most:
            # Again behind the loop: a further iterator is for epochs of so many steps, which else take from one.
            return asked_before != seen or bool(self.steps_per_epoch and self.has_epoch_cursors)
        if self.cursor is None:
            raise FeedClosedError(self.closed)
        # To build a model one batch is taken; TensorFlow's threads may take a whole execution.
        execution = self.execution if self.built or self.in_other_threads else 1
        count = seen + execution if most is None else min(seen + execution, self.seen_at_begin + most)
        last = self.has_epoch_cursors and most is not None and count >= self.seen_at_begin + most
        cursor, self._waits = self.cursor, True
        try:
            over = not cursor.ensure(count, last=last) and cursor.counted <= seen
        except BaseException as error:  # Ctrl-C, too, whose traceback may keep this run
            if self.cursor is cursor:
                self.close()
                raise
            if not isinstance(error, Exception):
                raise
        if self.cursor is not cursor:  # closed meanwhile by another thread
            raise FeedClosedError(self.closed)
        self._waits = False
        return over and asked_before != seen

    def used(self, *, before: bool = False) -> int:
        """Batches of the present cursor that training was given; `before` the execution that runs, or with it."""
        runs = self.is_running and self._asked >= 0 and not self._waits
        execution = self.execution if runs and not before else 0
        return max(0, self._asked) + execution

    def serves(self, iterator: Any) -> bool:
        """Whether it is `iterator`, Keras's, whose run this is."""
        return self._iterator() is iterator

    def close(self) -> None:
        """Nothing more is taken of what is being taken."""
        cursor, self.cursor = self.cursor, None
        if cursor is not None:
            cursor.close([])


def _close(run: KerasRun) -> None:
    """Keras's iterator is gone: perhaps found by the garbage collector, in any thread."""
    if run.cursor is not None:
        run_in_background(run.close)
