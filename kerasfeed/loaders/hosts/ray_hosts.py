"""Hosts of a Ray cluster: `RayHosts`, and an actor on each host.

Invariant: Ray is imported when a feed joins its hosts. Ray restarts the actors. They end with `close` or with this
process. This module never ends a Ray session.
"""

import logging
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from kerasfeed import __version__
from kerasfeed.errors import HostLostError, WorkerStartError
from kerasfeed.pool.environment import search_path
from kerasfeed.util.error_text import message_of
from kerasfeed.util.validate import check_integer, check_number

_SMALL = 50_000  # bytes; Ray sends arguments of up to 100 KB as part of a call


@dataclass(frozen=True)
class RayHosts:
    """Hosts of a Ray cluster, for `Feed(hosts=...)`.

    Needs `pip install ray` (the extra "ray") on all hosts. On each host an actor runs the `workers` of the feed and
    returns whole batches. If a host is lost, Ray restarts it, and other hosts load its batches. The batches and their
    order are the same as with `workers=0`.

    Args:
        count: Number of hosts, each on a separate node. If a node is lost, Ray moves its host to a free node, or to a
            node that joins later. None uses all nodes that have the resources when the feed is made.
        address: Address of the cluster: "auto" is the cluster of this machine, "10.0.0.1:6379" the head of a cluster.
            None starts Ray on this machine, for a trial, until the program ends or calls `ray.shutdown()`. If this
            program has already started a Ray session, the feed uses it.
        resources: Resources for Ray to reserve on each host, such as `{"CPU": 8, "memory": 16e9}` (CPUs, bytes). None
            reserves one CPU. Ray does not limit the resources that the worker processes use.
        ship: Your modules that the hosts do not have, or their names; their definitions are sent with the job.
        runtime_env: Ray's `runtime_env` of the hosts, such as `{"pip": [...], "env_vars": {...}}`.
        start_timeout: Seconds, above 0, that the feed waits without any host before it raises an error.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of range; `address` is a Ray client address; or `address` is None and `count` is
            above 1.

    Examples:
        >>> hosts = kf.RayHosts(count=4, ship=("my_scenes",))
        >>> hosts.start_timeout
        300.0
    """

    count: int | None = None
    address: str | None = "auto"
    resources: Mapping[str, float] | None = field(default=None, kw_only=True)
    ship: Sequence[str | ModuleType] = field(default=(), kw_only=True)
    runtime_env: Mapping[str, Any] | None = field(default=None, kw_only=True)
    start_timeout: float = field(default=300.0, kw_only=True)

    def __post_init__(self) -> None:
        if self.count is not None:
            check_integer("count", self.count, 1, remedy=" (None is every node)")
        if not isinstance(self.address, str | None):
            raise TypeError(f"address must be a str or None, received {self.address!r}")
        if self.address is not None and self.address.startswith("ray://"):
            raise ValueError(
                f"address={self.address!r} is an address of a Ray client, which shares no memory with the cluster: run "
                'this program on a node of the cluster with address="auto", or submit it as a job'
            )
        if self.address is None and (self.count or 1) > 1:
            raise ValueError(f"address=None starts Ray on this machine, which is one host, and count is {self.count}")
        check_number("start_timeout", self.start_timeout, "a positive number of seconds")
        for name in ("resources", "runtime_env"):
            if not isinstance(getattr(self, name), Mapping | None):
                raise TypeError(f"{name} must be a dict, received {getattr(self, name)!r}")
        for name, most in (self.resources or {}).items():
            check_number(f"resources[{name!r}]", most, "a number of at least 0", least=0)
        given = self.ship if isinstance(self.ship, list | tuple | set | frozenset) else [self.ship]
        for module in given:
            if not isinstance(module, str | ModuleType):
                raise TypeError(
                    f"ship takes modules and their names, received {module!r} of type {type(module).__name__}"
                )
        # Modules do not pickle, and feeds do.
        object.__setattr__(self, "ship", tuple(getattr(module, "__name__", module) for module in given))

    def join(self) -> "RayCluster":
        """Start the hosts, without waiting for them.

        Raises:
            ImportError: Ray is not installed.
            WorkerStartError: No cluster can be joined, or no node has the resources.
            Exception: Ray refuses the resources or the `runtime_env`.
        """
        return RayCluster(self)


class RayCluster:
    """Ray actors, each on a separate node.

    Attributes:
        hosts: The actors.
        asked: Description of the requested hosts, for error messages.
    """

    def __init__(self, given: RayHosts) -> None:
        """Start the hosts `given`; see `RayHosts.join`."""
        try:
            import ray
            from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
        except ImportError as error:
            raise ImportError(
                'kf.RayHosts needs Ray, which is not installed: pip install ray (the extra "kerasfeed[ray]")'
            ) from error

        from kerasfeed.loaders.hosts.host import FeedHost
        from kerasfeed.loaders.hosts.session import MOST_CALLS

        self._ray: Any = ray
        wanted = dict(given.resources or {"CPU": 1.0})
        # No retries: Ray would wait for the restarted actor, perhaps for a free node. The session uses another host.
        # 0 CPUs: the placement group reserves the resources, and each worker would start a thread per CPU of the actor.
        actor_class = self._ray.remote(
            max_restarts=-1, max_task_retries=0, max_concurrency=MOST_CALLS + 4, num_cpus=0,
            num_gpus=wanted.get("GPU", 0), runtime_env=dict(given.runtime_env or {}),
        )(FeedHost)  # fmt: skip
        try:
            if not ray.is_initialized():
                options = {"include_dashboard": False} if given.address is None else {}
                ray.init(address=given.address or "local", logging_level=logging.WARNING, **options)
        except (OSError, RuntimeError, ValueError) as error:
            raise WorkerStartError(
                f"no Ray cluster could be joined at address={given.address!r}: {message_of(error)}. Start one with "
                "`ray start --head`, and `ray start --address=...` on the others, with the same Ray and Python on all "
                "machines, or use address=None"
            ) from error
        self._session = self._present_session()
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        fit = sum(all(node.get(name, 0) >= most for name, most in wanted.items()) for node in nodes)
        count = given.count or max(1, fit)
        self._group = self._ray.util.placement_group([wanted] * count, "STRICT_SPREAD")
        strategies = [PlacementGroupSchedulingStrategy(self._group, number) for number in range(count)]
        self.hosts = [
            actor_class.options(scheduling_strategy=strategy).remote(number, count, __version__, search_path())
            for number, strategy in enumerate(strategies)
        ]
        self.asked = (
            f"asked for {count} nodes with {wanted} each, and {fit} nodes have that if no job uses them (`ray "
            "status` shows the use). Ask for fewer hosts or resources, start more nodes, or raise start_timeout"
        )

    def _present_session(self) -> tuple[str, str] | None:
        """Return node and job of this process's Ray session, or None."""
        if not self._ray.is_initialized():  # get_runtime_context() would start a session
            return None
        context = self._ray.get_runtime_context()
        return context.get_node_id(), context.get_job_id()

    def check(self) -> None:
        """Check that the Ray session still exists.

        Without it, Ray's functions would start another session.

        Raises:
            HostLostError: The session has ended.
        """
        if self._present_session() != self._session:
            raise HostLostError("the hosts have ended, because ray.shutdown() was called")

    def share(self, packed: Any) -> Any:
        """Return a value to pass in calls instead of `packed`.

        The caller must keep the value alive.
        """
        self.check()
        return packed if sum(map(len, packed)) < _SMALL else self._ray.put(packed)

    def call(self, host: Any, method: str, *arguments: Any) -> "Future[Any]":
        """Call a method of a host; return the future of its result.

        If the host ends, the future fails. Only "start" is called again on the restarted host, and fails if Ray no
        longer restarts the host.
        """
        self.check()
        retries = -1 if method == "start" else 0
        future: Future[Any] = getattr(host, method).options(max_task_retries=retries).remote(*arguments).future()
        return future

    def close(self) -> None:
        """End the hosts."""
        with suppress(Exception):  # Ray has ended the hosts if the cluster or the session is gone
            self.check()
            for host in self.hosts:
                self._ray.kill(host)
            self._ray.util.remove_placement_group(self._group)
