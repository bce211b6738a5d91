"""A least-recently-used cache, and values that each process makes itself.

Invariant: a process uses only values that it made itself. A forked child must not share the file offset of a file that
its parent opened, nor a lock that a thread of the parent held. A pickled copy starts empty.

If several threads ask a cache for the same missing value, one loads it and the others wait; no lock is held while it
loads. If loading fails, also by Ctrl-C, the next thread tries. A `load` that asks for its own key does not deadlock: it
loads the value a second time.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Lru(Generic[Key, Value]):
    """A cache of the values used last. All methods are thread-safe.

    Attributes:
        limit: The largest total weight of the cached values.
        weight: The total weight of the cached values now.
    """

    def __init__(self, limit: int, weigh: Callable[[Value], int] = lambda _: 1) -> None:
        """Cache values up to a total weight of `limit`.

        `weigh` returns the weight of a value; by default, each counts as 1. A value heavier than `limit` is not cached.
        """
        self.limit = limit
        self._weigh = weigh
        self._lock = threading.Lock()
        self._kept: OrderedDict[Key, Value] = OrderedDict()
        self._loading: dict[Key, _Loading[Value]] = {}
        self.weight = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Key) -> Value | None:
        """Return the cached value of `key`, or None."""
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
            return found

    def get_or_load(self, key: Key, load: Callable[[], Value]) -> tuple[Value, bool]:
        """Return the cached value of `key`, or load and cache it.

        Args:
            key: The key of the value.
            load: Returns the value, not None. Called without a lock, in one thread at a time for each key.

        Returns:
            The value, and whether another call had loaded it.

        Raises:
            Exception: `load` raised it.
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
                if loading.thread == own.thread:  # this call, or one that it is nested in
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
        evicted: list[Value] = []  # freed after the lock is released, because that may take long and run other code
        with self._lock:
            if self._loading.get(key) is own:  # otherwise the cache was cleared meanwhile
                del self._loading[key]
                if own.value is not None:
                    evicted = self._keep(key, own.value)
        own.done.release()
        evicted.clear()

    def _keep(self, key: Key, value: Value) -> list[Value]:
        """Cache a value while the lock is held.

        Return the values that are evicted.
        """
        weight = self._weigh(value)
        if weight > self.limit:
            return []
        evicted = []
        self._kept[key] = value
        self.weight += weight
        while self.weight > self.limit:
            evicted.append(self._pop())
        return evicted

    def _pop(self) -> Value:
        """Remove and return the value that was used longest ago."""
        value = self._kept.popitem(last=False)[1]
        self.weight -= self._weigh(value)
        return value

    def clear(self) -> None:
        """Remove all values; the cache can be used again."""
        with self._lock:
            self._kept.clear()
            self._loading.clear()
            self.weight = 0


class _Loading(Generic[Value]):
    """A value that a thread is loading.

    `done` is locked until it has loaded or failed.
    """

    __slots__ = ("done", "thread", "value")

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.value: Value | None = None
        self.done = threading.Lock()
        self.done.acquire()


class PerProcess(Generic[Value]):
    """One value per process, made on first use; all methods are thread-safe."""

    def __init__(self, make: Callable[[], Value]) -> None:
        """`make` returns the value; it must pickle."""
        self._make = make
        self._by_process: dict[int, Value] = {}

    def here(self) -> Value:
        """Return the value of this process; about 0.3 us."""
        pid = os.getpid()
        value = self._by_process.get(pid)
        if value is None:
            value = self._by_process.setdefault(pid, self._make())
            for other in [other for other in self._by_process if other != pid]:
                self._by_process.pop(other, None)
        return value

    def __reduce__(self) -> Any:
        return PerProcess, (self._make,)
