"""The records that parent and workers exchange, and their pipes.

Invariant: a record has a fixed size of at most PIPE_BUF bytes, so the kernel writes and reads it atomically. Many
workers read tasks from one pipe and write results to another without a lock, and a worker that dies never leaves half
a record behind. Payloads have no fixed size: workers read them from a shared file (`SharedObjects`), and send them over
their links. Tasks are written whole, in groups of at most PIPE_BUF bytes, and never block the writer. Tasks that do not
fit into the pipe wait here until `flush`. Each task in a full pipe brings a result, so it is enough to flush whenever
results have come.
"""

import enum
import os
import select
import signal
import struct
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from kerasfeed.pool.exception_pickle import Sent
from kerasfeed.pool.task import MOST_NUMBERS, FailurePosition, Record
from kerasfeed.util.user_modules import Description

_TASK = struct.Struct(f"={2 + MOST_NUMBERS}q")
_RESULT = struct.Struct("=4qd")
TASK_BYTES = _TASK.size
RESULT_BYTES = _RESULT.size
_NONE = (0,) * MOST_NUMBERS
STOP = 0  # number of the task that ends a worker; others are numbered from 1
# On this signal, a worker writes its stack to a descriptor.
STACK_SIGNAL = getattr(signal, "SIGUSR2", 0)  # 0 on Windows, which has no worker processes
# Tasks are written in groups of at most this many bytes. POSIX guarantees 512, Linux 4096.
PIPE_BUF = int(getattr(select, "PIPE_BUF", 512))
_GROUP = PIPE_BUF // TASK_BYTES
_PIPE_BYTES = 1 << 20


class Status(enum.IntEnum):
    """The outcome of a task, or an event of a worker.

    STARTED has a warning or nothing as its payload, NOT_STARTED a traceback, END_FAILED the warning of `on_worker_end`.
    RETURNED is a task that was sent before another worker died and begun afterwards; the supervisor sends it again.
    """

    DONE = 1
    CANCELLED = 2
    FAILED = 3
    STARTED = 4
    NOT_STARTED = 5
    RETURNED = 6
    END_FAILED = 7


def encode_task(number: int, version: int, record: Record) -> bytes:
    """Encode a task.

    Args:
        number: Number of the task, unique in its pool.
        version: State of the runner that the task must see.
        record: The task as the runner receives it.
    """
    return _TASK.pack(number, version, *record, *_NONE[len(record) :])


def decode_task(data: bytes) -> tuple[int, int, Record]:
    """Decode number, version and record of a task.

    Raises:
        ValueError: The bytes are not a task.
    """
    if len(data) != TASK_BYTES:
        raise ValueError(f"a task has {TASK_BYTES} bytes, received {len(data)}")
    number, version, *record = _TASK.unpack(data)
    if number < STOP or version < 0:
        raise ValueError(f"a task has no number {number} and no version {version}")
    return number, version, tuple(record)


class Result(NamedTuple):
    """The outcome of one task, or an event of a worker.

    A named tuple, because one is made for every task and a frozen dataclass costs six times as much.

    Attributes:
        status: A `Status`.
        number: Number of the task; -1 for an event of a worker.
        worker: Number of the worker.
        payload_bytes: Bytes that the worker sent over its link before this record; 0 for none.
        seconds: Duration of the task, s; 0 unless DONE.
    """

    status: int
    number: int
    worker: int
    payload_bytes: int
    seconds: float

    def encode(self) -> bytes:
        """Encode the result as a record."""
        return _RESULT.pack(*self)


def decode_results(data: bytes) -> list[Result]:
    """Decode the results in `data`, a whole number of records.

    Raises:
        ValueError: `data` is not a whole number of records.
    """
    if len(data) % RESULT_BYTES:
        raise ValueError(f"results come in records of {RESULT_BYTES} bytes, received {len(data)} bytes")
    return list(map(Result._make, _RESULT.iter_unpack(data)))


@dataclass(frozen=True)
class Failure:
    """A failure in a task, ready to pickle.

    Attributes:
        position: Position of the failure.
        error: The exception.
        traceback: The worker's traceback, as text.
    """

    position: FailurePosition
    error: Sent
    traceback: str


@dataclass(frozen=True)
class WorkerStart:
    """The first message to a worker.

    Attributes:
        sys_path: The parent's module search path; the empty entry means the worker's directory.
        first: Number of the first worker of this pool.
        count: Number of workers, including other hosts.
        modules: Values in the user's modules in the parent; see `module_values`.
        managers_key: See `kerasfeed.pool.environment.managers_key`.
    """

    sys_path: tuple[str, ...]
    first: int
    count: int
    modules: Mapping[str, Description]
    managers_key: bytes = field(default=b"", repr=False)


class Pipes:
    """Pipes of tasks, one of results, and one to wake the supervisor.

    Attributes:
        tasks_out: Read ends of the pipes of tasks: one for all workers, or one for each.
        tasks_in: Write ends of the pipes of tasks, non-blocking.
        result_out: Read end of the pipe of results.
        result_in: Write end of the pipe of results, for workers.
        wake_out: Descriptor that becomes readable after `wake`.
    """

    def __init__(self, tasks: int = 1) -> None:
        """Make the pipes.

        Args:
            tasks: Number of pipes of tasks.

        Raises:
            OSError: The process has no descriptors left.
        """
        fds: list[int] = []
        try:
            for _ in range(2 + tasks):
                fds += os.pipe()
        except OSError:  # too many open files
            for fd in fds:
                os.close(fd)
            raise
        self.result_out, self.result_in, self.wake_out, self._wake_in = fds[:4]
        self.tasks_out, self.tasks_in = fds[4::2], fds[5::2]
        self._waiting: list[deque[bytes]] = [deque() for _ in range(tasks)]
        for fd in (*self.tasks_in, self._wake_in, self.wake_out):
            os.set_blocking(fd, False)
        if sys.platform == "linux":  # results could fill the default of 64 KiB while the pool ends without a reader
            import fcntl

            with suppress(OSError):  # above the user's quota of pipe memory
                fcntl.fcntl(self.result_in, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    def write(self, pipe: int = 0, tasks: Sequence[bytes] = ()) -> None:
        """Append `tasks` to the waiting ones; write as many as fit.

        `flush` writes the rest.
        """
        waiting = self._waiting[pipe]
        waiting.extend(b"".join(tasks[first : first + _GROUP]) for first in range(0, len(tasks), _GROUP))
        while waiting:
            group = waiting.popleft()  # before the write: another thread may clear the queue meanwhile
            try:
                os.write(self.tasks_in[pipe], group)  # at most PIPE_BUF bytes: atomic
            except BlockingIOError:
                waiting.appendleft(group)
                return

    def flush(self) -> None:
        """Write waiting tasks, as far as they fit."""
        for pipe in range(len(self.tasks_in)):
            self.write(pipe)

    def forget(self, pipe: int | None = None) -> None:
        """Drop the waiting tasks of one pipe or of all."""
        for waiting in self._waiting if pipe is None else (self._waiting[pipe],):
            waiting.clear()

    def results(self) -> list[Result]:
        """Wait for at least one result; return all available results."""
        return decode_results(os.read(self.result_out, RESULT_BYTES * 512))

    def wake(self) -> None:
        """Make `wake_out` readable."""
        try:
            os.write(self._wake_in, b"\0")
        except BlockingIOError:
            pass  # already readable

    def drain(self) -> None:
        """Undo `wake`."""
        os.read(self.wake_out, 4096)

    def close_tasks(self) -> None:
        """Close the pipes of tasks, so that workers end."""
        for fd in (*self.tasks_in, *self.tasks_out):
            os.close(fd)

    def close(self) -> None:
        """Close the other pipes."""
        for fd in (self.result_out, self.result_in, self.wake_out, self._wake_in):
            os.close(fd)
