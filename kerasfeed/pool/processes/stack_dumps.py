"""Stacks of worker processes, written by Python's faulthandler.

It works during crashes and hangs in C.

Invariant: all workers of a pool append to one anonymous file, and the parent reads and empties it.
"""

import fcntl
import os
import time

from kerasfeed.pool.memory import anonymous_file
from kerasfeed.pool.processes.protocol import STACK_SIGNAL
from kerasfeed.pool.watchdog import OWN_FOLDERS, VIEWS

_MAX_BYTES = 1 << 16
_MACHINERY = '"<frozen importlib'  # five lines per import


def _line_in(folder: str) -> str:
    """How a line for a call in `folder` starts, in ASCII.

    faulthandler writes lines in ASCII.
    """
    return f'  File "{folder}'.encode("ascii", "backslashreplace").decode()


_OWN = tuple(map(_line_in, OWN_FOLDERS))
_VIEWS = _line_in(VIEWS)
_WORKER_FILE = _line_in(f"{OWN_FOLDERS[0]}processes{os.sep}worker.py")


class StackDumps:
    """The parent's side of the file.

    Attributes:
        fd: Descriptor that workers inherit.
    """

    def __init__(self) -> None:
        self.fd = anonymous_file("kerasfeed-stacks")
        fcntl.fcntl(self.fd, fcntl.F_SETFL, fcntl.fcntl(self.fd, fcntl.F_GETFL) | os.O_APPEND)

    def ask(self, pid: int, *, timeout: float = 0.5) -> str:
        """Stack of the living worker `pid`, innermost call last.

        Empty if the worker does not answer within `timeout` seconds.
        """
        self.take()
        try:
            os.kill(pid, STACK_SIGNAL)
        except OSError:
            return ""
        deadline = time.monotonic() + timeout
        size = 0
        while time.monotonic() < deadline:
            time.sleep(0.01)
            before, size = size, os.fstat(self.fd).st_size
            if size and size == before:
                break
        return self.take()

    def take(self) -> str:
        """Return the stack that a worker has written, or "".

        Empty the file.
        """
        text = os.pread(self.fd, _MAX_BYTES, 0).decode(errors="replace")
        os.ftruncate(self.fd, 0)
        return users_part(text)

    def close(self) -> None:
        """Close the file; idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def users_part(text: str) -> str:
    """The user's calls in the worker's main thread, from a faulthandler report."""
    truncated = ""  # lines are innermost first
    for section in text.split("\n\n"):
        lines = [line for line in section.splitlines() if line.startswith("  File ") and _MACHINERY not in line]
        own = next((number for number, line in enumerate(lines) if line.startswith(_OWN)), len(lines))
        calls = lines[: own or 1]
        while len(calls) > 1 and calls[-1].startswith(_VIEWS):
            calls.pop()
        users = "\n".join(reversed(calls))
        if any(line.startswith(_WORKER_FILE) and line.endswith(" in main") for line in lines):
            return users
        if section.rstrip().endswith("\n  ..."):  # faulthandler stops after 100 calls, as imports often make
            truncated = users
    return truncated
