"""The parent's side of one worker process: what it sends, how it ends, what memory it took.

Invariant: the process is collected once, here, and its id stays its own until then.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path


@dataclass(eq=False)
class WorkerHandle:
    """One worker process.

    Attributes:
        number: Number of the worker.
        process: The process.
        link: Socket on which its payloads arrive, non-blocking; its end of file means that the process is gone.
        inbox: Payload bytes received and not yet claimed by a result.
        spawn_thread: Thread that ends with the process, after it has ended the link.
        inherited_peak: Memory that the system may ascribe to it because this process held it at its start, bytes.
        peak: Most memory it was seen to hold, bytes; 0 where that is not known.
        started: Whether it has loaded the sequence.
        hung: Where it was ended for taking too long, the stack it was at.
    """

    number: int
    process: subprocess.Popen[bytes]
    link: socket.socket
    inbox: bytearray
    spawn_thread: threading.Thread
    inherited_peak: int
    peak: int = 0
    started: bool = False
    hung: str | None = None

    @cached_property
    def name(self) -> str:
        """As messages name it."""
        return f"worker process {self.number} (pid {self.process.pid})"

    def receive(self) -> bool:
        """Move what has arrived into the inbox; returns False at the end of file."""
        while True:
            try:
                data = self.link.recv(1 << 20)
            except BlockingIOError:
                return True
            except ConnectionResetError:
                return False
            if not data:
                return False
            self.inbox.extend(data)

    def take(self, nbytes: int) -> bytes:
        """The next payload, `nbytes` long; a result has announced it, so all of it has been sent.

        Raises:
            ValueError: It has not.
        """
        if len(self.inbox) < nbytes:
            self.receive()
        if not 0 <= nbytes <= len(self.inbox):
            raise ValueError(f"a payload of {nbytes:,} bytes was announced, and {len(self.inbox):,} came")
        payload = bytes(self.inbox[:nbytes])
        del self.inbox[:nbytes]
        return payload

    def has_ended(self) -> bool:
        """Whether the process has ended; it stays to be collected."""
        if self.process.returncode is not None:
            return True
        if not hasattr(os, "waitid"):  # macOS before Python 3.13
            return self.process.poll() is not None
        try:
            return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # somebody else has collected it
            return True

    def end(self, grace: float) -> None:
        """Collect the process and note its peak memory; kill it if it does not end within `grace` seconds."""
        deadline = time.monotonic() + grace
        while not self.has_ended() and time.monotonic() < deadline:
            time.sleep(0.001)
        if self.process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGKILL)  # Popen's own way would collect it, and its peak be lost
        try:
            _, status, usage = os.wait4(self.process.pid, 0)
        except ChildProcessError:
            self.process.wait()  # makes up a code of 0
            return
        self.process.returncode = os.waitstatus_to_exitcode(status)
        most = _bytes(usage.ru_maxrss)
        if most > self.inherited_peak:
            self.peak = max(self.peak, most)

    def close(self) -> None:
        """Close the link of a process that has been collected; idempotent."""
        if self.spawn_thread is not threading.current_thread():  # as where the collector drops a feed there
            self.spawn_thread.join()  # it uses the link
        self.link.close()

    def look(self) -> None:
        """Note how much memory the process has held."""
        try:
            status = Path(f"/proc/{self.process.pid}/status").read_text()
        except OSError:  # no /proc, or gone
            return
        for line in status.splitlines():
            if line.startswith("VmHWM:"):
                self.peak = max(self.peak, 1024 * int(line.split()[1]))

    def ending(self) -> str:
        """How the process, which has been collected, ended, in words."""
        code = self.process.returncode
        if code >= 0:
            return f"ended with exit code {code}"
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"


def own_peak() -> int:
    """The system counts a process's peak from before it became another program, when it was a copy of this one."""
    import resource  # absent on Windows, which imports this module and starts no worker

    return _bytes(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def _bytes(maxrss: int) -> int:
    return maxrss if sys.platform == "darwin" else 1024 * maxrss


def end_workers(handles: list[WorkerHandle], *, grace: float) -> None:
    """Wait for workers whose task pipe has been closed; after `grace` seconds, kill those that remain."""
    deadline = time.monotonic() + grace
    for handle in handles:
        handle.end(max(0.0, deadline - time.monotonic()))
        if handle.link.fileno() >= 0:  # else it was collected before
            handle.receive()
        handle.close()
