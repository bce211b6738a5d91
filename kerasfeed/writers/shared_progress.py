"""What is to be written, and how far that is: in memory that all workers share; shown where somebody watches.

Invariant: what is to be written is posted before the first shard is begun.
"""

import contextlib
import mmap
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kerasfeed.errors import FeedWarning
from kerasfeed.pool.base import Pool
from kerasfeed.pool.memory import align
from kerasfeed.pool.resource_errors import start_thread
from kerasfeed.util.deferred_warnings import warn_caller
from kerasfeed.util.progress import progress_bar

_STOPPED, _FIRST, _CELLS = 0, 1, 2  # where that is noted; where shards begin; cells of a shard: done, index
_CELL_BYTES = 8
_TICK = 0.1
_STALL_SECONDS = 30.0


@dataclass(frozen=True)
class PlannedShard:
    """A shard to be written.

    Attributes:
        number: Its number.
        path: Its file.
        indices: Of its scenes, in its order; at least one.
    """

    number: int
    path: str
    indices: range

    def __str__(self) -> str:
        return f"shard {self.number} ({Path(self.path).name!r})"


class ShardFormat(ABC):
    """What a shard is. Pickles; every worker has one of its own."""

    @abstractmethod
    def encode(self, scene: Any) -> Any:
        """A scene as `write` wants it.

        Raises:
            SpecError: The scene is not what the spec says; the message names the field.
        """

    @abstractmethod
    def write(self, descriptor: int, encoded: Iterator[Any], scenes: int) -> Any:
        """Write a shard of so many scenes to a file that is open; what it returns is for `finish`."""

    def finish(self, path: Path, written: Any) -> None:  # noqa: B027 - most have nothing to do
        """The shard has its name now."""

    @abstractmethod
    def count(self, path: Path) -> int | None:
        """Scenes of the shard at `path`; None where it is none."""


@dataclass(frozen=True)
class WritePlan:
    """What is to be written.

    Attributes:
        shards: The shards, by number.
        shard_format: What a shard is.
        offset: Where in the pool's memory it is noted how far they are, bytes.
    """

    shards: tuple[PlannedShard, ...]
    shard_format: ShardFormat
    offset: int


class SharedProgress:
    """How far it is with what is to be written.

    Args:
        plan: What is to be written.
        memory_at: `PoolMemory.at`, or a worker's `WorkerContext.memory_at`.

    Attributes:
        plan: As given.
    """

    def __init__(self, plan: WritePlan, memory_at: Callable[[int, int], mmap.mmap]) -> None:
        self.plan = plan
        self._cells = memoryview(memory_at(plan.offset, _nbytes(plan.shards))).cast("q")

    @classmethod
    def begin(cls, pool: Pool, shards: tuple[PlannedShard, ...], shard_format: ShardFormat) -> "SharedProgress":
        """Have the workers of `pool` find what is to be written.

        Raises:
            OSError: There is no memory left.
        """
        plan = WritePlan(shards, shard_format, pool.memory.grow(_nbytes(shards))[1])
        pool.post(plan)
        return cls(plan, pool.memory.at)

    def note(self, shard: int, done: int, index: int) -> None:
        """So many scenes of a shard are written, and `index` is next."""
        place = _FIRST + _CELLS * shard
        self._cells[place], self._cells[place + 1] = done, index

    def done(self, shard: int) -> int:
        """Scenes of a shard that are written."""
        return self._cells[_FIRST + _CELLS * shard]

    def index(self, shard: int) -> int:
        """The scene that a shard is at."""
        return self._cells[_FIRST + _CELLS * shard + 1]

    @property
    def stopped(self) -> bool:
        """Whether all are to stop."""
        return bool(self._cells[_STOPPED])

    def stop(self) -> None:
        """Have all workers stop before their next scene."""
        self._cells[_STOPPED] = 1


def _nbytes(shards: tuple[PlannedShard, ...]) -> int:
    return align(_CELL_BYTES * (_FIRST + _CELLS * len(shards)), mmap.ALLOCATIONGRANULARITY)


@contextlib.contextmanager
def shown(progress: SharedProgress, *, bar: bool, title: str) -> Iterator[None]:
    """A progress bar, where there is a terminal or a notebook, and a warning of a scene that does not end."""
    over = threading.Event()
    total, first = sum(len(shard.indices) for shard in progress.plan.shards), _all_done(progress)
    with progress_bar(title, total, bar, tty=True, unit="scenes", done=first) as advance:
        arguments = (progress, first, advance, over)
        thread = threading.Thread(target=_watch, args=arguments, name="kerasfeed-progress", daemon=True)
        start_thread(thread, "a writer")
        try:
            yield
        finally:
            over.set()
            thread.join()


def _all_done(progress: SharedProgress) -> int:
    return sum(progress.done(shard.number) for shard in progress.plan.shards)


def _watch(progress: SharedProgress, last: int, advance: Callable[[int], None], over: threading.Event) -> None:
    moved = time.monotonic()
    told = False
    while True:
        ended = over.wait(_TICK)
        done, now = _all_done(progress), time.monotonic()
        if done != last:
            moved = now
        advance(done - last)
        last = done
        if ended:
            return
        if now - moved > _STALL_SECONDS and not told:
            told = True
            at = sorted(
                progress.index(shard.number)
                for shard in progress.plan.shards
                if 0 < progress.done(shard.number) < len(shard.indices)
            )
            listed = f", at scenes {', '.join(map(str, at[:8]))}" if at else ""
            with contextlib.suppress(Warning):
                warn_caller(f"no progress for {now - moved:.0f} s{listed}; this is said once", FeedWarning)
