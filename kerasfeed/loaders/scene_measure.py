"""What a scene costs, found out by one worker that reads some.

Invariant: what is read is read into memory that nobody else sees, with the random numbers that it has in the feed; the
sequence is not told of an epoch. An error of a scene ends the measurement and reaches nobody.
"""

import time
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
from kerasfeed.util.thread_times import ThreadWatch


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
    whole_process: bool,
) -> SceneCost | None:
    """Read scenes, as many at a time as `layout.rows`, for about `budget` seconds, and at least once.

    Args:
        sequence: Whose scenes they are.
        layout: Of a slot of as many scenes as a worker is given at a time.
        indices: int64[N], N >= 1: scenes to read, in the order of the feed; those of the first time do not count.
        seed: Seed of the feed.
        length: Number of scenes of the sequence.
        collate: The function that makes whole batches, if there is one: scenes are then read only.
        budget: About how long it may take, s. A scene that has begun is not broken off.
        cores: Cores of the machine.
        whole_process: Whether this process does nothing else, so that its processor time is that of the scenes.

    Returns:
        What they cost; None where one raises.
    """
    plain = collate is None and part_reader(sequence) is None and scene_writer(sequence) is None
    timed = _Timed(sequence) if plain else None
    filler = Filler(timed or sequence, layout, length, collate)
    read_scene = scene_reader(sequence)
    view = None if collate is not None else SlotView(layout, bytearray(layout.nbytes), 0)

    def read(run: NDArray[np.int64]) -> None:
        context = SceneContext(seed, 0)
        if view is not None:
            view.indices[: len(run)] = run
            if len(run) > 1:
                filler.read_ahead(run, context)
            filler.fill(view, 0, len(run), -1, context, [0, 0])
            return
        with context:
            for index in run.tolist():
                context.move_to(index)
                read_scene(index)

    runs = [indices[first : first + layout.rows] for first in range(0, len(indices), layout.rows)]
    scenes, seconds, cpu, collating = 0, 0.0, 0.0, 0.0
    end = time.perf_counter() + budget
    watch = ThreadWatch(whole_process=whole_process)
    try:
        read(runs[0])  # opens files
        for run in runs[1:] or runs:
            if timed is not None:
                timed.seconds = 0.0
            watch.restart()
            read(run)
            took = watch.look()
            scenes, seconds, cpu = scenes + len(run), seconds + took.own_seconds, cpu + took.cpu_seconds
            if timed is not None:  # delays are taken to hit both alike
                collating += max(0.0, 1 - timed.seconds / took.seconds) * took.own_seconds
            if time.perf_counter() > end:
                break
    except BaseException:  # noqa: BLE001 - whatever a scene raises, it will raise again where the user sees it
        return None
    collating = min(collating, cpu)
    nbytes = sum(layout.row_bytes) if all(field.is_fixed for field in layout.spec.fields) else 0
    return SceneCost(
        seconds=(seconds - collating) / scenes, cpu_seconds=max(0.0, cpu - collating) / scenes,
        collate_seconds=collating / scenes, threads=1, apart_seconds=None, nbytes=nbytes, scenes=scenes, cores=cores,
    )  # fmt: skip
