"""Which workers suit scenes: what `workers="auto"` and `worker_type="auto"` come to.

Invariant: decides alone, from what was measured, and measures nothing. What was found for one class of sequences is
remembered as long as the class lives, so that a program measures it once.
"""

import math
import threading
import weakref
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

from kerasfeed.loaders.scene_cost import SceneCost
from kerasfeed.sequences.base import Subset
from kerasfeed.sequences.view_base import View
from kerasfeed.util.counted import counted

WORKERS, WORKER_TYPE = "workers", "worker_type"
_MOST_PROCESSES_A_CORE = 4
_MOST_THREADS = 64
_BETTER = 1.1  # times as fast: less is noise, and processes outlive a scene that crashes


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
        rate: Scenes/s that they are expected to load; 0 where that is not known.
        measured: Whether scenes were read to find out.
        cost: What they cost, if so.
        hint: What the user might do to have better ones; empty for nothing.
    """

    setup: Setup
    reason: str
    rate: float = 0.0
    measured: bool = False
    cost: SceneCost | None = None
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.setup}: {self.reason}"


def processes_for(cost: SceneCost, cores: int) -> int:
    """As many worker processes as keep the cores busy: more than cores where scenes wait, four a core at most."""
    if not cost.busy_seconds or cost.total_seconds / cost.busy_seconds < 2:
        return cores
    return min(_MOST_PROCESSES_A_CORE * cores, math.ceil(cores * cost.total_seconds / cost.busy_seconds))


def threads_for(cost: SceneCost, cores: int) -> int:
    """As many threads as do not wait for each other, at least the cores, at most 64."""
    # Where threads that wait were not seen to wait for each other, the bound is a guess on the safe side.
    unsure = not cost.is_bound and cost.waiting_seconds > cost.seconds / 2
    bound = cost.bound_seconds / 2 if unsure else cost.bound_seconds
    bound = max(bound, cost.busy_seconds / cores)
    return max(cores, min(_MOST_THREADS, math.ceil(cost.total_seconds / bound)))


def setups(cost: SceneCost, present: Setup, free: frozenset[str], *, threads: bool = True) -> list[Setup]:
    """What may be chosen, the present one first.

    Args:
        cost: What a scene costs.
        present: What there is, or what was asked for.
        free: What of it is to be chosen: `WORKERS`, `WORKER_TYPE`, or both.
        threads: Whether threads may be chosen where there are processes.
    """
    types = [present.worker_type]
    if WORKER_TYPE in free and threads:
        types = ["process", "thread"] if present.worker_type == "process" else types
    found = [present]
    for kind in types:
        if WORKERS not in free:
            numbers = [present.workers]
        elif kind == "process":
            numbers = [cost.cores, processes_for(cost, cost.cores)]
        else:
            numbers = [cost.cores, threads_for(cost, cost.cores)]
            if cost.total_seconds < 1e-3:
                numbers.append(1)  # of tiny scenes a second thread is in the way
        found += [Setup(number, kind) for number in numbers]
    return list(dict.fromkeys(found))


def is_faster(rate: float, than: float) -> bool:
    """Whether one rate is better than another by more than noise."""
    return rate > _BETTER * than


def best(rates: dict[Setup, float]) -> Setup:
    """The fastest; one of those before it where that is no slower but for noise."""
    found = next(iter(rates))
    for setup, rate in rates.items():
        if is_faster(rate, rates[found]):
            found = setup
    return found


def why(cost: SceneCost) -> str:
    """In words what of the cost decides which workers suit."""
    scene = f"a scene takes {duration(cost.seconds)}"
    if cost.collate_seconds > cost.seconds:
        return f"{scene} to read and {duration(cost.collate_seconds)} to write into the batch"
    if cost.waiting_seconds > cost.seconds / 2:
        return f"{scene} and waits for {duration(cost.waiting_seconds)} of it"
    if cost.gil_seconds > cost.seconds / 2:
        return f"{scene} and holds the GIL for {duration(cost.gil_seconds)} of it"
    return f"{scene} and computes for {duration(cost.free_seconds)} of it without the GIL"


def held_text(cost: SceneCost) -> str:
    """What scenes do for most of their time, in words."""
    parts = [
        (cost.waiting_seconds, "scenes wait for"),
        (cost.gil_seconds, "scenes hold the GIL for"),
        (cost.free_seconds, "scenes compute without the GIL for"),
        (cost.collate_seconds, "writing scenes into the batch takes"),
    ]
    seconds, text = max(parts)
    return f"{text} {duration(seconds)} of {duration(cost.total_seconds)}"


def duration(seconds: float) -> str:
    """A time in words, three digits at most: 12 us, 3.4 ms, 1.2 s."""
    for unit, scale in (("us", 1e-6), ("ms", 1e-3)):
        if seconds < 999.5 * scale:
            return f"{seconds / scale:.{0 if seconds >= 9.95 * scale else 1}f} {unit}"
    return f"{seconds:.{0 if seconds >= 9.95 else 1}f} s"


# ---- what was found before


@dataclass(eq=False)
class Known:
    """What was found for scenes of one kind; whoever holds the lock is finding it out."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    choices: dict[Hashable, Choice] = field(default_factory=dict)


_known: "weakref.WeakKeyDictionary[Any, dict[Hashable, Known]]" = weakref.WeakKeyDictionary()
_known_lock = threading.Lock()


def known_of(sequence: Any) -> Known:
    """What was found for sequences like this one: of its class, made of the same classes where it is a view.

    Classes of kerasfeed that read files (`HDF5Scenes`, ...) say nothing of what their scenes cost, so these are told
    apart one by one.
    """
    names, inside = _shape_of(sequence)
    own = type(inside).__module__.partition(".")[0] == __name__.partition(".")[0]
    with _known_lock:
        try:
            return _known.setdefault(inside if own else type(inside), {}).setdefault(names, Known())
        except TypeError:  # it cannot be referred to weakly, or has no hash
            return _known.setdefault(type(inside), {}).setdefault((names, id(inside)), Known())


def _shape_of(sequence: Any) -> tuple[Hashable, Any]:
    """Classes and functions of a view, and the first sequence inside it."""
    if not isinstance(sequence, View):
        return (), sequence
    parts = [_shape_of(part) for part in sequence._parts[:8]]
    names = tuple((name, type(inside).__qualname__) for name, inside in parts)
    if isinstance(sequence, Subset):
        return parts[0]
    function = getattr(sequence, "function", None)
    return (type(sequence).__qualname__, getattr(function, "__qualname__", ""), names), parts[0][1]
