"""What a loader is to load, and what it has done.

Invariant: a batch is a pure function of (sequence, plan, epoch, step); the rest of a job does not change it.
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kerasfeed.loaders.failures.failure_log import FailurePolicy
from kerasfeed.orders.plan import Plan
from kerasfeed.pool.base import HostPlace
from kerasfeed.pool.environment import Environment
from kerasfeed.sequences.view_base import is_safe_function, is_thread_safe
from kerasfeed.spec.collation import Collation, Custom, Stack
from kerasfeed.spec.scene_spec import SceneSpec


@dataclass(frozen=True)
class Job:
    """What a loader is to load.

    Attributes:
        sequence: Any object with `__len__` and `__getitem__`.
        plan: The indices of every step; `plan.seed` also seeds each scene's `rng`.
        workers: Concurrent `__getitem__` calls, at least 1; the inline loader ignores it.
        max_memory: Ceiling of the slots, bytes.
        look_ahead: Batches that the consumer means to keep in flight, at least 1.
        policy: What to do about scenes that fail.
        collate: How scenes become a batch.
        spec: Spec of a scene, where it is known; else scenes are read to infer it.
        inherit: Descriptors that worker processes must inherit for the sequence's sake.
        item_text: What messages call an item of a stream, by epoch and index; None where an index tells.
        environment: Directory and environment of worker processes: those of the moment when the feed was made.
        watches_random: Whether to look if the first scenes use random generators other than `rng`.
        has_seed: Whether the user has given the seed of the plan.
        hosts: The `RayHosts` that make the batches, by `workers` worker processes each; None for this machine.
        every_core: Whether each host has as many workers as cores instead.
        place: Where this machine is among those hosts, in a loader of one of them.
        free: What of the workers is to be chosen with the first batch: "workers", "worker_type", both or nothing.
    """

    sequence: Any
    plan: Plan
    workers: int
    max_memory: int
    look_ahead: int
    policy: FailurePolicy = field(default_factory=FailurePolicy)
    collate: Collation = field(default_factory=Stack)
    spec: SceneSpec | None = None
    inherit: tuple[int, ...] = ()
    item_text: Callable[[int, int], str] | None = None
    environment: Environment = field(default_factory=Environment.now)
    watches_random: bool = True
    has_seed: bool = False
    hosts: Any = None
    every_core: bool = False
    place: HostPlace = field(default_factory=HostPlace)
    free: frozenset[str] = frozenset()

    def with_workers(self, workers: int) -> "Job":
        """The same with another number of workers, which is settled then."""
        ahead = max(self.look_ahead, self.ahead_for(workers))
        return dataclasses.replace(self, workers=workers, look_ahead=ahead, free=frozenset())

    def ahead_for(self, workers: int) -> int:
        """Batches that keep every worker at a scene while it has another waiting."""
        return math.ceil(2 * workers / (1 if self.maker else self.plan.rows)) if workers else 1

    @property
    def maker(self) -> Custom | None:
        """The user's function that makes whole batches; None where batches are made row by row."""
        return self.collate if isinstance(self.collate, Custom) else None

    @property
    def thread_safe(self) -> bool:
        """Whether the user has said that several threads may load batches at once, or none of the user's code runs."""
        return is_thread_safe(self.sequence) and (self.maker is None or is_safe_function(self.maker.function))

    @property
    def weighs(self) -> bool:
        """Whether every batch has weights, for rows that count for nothing."""
        return self.policy.on_error == "mask" or self.plan.pad_remainder

    def filler(self, epoch: int, step: int) -> int | None:
        """How many of the last rows of a batch only fill it up; None where batches are not filled up."""
        return self.plan.filler(epoch, step) if self.plan.pad_remainder else None


@dataclass(frozen=True)
class HostStats:
    """The hosts of a feed, at one moment.

    Attributes:
        wanted: Hosts that there should be.
        alive: Of these, hosts that take batches.
        batches: Batches that each host has made, by the number of the host.
    """

    wanted: int
    alive: int
    batches: dict[int, int]


@dataclass(frozen=True)
class LoaderStats:
    """Counters of a feed at one moment; what `feed.stats()` returns.

    Attributes:
        worker_type: "inline" (in the calling thread), "thread" or "process".
        workers: Number of concurrent `__getitem__` calls.
        batches: Batches delivered so far.
        copied: Of these, batches copied to ordinary memory because `max_memory` was reached.
        slots: Batch buffers that exist.
        slot_bytes: Size of one buffer, bytes.
        pids: Process ids of the workers; empty unless they are processes.
        respawns: Worker processes that died and were replaced; if there are `hosts`, hosts that were started again.
        failed: Scenes that failed and were replaced, masked or skipped.
        seeds_random: Whether random generators other than `rng` are seeded for each scene, because scenes use them.
        hosts: Other hosts, and their batches; None if there are none.
        chosen: What "auto" came to with the first batch, and why; empty where nothing was to be chosen, or not yet.
    """

    worker_type: str
    workers: int
    batches: int
    copied: int
    slots: int
    slot_bytes: int
    pids: tuple[int, ...] = ()
    respawns: int = 0
    failed: int = 0
    seeds_random: bool = False
    hosts: HostStats | None = None
    chosen: str = ""

    @property
    def workers_argument(self) -> int:
        """The number of workers as the argument `workers` has it: 0 for none."""
        return 0 if self.worker_type == "inline" else self.workers
