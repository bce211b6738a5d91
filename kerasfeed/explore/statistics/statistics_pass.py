"""One pass over scenes by the workers of a pool, for their statistics.

Invariant: how scenes are divided among workers changes nothing but the time that it takes. A scene that ends its
worker is found by reading the scenes around it one by one, and counts as one that failed.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import closing
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.errors import SceneTimeoutError, WorkerDiedError, WorkerStartError
from kerasfeed.explore.statistics.scene_statistics import SceneStatistics, StatisticsRunner, StatisticsTask
from kerasfeed.loaders.loader import worker_type_for
from kerasfeed.pool.base import Pool, PoolOptions
from kerasfeed.pool.factory import make_pool
from kerasfeed.pool.processes.pool import processes_supported
from kerasfeed.util.deferred_warnings import DeferredWarnings, warn_caller
from kerasfeed.util.error_text import class_name, exception_text, message_of
from kerasfeed.util.progress import progress_bar

_TASK_SECONDS = 0.05
_MOST_ITEMS = 512
_LOST = (WorkerDiedError, SceneTimeoutError)
_HERE_SECONDS = 1.0  # for all scenes: what takes longer is worth starting workers, which takes 0.3 s and more
_FEW = 2  # scenes, of which that is told, behind the first
_FIRST_TRIED = 64  # one after the other, until one does not fail


def collect(
    sequence: Any, indices: Sequence[int] | NDArray[np.int64], workers: int, worker_type: str,
    *, here_first: bool, progress: bool,
) -> SceneStatistics:  # fmt: skip
    """The statistics of the scenes `indices`; where `here_first`, workers are started only if there is much to read.

    Raises:
        TypeError, OSError: Worker processes were asked for and cannot be had.
        WorkerDiedError: Workers do not start, or end between scenes.
        Exception: What `on_worker_begin` raised.
    """
    runner = StatisticsRunner(sequence, indices, 0)
    quiet = DeferredWarnings()
    quiet.mute("stall", "loading", "respawn")  # which speak of a feed

    def pool_of(kind: str) -> Pool:
        name = f"kf.describe of {class_name(sequence)}"
        return make_pool(runner, PoolOptions(max(1, workers), name, tries=2, deferred_warnings=quiet), kind)

    with progress_bar("describing", len(indices), progress, unit="scenes") as advance:
        found = _Pass(len(indices), advance)
        if here_first or not workers:
            with closing(pool_of("inline")) as pool:
                found.run(pool, _HERE_SECONDS if workers else None)
        if not found.is_done:
            with closing(_workers(sequence, worker_type, pool_of)) as pool:
                found.run(pool, None)
    quiet.issue_last()  # of an on_worker_end that has failed
    return found.found


def _workers(sequence: Any, worker_type: str, pool_of: Callable[[str], Pool]) -> Pool:
    """Worker processes for "auto"; where they cannot be had, threads if the class stands them, else nobody else.

    Raises:
        TypeError, OSError: Worker processes were asked for and cannot be had.
    """
    kind = worker_type_for(sequence, worker_type)
    if kind != "auto":
        return pool_of(kind)
    otherwise = "thread" if getattr(sequence, "thread_safe", False) is True else "inline"
    if not processes_supported():
        return pool_of(otherwise)
    try:
        return pool_of("process")
    except (TypeError, OSError) as error:
        place = "threads" if otherwise == "thread" else "the calling thread alone"
        warn_caller(f"kf.describe reads in {place}: {message_of(error)}", UserWarning)
        return pool_of(otherwise)


class _Pass:
    """Statistics of `length` scenes, found by one pool, or begun by one and ended by another."""

    def __init__(self, length: int, advance: Callable[[int], None]) -> None:
        self._length = length
        self._advance = advance
        self.found = SceneStatistics()
        self._position = 0
        self._running: dict[Future[Any], tuple[int, int]] = {}
        self._items = 1

    @property
    def is_done(self) -> bool:
        """Whether all scenes were read."""
        return self._position == self._length

    def run(self, pool: Pool, most: float | None) -> None:
        """Read what was not read yet; where `most` is given, only as long as all of it takes no more than that, s."""
        self._pool = pool
        begun = time.perf_counter()
        self._first_scenes()
        warm, first = time.perf_counter(), self._position  # the first one may open files, and import
        ahead = 1 if pool.worker_type == "inline" else 2 * pool.options.workers
        while not self.is_done or self._running:
            if most is not None and self._takes_longer(most, begun, warm, self._position - first):
                return
            while not self.is_done and len(self._running) < ahead:
                left = -(-(self._length - self._position) // ahead)  # so that workers end together
                items = min(self._items, max(1, left))
                self._submit(self._position, items)
                self._position += items
            self._take()

    def _takes_longer(self, most: float, begun: float, warm: float, count: int) -> bool:
        """Whether all scenes take more than `most` s, as `count` of them say that were read since `warm`."""
        now = time.perf_counter()
        left = self._length - self._position
        return now - begun > most or (count >= _FEW and left * (now - warm) > most * count)

    def _first_scenes(self) -> None:
        """Read scenes until one does not fail, from which the others' values are taken as differences."""
        self._pool.post(None if not self.found.fields else self.found.shifts())
        if self.found.fields:
            return
        while self._position < min(self._length, _FIRST_TRIED) and not self.found.fields:
            self._submit(self._position, 1)
            self._position += 1
            self._take()
        self._pool.post(self.found.shifts())

    def _submit(self, position: int, items: int) -> None:
        task = StatisticsTask(0, position, items=items)
        self._running[self._pool.run(task)] = position, items

    def _take(self) -> None:
        for future in wait(self._running, return_when=FIRST_COMPLETED).done:
            position, items = self._running.pop(future)
            error = future.exception()
            if error is None:
                self._merge(future.result(), items)
            elif self._pool.failure is not None or not isinstance(error, _LOST) or isinstance(error, WorkerStartError):
                raise error
            elif items > 1:
                for each in range(position, position + items):
                    self._submit(each, 1)
                continue
            else:
                part = SceneStatistics()
                part.fail(position, exception_text(error))
                self.found.merge(part)  # which orders failures
            self._advance(items)

    def _merge(self, part: SceneStatistics, items: int) -> None:
        seconds = float(part.table()["seconds"].sum()) / items
        self.found.merge(part)
        self._items = min(_MOST_ITEMS, max(1, int(_TASK_SECONDS / max(1e-6, seconds))))
