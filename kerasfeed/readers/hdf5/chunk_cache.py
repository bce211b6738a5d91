"""Decoded chunks, kept within a bound of bytes.

Invariant: of all threads that want a chunk that is not here, one decodes it and the others wait for it; no lock is held
meanwhile, and whoever fails to decode lets the others try, Ctrl-C included. What is kept is read-only, and what was
used longest ago leaves first.
"""

import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.util.resources import memory

_AUTO_SHARE = 16  # of the machine's memory: eight worker processes then take half of it at the very most
_AUTO_MOST = 1 << 30


def limit_of(chunk_cache: object) -> int:
    """Bytes that `chunk_cache` stands for: "auto" is 1/16 of the memory this process may use, at most 1 GiB.

    Raises:
        ValueError: It is a negative number or another word.
        TypeError: It is neither a number of bytes nor a word.
    """
    if chunk_cache == "auto":
        return min(_AUTO_MOST, memory() // _AUTO_SHARE)
    if isinstance(chunk_cache, str | bool) or not isinstance(chunk_cache, int | np.integer):
        kind = ValueError if isinstance(chunk_cache, str) else TypeError
        raise kind(
            f"chunk_cache must be 'auto' or a number of bytes such as {256 << 20} (256 MiB; 0 keeps nothing), "
            f"received {chunk_cache!r}"
        )
    if chunk_cache < 0:
        raise ValueError(f"chunk_cache must be at least 0 bytes, received {chunk_cache}")
    return int(chunk_cache)


class ChunkCache:
    """A cache of read-only arrays by integer key. All methods may be called from any thread."""

    def __init__(self, limit: int) -> None:
        """Keep up to `limit` bytes."""
        self.limit = limit
        self._lock = threading.Lock()
        self._kept: OrderedDict[int, NDArray[Any]] = OrderedDict()
        self._flights: dict[int, _Flight] = {}
        self._forgotten: deque[range] = deque()  # keys that nobody will ask for again
        self._nbytes = 0
        self._keys = 0

    @property
    def nbytes(self) -> int:
        """Bytes kept now."""
        return self._nbytes

    def reserve(self, count: int) -> range:
        """Keys that nobody else uses, `count` of them."""
        with self._lock:
            first = self._keys
            self._keys += count
            return range(first, self._keys)

    def get(self, key: int) -> NDArray[Any] | None:
        """What is kept under `key`."""
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
            return found

    def get_all(self, keys: list[int]) -> list[NDArray[Any]] | None:
        """What is kept under `keys`; None when one is missing. One lock for all: a scene may touch dozens of chunks."""
        with self._lock:
            kept, touch = self._kept, self._kept.move_to_end
            try:
                found = [kept[key] for key in keys]
            except KeyError:
                return None
            for key in keys:
                touch(key)
            return found

    def missing(self, keys: list[int]) -> list[int]:
        """Those of `keys` that are neither kept nor being decoded."""
        with self._lock:
            return [key for key in keys if key not in self._kept and key not in self._flights]

    def get_or_load(self, key: int, load: Callable[[], NDArray[Any]]) -> tuple[NDArray[Any], bool]:
        """What is kept under `key`, or what `load` gives, which is then kept if it fits.

        Args:
            key: From `reserve`.
            load: Called without a lock, in one thread at a time for each key.

        Returns:
            The array, and whether another call had loaded it.

        Raises:
            Exception: What `load` raises.
        """
        found = self.get(key)
        if found is not None:
            return found, True
        own = _Flight()
        try:
            while True:
                with self._lock:
                    found = self._kept.get(key)
                    if found is not None:
                        self._kept.move_to_end(key)
                        return found, True
                    flight = self._flights.setdefault(key, own)
                if flight is own:
                    break
                with flight.landed:
                    pass
                if flight.array is not None:
                    return flight.array, True
            array = load()
            array.flags.writeable = False
            own.array = array
        finally:
            self._land(key, own)
        return array, False

    def _land(self, key: int, own: "_Flight") -> None:
        with self._lock:
            if self._flights.get(key) is not own:
                return  # another thread's flight carried the chunk, or it was here
            del self._flights[key]
            if own.array is not None:
                self._keep(key, own.array)
        own.landed.release()

    def _keep(self, key: int, array: NDArray[Any]) -> None:
        self._sweep()
        if array.nbytes > self.limit:
            return
        self._kept[key] = array
        self._nbytes += array.nbytes
        while self._nbytes > self.limit:
            self._nbytes -= self._kept.popitem(last=False)[1].nbytes

    def forget(self, keys: range) -> None:
        """Let go of `keys`, from `reserve`, which nobody asks for any more.

        Never waits: the garbage collector may call it in a thread that holds the lock. What is not freed now is freed
        with the next chunk that is kept.
        """
        self._forgotten.append(keys)
        if self._lock.acquire(blocking=False):
            try:
                self._sweep()
            finally:
                self._lock.release()

    def _sweep(self) -> None:
        while self._forgotten:
            gone = self._forgotten.popleft()
            few, many = (gone, self._kept) if len(gone) < len(self._kept) else (list(self._kept), gone)
            for key in few:
                if key in many:
                    self._nbytes -= self._kept.pop(key).nbytes


class _Flight:
    """A chunk being decoded; `landed` is held until it is there or has failed."""

    __slots__ = ("array", "landed")

    def __init__(self) -> None:
        self.array: NDArray[Any] | None = None
        self.landed = threading.Lock()
        self.landed.acquire()
