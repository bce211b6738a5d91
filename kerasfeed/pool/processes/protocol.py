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
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kerasfeed.pool.exception_pickle import Sent
from kerasfeed.pool.task import MOST_NUMBERS, Place, Record
from kerasfeed.util.user_modules import Description

_TASK = struct.Struct(f"={2 + MOST_NUMBERS}q")
_RESULT = struct.Struct("=4qd")
TASK_BYTES = _TASK.size
RESULT_BYTES = _RESULT.size
_NONE = (0,) * MOST_NUMBERS
STOP = 0  # number of the task that ends a worker; others are numbered from 1
# Has a worker write its stack to the descriptor it was given for that.
STACK_SIGNAL = getattr(signal, "SIGUSR2", 0)  # Windows has none, nor worker processes
# Tasks are written in groups of at most so many bytes. 512 is POSIX's promise, 4096 what Linux gives.
PIPE_BUF = int(getattr(select, "PIPE_BUF", 512))


class Status(enum.IntEnum):
    """How a task ended, or what became of a worker that was started.

    STARTED comes with a warning, or nothing, NOT_STARTED with a traceback.
    RETURNED is a task that was sent before another worker died, and begun after: it has been sent anew, or will be.
    END_FAILED comes with what is to be told of `on_worker_end`.
    """

    DONE = 1
    CANCELLED = 2
    FAILED = 3
    STARTED = 4
    NOT_STARTED = 5
    RETURNED = 6
    END_FAILED = 7


def encode_task(number: int, version: int, record: Record) -> bytes:
    """A task as bytes.

    Args:
        number: Number of the task, unique in its pool.
        version: State of the runner that the task must see.
        record: What is to be done.
    """
    return _TASK.pack(number, version, *record, *_NONE[len(record) :])


def decode_task(data: bytes) -> tuple[int, int, Record]:
    """Number, version and record of a task.

    Raises:
        ValueError: These bytes are no task.
    """
    if len(data) != TASK_BYTES:
        raise ValueError(f"a task has {TASK_BYTES} bytes, received {len(data)}")
    number, version, *record = _TASK.unpack(data)
    if number < STOP or version < 0:
        raise ValueError(f"a task has no number {number} and no version {version}")
    return number, version, tuple(record)


class Result(NamedTuple):
    """How one task ended.

    A named tuple: one is made for every task, and a frozen dataclass costs six times as much.

    Attributes:
        status: A `Status`.
        number: Number of the task; -1 for STARTED and NOT_STARTED.
        worker: Number of the worker.
        payload_bytes: Bytes that the worker sent over its link before this record; 0 for none.
        seconds: Time the task took, s.
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
class Failure:
    """A failure within a task in a form that crosses processes.

    Attributes:
        place: Where it happened.
        error: The exception.
        traceback: The worker's, as text.
    """

    place: Place
    error: Sent
    traceback: str


@dataclass(frozen=True)
class WorkerStart:
    """What a worker knows first.

    Attributes:
        sys_path: The parent's module search path; the empty entry means the worker's directory.
        first: Number of the first worker of this pool.
        count: Number of workers, those of other hosts too.
        modules: What the user's modules hold in the parent; see `module_values`.
        managers_key: See `kerasfeed.pool.environment.managers_key`.
    """

    sys_path: tuple[str, ...]
    first: int
    count: int
    modules: Mapping[str, Description]
    managers_key: bytes = field(default=b"", repr=False)
