"""Measurements for a profile: what a scene costs in the calling thread, and what workers load.

Invariant: batches come from loaders of our own, which are closed afterwards, as the feed's workers would make them; no
hook of an epoch is called. An error of a scene ends the measurement and reaches nobody.
"""

import dataclasses
import time
from contextlib import closing, suppress
from typing import Any

from kerasfeed.explore.profiling.scene_cost import SceneCost
from kerasfeed.loaders.auto_workers import Setup, Trial
from kerasfeed.loaders.base import Job
from kerasfeed.loaders.batches.layout import Layout
from kerasfeed.loaders.loader import Loader
from kerasfeed.sequences.view_base import SceneByScene, part_reader
from kerasfeed.util.optional_methods import ahead_reader, scene_writer
from kerasfeed.util.read_cost import ReadCost
from kerasfeed.util.resources import cores
from kerasfeed.util.thread_times import ThreadWatch

_RUNS, _MOST_RUNS, _FASTER = 3, 9, 1.1  # of a trial


class _Timed(SceneByScene):
    """A sequence of plain scenes, with the time that reading them took, s."""

    def __init__(self, sequence: Any) -> None:
        self._parts, self._lengths = (sequence,), (len(sequence),)
        self.seconds = 0.0

    def __getitem__(self, index: int) -> Any:
        begun = time.perf_counter()
        scene = self.sequence[index]
        self.seconds += time.perf_counter() - begun
        return scene


def measured_cost(
    job: Job, layout: Layout, seconds: float, scene_seconds: float
) -> tuple[SceneCost, list[ReadCost]] | None:
    """What a scene costs, and what reading each dataset does, found by loading batches of epoch 0 in this thread.

    Args:
        job: What is loaded.
        layout: Of a slot of it.
        seconds: How long, s, and at least two batches; the first, which opens files, does not count.
        scene_seconds: About how long a scene takes, s.

    Returns:
        The two; None where a scene raises.
    """
    job, layout = smaller_batches(job.with_workers(0), layout, seconds / max(scene_seconds, 1e-9))
    sequence, plan = job.sequence, job.plan
    methods = part_reader(sequence) or scene_writer(sequence) or ahead_reader(sequence)
    timed = None if methods or job.maker else _Timed(sequence)
    scenes, took, busy, collating = 0, 0.0, 0.0, 0.0
    loader = Loader(dataclasses.replace(job, sequence=sequence if timed is None else timed), "inline", layout)
    with closing(loader):
        try:
            loader.submit(0, 0).result()
            watch, end = ThreadWatch(whole_process=True), time.perf_counter() + seconds  # libraries use threads, too
            for step in range(1, plan.steps) if plan.steps > 1 else (0,):
                reading = 0.0 if timed is None else timed.seconds
                watch.restart()
                loader.submit(0, step).result()
                times = watch.look()
                scenes += plan.indices(0, step).size
                took, busy = took + times.own_seconds, busy + times.cpu_seconds
                if timed is not None:  # delays are taken to hit both alike
                    reading = timed.seconds - reading
                    collating += max(0.0, 1 - reading / times.seconds) * times.own_seconds
                if time.perf_counter() > end:
                    break
        except Exception:  # noqa: BLE001 - whatever a scene raises, it will raise again where the user sees it
            return None
        read_costs = loader.read_costs()
    collating = min(collating, busy)
    cost = SceneCost(
        seconds=(took - collating) / scenes, cpu_seconds=max(0.0, busy - collating) / scenes,
        collate_seconds=collating / scenes, threads=1, apart_seconds=None,
        nbytes=sum(layout.row_bytes) if all(field.is_fixed for field in layout.spec.fields) else 0,
        scenes=scenes, cores=cores(),
    )  # fmt: skip
    return cost, read_costs


def trial(
    job: Job, setup: Setup, layout: Layout, *, seconds: float, scene_seconds: float = 0.0
) -> tuple[float, float] | None:
    """Scenes/s that workers reach once they are under way: of the slowest run and of the quickest.

    None where a scene raises, or such workers cannot be had.

    Args:
        job: What is loaded.
        setup: The workers.
        layout: Of a slot of it.
        seconds: How long, s; up to three times as long where they go on to get faster.
        scene_seconds: How long a scene takes, s, so that they are given as many at a time as those of the feed.
    """
    loader = Loader(job.with_workers(setup.workers), setup.worker_type, layout, scene_seconds=scene_seconds)
    with closing(loader), suppress(TypeError, OSError):  # the sequence does not pickle
        found = Trial(loader.submit, job.plan, setup.workers, loader.look_ahead)
        rates: list[float] = []
        while len(rates) < _MOST_RUNS and (rate := found.run(seconds / _RUNS)) is not None:
            rates.append(rate)
            if len(rates) >= _RUNS and rate < _FASTER * max(rates[:-1]):
                break
        return (min(rates[1 - _RUNS :]), max(rates)) if rates else None  # in the first of them all is new
    return None


def smaller_batches(job: Job, layout: Layout, scenes: float) -> tuple[Job, Layout]:
    """A job for a trial of about so many scenes: in batches of a sixteenth of them, where those of the feed are larger.

    What each batch costs does not show then: scenes so slow are what counts.
    """
    size = max(1, int(scenes / 16))
    plan = job.plan
    if plan.batch_size is None or size >= plan.batch_size or job.maker or not plan.cut.is_even:
        return job, layout
    plan = dataclasses.replace(plan, batch_size=size, drop_remainder=False, shard_index=0, shard_count=1)
    return dataclasses.replace(job, plan=plan), dataclasses.replace(layout, rows=plan.rows)
