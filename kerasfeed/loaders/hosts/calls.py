"""Calls of hosts: what they bring, what is answered, and the clusters that carry them.

Invariant: an answer is a function of the job, the `State` and the arguments of the call, so any host may be asked at
any time, and again, and the first answer counts. A cluster starts hosts, carries calls and tells of ends, and decides
nothing.
"""

import platform
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import cloudpickle
import numpy as np
from numpy.typing import NDArray

import kerasfeed
from kerasfeed.loaders.batches.layout import Layout
from kerasfeed.pool.exception_pickle import Sent
from kerasfeed.pool.processes.shared_objects import pickled
from kerasfeed.readers.read_cost import ReadCost

MOST_CALLS = 32  # of batches, that a host has at once

# cloudpickle has one registry: of two that use it at once, who ends first would take the other's modules out of it.
_registering = threading.RLock()
Packed = Sequence[NDArray[np.uint8]]  # an object as bytes: all but its large arrays, and these
Failure = tuple[int | None, int | None, int | None, Sent]  # as `FailureLog.note` takes it: index, epoch, step, error


def versions() -> str:
    """What must be the same on all hosts."""
    return f"kerasfeed {kerasfeed.__version__} on Python {'.'.join(platform.python_version_tuple()[:2])}"


def pack(value: Any, ship: Sequence[str] = (), **how: Any) -> Packed:
    """`value` as bytes, with what the modules `ship` define; `how`: see `pickled`.

    Raises:
        Exception: What pickling it raised.
    """
    with _registering:  # those that the program itself has registered stay so
        modules = [import_module(name) for name in ship if name not in cloudpickle.list_registry_pickle_by_value()]
        for module in modules:
            cloudpickle.register_pickle_by_value(module)
        try:
            return [np.frombuffer(part, np.uint8) for part in pickled(value, **how)]
        finally:
            for module in modules:
                cloudpickle.unregister_pickle_by_value(module)


def unpack(packed: Packed) -> Any:
    """The object, which refers to the arrays beside it."""
    return cloudpickle.loads(packed[0], buffers=packed[1:])


@dataclass(frozen=True)
class State:
    """What a host must know to answer, beside the job; it travels with each call.

    Attributes:
        generation: How often the job has changed. The job itself travels with calls of hosts that have an older one.
        layout: Of a batch; None until a host has inferred it.
        used_random: See `Pool.used_random`.
    """

    generation: int = 0
    layout: Layout | None = None
    used_random: int = 0


@dataclass(frozen=True)
class HostAnswer:
    """What a host says.

    Attributes:
        value: What it was asked for; empty where it could not be had.
        error: Why not.
        has_failed: Whether all its workers have failed, so that another host is to be asked.
        failures: What has failed.
        warnings: Kind, text and class of what the user is to be told.
        respawns: Worker processes that it has replaced.
        used_random: See `Pool.used_random`.
        waste: See `Loader.waste`.
        generation: Of the job that the host has; -1 for none.
    """

    value: Packed = ()
    error: Sent | None = None
    has_failed: bool = False
    failures: Sequence[Failure] = ()
    warnings: Sequence[tuple[str, str, type[Warning]]] = ()
    respawns: int = 0
    used_random: int = 0
    waste: ReadCost | None = None
    generation: int = -1


class Cluster(ABC):
    """Starts hosts. `places`, `start`, `keep` and `close` may take for ever where the cluster is gone.

    Attributes:
        well_for: Seconds without an answer after which it is taken to be gone.
    """

    well_for: float = float("inf")

    @abstractmethod
    def places(self) -> Sequence[str]:
        """Where there should be hosts now.

        Raises:
            HostLostError: There can be none any more.
        """

    def share(self, packed: Packed) -> Any:
        """What calls pass in place of `packed`; it must be kept as long as they do."""
        return packed

    @abstractmethod
    def start(self, place: str) -> Any:
        """Start a `FeedHost`."""

    @abstractmethod
    def call(self, host: Any, method: str, *arguments: Any) -> "Future[Any]":
        """Call a method of a host, once; the future fails where the host has ended. Waits for nothing."""

    @abstractmethod
    def keep(self, hosts: Sequence[Any]) -> None:
        """End all hosts but these at once."""

    @abstractmethod
    def missing(self) -> str:
        """What was asked for and what there is, in words, for whoever has waited for a host in vain."""

    @abstractmethod
    def close(self) -> None:
        """End what is left of the hosts, and free everything."""


class Hosts(ABC):
    """What a user asks for: hosts of one kind. Pickles.

    Attributes:
        ship: Names of the modules that are sent by value.
        start_timeout: Seconds to wait for a host, as long as there is none.
        silence: Seconds after which a batch is asked of a second host.
    """

    ship: tuple[str, ...]
    start_timeout: float
    silence: float

    @abstractmethod
    def join(self) -> Cluster:
        """The cluster.

        Raises:
            ImportError: What it needs is not installed.
            WorkerStartError: It cannot be reached.
        """


@dataclass(frozen=True)
class HostStats:
    """What became of batches on hosts, at one moment.

    Attributes:
        wanted: Hosts that there should be now.
        alive: Of these, hosts that take batches.
        lost: Hosts that were lost.
        batches: Batches that each host has made, by the number of the host.
        hedged: Batches that were asked of a second host because the first was silent.
        resent: Batches that were asked of another host because theirs was lost.
        late: Answers that came after another host had answered, and were dropped.
    """

    wanted: int = 0
    alive: int = 0
    lost: int = 0
    batches: dict[int, int] = field(default_factory=dict)
    hedged: int = 0
    resent: int = 0
    late: int = 0
