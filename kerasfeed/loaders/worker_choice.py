"""Workers, and which of them suit scenes of which it is known for how long they keep a processor busy.

Invariant: values, and arithmetic on them.
"""

import math
from dataclasses import dataclass

from kerasfeed.util.counted import counted

WORKERS, WORKER_TYPE = "workers", "worker_type"
_MOST_PROCESSES_A_CORE = 4
_MOST_THREADS = 64
_BETTER = 1.1  # times as fast: less is noise
_SHORT = 1e-4  # s that a scene waits: below, more workers than cores gain nothing


@dataclass(frozen=True)
class Setup:
    """Workers of a feed.

    Attributes:
        workers: How many.
        worker_type: "thread" or "process"; "inline" where there are none.
    """

    workers: int
    worker_type: str

    def __str__(self) -> str:
        if not self.workers:
            return "no workers"
        names = {"thread": ("thread", "threads"), "process": ("worker process", "worker processes")}
        return counted(self.workers, *names[self.worker_type])


@dataclass(frozen=True)
class Choice:
    """Workers, and why.

    Attributes:
        setup: The workers.
        reason: Why, in words.
        measured: Whether the time of scenes has decided.
        hint: What the user might do to have better ones; empty for nothing.
    """

    setup: Setup
    reason: str
    measured: bool = False
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.setup}: {self.reason}"


def waits(seconds: float, busy_seconds: float) -> bool:
    """Whether scenes wait for most of their time, so that more workers than cores are useful."""
    return seconds - busy_seconds > max(busy_seconds, _SHORT)


def processes_for(seconds: float, busy_seconds: float, cores: int) -> int:
    """As many worker processes as keep the cores busy: more than cores where scenes wait, four a core at most.

    Args:
        seconds: Time of a scene, s.
        busy_seconds: Part of it that keeps a processor busy, s.
        cores: Cores of the machine.
    """
    if not waits(seconds, busy_seconds):
        return cores
    return min(_MOST_PROCESSES_A_CORE * cores, math.ceil(cores * seconds / max(busy_seconds, 1e-6)))


def threads_for(seconds: float, busy_seconds: float, cores: int) -> int:
    """As many threads as there are scenes to wait for, at least the cores, at most 64; see `processes_for`.

    They may need the GIL for all of `busy_seconds`, or for none of it: twice as many as would be of use if they did.
    """
    if not waits(seconds, busy_seconds):
        return cores
    return max(cores, min(_MOST_THREADS, math.ceil(2 * seconds / max(busy_seconds, 1e-6))))


def is_faster(rate: float, than: float) -> bool:
    """Whether one rate is better than another by more than noise."""
    return rate > _BETTER * than


def why(seconds: float, busy_seconds: float) -> str:
    """In words what a scene does for most of its time."""
    if waits(seconds, busy_seconds):
        return f"a scene takes {duration(seconds)} and waits for {duration(seconds - busy_seconds)} of it"
    return f"a scene takes {duration(seconds)} and computes for {duration(min(seconds, busy_seconds))} of it"


def duration(seconds: float) -> str:
    """A time in words, three digits at most: 12 us, 3.4 ms, 1.2 s."""
    for unit, scale in (("us", 1e-6), ("ms", 1e-3)):
        if seconds < 999.5 * scale:
            return f"{seconds / scale:.{0 if seconds >= 9.95 * scale else 1}f} {unit}"
    return f"{seconds:.{0 if seconds >= 9.95 else 1}f} s"
