"""The cost of reading, which readers report to a feed's meter.

Invariant: a reader does not know feeds. It reports to the meter of the calling thread, if there is one; a loader enters
a meter while it loads scenes, and reads the sums. Nothing here warns, prints or decides how to read.

To report from any thread:

    meter = read_cost.current()         # in the thread that requested the read; None outside a feed
    ...                                 # decode, in any thread
    if meter is not None:
        meter.record(storage, chunk, nbytes=chunk.nbytes, seconds=elapsed)
"""

import threading
from dataclasses import dataclass, field, replace

_LEAST_SCENES = 32  # with fewer, the first reads of every block look like waste
_LEAST_AGAIN = 8  # below: a few chunks are always decoded again at the borders of blocks or workers
_AMPLIFIED = 3.0  # bytes decoded per byte of the scenes; below, other costs are larger


@dataclass(frozen=True)
class Storage:
    """The storage of a dataset, which determines the cost of reading it.

    Attributes:
        name: Name of the dataset and its file, for messages: "'points' of '/data/rooms.h5'". Unique.
        short_name: Name of the dataset in code: "points".
        block_size: Rows of axis 0 in one chunk, at least 1.
        row_bytes: Decoded bytes of one row of axis 0 (one index), at least 1.
        nbytes: Decoded bytes of the whole dataset.
        cache_bytes: Largest size of the cache of decoded chunks, bytes.
        unit: Unit of reading: "chunk", or "file" for whole files; byte counts are then counts of scenes.
    """

    name: str
    short_name: str
    block_size: int
    row_bytes: int
    nbytes: int
    cache_bytes: int
    unit: str = "chunk"


@dataclass(slots=True)
class ReadCost:
    """Cost of one dataset for a loader so far.

    Datasets of one name in several files count as one. A meter updates its own objects, and returns copies.

    Attributes:
        storage: The dataset, in the first file read.
        files: Number of files read.
        scenes: Scenes loaded since the first read of the dataset.
        scene_bytes: Decoded bytes of the dataset per scene: a row, or more if there are more rows than scenes in the
            sequence.
        decoded: Number of chunks decoded.
        again: Number of these chunks that this loader had decoded before, and that had left the cache.
        nbytes: Decoded bytes.
        seconds: Time spent decoding, s, summed over threads.
        seconds_again: The part of `seconds` spent on chunks decoded again.
    """

    storage: Storage
    files: int = 0
    scenes: int = 0
    scene_bytes: float = 0.0
    decoded: int = 0
    again: int = 0
    nbytes: int = 0
    seconds: float = 0.0
    seconds_again: float = 0.0

    @property
    def amplification(self) -> float:
        """Bytes decoded per byte of the scenes."""
        return self.nbytes / max(1.0, self.scenes * self.scene_bytes)

    @property
    def wasteful(self) -> bool:
        """Whether the same chunks are decoded repeatedly; False for few scenes.

        Chunks are decoded again only after they have left the cache. So a cache that holds the dataset never counts
        as wasteful, however many chunks the first scenes need.
        """
        is_known = self.scenes >= _LEAST_SCENES and self.again >= _LEAST_AGAIN
        return is_known and self.amplification >= _AMPLIFIED

    def __str__(self) -> str:
        if self.storage.unit == "file":
            return (
                f"{self.storage.name} were read {self.decoded:,} times for {self.scenes:,} scenes, {self.again:,} "
                f"times again ({self.seconds_again:.2g} s wasted)"
            )
        per_scene = self.nbytes / max(1, self.scenes) / 1e6
        others = "" if self.files < 2 else f" and {self.files - 1:,} other file{'s' if self.files > 2 else ''}"
        return (
            f"{self.decoded:,} chunks of {self.storage.name}{others} decoded for {self.scenes:,} scenes, "
            f"{self.again:,} of them again ({self.seconds_again:.2g} s wasted), {per_scene:,.3g} MB a scene of "
            f"{self.scene_bytes / 1e6:,.3g} MB"
        )


@dataclass(slots=True)
class _DatasetSums:
    cost: ReadCost  # so far; `costs` fills in scenes and files
    scenes_before: int
    seen: dict[str, bytearray] = field(default_factory=dict)  # one byte per chunk of each file: 1 if decoded before
    stored: int = 0  # decoded bytes of these datasets


class Meter:
    """Cost of reading for one loader; for any thread."""

    def __init__(self, length: int = 1) -> None:
        """Measure for a sequence of `length` scenes."""
        self._lock = threading.Lock()
        self._length = max(1, length)
        self._scenes = 0
        self._again = 0
        self._sums: dict[tuple[str, int], _DatasetSums] = {}

    def record(self, storage: Storage, chunk: int, *, nbytes: int, seconds: float) -> None:
        """Report that a chunk was decoded.

        Args:
            storage: Its dataset.
            chunk: Number of the chunk in the dataset, from 0.
            nbytes: Bytes of the decoded chunk.
            seconds: Time for reading and decoding, s.
        """
        key = (storage.short_name, storage.row_bytes)
        with self._lock:
            sums = self._sums.get(key)
            if sums is None:
                sums = self._sums[key] = _DatasetSums(ReadCost(storage), self._scenes)
            seen = sums.seen.get(storage.name)
            if seen is None:
                seen = sums.seen[storage.name] = bytearray()
                sums.stored += storage.nbytes
            if len(seen) <= chunk:
                seen.extend(bytes(chunk + 1 - len(seen)))
            again, seen[chunk] = seen[chunk], 1
            cost = sums.cost
            cost.decoded += 1
            cost.nbytes += nbytes
            cost.seconds += seconds
            if again:
                self._again += 1
                cost.again += 1
                cost.seconds_again += seconds

    def record_scenes(self, count: int) -> None:
        """Report that `count` scenes were loaded."""
        with self._lock:
            self._scenes += count

    def costs(self) -> list[ReadCost]:
        """Return the cost of each dataset, most expensive first."""
        with self._lock:
            found = [
                replace(
                    sums.cost, files=len(sums.seen), scenes=self._scenes - sums.scenes_before,
                    scene_bytes=max(sums.cost.storage.row_bytes, sums.stored / self._length),
                )
                for sums in self._sums.values()
            ]  # fmt: skip
        return sorted(found, key=lambda cost: -cost.nbytes)

    def waste(self) -> ReadCost | None:
        """Return the most expensive dataset read wastefully, or None."""
        if self._again < _LEAST_AGAIN:
            return None
        return next((cost for cost in self.costs() if cost.wasteful), None)


class _CurrentMeter(threading.local):
    meter: Meter | None = None


_current = _CurrentMeter()


def current() -> Meter | None:
    """Return the meter of this thread, or None. Costs 50 ns."""
    return _current.meter


def enter(meter: Meter | None) -> Meter | None:
    """Set `meter` for this thread; return the previous one, to be restored."""
    previous = _current.meter
    _current.meter = meter
    return previous
