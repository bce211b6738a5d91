"""Checked arguments of feeds.

Invariant: only this module checks the arguments that several kinds of feeds share. Feeds pickle the user's arguments.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kerasfeed.feeds.sharding import Shard
from kerasfeed.loaders.arguments import check_hosts, check_policy, check_workers
from kerasfeed.loaders.base import Job
from kerasfeed.loaders.failures.failure_log import FailurePolicy
from kerasfeed.loaders.hosts.ray_hosts import RayHosts
from kerasfeed.orders.plan import Plan
from kerasfeed.pool.environment import Environment
from kerasfeed.spec.collation import Collation
from kerasfeed.util.resources import memory
from kerasfeed.util.validate import check_integer


@dataclass(frozen=True)
class FeedOptions:
    """The arguments that all feeds have.

    Attributes:
        given: All keyword arguments of the feed by name, unchanged.
        batch_size: Scenes in a batch, at least 1; None if each item is already a batch.
        workers: Number of workers, at least 0.
        worker_type: "auto", "process" or "thread".
        ahead: Batches made ahead of the consumer, at least 1.
        max_memory: Limit for all slots, bytes.
        policy: How to handle failed scenes.
        environment: Directory and environment of worker processes, which may start later.
        hosts: The hosts of the workers; None for this machine.
    """

    given: Mapping[str, Any]
    batch_size: int | None
    workers: int
    worker_type: str
    ahead: int
    max_memory: int
    policy: FailurePolicy
    environment: Environment
    hosts: RayHosts | None

    @classmethod
    def checked(cls, method: Callable[..., Any], variables: Mapping[str, Any]) -> "FeedOptions":
        """Check the arguments of a feed; see `kerasfeed.Feed` and `kerasfeed.StreamFeed`.

        Args:
            method: The feed's `__init__`.
            variables: Its local variables, which hold the arguments.

        Raises:
            TypeError: An argument is of the wrong type.
            ValueError: An argument is out of range, or two arguments conflict.
        """
        given = {name: variables[name] for name in inspect.unwrap(method).__kwdefaults__}
        batch_size, ceiling = variables["batch_size"], given["max_memory"]
        if batch_size is not None:
            batch_size = check_integer("batch_size", batch_size, 1)
        workers = check_workers(given["workers"], given["worker_type"])
        hosts = check_hosts(given.get("hosts"), workers, given["worker_type"])
        return cls(
            given=given, batch_size=batch_size, workers=workers, worker_type=given["worker_type"],
            ahead=check_integer("max_queue_size", given["max_queue_size"], 1),
            max_memory=memory() // 4 if ceiling is None else check_integer("max_memory", ceiling, 1),
            policy=check_policy(
                given["on_error"], given["max_failures"], given["timeout"], given["error_log"],
                batched=batch_size is not None, workers=workers,
            ),
            environment=Environment.now(), hosts=hosts,
        )  # fmt: skip

    @property
    def auto(self) -> frozenset[str]:
        """The worker options to choose with the first batch; see `Job.auto`."""
        return frozenset(name for name in ("workers", "worker_type") if self.given[name] == "auto")

    def arguments_again(self, seed: int, shard: Shard) -> dict[str, Any]:
        """Return the keyword arguments for another feed with the same batches.

        That feed may be made in another process.
        """
        asked = self.given["shard"]  # "auto" queries again there
        chosen = asked if isinstance(asked, str) else shard
        return {**self.given, "seed": seed, "shard_index": None, "shard_count": 1, "shard": chosen}

    def job(self, sequence: Any, plan: Plan, collation: Collation, **others: Any) -> Job:
        """Return the job of a loader.

        `others` adds or overrides fields of the `Job`.
        """
        return Job(
            sequence, plan, max_memory=self.max_memory, policy=self.policy, collate=collation,
            environment=self.environment, hosts=self.hosts, every_core=self.given["workers"] == "auto",
            has_seed=self.given["seed"] is not None,
            **{"workers": self.workers, "look_ahead": self.ahead, **others},
        )  # fmt: skip
