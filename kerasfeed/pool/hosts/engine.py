"""The protocol of engines, which start hosts and carry messages between them and this process.

Invariant: an engine decides nothing. It tells what has happened, from any thread, and whoever is told only takes note.
News of a host that was killed, and news that comes twice, changes nothing.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from importlib import import_module
from typing import Any

import cloudpickle
import numpy as np

from kerasfeed.pool.processes.shared_objects import pickled

# cloudpickle has one registry: of two that use it at once, who ends first would take the other's modules out of it.
_registering = threading.RLock()


@dataclass(frozen=True)
class Parcel:
    """An object as bytes.

    Attributes:
        data: The object but for its large arrays.
        buffers: uint8[n] each; the engine may deliver them read-only.
    """

    data: bytes
    buffers: Sequence[Any] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of all of it."""
        return len(self.data) + sum(len(buffer) for buffer in self.buffers)

    def unpack(self) -> Any:
        """The object; arrays of it may be read-only."""
        return cloudpickle.loads(self.data, buffers=self.buffers)


def pack(value: Any, ship: Sequence[str] = ()) -> Parcel:
    """`value` as bytes, with what the modules `ship` define.

    Raises:
        Exception: What pickling it raised.
    """
    with _by_value(ship):
        data, *buffers = pickled(value)
    return Parcel(bytes(data), tuple(np.frombuffer(buffer, np.uint8) for buffer in buffers))


@contextmanager
def _by_value(ship: Sequence[str]) -> Iterator[None]:
    """Have modules pickled by value meanwhile; those that the program itself has registered stay so."""
    if not ship:
        yield
        return
    with _registering:
        modules = [import_module(name) for name in ship if name not in cloudpickle.list_registry_pickle_by_value()]
        for module in modules:
            cloudpickle.register_pickle_by_value(module)
        try:
            yield
        finally:
            for module in modules:
                cloudpickle.unregister_pickle_by_value(module)


class News(Enum):
    """What an engine tells: the kind, and what comes with it."""

    PLACES = "places"  # a list of str: where hosts may be, now; told again as long as the engine is well
    STARTED = "started"  # key of the host, Parcel of what `Agent.start` has returned
    ANSWER = "answer"  # key, number of the work, Parcel of what `Agent.run` has returned
    STOPPED = "stopped"  # key, Parcel of what `Agent.stop` has returned
    GONE = "gone"  # key, how it ended in words
    FAILED = "failed"  # why there can be no hosts any more, in words


Tell = Callable[..., object]  # called with one of News and what comes with it


class Engine(ABC):
    """Hosts, and the way to them. All methods but `share` and `close` are called by one thread.

    Attributes:
        well_for: Seconds for which it is believed to be well after it has told its places; None for ever.
    """

    well_for: float | None = None

    @abstractmethod
    def share(self, parcel: Parcel) -> Any:
        """Have all hosts able to get `parcel`; what is returned stands for it in messages, as long as it is kept."""

    @abstractmethod
    def start(self, key: int, place: str, version: str, setup: Parcel, runner: Any) -> None:
        """Start a host at `place` and have its agent `start`; it is known as `key` from now on."""

    @abstractmethod
    def send(self, key: int, number: int, work: Parcel, shared: dict[str, Any]) -> None:
        """Have the agent of a host `run` this."""

    @abstractmethod
    def stop(self, key: int) -> None:
        """Have the agent of a host `stop`."""

    @abstractmethod
    def kill(self, key: int) -> None:
        """End a host at once, if it has not ended."""

    @abstractmethod
    def close(self) -> None:
        """End what is left of the hosts, and free everything."""

    @abstractmethod
    def missing(self) -> str:
        """What was asked for and what there is, in words, for whoever has waited for a host in vain."""

    def pids(self) -> tuple[int, ...]:
        """Process ids of the hosts, where they are processes of this machine."""
        return ()


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
    def start_engine(self, tell: Tell, calls: int) -> Engine:
        """The engine.

        Args:
            tell: Told the news.
            calls: Messages that each host must be able to work on at once.

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
        batches: Batches, or parts of one, that each host has answered, by the number of the host.
        bytes: Received from hosts.
        hedged: Batches that were asked of a second host because the first was silent.
        resent: Batches that were asked of another host because theirs was lost.
        late: Answers that came after another host had answered, and were dropped.
    """

    wanted: int = 0
    alive: int = 0
    lost: int = 0
    batches: dict[int, int] = field(default_factory=dict)
    bytes: int = 0
    hedged: int = 0
    resent: int = 0
    late: int = 0
