"""`SharedCursor`: a cursor from which two threads take, each batch once.

Invariant: nobody holds a lock while it waits for a batch; so who looks how many have come need not wait for the next.
"""

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from kerasfeed.feeds.cursor import EndOfData
from kerasfeed.util.error_notes import note_causes
from kerasfeed.util.polling import POLL_SECONDS, NotYet

_ALONE = 10.0  # s
Take = Callable[[float | None], tuple[Any, Any]]


class SharedCursor:
    """A cursor for two: the trainer's thread, which waits for a batch, and TensorFlow's, which gets it. Thread-safe.

    Args:
        take: Gives the next batch with its place, as `Cursor.take` does; called by one thread at a time.
        convert: Makes of a batch what whoever takes gets.
        waits: Whether whoever gets batches waits for those that `ensure` has taken, and takes none, because that would
            run what users wrote in a thread of TensorFlow.
        served: Whether anybody calls `ensure`.
        close: Called when no more is taken, as `Cursor.close` is.

    Attributes:
        counted: Batches that have come so far.
    """

    def __init__(
        self,
        take: Take,
        convert: Callable[[Any], Any],
        *,
        waits: bool = False,
        served: bool = True,
        close: Callable[[list[Any]], None] = lambda returned: None,
    ) -> None:
        self._take = take
        self._end = close
        self._convert = convert
        self._waits = waits
        self._ready: deque[tuple[Any, Any]] = deque()
        self._taker: int | None = None  # the thread that waits for a batch
        self._error: BaseException | None = None
        self._failed_at = 0
        self._closed = self._ended = False
        self._served = served
        self._unserved = time.monotonic() if served else -math.inf
        self.counted = 0
        self._changed = threading.Condition(threading.Lock())

    def take(self, timeout: float | None) -> tuple[Any, Any]:
        """See `Cursor.take`."""
        try:
            with self._changed:
                self._changed.wait_for(self._has_something, timeout)
                if self._ready:
                    return self._ready.popleft()
                if not self._has_something():
                    raise NotYet
                self._begin()
            return self._next(timeout, keep=False)
        finally:
            self._leave()

    def ensure(self, count: int, *, last: bool = False) -> bool:
        """Wait until `count` batches have come, whoever has got them; False where there are fewer.

        Args:
            count: How many.
            last: Whether there are no more.

        Raises:
            Exception: What one of them raised.
        """
        self._unserved = math.inf
        while True:
            try:
                with self._changed:
                    if self._error is not None and self._failed_at < count:
                        error, self._error = self._error, None
                        raise error
                    if self.counted >= count:
                        self._ended = self._ended or last
                        self._changed.notify_all()
                        return True
                    if self._taker is not None:
                        self._changed.wait(POLL_SECONDS)
                        continue
                    self._begin()
                with suppress(NotYet):
                    self._next(POLL_SECONDS, keep=True)
            except EndOfData:
                return False
            finally:
                self._leave()

    def close(self, returned: list[Any]) -> None:
        """No more is taken; idempotent. Whoever gives the batches knows what comes again."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._error = None
            self._ready.clear()
            self._changed.notify_all()
            if self._taker != threading.get_ident():
                self._changed.wait_for(lambda: self._taker is None)
        self._end([])

    def received(self, place: Any) -> None:
        """See `Cursor.received`; Keras does not say so."""

    def end(self) -> None:
        """See `Cursor.end`; Keras does not say so."""

    def _has_something(self) -> bool:
        """Whether a batch, or the end, is there to be told, or may be waited for by whoever asks."""
        if self._ready or self._closed or self._ended:
            return True
        return self._taker is None and (not self._waits or self._is_alone)

    @property
    def _is_alone(self) -> bool:
        """Whether nobody has called `ensure` in all that time: a Keras that does not look for the end of an epoch."""
        return time.monotonic() - self._unserved > _ALONE

    def _begin(self) -> None:
        if self._closed or self._ended:
            raise EndOfData
        self._taker = threading.get_ident()

    def _leave(self) -> None:
        """This thread waits no more, also where Ctrl-C came between its lines."""
        if self._taker == threading.get_ident():
            self._taker = None  # before the lock, where Ctrl-C might come again
            with self._changed:
                self._changed.notify_all()

    def _next(self, timeout: float | None, *, keep: bool) -> tuple[Any, Any]:
        """Take a batch with its place, having begun to; `keep` it for whoever asks next, else an error for `ensure`."""
        taken, came, ended, failed = (None, None), False, False, None
        try:
            place, batch = self._take(timeout)
            taken = place, self._convert(batch)
            came = True
            return taken
        except EndOfData:
            ended = True
            raise
        except NotYet:
            raise
        except BaseException as error:
            note_causes(error)  # Keras raises it `from None`
            failed = error
            raise
        finally:
            with self._changed:
                self._ended = self._ended or ended
                if came:
                    self.counted += 1
                    if keep and not self._closed:
                        self._ready.append(taken)
                # Kept for nobody it would hold, by its traceback, the iterator of TensorFlow that holds this.
                if failed is not None and self._served and self._error is None and not keep and not self._closed:
                    self._error, self._failed_at = failed, self.counted
                self._changed.notify_all()
            del failed
