"""What is to be written, and how far that is: a file that all workers map; shown where somebody watches.

Invariant: the file is complete before the first shard is begun, and on the disk all its bytes are there, so that noting
how far a shard is cannot fail.
"""

import contextlib
import mmap
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import cloudpickle

from kerasfeed.errors import FeedWarning
from kerasfeed.util.deferred_warnings import warn_caller
from kerasfeed.util.progress import progress_bar
from kerasfeed.writers.shard_format import ShardFormat

_STOPPED, _COUNT, _FIRST, _CELLS = 0, 1, 2, 2  # where these are; where shards begin; cells of a shard: done, index
_CELL_BYTES = 8
_TICK = 0.1
_STALL_SECONDS = 30.0


@dataclass(frozen=True)
class PlannedShard:
    """A shard to be written.

    Attributes:
        number: Its number.
        path: Its file.
        indices: Of its scenes, in its order.
    """

    number: int
    path: str
    indices: range


class SharedProgress:
    """What is to be written, and how far that is.

    Args:
        path: The file.

    Attributes:
        shards: The shards.
        shard_format: What a shard is.
    """

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            memory = memoryview(mmap.mmap(file.fileno(), 0))
        count = memory[_COUNT * _CELL_BYTES :][:_CELL_BYTES].cast("q")[0]
        cells = _CELL_BYTES * (_FIRST + _CELLS * count)
        self._cells = memory[:cells].cast("q")
        found: tuple[tuple[PlannedShard, ...], ShardFormat] = pickle.loads(memory[cells:])
        self.shards, self.shard_format = found

    @staticmethod
    def write(path: Path, shards: tuple[PlannedShard, ...], shard_format: ShardFormat) -> None:
        """Make the file.

        Raises:
            OSError: It cannot be written.
        """
        cells = [0] * (_FIRST + _CELLS * len(shards))
        cells[_COUNT] = len(shards)
        head = b"".join(cell.to_bytes(_CELL_BYTES, sys.byteorder) for cell in cells)
        path.unlink(missing_ok=True)  # of a run that crashed
        # Workers unpickle it: nobody else may have made it, nor write to it.
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(head + cloudpickle.dumps((shards, shard_format)))

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


@contextlib.contextmanager
def shown(shared: SharedProgress, *, bar: bool, title: str) -> Iterator[None]:
    """A progress bar, where there is a terminal or a notebook, and a warning of a scene that does not end."""
    over = threading.Event()
    total, first = sum(len(shard.indices) for shard in shared.shards), _all_done(shared)
    with progress_bar(title, total, bar, tty=True, unit="scenes", done=first) as advance:
        arguments = (shared, first, advance, over)
        thread = threading.Thread(target=_watch, args=arguments, name="kerasfeed-progress", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()


def _all_done(shared: SharedProgress) -> int:
    return sum(shared.done(shard.number) for shard in shared.shards)


def _watch(shared: SharedProgress, last: int, advance: Callable[[int], None], over: threading.Event) -> None:
    moved = time.monotonic()
    told = False
    while True:
        ended = over.wait(_TICK)
        done, now = _all_done(shared), time.monotonic()
        if done != last:
            moved = now
        advance(done - last)
        last = done
        if ended:
            return
        if now - moved > _STALL_SECONDS and not told:
            told = True
            at = sorted(
                shared.index(shard.number)
                for shard in shared.shards
                if 0 < shared.done(shard.number) < len(shard.indices)
            )
            listed = f", at scenes {', '.join(map(str, at[:8]))}" if at else ""
            with contextlib.suppress(Warning):
                warn_caller(f"no progress for {now - moved:.0f} s{listed}; this is said once", FeedWarning)
