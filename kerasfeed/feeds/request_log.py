"""`RequestLog`: when the batches of an epoch were asked for, and when they came.

Invariant: it holds at most `_NOTED` batches, however long an epoch is.
"""

import time
from collections.abc import Callable
from typing import Any

_NOTED = 1 << 16  # batches


class RequestLog:
    """When each batch of an epoch was asked for, and when it came, by its number in the epoch; of the last 65,536."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """An epoch begins; what is still waited for is noted of the one before."""
        self._begun: dict[int, float] = {}
        self._finished: dict[int, float] = {}

    def timed(self, number: int, take: Callable[[float | None], Any], timeout: float | None) -> Any:
        """What `take(timeout)` gives: batch `number` of the epoch; it may raise `NotYet`, and be asked again."""
        begun, finished = self._begun, self._finished
        begun.setdefault(number, time.perf_counter())
        batch = take(timeout)
        finished[number] = time.perf_counter()
        for moments in (begun, finished):
            moments.pop(number - _NOTED, None)
        return batch

    def begun(self, number: int) -> float | None:
        """Moment at which batch `number` was asked for, s of `time.perf_counter`; None when it has not been."""
        return self._begun.get(number)

    def finished(self, number: int) -> float | None:
        """Moment at which batch `number` came; None when it has not."""
        return self._finished.get(number)
