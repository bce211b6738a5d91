"""What Keras takes of a stream: which repetition an epoch is, and what becomes of batches taken in vain.

Invariant: an epoch of `fit` without `steps_per_epoch` is a repetition of the stream; so is an `evaluate`, a `predict`.
With `steps_per_epoch` the epochs of all `fit`s take one batch after the other, through as many repetitions as that
needs. What Keras takes to build a model, and what its backend has taken beyond the last step, comes again.
"""

import threading
import weakref
from typing import Any

from kerasfeed.adapters.keras.run import KerasRun
from kerasfeed.adapters.keras.trainer import TrainerRequest
from kerasfeed.feeds.cursor import EndOfData
from kerasfeed.feeds.stream_base import EMPTY
from kerasfeed.feeds.stream_cursor import KEPT, SUPERSEDED, StreamCursor
from kerasfeed.feeds.streams.place import StreamPlace
from kerasfeed.util.polling import NotYet


class StreamRun(KerasRun):
    """What one of Keras's iterators takes of a stream."""

    def __init__(self, feed: Any, iterator: Any, request: TrainerRequest) -> None:
        super().__init__(feed, iterator, request, None)
        self._feed = weakref.ref(feed)
        self._stream_cursor: StreamCursor | None = None
        self._leaving = threading.RLock()

    closed = SUPERSEDED

    def reset(self) -> None:
        """See `KerasRun.reset`; what came before was taken to build the model, also by `predict`."""
        if self._stream_cursor is not None and not self.built:
            self._stream_cursor.building = True
        super().reset()

    def begin_epoch(self, epoch: int) -> int | None:
        """See `KerasRun.begin_epoch`; of one that is resumed, of so many steps, the rest."""
        self.feed.request_log.clear()
        if not (self.request.trains and self.built):
            return None
        rest: int | None = self.feed.take_rest()
        if rest is None or not self.steps_per_epoch:
            return None
        if rest % self.execution:
            raise ValueError(
                f"the epoch that is resumed has {rest:,} batches left, and Keras takes {self.execution} at a time: "
                "compile with steps_per_execution=1, or resume at a multiple of it"
            )
        return rest

    def end_epoch(self) -> None:
        """See `KerasRun.end_epoch`."""

    def begin_taking(self) -> None:
        """See `KerasRun.begin_taking`."""
        goes_on = bool(self.steps_per_epoch)
        self._stream_cursor = StreamCursor(
            self._feed, None if goes_on else 1, chained=goes_on and self.request.trains,
            building=not self.built and self.request.method in ("fit", "evaluate"), kept=KEPT + self.execution,
        )  # fmt: skip

    def take(self, timeout: float | None) -> tuple[StreamPlace, Any]:
        """See `KerasRun.take`."""
        cursor = self._stream_cursor
        if cursor is None:
            raise EndOfData
        try:
            number, log = max(0, cursor.taken - self.seen_at_begin), self.feed.request_log
            taken: tuple[StreamPlace, Any] = log.timed(number, cursor.take, timeout)
            return taken
        except EndOfData:
            if cursor.taken or cursor.left:
                raise
            raise ValueError(EMPTY) from None
        except NotYet:
            raise
        except BaseException:
            if self.feed.goes_on:
                cursor.leave(self.used())
            raise

    @property
    def runs_what_users_wrote(self) -> bool:
        """See `KerasRun.runs_what_users_wrote`."""
        return True

    def fail(self) -> None:
        """See `KerasRun.fail`; a stream that goes on where it was left does so, others begin anew."""
        if not self.feed.goes_on:
            self._stream_cursor = None
        self.close()

    def close(self) -> None:
        """See `KerasRun.close`; what was not used comes again."""
        with self._leaving:  # Keras's iterator may be let go of in another thread
            super().close()
            cursor, self._stream_cursor = self._stream_cursor, None
            if cursor is not None:
                cursor.leave(0 if cursor.building else self.used())

    def place(self, *, before: bool) -> StreamPlace | None:
        """Where training stands, `before` the execution that runs or behind it; None where nothing was taken yet."""
        cursor = self._stream_cursor
        if cursor is None or not self.built:
            return None
        return cursor.place_after(min(self.used(before=before), cursor.taken))

    def supersede(self) -> None:
        """See `KerasRun.supersede`; where this fit was stopped, Keras may let go of the data only much later."""
        if self._stream_cursor is not None:
            self._stream_cursor.superseded = True
        self.close()
