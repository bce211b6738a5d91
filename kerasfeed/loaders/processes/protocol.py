"""What parent and workers say to each other, and how it is encoded.

Invariant: a record is a fixed number of bytes, at most PIPE_BUF, so that the kernel writes and reads it whole: many
workers read tasks from one pipe and write results to one pipe without a lock, and a worker that dies never leaves half
a record behind. Payloads without a fixed size travel beside: to workers in a shared file (`SharedObjects`), from a
worker over its link.
"""

import enum
import select
import signal
import struct
from dataclasses import dataclass
from typing import Any, NamedTuple

from kerasfeed.util.read_cost import ReadCost

_TASK = struct.Struct("=11q")
_RESULT = struct.Struct("=4qd")
TASK_BYTES = _TASK.size
RESULT_BYTES = _RESULT.size
# Tasks are written in groups of at most so many bytes. 512 is POSIX's promise, 4096 what Linux gives.
# Has a worker write its stack to the descriptor it was given for that.
STACK_SIGNAL = getattr(signal, "SIGUSR2", 0)  # Windows has none, nor worker processes
PIPE_BUF = int(getattr(select, "PIPE_BUF", 512))


class Kind(enum.IntEnum):
    """What a task asks for."""

    LOAD = 1
    PROBE = 2
    STOP = 3


class Status(enum.IntEnum):
    """How a task ended, or what became of a worker that was started.

    RETURNED is a task that was sent before another worker died, and begun after: the session has sent it anew, or will.
    END_FAILED comes with what is to be told of `on_worker_end`.
    """

    DONE = 1
    CANCELLED = 2
    FAILED = 3
    STARTED = 4
    NOT_STARTED = 5
    RETURNED = 6
    END_FAILED = 7


class Task(NamedTuple):
    """Rows of one batch to load, or one scene to describe.

    A named tuple, as is `Result`: one is made for every task, and a frozen dataclass costs six times as much.

    Attributes:
        kind: A `Kind`.
        number: Number of the task, unique in its session.
        serial: Number of the batch.
        segment_offset: Offset of the slot's segment in the shared file, bytes.
        segment_bytes: Size of that segment.
        slot_offset: Offset of the slot in the segment, bytes.
        epoch: Epoch number.
        step: Step number.
        start: First row, inclusive; for PROBE the scene's index.
        stop: Last row, exclusive.
        version: State of the sequence that the task must see.
    """

    kind: int
    number: int
    serial: int = 0
    segment_offset: int = 0
    segment_bytes: int = 0
    slot_offset: int = 0
    epoch: int = 0
    step: int = 0
    start: int = 0
    stop: int = 0
    version: int = 0

    def encode(self) -> bytes:
        """The task as a record."""
        return _TASK.pack(*self)

    @classmethod
    def decode(cls, record: bytes) -> "Task":
        """The task of a record.

        Raises:
            ValueError: The record is not a task.
        """
        if len(record) != TASK_BYTES:
            raise ValueError(f"a task has {TASK_BYTES} bytes, received {len(record)}")
        task = cls(*_TASK.unpack(record))
        Kind(task.kind)
        if min(task) < 0:
            raise ValueError(f"a task holds no negative numbers, received {task}")
        return task


class Result(NamedTuple):
    """How one task ended.

    Attributes:
        status: A `Status`.
        number: Number of the task; -1 for STARTED and NOT_STARTED.
        worker: Number of the worker.
        payload_bytes: Bytes that the worker sent over its link before this record; 0 for none.
        seconds: Time the scenes took, s.
    """

    status: int
    number: int
    worker: int
    payload_bytes: int
    seconds: float

    def encode(self) -> bytes:
        """The result as a record."""
        return _RESULT.pack(*self)


def decode_results(data: bytes) -> list[Result]:
    """The results in `data`, a whole number of records.

    Raises:
        ValueError: `data` is not that.
    """
    if len(data) % RESULT_BYTES:
        raise ValueError(f"results come in records of {RESULT_BYTES} bytes, received {len(data)} bytes")
    return list(map(Result._make, _RESULT.iter_unpack(data)))


@dataclass(frozen=True)
class Wasteful:
    """The payload of loaded rows, and with it what the worker found that they cost. Sent once by a worker.

    Attributes:
        payload: Values that stand beside the slot, or None.
        cost: What the worker reads wastefully.
    """

    payload: Any
    cost: ReadCost


@dataclass(frozen=True)
class Start:
    """What a worker knows first.

    Attributes:
        sys_path: The parent's module search path; the empty entry means the worker's directory.
        count: Number of workers.
        seed: The plan's seed.
        length: Scenes of the sequence.
        has_maker: Whether a function that makes whole batches is posted too.
        opened_fd: Descriptor of what the feed's files were when first opened (see `kerasfeed.util.opened_files`);
            -1 for none.
        watches_random: Whether to look if the first scenes use the global random generators.
    """

    sys_path: tuple[str, ...]
    count: int
    seed: int
    length: int
    has_maker: bool = False
    opened_fd: int = -1
    watches_random: bool = False
