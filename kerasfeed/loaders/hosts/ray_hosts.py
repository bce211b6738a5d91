"""Hosts of a Ray cluster: `RayHosts`, what a user asks for, and one actor on each host, which is a `FeedHost`.

Invariant: Ray is imported where a feed starts its hosts. What runs on the cluster for us ends with `close`, or with
this process; a session of Ray is ended only if it was begun here, and with the last feed that uses it.
"""

import logging
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from kerasfeed.errors import HostLostError, WorkerStartError
from kerasfeed.loaders.hosts.calls import MOST_CALLS, Cluster, Hosts, Packed
from kerasfeed.loaders.hosts.host import FeedHost
from kerasfeed.util.error_text import message_of
from kerasfeed.util.validate import check_integer

_CALLS = MOST_CALLS + 4  # start, live, stop and what else is no batch
_SMALL = 50_000  # bytes; Ray sends arguments of up to 100 KB as part of a call
_KINDS = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}  # the rest are resources of the user's own
Name = tuple[str, str]


@dataclass(frozen=True)
class RayHosts(Hosts):
    """Hosts of a Ray cluster, for `Feed(hosts=...)`; needs `pip install ray` (the extra "ray") on all of them.

    On each of them an actor runs the `workers` of the feed and answers whole batches. A host that is lost is replaced,
    or its batches are asked of others: the batches are the same, in the same order, as with `workers=0`.

    Args:
        count: Number of hosts, each a node of its own. None is every node that has the resources, also those that join
            later; nodes may leave.
        address: Of the cluster: "auto" is the one that this machine belongs to, "10.0.0.1:6379" its head. None starts
            Ray on this machine, to try it. A session of Ray that this program has begun is used as it is.
        resources: What Ray is to reserve on each host, such as `{"CPU": 8, "memory": 16e9}` (CPUs, bytes). None
            reserves one CPU. Ray does not limit what the worker processes use.
        ship: Modules of yours that the hosts do not have, or their names: what they define is sent along.
        runtime_env: Ray's `runtime_env` of the hosts, such as `{"pip": [...], "env_vars": {...}}`.
        start_timeout: Seconds, above 0, that the feed waits while it has no host; then it raises.
        silence: Seconds, above 0, without an answer from a host, after which its batches are asked of a second host
            too. Give more than the slowest batch takes.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of range; `address` is that of a Ray client.

    Examples:
        >>> hosts = kf.RayHosts(count=4, ship=("my_scenes",))
        >>> hosts.silence
        30.0
    """

    count: int | None = None
    address: str | None = "auto"
    resources: Mapping[str, float] | None = field(default=None, kw_only=True)
    ship: Sequence[str | ModuleType] = field(default=(), kw_only=True)  # type: ignore[assignment]
    runtime_env: Mapping[str, Any] | None = field(default=None, kw_only=True)
    start_timeout: float = field(default=300.0, kw_only=True)
    silence: float = field(default=30.0, kw_only=True)

    def __post_init__(self) -> None:
        if self.count is not None:
            check_integer("count", self.count, 1, remedy=" (None is every node)")
        if not isinstance(self.address, str | None):
            raise TypeError(f"address must be a str or None, received {self.address!r}")
        if self.address is not None and self.address.startswith("ray://"):
            raise ValueError(
                f"address={self.address!r} is that of a Ray client, which shares no memory with the cluster: batches "
                "would pass through a proxy. Run this program on a node of the cluster (ray start --address=...) with "
                'address="auto", or submit it as a job'
            )
        if self.address is None and (self.count or 1) > 1:
            raise ValueError(
                f"address=None starts Ray on this machine, which is one host, and count is {self.count}: leave count "
                'out, or join a cluster with address="auto"'
            )
        for name in ("start_timeout", "silence"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise ValueError(f"{name} must be a positive number of seconds, received {value!r}")
        for name in ("resources", "runtime_env"):
            if not isinstance(getattr(self, name), Mapping | None):
                raise TypeError(f"{name} must be a dict, received {getattr(self, name)!r}")
        for name, most in (self.resources or {}).items():
            if isinstance(most, bool) or not isinstance(most, int | float) or not most >= 0:
                raise ValueError(f"resources[{name!r}] must be a number of at least 0, received {most!r}")
        # Names, for modules do not pickle, and feeds do.
        given = self.ship if isinstance(self.ship, list | tuple | set | frozenset) else [self.ship]
        object.__setattr__(self, "ship", tuple(map(_module_name, given)))

    def join(self) -> Cluster:
        """See `Hosts.join`."""
        try:
            import ray
        except ImportError as error:
            raise ImportError(
                'kf.RayHosts needs Ray, which is not installed: pip install ray (the extra "kerasfeed[ray]")'
            ) from error
        return RayCluster(ray, self)


def _module_name(module: Any) -> str:
    if not isinstance(module, str | ModuleType):
        raise TypeError(f"ship takes modules and their names, received {module!r} of type {type(module).__name__}")
    return module if isinstance(module, str) else module.__name__


class RayCluster(Cluster):
    """Hosts that are actors of Ray, each on a node of its own."""

    well_for = 15.0

    def __init__(self, ray: Any, hosts: RayHosts) -> None:
        """Start `hosts` later; see `Hosts.join`."""
        self._ray, self._count = ray, hosts.count
        self._wanted = dict(hosts.resources or {"CPU": 1.0})
        # A call that Ray repeats waits for the new actor while other hosts have nothing to do (16 s where a node is
        # lost, instead of 2), and fails with a batch beside it that ends the actor. What starts a host on a node that
        # joins starts one in place of a lost one, too.
        options: dict[str, Any] = {"num_cpus": 0, "max_restarts": 0, "max_task_retries": 0, "max_concurrency": _CALLS}
        options |= {_KINDS[name]: value for name, value in self._wanted.items() if name in _KINDS}
        options["resources"] = {name: value for name, value in self._wanted.items() if name not in _KINDS}
        options["runtime_env"] = dict(hosts.runtime_env or {})
        self._actor_class = ray.remote(**options)(FeedHost)
        self._actors: list[Any] = []
        self._group: Any = None
        self._name = _enter(ray, hosts.address)

    def _here(self) -> Any:
        """Ray, while our session lasts: without one, Ray's functions would begin another.

        Raises:
            HostLostError: Our session has ended.
        """
        if _present(self._ray) != self._name:
            raise HostLostError("there are no hosts any more: ray.shutdown() was called")
        return self._ray

    def places(self) -> Sequence[str]:
        """See `Cluster.places`."""
        nodes = self._here().nodes()  # hangs where the cluster is gone
        if self._count is not None:
            return [str(number) for number in range(self._count)]
        return [
            node["NodeID"]
            for node in nodes
            if node["Alive"] and all(node["Resources"].get(name, 0) >= most for name, most in self._wanted.items())
        ]

    def share(self, packed: Packed) -> Any:
        """See `Cluster.share`.

        What is small travels with each call: an object of Ray may be fetched from a node that is frozen, and whoever
        fetches it then waits until Ray finds that out.
        """
        return packed if sum(map(len, packed)) < _SMALL else self._here().put(packed)

    def start(self, place: str) -> Any:
        """See `Cluster.start`."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

        ray = self._here()
        if self._count is None:
            strategy = NodeAffinitySchedulingStrategy(place, soft=False)
        else:
            self._group = self._group or ray.util.placement_group([self._wanted] * self._count, "STRICT_SPREAD")
            strategy = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=int(place))
        self._actors.append(self._actor_class.options(scheduling_strategy=strategy).remote())
        return self._actors[-1]

    def call(self, host: Any, method: str, *arguments: Any) -> "Future[Any]":
        """See `Cluster.call`."""
        self._here()
        future: Future[Any] = getattr(host, method).remote(*arguments).future()
        return future

    def keep(self, hosts: Sequence[Any]) -> None:
        """See `Cluster.keep`."""
        kept = set(map(id, hosts))  # of a thousand, each is compared with each otherwise
        for actor in [actor for actor in self._actors if id(actor) not in kept]:
            self._here().kill(actor)
            self._actors.remove(actor)

    def close(self) -> None:
        """See `Cluster.close`."""
        with suppress(Exception):
            self.keep(())
            if self._group is not None:
                self._here().util.remove_placement_group(self._group)
        _leave(self._ray, self._name)

    def missing(self) -> str:
        """See `Cluster.missing`."""
        count = "every node" if self._count is None else f"count={self._count}, each on a node of its own,"
        nodes = [
            f"{node['NodeName']} ({_resources_text(node['Resources'])})"
            for node in self._here().nodes()
            if node["Alive"]
        ]
        return (
            f"asked for {count} with {_resources_text(self._wanted)}; the cluster has {len(nodes)}: "
            f"{'; '.join(nodes)}. Others may use them (`ray status` tells). Ask for fewer hosts or resources, start "
            "more nodes, or raise start_timeout"
        )


def _resources_text(resources: Mapping[str, float]) -> str:
    named = {name: most for name, most in resources.items() if ":" not in name and "store" not in name}
    return ", ".join(f"{name} {most:g}" for name, most in named.items()) or "no CPU"


# ---- Ray's session in this process


def _present(ray: Any) -> Name | None:
    """The node and the job of Ray's session; None where there is none."""
    if not ray.is_initialized():  # else the rest would begin one
        return None
    context = ray.get_runtime_context()
    return context.get_node_id(), context.get_job_id()


# Sessions that were begun here, once for each feed that uses one. It ends with the last of them.
_used: list[Name] = []
_lock = threading.Lock()


def _enter(ray: Any, address: str | None) -> Name:
    """Use the session that there is, or begin one; returns which.

    Raises:
        WorkerStartError: No cluster can be joined.
    """
    with _lock:
        begins = not ray.is_initialized()
        if begins:
            options = {"include_dashboard": False} if address is None else {}
            try:
                ray.init(address=address or "local", logging_level=logging.WARNING, **options)
            except (OSError, RuntimeError, ValueError) as error:
                raise WorkerStartError(
                    f"no Ray cluster could be joined at address={address!r}: {message_of(error)}. Start one with `ray "
                    "start --head`, and `ray start --address=...` on the others, with the same Ray and the same Python "
                    "on all machines, or use address=None"
                ) from error
        name = _present(ray)
        assert name is not None
        if begins or name in _used:
            _used.append(name)
        return name


def _leave(ray: Any, name: Name) -> None:
    """Use it no more; end it where it was begun here, and nobody else uses it."""
    with _lock:
        if name in _used:
            _used.remove(name)
            if name not in _used and _present(ray) == name:
                ray.shutdown()
