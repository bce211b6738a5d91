"""One pass over scenes by the workers of a pool, for their statistics.

Invariant: how scenes are divided among workers changes nothing but the time that it takes. A scene that ends its
worker is found by reading the scenes around it one by one, and counts as one that failed.
"""

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
from kerasfeed.util.deferred_warnings import DeferredWarnings
from kerasfeed.util.error_text import class_name, exception_text
from kerasfeed.util.progress import progress_bar

_TASK_SECONDS = 0.05
_MOST_ITEMS = 512
_LOST = (WorkerDiedError, SceneTimeoutError)
_FIRST_TRIED = 64  # one after the other, until one does not fail


def collect(
    sequence: Any, indices: Sequence[int] | NDArray[np.int64], workers: int, worker_type: str, *, progress: bool
) -> SceneStatistics:
    """The statistics of the scenes `indices`.

    Raises:
        TypeError, OSError: Worker processes were asked for and cannot be had.
        WorkerDiedError: Workers do not start, or end between scenes.
        Exception: What `on_worker_begin` raised.
    """
    runner = StatisticsRunner(sequence, indices, 0)
    quiet = DeferredWarnings()
    quiet.mute("stall", "loading", "respawn")  # which speak of a feed
    options = PoolOptions(max(1, workers), f"kf.describe of {class_name(sequence)}", tries=2, deferred_warnings=quiet)
    pool = make_pool(runner, options, worker_type_for(sequence, worker_type) if workers else "inline")
    with closing(pool), progress_bar("describing", len(indices), progress, unit="scenes") as advance:
        found = _Pass(pool, len(indices), advance).run()
    quiet.issue_last()  # of an on_worker_end that has failed
    return found


class _Pass:
    def __init__(self, pool: Pool, length: int, advance: Callable[[int], None]) -> None:
        self._pool = pool
        self._length = length
        self._advance = advance
        self._found = SceneStatistics()
        self._running: dict[Future[Any], tuple[int, int]] = {}
        self._items = 1

    def run(self) -> SceneStatistics:
        position = self._first_scenes()
        ahead = 1 if self._pool.worker_type == "inline" else 2 * self._pool.options.workers
        while position < self._length or self._running:
            while position < self._length and len(self._running) < ahead:
                left = -(-(self._length - position) // ahead)  # so that workers end together
                items = min(self._items, max(1, left))
                self._submit(position, items)
                position += items
            self._take()
        return self._found

    def _first_scenes(self) -> int:
        """Read scenes until one does not fail, from which the others' values are taken as differences."""
        self._pool.post(None)
        position = 0
        while position < min(self._length, _FIRST_TRIED) and not self._found.fields:
            self._submit(position, 1)
            self._take()
            position += 1
        self._pool.post(self._found.shifts())
        return position

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
                self._found.merge(part)  # which orders failures
            self._advance(items)

    def _merge(self, part: SceneStatistics, items: int) -> None:
        seconds = float(part.table()["seconds"].sum()) / items
        self._found.merge(part)
        self._items = min(_MOST_ITEMS, max(1, int(_TASK_SECONDS / max(1e-6, seconds))))
