"""`Handover`: batches that the trainer's thread takes, for itself or for threads of TensorFlow.

Invariant: what users wrote runs in the trainer's thread, and its exceptions are raised there, as themselves.
"""

import queue
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from kerasfeed.feeds.cursor import EndOfData
from kerasfeed.util.error_notes import note_causes
from kerasfeed.util.error_text import drop_frame
from kerasfeed.util.polling import POLL_SECONDS, NotYet

Take = Callable[[float | None], tuple[Any, Any]]


class Handover:
    """A cursor whose batches Keras's loop has waited for.

    Args:
        take: Gives the next batch with its place, as `Cursor.take` does.
        convert: Makes of a batch what Keras gets.
        shared: Whether whoever gets batches waits for those that `ensure` has taken, as threads of TensorFlow do, and
            takes none.
        ahead: Whether `ensure` takes one more batch where it is there, which TensorFlow then converts and copies while
            the model is trained on those before.
        close: Called when no more is taken, as `Cursor.close` is.

    Attributes:
        counted: Batches that were taken so far, with the one ahead.
    """

    def __init__(
        self,
        take: Take,
        convert: Callable[[Any], Any],
        *,
        shared: bool = False,
        ahead: bool = False,
        close: Callable[[list[Any]], None] = lambda returned: None,
    ) -> None:
        self._take = take
        self._convert = convert
        self._shared = shared
        self._ahead = ahead
        self._close = close
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
        elif self._ahead and self.counted == count:
            try:
                self._ready.put(self._next(0))
            except (NotYet, EndOfData):
                pass
            except Exception as raised:  # noqa: BLE001 - raised in its turn
                drop_frame(raised)
                self._error = raised
        return True

    def close(self, returned: list[Any]) -> None:
        """No more is taken; idempotent. Whoever gives the batches knows what comes again."""
        if not self._closed:
            self._closed, self._error = True, None
            self._end()
            self._close([])

    def _end(self) -> None:
        self._ended = True
        self._ready.put(None)

    def _next(self, timeout: float | None) -> tuple[Any, Any]:
        if self._ended or self._closed:
            raise EndOfData
        try:
            place, batch = self._take(timeout)
            batch = self._convert(batch)
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
