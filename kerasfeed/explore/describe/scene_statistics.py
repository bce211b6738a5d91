"""Statistics of scenes, and the pass that collects them.

Invariant: a scene that fails, in `__getitem__` or because it is not valid, is recorded and has no other effect.
Only a few numbers are kept per scene. The division of scenes among workers changes only the time. If a worker dies,
its scenes are read again one by one; the scene that kills a worker again counts as failed.
"""

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import closing
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.errors import SceneTimeoutError, WorkerDiedError, WorkerStartError
from kerasfeed.explore.describe.field_statistics import FieldStatistics
from kerasfeed.loaders.loader import worker_type_for
from kerasfeed.pool.base import Pool, PoolOptions, Runner, WorkerContext
from kerasfeed.pool.factory import make_pool
from kerasfeed.pool.task import NOWHERE, FailedTaskError, FailurePosition, FutureTask, Record, TaskProgress
from kerasfeed.sequences.context import SceneContext
from kerasfeed.sequences.view_base import is_thread_safe
from kerasfeed.spec.field_values import as_array
from kerasfeed.spec.inference import no_field_text
from kerasfeed.spec.nesting import field_paths, flatten
from kerasfeed.util.array_bits import comparable
from kerasfeed.util.deferred_warnings import DeferredWarnings
from kerasfeed.util.error_text import class_name, exception_text, is_the_programs
from kerasfeed.util.progress import progress_bar

MOST_FAILURES = 1_000  # kept with their text
_TASK_SECONDS = 0.05
_MOST_ITEMS = 512
_LOST = (WorkerDiedError, SceneTimeoutError)
_HERE_SECONDS = 0.4  # about the time to start workers
_LEAST_SECONDS = 1.0  # if the rest takes less, no workers are started
SCENE = np.dtype([("position", np.int64), ("bits", np.uint64), ("nbytes", np.int64), ("seconds", np.float64)])


class SceneStatistics:
    """Statistics of some scenes.

    Attributes:
        fields: Statistics of each field, by path.
        failures: Position and error of failed scenes, at most 1,000.
        failed: Number of failed scenes.
    """

    def __init__(self) -> None:
        self.fields: dict[str, FieldStatistics] = {}
        self.failures: list[tuple[int, str]] = []
        self.failed = 0
        self._known: tuple[Any, tuple[str, ...]] = None, ()
        self._rows: list[tuple[int, int, int, float]] = []
        self._tables: list[NDArray[Any]] = []

    def add(self, position: int, scene: Any, seconds: float) -> None:
        """Add a scene.

        Raises:
            SpecError: The scene holds a value that a batch cannot hold.
            TypeError: The scene has no field.
        """
        leaves, treespec = flatten(scene)
        if treespec != self._known[0]:
            self._known = treespec, field_paths(treespec)
        paths = self._known[1]
        if not leaves:
            raise TypeError(no_field_text(scene, f"__getitem__ returned {scene!r:.60}", "Return an array"))
        values = [comparable(as_array(leaf, path)) for leaf, path in zip(leaves, paths, strict=True)]
        parts, nbytes = [], 0
        for number, (path, value) in enumerate(zip(paths, values, strict=True)):
            if path not in self.fields:
                self.fields[path] = FieldStatistics((position, number))
            parts += [path.encode(), self.fields[path].add(value, position)]
            nbytes += _nbytes(value)
        digest = blake2b(b"".join(parts), digest_size=8).digest()
        self._rows.append((position, int.from_bytes(digest, "little"), nbytes, seconds))

    def close(self, begin: int, end: int) -> None:
        """Complete the positions from `begin` to `end`; call before pickling or merging."""
        for field in self.fields.values():
            field.close(begin, end)
        self._tables, self._rows, self._known = [self.table()], [], (None, ())

    def fail(self, position: int, text: str) -> None:
        """Record a failed scene."""
        self.failed += 1
        if len(self.failures) < MOST_FAILURES:
            self.failures.append((position, text))

    def merge(self, other: "SceneStatistics") -> None:
        """Add the statistics of `other`, which has other scenes and is closed."""
        for path, field in other.fields.items():
            if path in self.fields:
                self.fields[path].merge(field)
            else:
                self.fields[path] = field
        self.failures = sorted([*self.failures, *other.failures])[:MOST_FAILURES]
        self.failed += other.failed
        self._tables.append(other.table())

    def table(self) -> NDArray[Any]:
        """Return a `SCENE` row per scene that did not fail, by position."""
        tables = [np.array(self._rows, SCENE), *self._tables]
        return np.sort(np.concatenate(tables), order="position")


def _nbytes(value: Any) -> int:
    if isinstance(value, np.ndarray) and value.dtype.kind != "O":
        return int(value.nbytes)
    values = value.reshape(-1).tolist() if isinstance(value, np.ndarray) else [value]
    return sum(len(each if isinstance(each, bytes) else each.encode(errors="surrogatepass")) for each in values)


class StatisticsRunner(Runner):
    """Makes statistics of the scenes of a sequence, in workers.

    Args:
        sequence: The sequence.
        indices: The scenes of the pass, by position: a range, or int64[n].
        seed: Seed of each scene's `rng`.
    """

    def __init__(self, sequence: Any, indices: Sequence[int] | NDArray[np.int64], seed: int) -> None:
        self.target = sequence
        self._indices = indices
        self._seed = seed

    def run(self, record: Record, progress: TaskProgress, context: WorkerContext) -> SceneStatistics:
        """See `Runner.run`: return the statistics of `record[2]` positions from `record[1]` on."""
        statistics = SceneStatistics()
        scene_context = SceneContext(self._seed, 0)
        with scene_context:
            for position in range(record[1], record[1] + record[2]):
                index = progress[1] = int(self._indices[position])
                scene_context.move_to(index)
                try:
                    begin = time.perf_counter()
                    scene = self.target[index]
                    seconds = time.perf_counter() - begin
                    statistics.add(position, scene, seconds)
                except BaseException as error:
                    if is_the_programs(error):
                        raise FailedTaskError(FailurePosition(index)) from error
                    statistics.fail(position, exception_text(error))
        statistics.close(record[1], record[1] + record[2])
        return statistics


@dataclass(frozen=True, eq=False)
class StatisticsTask(FutureTask):
    """A task for `items` scenes, from position `number` on.

    Attributes:
        items: Number of scenes.
    """

    items: int = 1

    def record(self) -> Record:
        """See `Task.record`."""
        return self.kind, self.number, self.items

    def text(self, position: int) -> str:
        """See `Task.text`."""
        return "" if position == NOWHERE else f"scene {position}"


def collect(
    sequence: Any, indices: Sequence[int] | NDArray[np.int64], workers: int, worker_type: str,
    *, here_first: bool, progress: bool,
) -> SceneStatistics:  # fmt: skip
    """Collect statistics; `here_first` starts workers only if many scenes remain.

    Raises:
        TypeError, OSError: Worker processes were requested and cannot be started.
        WorkerDiedError: Workers do not start, or die between scenes.
        Exception: The error of `on_worker_begin`.
    """
    runner = StatisticsRunner(sequence, indices, 0)
    quiet = DeferredWarnings()
    quiet.mute("stall", "loading", "respawn")  # their texts mention a feed

    options = PoolOptions(
        max(1, workers), f"kf.describe of {class_name(sequence)}", tries=2, deferred_warnings=quiet,
        thread_safe=is_thread_safe(sequence), most_workers=workers if here_first else 0,
    )  # fmt: skip
    with progress_bar("describing", len(indices), progress, unit="scenes") as advance:
        reading = _Pass(len(indices), advance)
        if here_first or not workers:
            with closing(make_pool(runner, options, "inline")) as pool:
                begun = time.perf_counter()
                reading.run(pool, _HERE_SECONDS if workers else math.inf)
                if reading.share_left * (time.perf_counter() - begun) < (1 - reading.share_left) * _LEAST_SECONDS:
                    reading.run(pool)
        if not reading.is_done:
            with closing(make_pool(runner, options, worker_type_for(sequence, worker_type))) as pool:
                if pool.has_copies and options.most_workers:
                    pool.take_processes(workers, at_once=False)
                reading.run(pool)
    quiet.issue_last()  # a failed on_worker_end
    return reading.statistics


class _Pass:
    """A pass over `length` scenes, which a second pool can continue."""

    def __init__(self, length: int, advance: Callable[[int], None]) -> None:
        self._length = length
        self._advance = advance
        self.statistics = SceneStatistics()
        self._position = 0
        self._running: dict[Future[Any], tuple[int, int]] = {}
        self._items = 1

    @property
    def is_done(self) -> bool:
        """Whether all scenes are read."""
        return self._position == self._length

    @property
    def share_left(self) -> float:
        """The share of scenes not read yet, in [0, 1]."""
        return 1 - self._position / max(1, self._length)

    def run(self, pool: Pool, seconds: float = math.inf) -> None:
        """Read the remaining scenes; start no more after `seconds`."""
        self._pool = pool
        end = time.perf_counter() + seconds
        ahead = 1 if pool.worker_type == "inline" else 2 * pool.options.workers
        while self._running or not (self.is_done or time.perf_counter() > end):
            while not self.is_done and len(self._running) < ahead:
                left = -(-(self._length - self._position) // ahead)  # so that workers finish together
                items = min(self._items, max(1, left))
                self._submit(self._position, items)
                self._position += items
            self._take()

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
                for number in range(position, position + items):
                    self._submit(number, 1)
                continue
            else:
                part = SceneStatistics()
                part.fail(position, exception_text(error))
                self.statistics.merge(part)  # sorts the failures
            self._advance(items)

    def _merge(self, part: SceneStatistics, items: int) -> None:
        seconds = float(part.table()["seconds"].sum()) / items
        self.statistics.merge(part)
        self._items = min(_MOST_ITEMS, max(1, int(_TASK_SECONDS / max(1e-6, seconds))))
