"""Decoded chunks, kept within a bound of bytes.

Invariant: what is kept is read-only. Which thread decodes, and what leaves first, see `kerasfeed.util.lru`.
"""

from collections import deque
from operator import attrgetter
from typing import Any

from numpy.typing import NDArray

from kerasfeed.util.lru import Lru


class ChunkCache(Lru[int, NDArray[Any]]):
    """A cache of read-only arrays by integer key, those of `reserve`."""

    def __init__(self, limit: int) -> None:
        """Keep up to `limit` bytes."""
        super().__init__(limit, attrgetter("nbytes"))
        self._forgotten: deque[range] = deque()  # keys that nobody will ask for again
        self._keys = 0

    def reserve(self, count: int) -> range:
        """Keys that nobody else uses, `count` of them."""
        with self._lock:
            first = self._keys
            self._keys += count
            return range(first, self._keys)

    def get_all(self, keys: list[int]) -> list[NDArray[Any]] | None:
        """What is kept under `keys`; None when one is missing. One lock for all: a scene may touch dozens of chunks."""
        with self._lock:
            if not all(key in self._kept for key in keys):
                return None
            for key in keys:
                self._kept.move_to_end(key)
            return [self._kept[key] for key in keys]

    def missing(self, keys: list[int]) -> list[int]:
        """Those of `keys` that are neither kept nor being decoded."""
        with self._lock:
            return [key for key in keys if key not in self._kept and key not in self._loading]

    def _on_loaded(self, value: NDArray[Any]) -> NDArray[Any]:
        value.flags.writeable = False
        return value

    def _keep(self, key: int, value: NDArray[Any]) -> list[NDArray[Any]]:
        self._sweep()
        return super()._keep(key, value)

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
                    self.weight -= self._kept.pop(key).nbytes
