"""Choose workers from the cost of the first scenes.

Invariant: batches do not depend on the choice. Several threads read only if `Job.thread_safe` allows it.
"""

import math
import sys
from collections.abc import Set
from dataclasses import dataclass

from kerasfeed.loaders.base import Job
from kerasfeed.loaders.batch_runner import FirstScenes
from kerasfeed.sequences.view_base import is_made_of_arrays
from kerasfeed.util.error_text import pluralize
from kerasfeed.util.resources import cores

WORKERS, WORKER_TYPE = "workers", "worker_type"
_MOST_PROCESSES_A_CORE = 4
_MOST_THREADS = 64
_SHORT = 1e-4  # s of waiting per scene; below this, more workers than cores do not help
_LEAST_EPOCH = 1.0  # s in one worker; starting processes takes as long as a shorter epoch
_QUICK_BATCH = 5e-4  # s: passing a batch between threads may cost more
_COPIED_A_SECOND = 4e9  # bytes copied into a batch per second


@dataclass(frozen=True)
class Setup:
    """The workers of a feed.

    Attributes:
        workers: Number of workers.
        worker_type: "thread" or "process"; "inline" if there are none.
    """

    workers: int
    worker_type: str

    def __str__(self) -> str:
        if not self.workers:
            return "no workers"
        names = {"thread": ("thread", "threads"), "process": ("worker process", "worker processes")}
        return pluralize(self.workers, *names[self.worker_type])


@dataclass(frozen=True)
class Choice:
    """A choice of workers with its reason.

    Attributes:
        setup: The workers.
        reason: The reason, in words.
    """

    setup: Setup
    reason: str

    def __str__(self) -> str:
        return f"{self.setup}: {self.reason}"


def waits(seconds: float, busy_seconds: float) -> bool:
    """Whether scenes mostly wait, so that more workers than cores are useful."""
    return seconds - busy_seconds > max(busy_seconds, _SHORT)


def threads_compute_at_once() -> bool:
    """Whether Python runs without the GIL now."""
    has_gil = getattr(sys, "_is_gil_enabled", None)  # since Python 3.13
    return has_gil is not None and not has_gil()


def most_processes() -> int:
    """The limit of `processes_for`."""
    return _MOST_PROCESSES_A_CORE * cores()


def processes_for(seconds: float, busy_seconds: float, cores: int) -> int:
    """Number of worker processes: the cores, or more if scenes wait.

    At most four per core.

    Args:
        seconds: Time per scene, s.
        busy_seconds: Processor time per scene, s.
        cores: Cores of the machine.
    """
    if not waits(seconds, busy_seconds):
        return cores
    return cores * min(_MOST_PROCESSES_A_CORE, math.ceil(seconds / max(busy_seconds, 1e-6)))


def threads_for(seconds: float, busy_seconds: float, cores: int) -> int:
    """Number of threads: the cores, or up to 64 if scenes wait.

    While one scene computes, others wait: twice `seconds / busy_seconds` threads keep one core busy. The arguments are
    the same as for `processes_for`.
    """
    if not waits(seconds, busy_seconds):
        return cores
    wanted: float = min(_MOST_THREADS, 2 * seconds / max(busy_seconds, 1e-6))
    return max(cores, 1 << math.ceil(math.log2(wanted)))


def why(seconds: float, busy_seconds: float) -> str:
    """Whether a scene mostly waits or computes, in words."""
    if waits(seconds, busy_seconds):
        return f"a scene takes {duration(seconds)} and waits for {duration(seconds - busy_seconds)} of it"
    return f"a scene takes {duration(seconds)} and computes for {duration(min(seconds, busy_seconds))} of it"


def duration(seconds: float) -> str:
    """A duration as text: 3.4 ms, 12 us, 120 ms."""
    for unit, scale in (("us", 1e-6), ("ms", 1e-3)):
        if seconds < 999.5 * scale:
            return f"{seconds / scale:.{0 if seconds >= 9.95 * scale else 1}f} {unit}"
    return f"{seconds:.{0 if seconds >= 9.95 else 1}f} s"


def choose(
    job: Job, present: Setup, first: FirstScenes, *, auto: Set[str], batch_bytes: int, draws_globally: bool
) -> Choice:
    """Choose workers from the cost of the first scenes.

    Args:
        job: The job of the loader.
        present: The workers that have read the first scenes.
        first: The first scenes.
        auto: Names of the arguments to choose; see `Job.auto`.
        batch_bytes: Size of a batch, bytes.
        draws_globally: Whether scenes use the global random generators, which only worker processes seed.
    """
    chooses_all = auto == {WORKERS, WORKER_TYPE} and job.policy.timeout is None
    if first.trouble:
        return Choice(Setup(1 if WORKERS in auto else job.workers, present.worker_type), first.trouble)
    seconds, busy, count = first.seconds, first.cpu_seconds, cores()
    batch, epoch = job.plan.rows * seconds + batch_bytes / _COPIED_A_SECOND, job.plan.scenes * seconds
    reason = why(seconds, busy) if seconds else "no scene was read"
    threads = Setup(threads_for(seconds, busy, count) if WORKERS in auto else job.workers, "thread")
    processes = Setup(processes_for(seconds, busy, count) if WORKERS in auto else job.workers, "process")
    if draws_globally and WORKER_TYPE in auto:
        return Choice(processes, "scenes use random generators, which worker processes seed")
    # Only processes start in the feed's directory. Arrays need none.
    is_here = job.environment.is_here or is_made_of_arrays(job.sequence)
    is_quick = seconds and batch < _QUICK_BATCH and job.maker is None  # the time of a maker is unknown
    if chooses_all and is_quick and is_here:
        return Choice(Setup(0, "inline"), f"a batch takes {duration(batch)}")
    if WORKERS in auto and 0 < epoch < _LEAST_EPOCH:
        return Choice(present, f"an epoch takes {duration(epoch)} in one worker")
    if WORKER_TYPE not in auto:
        return Choice(threads if present.worker_type == "thread" else processes, reason)
    several = job.thread_safe and job.policy.timeout is None and is_here
    uses_threads = several and (threads_compute_at_once() or waits(seconds, busy))
    return Choice(threads if uses_threads else processes, reason)
