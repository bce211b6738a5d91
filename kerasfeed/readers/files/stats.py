"""What reading files has cost.

Invariant: a snapshot is a value; counting never waits for anything but a short lock.
"""

import threading
from dataclasses import dataclass


@dataclass(frozen=True)
class FileStats:
    """What reading files has cost this process so far.

    Attributes:
        reads: Files read; for those read forward only, how often one was begun.
        again: Of these, files read before, that had left the cache or were read past the scene wanted.
        seconds: Time spent in `read_file`, s, summed over threads; of a generator, only the time to make it.
        kept: Files kept now.
    """

    reads: int
    again: int
    seconds: float
    kept: int


class ReadLog:
    """Counts the reads of one process. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._reads: dict[int, int] = {}
        self._seconds = 0.0
        self._lock = threading.Lock()

    def note(self, file: int, seconds: float) -> None:
        """A file was read, or begun."""
        with self._lock:
            self._reads[file] = self._reads.get(file, 0) + 1
            self._seconds += seconds

    def stats(self, kept: int) -> FileStats:
        """A snapshot, where `kept` files are in the cache."""
        with self._lock:
            reads = sum(self._reads.values())
            return FileStats(reads, reads - len(self._reads), self._seconds, kept)
