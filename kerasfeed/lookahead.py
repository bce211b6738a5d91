"""Batches loaded ahead of a consumer that takes them in the order of the feed's stream.

Invariant: `take` returns the batch of the next number whatever was loaded ahead. Whoever stops early closes the window,
and the scenes not yet begun are skipped.
"""

import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

Submit = Callable[[int], "Future[Any]"]


class Window:
    """Some consecutive batches of the stream in flight.

    Attributes:
        next: Number of the batch that `take` returns next.
    """

    def __init__(self, submit: Submit, first: int, stop: int, ahead: int, border: int | None = None) -> None:
        """Look ahead from the first `take` on.

        Args:
            submit: From a batch's number to a promise of it.
            first: Number of the first batch.
            stop: Number after that of the last batch worth loading ahead.
            ahead: Most batches in flight, at least 1.
            border: Steps of an epoch, where none of its batches may be begun before the last epoch's are loaded.
        """
        self._submit = submit
        self.next = first
        self._stop = stop
        self._ahead = ahead
        self._border = border
        self._pending: deque[Future[Any]] = deque()

    def take(self) -> Any:
        """The next batch; waits for it.

        Raises:
            Exception: What the sequence raised.
        """
        self._fill()
        number = self.next
        self.next += 1
        try:
            future = self._pending.popleft()
        except IndexError:  # beyond the window's end, or closed by another thread, just now
            future = self._submit(number)
        return future.result()

    def _fill(self) -> None:
        while len(self._pending) < self._ahead:
            number = self.next + len(self._pending)
            if number >= self._stop or (self._border and self._pending and number % self._border == 0):
                return
            self._pending.append(self._submit(number))

    def close(self) -> None:
        """Give up what is in flight; idempotent."""
        while self._pending:
            self._pending.popleft().cancel()


class KerasWindows:
    """The windows of Keras's adapters: one each, which is used by one generator at a time.

    The next epoch's generator finds what was loaded ahead of the end of the one before.
    """

    def __init__(self) -> None:
        self._windows: weakref.WeakKeyDictionary[Any, Window] = weakref.WeakKeyDictionary()

    def take(self, adapter: Any, number: int, make: Callable[[], Window]) -> Any:
        """Batch `number` for `adapter`; waits for it. `make` makes a window that begins with it."""
        window = self._windows.get(adapter)
        if window is None or window.next != number:
            if window is not None:
                window.close()
            window = self._windows[adapter] = make()
        return window.take()

    def leave(self, adapter: Any, number: int) -> None:
        """A generator that would have taken `number` next is abandoned."""
        window = self._windows.get(adapter)
        if window is not None and window.next == number:
            window.close()

    def close(self) -> None:
        """Give up what is in flight: TensorFlow keeps adapters for ever, and so what an interrupted `fit` left."""
        for window in list(self._windows.values()):
            window.close()
        self._windows.clear()
