"""The pipes between a session and its workers, seen from the parent.

Invariant: tasks are written whole, in groups of at most PIPE_BUF bytes, and never block the writer: what the kernel
does not take yet waits here until `flush`. Not thread-safe: the session guards it.
"""

import os
import sys
from collections import deque

from kerasfeed.loaders.processes.protocol import PIPE_BUF, RESULT_BYTES, TASK_BYTES, Result, Task, decode_results

_GROUP = PIPE_BUF // TASK_BYTES
_PIPE_BYTES = 1 << 20


class Pipes:
    """One pipe of tasks, one of results, and one to wake the supervisor.

    Attributes:
        task_out: Descriptor from which workers read tasks.
        task_in: Descriptor to which tasks are written, non-blocking.
        result_out: Descriptor from which results are read.
        result_in: Descriptor to which workers write results.
        wake_out: Descriptor that becomes readable after `wake`.
    """

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque()
        made: list[int] = []
        try:
            for _ in range(3):
                made += os.pipe()
        except OSError:  # too many open files
            for fd in made:
                os.close(fd)
            raise
        self.task_out, self.task_in, self.result_out, self.result_in, self.wake_out, self._wake_in = made
        for fd in (self.task_in, self._wake_in, self.wake_out):
            os.set_blocking(fd, False)
        if sys.platform == "linux":
            import fcntl

            for fd in (self.task_in, self.result_in):
                try:
                    fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
                except OSError:  # over the user's quota of pipe memory: 64 KiB serve too, with more system calls
                    break

    def send(self, tasks: list[Task]) -> bool:
        """Write tasks; returns False when some must wait for `flush`."""
        if len(tasks) == 1 and not self._waiting:
            return self._write(tasks[0].encode())
        for first in range(0, len(tasks), _GROUP):
            self._waiting.append(b"".join(task.encode() for task in tasks[first : first + _GROUP]))
        return self.flush()

    def _write(self, group: bytes) -> bool:
        try:
            os.write(self.task_in, group)  # at most PIPE_BUF: all or nothing
        except BlockingIOError:
            self._waiting.append(group)
            return False
        return True

    def flush(self) -> bool:
        """Write what waits; returns False when some still does."""
        while self._waiting:
            group = self._waiting.popleft()
            try:
                os.write(self.task_in, group)
            except BlockingIOError:
                self._waiting.appendleft(group)
                return False
        return True

    def forget(self) -> None:
        """Drop the tasks that wait."""
        self._waiting.clear()

    def results(self) -> list[Result]:
        """Results that have come; waits for one."""
        return decode_results(os.read(self.result_out, RESULT_BYTES * 512))

    def wake(self) -> None:
        """Make `wake_out` readable."""
        try:
            os.write(self._wake_in, b"\0")
        except BlockingIOError:
            pass  # it is readable already

    def calm(self) -> None:
        """Undo `wake`."""
        os.read(self.wake_out, 4096)

    def close_tasks(self) -> None:
        """End of file for the workers."""
        os.close(self.task_in)
        os.close(self.task_out)

    def close(self) -> None:
        """Close the rest."""
        for fd in (self.result_out, self.result_in, self.wake_out, self._wake_in):
            os.close(fd)
