"""What a scene costs, found out by reading some: in one thread, then in several at once.

Invariant: what is read is read by a worker, into memory that nobody else sees, with the random numbers that it has in
the feed; the sequence is not told of an epoch. An error of a scene ends the measurement and reaches nobody.
"""

import dataclasses
import math
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.loaders.batches.filler import Filler
from kerasfeed.loaders.batches.layout import Layout, SlotView
from kerasfeed.loaders.scene_cost import SceneCost
from kerasfeed.sequences.base import scene_reader
from kerasfeed.sequences.context import SceneContext
from kerasfeed.sequences.view_base import part_reader
from kerasfeed.spec.collation import Custom
from kerasfeed.util.optional_methods import scene_writer
from kerasfeed.util.thread_times import ThreadTimes, ThreadWatch, undelayed

SAMPLE = 512  # scenes that a measurement may read
_THREADS_THAT_WAIT = 16
_MOST_MEMORY = 256 << 20  # bytes that threads which read at once may take
_TASK_SECONDS = 2e-3  # as many scenes at a time as a loader gives a worker


class _Timed:
    """A sequence of plain scenes, with the time that reading them took."""

    def __init__(self, sequence: Any) -> None:
        self._scene = scene_reader(sequence)
        self.seconds = 0.0

    def __getitem__(self, index: int) -> Any:
        begun = time.perf_counter()
        scene = self._scene(index)
        self.seconds += time.perf_counter() - begun
        return scene


class _Reader:
    """Reads runs of a few scenes into memory of its own; only reads them, where a function makes whole batches."""

    def __init__(self, sequence: Any, layout: Layout, seed: int, length: int, collate: Custom | None) -> None:
        plain = collate is None and part_reader(sequence) is None and scene_writer(sequence) is None
        self.timed = _Timed(sequence) if plain else None
        self._sequence, self._layout, self._seed = sequence, layout, seed
        self._whole = collate is not None
        self._scene = scene_reader(sequence)
        self._filler = Filler(sequence, layout, length, collate)
        self._one = Filler(self.timed, layout, length) if self.timed else self._filler

    def read(self, indices: NDArray[np.int64], memory: bytearray, *, alone: bool = False) -> Any:
        """Read them; what stands beside the slot."""
        context = SceneContext(self._seed, 0)
        if self._whole:
            return self._scenes(indices, context)
        view = SlotView(self._layout, memory, 0)
        view.indices[: len(indices)] = indices
        filler = self._one if alone else self._filler
        if len(indices) > 1:
            filler.read_ahead(indices, context)
        return filler.fill(view, 0, len(indices), -1, context, [0, 0])

    def _scenes(self, indices: NDArray[np.int64], context: SceneContext) -> list[Any]:
        found = []
        with context:
            for index in indices.tolist():
                context.move_to(index)
                found.append(self._scene(index))
        return found

    @property
    def nbytes(self) -> int:
        """Memory that a run takes, bytes."""
        return 0 if self._whole else self._layout.nbytes

    def memory(self) -> bytearray:
        """For one run."""
        return bytearray(self.nbytes)


def measure(
    sequence: Any,
    layout: Layout,
    indices: NDArray[np.int64],
    *,
    seed: int,
    length: int,
    collate: Custom | None,
    budget: float,
    cores: int,
    several: bool,
    whole_process: bool,
) -> SceneCost | None:
    """Read scenes for about `budget` seconds, at least two.

    Args:
        sequence: Whose scenes they are.
        layout: Of a slot of the feed.
        indices: int64[N], N <= `SAMPLE`: scenes to read, in the order of the feed; each is read once.
        seed: Seed of the feed.
        length: Number of scenes of the sequence.
        collate: The function that makes whole batches, if there is one.
        budget: About how long it may take, s. A scene that has begun is not broken off.
        cores: Cores of the machine.
        several: Whether several threads may read at once.
        whole_process: Whether this process does nothing else, so that its processor time is that of the scenes.

    Returns:
        What they cost; None where one raises.
    """
    begun = time.perf_counter()

    def reader_of(rows: int) -> _Reader:
        return _Reader(sequence, dataclasses.replace(layout, rows=rows), seed, length, collate)

    try:
        cost, runs, reader = _alone(reader_of, layout, indices, budget, cores, whole_process)
        left = budget - (time.perf_counter() - begun)
        if several and cost.total_seconds * runs.rows * 2 < left and 2 * reader.nbytes < _MOST_MEMORY:
            cost = _at_once(cost, runs, reader, left)
    except BaseException:  # noqa: BLE001 - whatever a scene raises, it will raise again where the user sees it
        return None
    return cost


class _Runs:
    """The scenes not yet read, a few at a time; any thread may ask for the next."""

    def __init__(self, indices: NDArray[np.int64], rows: int) -> None:
        self.rows = rows
        self._indices, self._place, self._lock = indices, 0, threading.Lock()

    def next(self) -> NDArray[np.int64] | None:
        with self._lock:
            found = self._indices[self._place : self._place + self.rows]
            self._place += self.rows
        return found if len(found) else None


def _alone(
    reader_of: Callable[[int], _Reader],
    layout: Layout,
    indices: NDArray[np.int64],
    budget: float,
    cores: int,
    whole_process: bool,
) -> tuple[SceneCost, _Runs, _Reader]:
    """Read runs in one thread, until a fifth of the budget is used and half of the scenes are left."""
    clock = time.perf_counter
    begun = clock()
    most = min(len(indices) // 4 or 1, layout.rows)
    reader = reader_of(1)
    warm = clock()
    reader.read(indices[:1], reader.memory())  # opens files
    warm = clock() - warm
    runs = _Runs(indices[1:], 1)
    if warm < _TASK_SECONDS and (second := runs.next()) is not None:
        again = clock()
        reader.read(second, reader.memory())
        warm = min(warm, clock() - again)
    rows = max(1, min(most, math.ceil(_TASK_SECONDS / max(warm, 1e-7))))
    if rows > 1:
        reader = reader_of(rows)
        reader.read(indices[:1], reader.memory())
        runs = _Runs(indices[2:], rows)
    memory, watch = reader.memory(), ThreadWatch(whole_process=whole_process)
    scenes, seconds, cpu, collating = 0, 0.0, 0.0, 0.0
    # Half of the scenes at most: the others are for the threads.
    while (scenes < len(indices) // 2 or not scenes) and (not scenes or clock() - begun < budget / 5):
        run = runs.next()
        if run is None:
            run = indices[:rows]
        if reader.timed:
            reader.timed.seconds = 0.0
        watch.restart()
        reader.read(run, memory, alone=True)
        took = watch.look()
        scenes, seconds, cpu = scenes + len(run), seconds + took.own_seconds, cpu + took.cpu_seconds
        if reader.timed:  # delays are taken to hit both alike
            collating += max(0.0, 1 - reader.timed.seconds / took.seconds) * took.own_seconds
    collating = min(collating, cpu)
    nbytes = sum(layout.row_bytes) if all(field.is_fixed for field in layout.spec.fields) else 0
    cost = SceneCost(
        seconds=(seconds - collating) / scenes, cpu_seconds=max(0.0, cpu - collating) / scenes,
        collate_seconds=collating / scenes, threads=1, apart_seconds=None, nbytes=nbytes, scenes=scenes,
        cores=cores,
    )  # fmt: skip
    return cost, runs, reader


def _at_once(cost: SceneCost, runs: _Runs, reader: _Reader, budget: float) -> SceneCost:
    """Read runs in several threads at once."""
    waits = cost.waiting_seconds > cost.seconds / 2
    threads = max(2, min(_THREADS_THAT_WAIT, _MOST_MEMORY // max(1, reader.nbytes))) if waits else 2
    begun = time.perf_counter()
    done: list[int] = []
    errors: list[BaseException] = []
    times: list[ThreadTimes] = []
    moments: list[float] = []  # of the first scene and the last: this thread may see them late
    start = threading.Barrier(threads + 1)

    def read() -> None:
        watch = ThreadWatch()
        try:
            memory = reader.memory()
            start.wait()
            watch.restart()
            moments.append(time.perf_counter())
            while (run := runs.next()) is not None:
                reader.read(run, memory)
                done.append(len(run))
                if time.perf_counter() - begun > budget / 3 or errors:
                    return
        except BaseException as error:  # noqa: BLE001 - see `measure`
            errors.append(error)
            start.abort()  # where not all have come so far, nobody is to wait for this one
        finally:
            times.append(watch.look())
            moments.append(time.perf_counter())

    crowd = [threading.Thread(target=read, name=f"kerasfeed-measure-{n}", daemon=True) for n in range(threads)]
    try:
        for thread in crowd:
            thread.start()
        start.wait()
    except BaseException:  # the system has no more threads, or no more memory
        start.abort()
        raise
    for thread in crowd:
        thread.join()
    took = max(moments) - min(moments)
    if threads <= cost.cores:  # else they delay each other
        took = undelayed(took, times, sum(done) * cost.waiting_seconds)
    if errors:
        raise errors[0]
    if not done:
        return cost
    apart = took / sum(done) if len(done) >= threads else None  # else some had nothing to read
    return dataclasses.replace(cost, threads=threads, apart_seconds=apart).under_way()
