"""The job of a loader, and its counters.

Invariant: a batch is a pure function of (sequence, plan, epoch, step); the rest of a job does not change it.
"""

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kerasfeed.loaders.failures.failure_log import FailurePolicy
from kerasfeed.orders.plan import Plan
from kerasfeed.pool.base import HostNumbers
from kerasfeed.pool.environment import Environment
from kerasfeed.sequences.view_base import is_safe_function, is_thread_safe
from kerasfeed.spec.collation import Collation, Custom, Stack
from kerasfeed.spec.scene_spec import SceneSpec


@dataclass(frozen=True)
class Job:
    """The sequence, plan and options of a loader.

    Attributes:
        sequence: Any object with `__len__` and `__getitem__`.
        plan: The indices of every step; `plan.seed` also seeds each scene's `rng`.
        workers: Concurrent `__getitem__` calls; 0 in a job for an inline loader.
        max_memory: Limit for all slots, bytes.
        look_ahead: Batches that the consumer wants in flight, at least 1.
        policy: The policy for scenes that fail.
        collate: The collation of scenes into a batch.
        spec: Spec of a scene, if known; else scenes are read to infer it.
        inherit: Descriptors that worker processes must inherit because the sequence uses them.
        item_text: Names an item of a stream in messages, from epoch and index; None if the index suffices.
        environment: Directory and environment of worker processes, from the moment when the feed was made.
        watches_random: Whether to check if the first scenes use random generators other than `rng`.
        has_seed: Whether the user gave the seed of the plan.
        hosts: The `RayHosts` that make the batches, each with `workers` worker processes; None for this machine.
        every_core: Whether each host has as many workers as cores, instead of `workers`.
        host_numbers: The workers' numbers among all hosts, in a loader of one host.
        auto: Options to choose with the first batch: "workers", "worker_type", both or none.
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
    host_numbers: HostNumbers = field(default_factory=HostNumbers)
    auto: frozenset[str] = frozenset()

    def with_workers(self, workers: int) -> "Job":
        """Return the same job with another number of workers, which is final."""
        ahead = max(self.look_ahead, self.ahead_for(workers))
        return dataclasses.replace(self, workers=workers, look_ahead=ahead, auto=frozenset())

    def ahead_for(self, workers: int) -> int:
        """Number of batches that give every worker two scenes; 1 without workers.

        With a `maker`, a worker makes whole batches: then it gets two of them.
        """
        return math.ceil(2 * workers / (1 if self.maker else self.plan.rows)) if workers else 1

    @property
    def maker(self) -> Custom | None:
        """The user's function that makes whole batches, or None."""
        return self.collate if isinstance(self.collate, Custom) else None

    @property
    def thread_safe(self) -> bool:
        """Whether several threads may load batches at once.

        They may if the user allows it, or if no code of the user runs.
        """
        return is_thread_safe(self.sequence) and (self.maker is None or is_safe_function(self.maker.function))

    @property
    def has_weights(self) -> bool:
        """Whether batches have weights, which are 0 for rows without a scene."""
        return self.policy.on_error == "mask" or self.plan.pad_remainder

    def padding_rows(self, epoch: int, step: int) -> int | None:
        """Number of rows that only fill up the last batch.

        None if batches are not filled up.
        """
        return self.plan.padding_rows(epoch, step) if self.plan.pad_remainder else None


@dataclass(frozen=True)
class HostStats:
    """Counters of the hosts of a feed, at one moment.

    Attributes:
        wanted: Requested hosts.
        alive: Hosts that accept batches.
        batches: Number of batches that each host has made, by the number of the host.
    """

    wanted: int
    alive: int
    batches: dict[int, int]


@dataclass(frozen=True)
class LoaderStats:
    """Counters of a feed at one moment, which `feed.stats()` returns.

    Attributes:
        worker_type: "inline" (in the calling thread), "thread" or "process".
        workers: Number of concurrent `__getitem__` calls.
        batches: Batches delivered since the workers started. Ctrl-C, `refresh` and `close` restart the count at 0.
        copied: Batches among these that were copied to ordinary memory because `max_memory` was reached.
        slots: Number of batch buffers.
        slot_bytes: Size of one buffer, bytes.
        pids: Process ids of the worker processes, if any.
        respawns: Worker processes that died and were replaced; with `hosts`, hosts that were started again.
        failed: Scenes that failed and were replaced, masked or skipped.
        seeds_random: Whether random generators other than `rng` are seeded for each scene, because scenes use them.
        hosts: Counters of other hosts, if there are any.
        chosen: The workers that "auto" chose with the first batch, and the reason; empty before that batch, or without
            "auto".
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
        """The number of workers as in the argument `workers`: 0 for none."""
        return 0 if self.worker_type == "inline" else self.workers
