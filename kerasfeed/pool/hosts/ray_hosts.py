"""What a user asks of a Ray cluster: `RayHosts`.

Invariant: a value that pickles; Ray is imported where a feed starts its hosts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from kerasfeed.pool.hosts.engine import Engine, Hosts, Tell
from kerasfeed.pool.hosts.ray_cluster import join_cluster
from kerasfeed.util.validate import check_integer


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
        # Names, for modules do not pickle, and feeds do.
        given = [self.ship] if isinstance(self.ship, str | ModuleType) else self.ship
        object.__setattr__(self, "ship", tuple(map(_module_name, given)))

    def start_engine(self, tell: Tell, calls: int) -> Engine:
        """See `Hosts.start_engine`."""
        return join_cluster(self.address, self.count, self.resources, self.runtime_env, tell, calls)


def _module_name(module: Any) -> str:
    if not isinstance(module, str | ModuleType):
        raise TypeError(f"ship takes modules and their names, received {module!r} of type {type(module).__name__}")
    return module if isinstance(module, str) else module.__name__
