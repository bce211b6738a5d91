"""What would make a feed faster beside other workers: other files, orders, caches and batches.

Invariant: a remedy is told only where it applies, with what it is expected to bring and what it needs.
"""

import dataclasses
import time
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

from kerasfeed.explore.profiling.profile import Prediction
from kerasfeed.loaders.base import Job
from kerasfeed.loaders.batches.layout import Layout
from kerasfeed.loaders.loader import Loader
from kerasfeed.loaders.scene_cost import SceneCost
from kerasfeed.loaders.worker_choice import Setup
from kerasfeed.orders.base import Sequential
from kerasfeed.orders.blocks import BlockShuffled
from kerasfeed.sequences.cached import Cached, gives_the_same_twice
from kerasfeed.sequences.patches import is_of_boxes
from kerasfeed.sequences.view_base import View
from kerasfeed.util.frames import is_in_memory
from kerasfeed.util.read_cost import ReadCost
from kerasfeed.util.report import bytes_text
from kerasfeed.util.resources import memory

_TINY = 2e-3  # s that a batch takes: below, what each batch costs counts
_LARGER = 4  # times as many scenes in a batch
_MEMORY_SHARE = 2  # half of the memory may hold scenes
_SLOW = 5.0  # times slower to read than to write into the batch: then a cache pays
_CACHED_SECONDS = 2e-6  # to get a scene from one
_READ_SECONDS = 0.4  # for finding out what reading costs

Rate = Callable[..., tuple[float, float] | None]


def remedies(job: Job, layout: Layout, setup: Setup, cost: SceneCost, rate: float, rate_of: Rate) -> list[Prediction]:
    """What else would bring something.

    Args:
        job: What the feed loads.
        layout: Of a slot of it.
        setup: Its workers.
        cost: What a scene costs.
        rate: Scenes/s that they load.
        rate_of: Scenes/s of the slowest and the quickest run of a setup in a trial, given the setup, the share of the
            time, the rate that is expected, a job and its layout.
    """
    return [
        *_of_reading(job, layout, cost, rate), *_cached(job, setup, cost, rate),
        *_larger_batches(job, layout, setup, cost, rate, rate_of),
    ]  # fmt: skip


# ---- files


def _read_costs(job: Job, layout: Layout) -> list[ReadCost]:
    """What reading costs each dataset, found by loading batches in this thread."""
    end = time.monotonic() + _READ_SECONDS
    with closing(Loader(job.with_workers(0), "inline", layout)) as loader:
        with suppress(Exception):  # of a scene that raises: what was read before counts
            for step in range(job.plan.steps):
                loader.submit(0, step).result()
                if time.monotonic() > end:
                    break
        return loader.read_costs()


def _of_reading(job: Job, layout: Layout, cost: SceneCost, rate: float) -> list[Prediction]:
    if isinstance(job.plan.order, Sequential) or is_in_memory(job.sequence):
        return []
    wasted = [
        read for read in _read_costs(job, layout)
        if read.storage.unit == "chunk" and read.is_amplified and read.storage.nbytes > read.storage.cache_bytes
    ]  # fmt: skip
    if not wasted:
        return []
    worst = max(wasted, key=lambda each: each.seconds)
    spent = worst.seconds / worst.scenes  # s of decoding for each scene
    saved = spent * (1 - 1 / worst.amplification)
    gain = cost.total_seconds / max(cost.total_seconds - saved, cost.collate_seconds, 0.05 * cost.total_seconds)
    storage = worst.storage
    rows = max(1, round(worst.scene_bytes / storage.row_bytes))
    block = "sequence" if is_of_boxes(job.sequence) else max(1, storage.block_size // rows)
    decoded = f"{worst.amplification:.0f} times what the scenes hold is decoded"
    changes = [(f"kf.rechunk(path, out, {storage.short_name!r})", "writes a new file")]
    if not isinstance(job.plan.order, BlockShuffled):
        changes.append((f"order=kf.BlockShuffled({block})", "scenes of a chunk then stay near each other"))
    return [Prediction(change, gain * rate, gain, note=f"{decoded}; {note}") for change, note in changes]


# ---- memory


def _cached(job: Job, setup: Setup, cost: SceneCost, rate: float) -> list[Prediction]:
    nbytes = cost.nbytes * job.plan.length
    if not nbytes or nbytes > memory() // _MEMORY_SHARE or is_in_memory(job.sequence) or _has_cache(job.sequence):
        return []
    if cost.seconds < _SLOW * max(cost.collate_seconds, _CACHED_SECONDS) or _is_random(job.sequence, job.plan.length):
        return []
    then = dataclasses.replace(
        cost, seconds=_CACHED_SECONDS, cpu_seconds=_CACHED_SECONDS, apart_seconds=None, threads=1
    )
    expected = then.predict(max(1, setup.workers), "thread", job.plan.rows)
    if expected <= rate:
        return []
    return [
        Prediction(
            "kf.Cached(sequence)", expected, expected / rate,
            note=f"with threads, from the second epoch on; takes {bytes_text(nbytes)}",
        )
    ]  # fmt: skip


def _has_cache(sequence: Any) -> bool:
    if isinstance(sequence, Cached):
        return True
    return isinstance(sequence, View) and any(map(_has_cache, sequence._parts))


def _is_random(sequence: Any, length: int) -> bool:
    """Whether scenes draw random numbers, or differ when they are read twice, and so must not be kept."""
    try:
        return not gives_the_same_twice(sequence, sorted({0, length // 2, length - 1}))
    except Exception:  # noqa: BLE001 - of one that draws; or the user's, and then there is nothing that could be kept
        return True


# ---- batches


def _larger_batches(
    job: Job, layout: Layout, setup: Setup, cost: SceneCost, rate: float, rate_of: Rate
) -> list[Prediction]:
    plan = job.plan
    if plan.batch_size is None or job.maker is not None or not plan.cut.is_even or not setup.workers:
        return []
    size = _LARGER * plan.batch_size
    if cost.total_seconds * plan.rows > _TINY or size * plan.shard_count > plan.length // 4:
        return []
    larger = dataclasses.replace(job, plan=dataclasses.replace(plan, batch_size=size))
    measured = rate_of(setup, 0.08, rate, larger, dataclasses.replace(layout, rows=larger.plan.rows))
    if measured is None:
        return []
    least, most = measured
    return [
        Prediction(
            f"batch_size={size}", most, most / rate, True, note="trains otherwise", remedy=False, least=least
        )
    ]  # fmt: skip
