"""What reading costs: facts that readers post, gathered for the feed on whose behalf they read.

Invariant: a reader knows nothing of feeds. It posts what it decoded to the meter of whoever asked, if any; a loader
enters a meter around the scenes it loads and reads the sums. Nothing here warns, prints or decides how to read.

Posting from the thread that asked:

    meter = read_cost.current()             # where the read was asked for; None outside a feed
    ...                                 # decode, on whatever thread
    if meter is not None:
        meter.note(storage, place, nbytes=chunk.nbytes, seconds=elapsed)
"""

import threading
from dataclasses import dataclass, field, replace

_LEAST_SCENES = 32  # before so many, the first reads of every block look like waste
_LEAST_AGAIN = 8  # a few chunks are decoded again where blocks or workers meet
_AMPLIFIED = 3.0  # bytes decoded for each byte that the scenes hold; below, other costs are larger


class ReadCostWarning(UserWarning):
    """Reading in this order decodes far more data than the scenes hold.

    Issued once by a feed whose sequence reads HDF5 chunks, or files of many scenes, in an order that reads them again
    and again. The message says how much is read for each scene, and what to change: usually
    `order=kf.BlockShuffled(...)`, a larger cache, or other chunks.

    Examples:
        Ignore it where a slow first epoch is acceptable:

        >>> import warnings
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore", kf.ReadCostWarning)
        ...     with kf.Feed([1.0, 2.0], batch_size=2, shuffle=True, workers=0) as feed:
        ...         batches = list(feed)
    """


@dataclass(frozen=True)
class Storage:
    """How a dataset is stored, as far as the cost of reading it goes.

    Attributes:
        name: The dataset for people, file included: "'points' of '/data/rooms.h5'". Also identifies it.
        short_name: The dataset's own name, as code that reads it would write it: "points".
        block_size: Rows of axis 0 in one chunk, at least 1.
        row_bytes: Decoded bytes of one row of axis 0 (one index), at least 1.
        nbytes: Decoded bytes of the whole dataset.
        cache_bytes: Most bytes that the cache of decoded chunks holds.
        unit: What is read at once: "chunk", or "file" where a whole file is; then bytes stand for scenes.
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
    """What one dataset has cost a loader so far; those of one name in several files count as one.

    A meter adds to its own, and gives copies.

    Attributes:
        storage: The dataset, in the first file read.
        files: Number of files read.
        scenes: Scenes loaded meanwhile.
        scene_bytes: Decoded bytes of the dataset that a scene stands for: a row, or more where there are more rows
            than scenes in the sequence.
        decoded: Chunks decoded.
        again: Of these, chunks decoded for this loader before, that had left the cache.
        nbytes: Bytes that decoding made.
        seconds: Time spent decoding, s, summed over threads.
        seconds_again: Of these, for chunks decoded again.
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
        """Bytes decoded for each byte that the scenes stand for."""
        return self.nbytes / max(1.0, self.scenes * self.scene_bytes)

    @property
    def wasteful(self) -> bool:
        """Whether decoding is repeated, and makes several times what the scenes hold; False of too few scenes to tell.

        Chunks are decoded again only after they have left the cache, so a cache that holds the dataset is never
        called wasteful, however many chunks the first scenes touch.
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
    cost: ReadCost  # so far, but for what is known of all scenes and files
    scenes_before: int
    seen: dict[str, bytearray] = field(default_factory=dict)  # which chunks of each file were decoded: a byte each
    stored: int = 0  # decoded bytes of these datasets


class Meter:
    """Sums of what was read on behalf of one loader in one process. All methods may be called from any thread."""

    def __init__(self, length: int = 1) -> None:
        """Sum up for whoever reads a sequence of `length` scenes."""
        self._lock = threading.Lock()
        self._length = max(1, length)
        self._scenes = 0
        self._again = 0
        self._sums: dict[tuple[str, int], _DatasetSums] = {}

    def note(self, storage: Storage, chunk: int, *, nbytes: int, seconds: float) -> None:
        """One chunk was decoded.

        Args:
            storage: Its dataset.
            chunk: Which of the dataset's stored chunks, from 0.
            nbytes: Bytes of the decoded chunk.
            seconds: Time that decoding took, reading the file included, s.
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

    def note_scenes(self, count: int) -> None:
        """So many scenes were loaded."""
        with self._lock:
            self._scenes += count

    def costs(self) -> list[ReadCost]:
        """What each dataset has cost so far, the dearest first."""
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
        """The dearest dataset that is read wastefully; None when there is none."""
        if self._again < _LEAST_AGAIN:
            return None
        return next((cost for cost in self.costs() if cost.wasteful), None)


class _CurrentMeter(threading.local):
    meter: Meter | None = None


_current = _CurrentMeter()


def current() -> Meter | None:
    """The meter of whoever loads scenes in this thread; None outside a feed. Costs about 50 ns."""
    return _current.meter


def enter(meter: Meter | None) -> Meter | None:
    """Make `meter` this thread's; returns the one it replaces, to be put back."""
    previous = _current.meter
    _current.meter = meter
    return previous
