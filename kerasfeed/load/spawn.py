"""Start and end a worker process.

Invariant: a worker is a new interpreter (`sys.executable`), never a fork of this process and never a second run of the
user's main module. It inherits exactly the descriptors named here.
"""

import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import kerasfeed
from kerasfeed.machine import cores

# Libraries that would each start one thread a core in every worker.
_THREAD_VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)
# Before other packages, so that it is this kerasfeed, and after the standard library.
_COMMAND = """
import sys
packages = [n for n, path in enumerate(sys.path) if path.endswith("-packages")]
sys.path.insert(packages[0] if packages else len(sys.path), {root!r})
from kerasfeed.load.worker import main
main({arguments})
"""


@dataclass(eq=False)
class WorkerHandle:
    """The parent's side of one worker process.

    Attributes:
        number: Number of the worker.
        process: The process.
        link: Socket on which its payloads arrive, non-blocking; its end of file means that the process is gone.
        inbox: Payload bytes received and not yet claimed by a result.
        peak: Most memory it was seen to hold, bytes; 0 where that is not known.
        floor: Memory that the system may ascribe to it because this process held it when it was started, bytes.
        started: Whether it has loaded the sequence.
        hung: Where it was ended for taking too long, the stack it was at.
    """

    number: int
    process: subprocess.Popen[bytes]
    link: socket.socket
    inbox: bytearray
    peak: int = 0
    floor: int = 0
    started: bool = False
    hung: str | None = None

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

    def end(self, patience: float) -> None:
        """Collect the process and note its peak memory; kill it if it does not end within `patience` seconds."""
        deadline = time.monotonic() + patience
        while not self.has_ended() and time.monotonic() < deadline:
            time.sleep(0.001)
        if self.process.returncode is not None:
            return
        self.process.kill()
        try:
            _, status, usage = os.wait4(self.process.pid, 0)
        except ChildProcessError:
            self.process.wait()  # makes up a code of 0
            return
        self.process.returncode = os.waitstatus_to_exitcode(status)
        most = _bytes(usage.ru_maxrss)
        if most > self.floor:
            self.peak = max(self.peak, most)

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


def _own_peak() -> int:
    """The system counts a process's peak from before it became another program, when it was a copy of this one."""
    import resource  # absent on Windows, which imports this room and starts no worker

    return _bytes(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def _bytes(maxrss: int) -> int:
    return maxrss if sys.platform == "darwin" else 1024 * maxrss


def start_worker(
    number: int, count: int, *, task_fd: int, result_fd: int, slots_fd: int, bulletin_fd: int, stacks_fd: int
) -> WorkerHandle:
    """Start worker `number` of `count`; descriptors are those of its ends.

    Raises:
        OSError: The process could not be started.
    """
    if not sys.executable:
        raise OSError("sys.executable is empty, so no worker process can be started; use worker_type='thread'")
    ours, theirs = socket.socketpair()
    try:
        arguments = (number, count, task_fd, result_fd, theirs.fileno(), slots_fd, bulletin_fd, stacks_fd)
        root = str(Path(kerasfeed.__file__).parents[1])
        command = _COMMAND.format(root=root, arguments=", ".join(map(str, arguments)))
        threads = str(max(1, cores() // count))
        environment = {**dict.fromkeys(_THREAD_VARIABLES, threads), **os.environ}
        # Inherited: Ctrl-C must not kill a worker that has not yet come so far as to ignore it.
        previous = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", command],  # -P: a struct.py in the working directory is not ours
                stdin=subprocess.DEVNULL,
                pass_fds=(task_fd, result_fd, theirs.fileno(), slots_fd, bulletin_fd, stacks_fd),
                env=environment,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, previous)
    except BaseException:
        ours.close()
        raise
    finally:
        theirs.close()
    ours.setblocking(False)
    return WorkerHandle(number, process, ours, bytearray(), floor=_own_peak())


def end_workers(handles: list[WorkerHandle], *, grace: float) -> None:
    """Wait for workers whose task pipe has been closed; after `grace` seconds, kill those that remain."""
    deadline = time.monotonic() + grace
    for handle in handles:
        try:
            handle.process.wait(timeout=max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            handle.process.kill()
            handle.process.wait()
        handle.link.close()
