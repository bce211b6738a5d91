"""What reading a dataset has cost so far.

Invariant: counters only grow, under a lock of their own that is never held while something is read or decoded.
"""

import threading
from dataclasses import dataclass


@dataclass(frozen=True)
class ReadStats:
    """What reading a dataset has cost since its file was opened, all threads of this process together.

    Attributes:
        decoded: Chunks read and decoded.
        again: Of these, chunks that had been decoded before and were no longer in the cache.
        hits: Chunks found in the cache, or waited for while another thread decoded them.
        nbytes: Bytes read from the file.
        seconds: Time spent reading and decoding chunks, s, summed over threads.
        fallbacks: Selections that h5py read, because the direct reader could not plan them or could not decode a chunk.
    """

    decoded: int = 0
    again: int = 0
    hits: int = 0
    nbytes: int = 0
    seconds: float = 0.0
    fallbacks: int = 0


class Counters:
    """The sums while they grow."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: bytearray = bytearray()
        self._decoded = self._again = self._hits = self._nbytes = self._fallbacks = 0
        self._seconds = 0.0

    def decode(self, position: int, positions: int, nbytes: int, seconds: float) -> None:
        """Chunk `position` of `positions` was decoded."""
        with self._lock:
            if not self._seen:
                self._seen = bytearray(positions)  # one byte a chunk
            again = bool(self._seen[position])
            self._seen[position] = 1
            self._decoded += 1
            self._again += again
            self._nbytes += nbytes
            self._seconds += seconds

    def hit(self, count: int = 1) -> None:
        """Chunks were there already."""
        with self._lock:
            self._hits += count

    def read(self, nbytes: int) -> None:
        """Bytes were read that need no decoding."""
        with self._lock:
            self._nbytes += nbytes

    def fall_back(self) -> None:
        """A selection was left to h5py."""
        with self._lock:
            self._fallbacks += 1

    def snapshot(self) -> ReadStats:
        """The sums now."""
        with self._lock:
            return ReadStats(self._decoded, self._again, self._hits, self._nbytes, self._seconds, self._fallbacks)
