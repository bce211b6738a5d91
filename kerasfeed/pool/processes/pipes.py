"""Pipes of tasks and of results between a pool and its worker processes.

Invariant: tasks are written whole, in groups of at most PIPE_BUF bytes, and never block the writer. Tasks that do not
fit into the pipe wait here until `flush`. A full pipe is full of tasks, each of which brings a result, so it is enough
to flush whenever results have come.
"""

import os
import sys
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from kerasfeed.pool.processes.protocol import PIPE_BUF, RESULT_BYTES, TASK_BYTES, Result, decode_results

_GROUP = PIPE_BUF // TASK_BYTES
_PIPE_BYTES = 1 << 20


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
        made: list[int] = []
        try:
            for _ in range(2 + tasks):
                made += os.pipe()
        except OSError:  # too many open files
            for fd in made:
                os.close(fd)
            raise
        self.result_out, self.result_in, self.wake_out, self._wake_in = made[:4]
        self.tasks_out, self.tasks_in = made[4::2], made[5::2]
        self._waiting: list[deque[bytes]] = [deque() for _ in range(tasks)]
        for fd in (*self.tasks_in, self._wake_in, self.wake_out):
            os.set_blocking(fd, False)
        if sys.platform == "linux":  # results could fill the default of 64 KiB while the pool ends without a reader
            import fcntl

            with suppress(OSError):  # above the user's quota of pipe memory
                fcntl.fcntl(self.result_in, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)

    def write(self, pipe: int = 0, tasks: Sequence[bytes] = ()) -> None:
        """Append `tasks` to the waiting ones and write what fits; `flush` writes the rest."""
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
        """Close the pipes of tasks, which is end of file for the workers."""
        for fd in (*self.tasks_in, *self.tasks_out):
            os.close(fd)

    def close(self) -> None:
        """Close the other pipes."""
        for fd in (self.result_out, self.result_in, self.wake_out, self._wake_in):
            os.close(fd)
