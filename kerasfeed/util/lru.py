"""What is kept: values by key, within a bound, those used longest ago leave first; and one value a process.

Invariant: a process keeps what it made itself. A child of a fork must not share the position in a file that its parent
has open, nor a lock that another thread of its parent held, and a copy that was pickled begins with nothing.

Of a cache: of all threads that want a value that is not here, one makes it and the others wait for it; no lock is held
meanwhile, and whoever fails to make it lets the others try, Ctrl-C included. Who asks for a value while it makes that
very value does not wait for itself, and makes it twice.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Lru(Generic[Key, Value]):
    """The values used last. All methods may be called from any thread.

    Attributes:
        limit: The most that values kept together may weigh.
        weight: What those kept now weigh.
    """

    def __init__(self, limit: int, weigh: Callable[[Value], int]) -> None:
        """Keep values of up to `limit` together, each of what `weigh` says; one that is more is not kept."""
        self.limit = limit
        self._weigh = weigh
        self._lock = threading.Lock()
        self._kept: OrderedDict[Key, Value] = OrderedDict()
        self._loading: dict[Key, _Loading[Value]] = {}
        self.weight = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Key) -> Value | None:
        """What is kept under `key`."""
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
            return found

    def get_or_load(self, key: Key, load: Callable[[], Value]) -> tuple[Value, bool]:
        """What is kept under `key`, or what `load` gives, which is then kept if it fits.

        Args:
            key: Of the value.
            load: Called without a lock, in one thread at a time for each key; gives anything but None.

        Returns:
            The value, and whether another call had loaded it.

        Raises:
            Exception: What `load` raises.
        """
        found = self.get(key)
        if found is not None:
            return found, True
        own: _Loading[Value] = _Loading()
        try:
            while True:
                with self._lock:
                    found = self._kept.get(key)
                    if found is not None:
                        self._kept.move_to_end(key)
                        return found, True
                    loading = self._loading.setdefault(key, own)
                if loading.thread == own.thread:  # this call, or one around it
                    break
                with loading.done:
                    pass
                if loading.value is not None:
                    return loading.value, True
            own.value = value = load()
        finally:
            self._publish(key, own)
        return value, False

    def _publish(self, key: Key, own: "_Loading[Value]") -> None:
        leaving: list[Value] = []  # freed without the lock: that may take a while, and run other code
        with self._lock:
            if self._loading.get(key) is own:  # else the cache was cleared meanwhile
                del self._loading[key]
                if own.value is not None:
                    leaving = self._keep(key, own.value)
        own.done.release()
        leaving.clear()

    def _keep(self, key: Key, value: Value) -> list[Value]:
        """Keep a new value, with the lock held; return the values that leave for it."""
        weight = self._weigh(value)
        if weight > self.limit:
            return []
        leaving = []
        self._kept[key] = value
        self.weight += weight
        while self.weight > self.limit:
            leaving.append(self._pop())
        return leaving

    def _pop(self) -> Value:
        """Take out what was used longest ago."""
        value = self._kept.popitem(last=False)[1]
        self.weight -= self._weigh(value)
        return value

    def clear(self) -> None:
        """Let go of everything; the cache can be used again."""
        with self._lock:
            self._kept.clear()
            self._loading.clear()
            self.weight = 0


class _Loading(Generic[Value]):
    """A value being made; `done` is held until it is there or has failed."""

    __slots__ = ("done", "thread", "value")

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.value: Value | None = None
        self.done = threading.Lock()
        self.done.acquire()


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
