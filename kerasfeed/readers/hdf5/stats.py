"""Counters of the reads of a dataset.

Invariant: counters only grow, under their own lock, which is never held during a read or decoding.
"""

import threading
from dataclasses import dataclass

from kerasfeed.readers.read_cost import Meter


@dataclass(frozen=True)
class ReadStats:
    """Counters of the reads of a dataset since its file was opened.

    They include all threads of this process.

    Attributes:
        decoded: Chunks read and decoded.
        again: Number of these that had been decoded before and were no longer in the cache.
        hits: Chunks found in the cache, or awaited while another thread decoded them.
        nbytes: Bytes read from the file.
        seconds: Time spent reading and decoding chunks, s, summed over threads.
        fallbacks: Selections that h5py read because they cannot be read directly (names of fields, parts of very large
            rows or of many short ones, whole chunks that only h5py decodes), or because a chunk could not be decoded.
    """

    decoded: int = 0
    again: int = 0
    hits: int = 0
    nbytes: int = 0
    seconds: float = 0.0
    fallbacks: int = 0


class Counters:
    """The running sums of a `ReadStats`.

    Attributes:
        meter: Counts decoded chunks, like the meter of a feed for its own reads.
    """

    def __init__(self) -> None:
        self.meter = Meter()
        self._lock = threading.Lock()
        self._hits = self._nbytes = self._fallbacks = 0

    def add(self, *, hits: int = 0, nbytes: int = 0, fallbacks: int = 0) -> None:
        """Add to the sums of the same names in `ReadStats`."""
        with self._lock:
            self._hits += hits
            self._nbytes += nbytes
            self._fallbacks += fallbacks

    def snapshot(self) -> ReadStats:
        """Return the present sums."""
        decoded = again = 0
        seconds = 0.0
        for cost in self.meter.costs():  # one, or none
            decoded, again, seconds = cost.decoded, cost.again, cost.seconds
        with self._lock:
            return ReadStats(decoded, again, self._hits, self._nbytes, seconds, self._fallbacks)
