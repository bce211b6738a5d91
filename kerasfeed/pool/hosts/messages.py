"""What hosts and the driver tell each other.

Invariant: values; they travel as `Parcel`s. What became of a task is told as the call of the `Task`'s method that the
driver is to make, so nothing is decided about scenes on a host.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kerasfeed.pool.exception_pickle import Packed, arrived, pack
from kerasfeed.pool.task import Record
from kerasfeed.util.error_text import cause_of, summary


@dataclass(frozen=True)
class Setup:
    """What a host is to be.

    Attributes:
        who: Who needs it, as messages name it.
        workers: Worker processes; None for one a core.
        number: Number of the host: its workers come after those of the hosts before it.
        hosts: How many there are, as far as that is known.
        seed: See `PoolOptions`.
        timeout: See `PoolOptions`.
        search_path: The driver's module search path.
        directory: The driver's current directory, for a host that has it too.
        hash_seed: The driver's PYTHONHASHSEED; empty for none.
        runner_version: Version of the runner that it starts with.
    """

    who: str
    workers: int | None
    number: int
    hosts: int
    seed: int
    timeout: float | None
    search_path: tuple[str, ...]
    directory: str | None
    hash_seed: str
    runner_version: int


@dataclass(frozen=True)
class Started:
    """A host can take work, or why it cannot.

    Attributes:
        name: The machine's.
        workers: Its worker processes.
        module: Name of the module that the host lacks; empty for none.
        error: What went wrong otherwise.
        version: kerasfeed's and Python's there.
    """

    name: str
    workers: int = 0
    module: str = ""
    error: "Error | None" = None
    version: str = ""


@dataclass(frozen=True)
class Work:
    """Tasks to be done.

    Attributes:
        records: See `Task.record`.
        items: See `Task.items`, of each.
        memory: What they read of the driver's memory.
        runner_version: Of the runner that is to do them.
        posted_version: Of what they must find posted; 0 for nothing.
        used_random: See `Pool.used_random`.
    """

    records: tuple[Record, ...]
    items: tuple[int, ...]
    memory: bytes
    runner_version: int
    posted_version: int
    used_random: int


@dataclass(frozen=True)
class Error:
    """An exception on its way; see `exception_pickle`."""

    packed: Packed
    summary: str
    cause: "Error | None" = None

    @classmethod
    def of(cls, error: BaseException) -> "Error":
        """`error`, with its cause, which says what could not be sent before."""
        cause = cause_of(error)
        return cls(pack(error), summary(error), None if cause is None else cls(pack(cause), summary(cause)))

    def arrived(self) -> BaseException:
        """The exception."""
        error = arrived(self.packed, self.summary)
        if self.cause is not None and error.__cause__ is None:
            error.__cause__ = self.cause.arrived()
        return error


@dataclass(frozen=True)
class Outcome:
    """What became of a task: the name of the method of `Task` to call, and its arguments.

    Attributes:
        method: "done", "failed", "crashed", "cancelled", "broken" or "give_up".
        arguments: Exceptions as `Error`.
    """

    method: str
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Answer:
    """What became of work.

    Attributes:
        outcomes: One for each record.
        places: Where the last buffers of the parcel stood in the memory of the tasks, bytes from its beginning.
        respawns: Worker processes that this host has replaced.
        used_random: See `Pool.used_random`.
        warnings: Kind, text and class of what the user is to be told.
        failure: Why the host takes no more work.
    """

    outcomes: tuple[Outcome, ...] = ()
    places: tuple[int, ...] = ()
    respawns: int = 0
    used_random: int = 0
    warnings: list[tuple[str, str, type[Warning]]] = field(default_factory=list)
    failure: Error | None = None


class Region(ABC):
    """Memory of a host in which the tasks of one work write.

    Attributes:
        records: The tasks, moved there.
    """

    records: Sequence[Record]

    @abstractmethod
    def written(self, done: Sequence[bool]) -> list[tuple[int, Any]]:
        """Where tasks that are done have written, bytes from the beginning of the region, and what: uint8[n] each.

        What is returned stays as it is as long as it is referred to. Called once, at the end.
        """

    @abstractmethod
    def text(self, record: Record, note: int) -> str:
        """Where a worker is that has noted `note`, in words."""


class Carrier(ABC):
    """How memory of a pool travels to the hosts that load into it, and back. All tasks of one work share a region."""

    @abstractmethod
    def outgoing(self, memory: Any, posted: Any, record: Record) -> bytes:
        """What the driver's memory holds that tasks read; empty for tasks without memory."""

    @abstractmethod
    def incoming(self, memory: Any, record: Record, places: Sequence[int], buffers: Sequence[Any]) -> None:
        """Copy what tasks have written into the driver's memory."""

    @abstractmethod
    def region(self, memory: Any, posted: Any, records: Sequence[Record], outgoing: bytes) -> Region:
        """On a host: memory for tasks."""
