"""Statistics of some scenes, and the pass over all of them by the workers of a pool.

Invariant: a scene that fails, in `__getitem__` or because it is no scene, is noted and leaves no other trace. What is
kept for each scene is a few numbers. How scenes are divided among workers changes nothing but the time that it takes. A
scene that ends its worker is found by reading the scenes around it one by one, and counts as one that failed.
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
from kerasfeed.pool.task import NOWHERE, FailedTaskError, FutureTask, Note, Place, Record
from kerasfeed.sequences.context import SceneContext
from kerasfeed.sequences.view_base import is_thread_safe
from kerasfeed.spec.field_values import as_array
from kerasfeed.spec.inference import no_field_text
from kerasfeed.spec.nesting import field_paths, flatten
from kerasfeed.util.array_bits import comparable
from kerasfeed.util.deferred_warnings import DeferredWarnings
from kerasfeed.util.error_text import class_name, exception_text, is_the_programs
from kerasfeed.util.progress import progress_bar

MOST_FAILURES = 1_000  # that are kept with their text
_TASK_SECONDS = 0.05
_MOST_ITEMS = 512
_LOST = (WorkerDiedError, SceneTimeoutError)
_HERE_SECONDS = 0.4  # about what starting workers takes
_LEAST_SECONDS = 1.0  # for all that is left: below, no workers are started
SCENE = np.dtype([("position", np.int64), ("bits", np.uint64), ("nbytes", np.int64), ("seconds", np.float64)])


class SceneStatistics:
    """Statistics of some scenes.

    Attributes:
        fields: By path.
        failures: Position and error of scenes that failed, at most 1,000.
        failed: How many have.
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
            SpecError: It holds what no batch can.
        """
        leaves, treespec = flatten(scene)
        if treespec != self._known[0]:
            self._known = treespec, field_paths(treespec)
        paths = self._known[1]
        if not leaves:
            raise TypeError(no_field_text(scene, f"__getitem__ returned {scene!r:.60}", "Return an array"))
        values = [comparable(as_array(leaf, path)) for leaf, path in zip(leaves, paths, strict=True)]
        told, nbytes = [], 0
        for place, (path, value) in enumerate(zip(paths, values, strict=True)):
            if path not in self.fields:
                self.fields[path] = FieldStatistics((position, place))
            told += [path.encode(), self.fields[path].add(value, position)]
            nbytes += _nbytes(value)
        digest = blake2b(b"".join(told), digest_size=8).digest()
        self._rows.append((position, int.from_bytes(digest, "little"), nbytes, seconds))

    def close(self, begin: int, end: int) -> None:
        """Note that no more scenes come of the positions from `begin` to `end`, before this is pickled or merged."""
        for field in self.fields.values():
            field.close(begin, end)
        self._tables, self._rows, self._known = [self.table()], [], (None, ())

    def fail(self, position: int, text: str) -> None:
        """Note that a scene has failed."""
        self.failed += 1
        if len(self.failures) < MOST_FAILURES:
            self.failures.append((position, text))

    def merge(self, other: "SceneStatistics") -> None:
        """Add what `other` knows, of other scenes; it is closed."""
        for path, field in other.fields.items():
            if path in self.fields:
                self.fields[path].merge(field)
            else:
                self.fields[path] = field
        self.failures = sorted([*self.failures, *other.failures])[:MOST_FAILURES]
        self.failed += other.failed
        self._tables.append(other.table())

    def table(self) -> NDArray[Any]:
        """A row for each scene that did not fail: position, digest of its bits, bytes, seconds; by position."""
        tables = [np.array(self._rows, SCENE), *self._tables]
        return np.sort(np.concatenate(tables), order="position")


def _nbytes(value: Any) -> int:
    if isinstance(value, np.ndarray) and value.dtype.kind != "O":
        return int(value.nbytes)
    values = value.reshape(-1).tolist() if isinstance(value, np.ndarray) else [value]
    return sum(len(each if isinstance(each, bytes) else each.encode(errors="surrogatepass")) for each in values)


class StatisticsRunner(Runner):
    """What workers hold: the sequence, of whose scenes they make statistics.

    Args:
        sequence: The sequence.
        indices: The scenes of the pass, by position: a range, or int64[n].
        seed: Behind each scene's `rng`.
    """

    def __init__(self, sequence: Any, indices: Sequence[int] | NDArray[np.int64], seed: int) -> None:
        self.target = sequence
        self._indices = indices
        self._seed = seed

    def run(self, record: Record, note: Note, context: WorkerContext) -> SceneStatistics:
        """See `Runner.run`: the statistics of the positions from `record[1]` on, `record[2]` of them."""
        statistics = SceneStatistics()
        scene_context = SceneContext(self._seed, 0)
        with scene_context:
            for position in range(record[1], record[1] + record[2]):
                index = note[1] = int(self._indices[position])
                scene_context.move_to(index)
                try:
                    begin = time.perf_counter()
                    scene = self.target[index]
                    seconds = time.perf_counter() - begin
                    statistics.add(position, scene, seconds)
                except BaseException as error:
                    if is_the_programs(error):
                        raise FailedTaskError(Place(index)) from error
                    statistics.fail(position, exception_text(error))
        statistics.close(record[1], record[1] + record[2])
        return statistics


@dataclass(frozen=True, eq=False)
class StatisticsTask(FutureTask):
    """The scenes at `number` and behind it, `items` of them.

    Attributes:
        items: How many.
    """

    items: int = 1

    def record(self) -> Record:
        """See `Task.record`."""
        return self.kind, self.number, self.items

    def text(self, note: int) -> str:
        """See `Task.text`."""
        return "" if note == NOWHERE else f"scene {note}"


def collect(
    sequence: Any, indices: Sequence[int] | NDArray[np.int64], workers: int, worker_type: str,
    *, here_first: bool, progress: bool,
) -> SceneStatistics:  # fmt: skip
    """The statistics of the scenes `indices`; if `here_first`, workers are started only if there is much to read.

    Raises:
        TypeError, OSError: Worker processes were asked for and cannot be had.
        WorkerDiedError: Workers do not start, or end between scenes.
        Exception: What `on_worker_begin` raised.
    """
    runner = StatisticsRunner(sequence, indices, 0)
    quiet = DeferredWarnings()
    quiet.mute("stall", "loading", "respawn")  # which speak of a feed

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
    quiet.issue_last()  # of an on_worker_end that has failed
    return reading.statistics


class _Pass:
    """Statistics of `length` scenes, found by one pool, or begun by one and ended by another."""

    def __init__(self, length: int, advance: Callable[[int], None]) -> None:
        self._length = length
        self._advance = advance
        self.statistics = SceneStatistics()
        self._position = 0
        self._running: dict[Future[Any], tuple[int, int]] = {}
        self._items = 1

    @property
    def is_done(self) -> bool:
        """Whether all scenes were read."""
        return self._position == self._length

    @property
    def share_left(self) -> float:
        """The share of the scenes that were not read yet, in [0, 1]."""
        return 1 - self._position / max(1, self._length)

    def run(self, pool: Pool, seconds: float = math.inf) -> None:
        """Read what was not read yet, and begin no more after so many seconds."""
        self._pool = pool
        end = time.perf_counter() + seconds
        ahead = 1 if pool.worker_type == "inline" else 2 * pool.options.workers
        while self._running or not (self.is_done or time.perf_counter() > end):
            while not self.is_done and len(self._running) < ahead:
                left = -(-(self._length - self._position) // ahead)  # so that workers end together
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
                self.statistics.merge(part)  # which orders failures
            self._advance(items)

    def _merge(self, part: SceneStatistics, items: int) -> None:
        seconds = float(part.table()["seconds"].sum()) / items
        self.statistics.merge(part)
        self._items = min(_MOST_ITEMS, max(1, int(_TASK_SECONDS / max(1e-6, seconds))))
