"""The clocks: rates of a loop and of `fit`, taken inside the process of the case.

Invariant: a rate is scenes over the time between two arrivals of batches, both after the warm-up, and after a full
garbage collection: a collection takes 0.3 s with TensorFlow loaded, and would otherwise occur in a random case.
"""

import gc
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import psutil

from benchmarks import memory
from benchmarks.peers.job import Job

WARM_UP_SECONDS = 0.5
"""Minimum time before the steady state: look-ahead is full and `tf.data` has tuned itself."""
WARM_UP_BATCHES = 2
FLAT_BATCHES = 2_000
"""Batches during which the memory of the process tree must stay flat."""
FLAT_PAUSE = 0.002
"""Seconds between two batches of a "flat" case, so that its memory is read often enough."""

Opener = Callable[[Job], AbstractContextManager[Any]]


def collect_garbage() -> None:
    """Collect garbage, and delay the next full collection."""
    gc.collect()
    gc.freeze()


def cpu_seconds() -> float:
    """Processor time of this process and its descendants, including ended ones, in seconds."""
    seconds = 0.0
    for process in memory.tree(psutil.Process()):
        try:
            seconds += sum(process.cpu_times()[:4])  # user and system time of the process and its ended children
        except psutil.Error:
            continue
    return seconds


def loop_figures(
    opener: Opener, job: Job, seconds: float, warm_up: float, steady: Callable[[], None]
) -> dict[str, float]:
    """Iterates over the batches of a peer as fast as they come.

    Args:
        opener: The peer.
        job: Its job.
        seconds: Minimum length of the steady state.
        warm_up: Minimum time before it, after the first batch.
        steady: Called once, when the warm-up is over.

    Returns:
        `first_batch_s`, from opening the peer to its first batch; in the steady state `scenes_per_s`, and `cpu_ms`,
        milliseconds of processor time per scene in the whole process tree.
    """
    clock = time.perf_counter
    begin = clock()
    with opener(job) as batches:
        iterator = iter(batches)
        next(iterator)
        first = clock()
        warm, least = 0, max(WARM_UP_SECONDS, warm_up, first - begin)
        while warm < WARM_UP_BATCHES or clock() - first < least:
            next(iterator)
            warm += 1
        collect_garbage()
        steady()
        scenes_in = job.scenes_in or (lambda batch: job.batch_size)
        used, count, scenes, start = cpu_seconds(), 0, 0, clock()
        now = start
        while now - start < seconds or count < WARM_UP_BATCHES:
            scenes += scenes_in(next(iterator))
            count += 1
            now = clock()
        used = cpu_seconds() - used
        del iterator
    rate = scenes / (now - start)
    return {"first_batch_s": first - begin, "scenes_per_s": rate, "cpu_ms": 1000 * used / scenes}


def flat_figures(opener: Opener, job: Job, steady: Callable[[], None]) -> dict[str, float]:
    """Takes `FLAT_BATCHES` batches at a steady pace after a warm-up of a tenth of that.

    Returns:
        `batches` taken in the steady state; the parent process watches the memory.
    """
    with opener(job) as batches:
        iterator = iter(batches)
        for _ in range(FLAT_BATCHES // 10):
            next(iterator)
        steady()
        for _ in range(FLAT_BATCHES):
            next(iterator)
            time.sleep(FLAT_PAUSE)
        del iterator
    return {"batches": FLAT_BATCHES}
