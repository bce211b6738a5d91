"""The parent's side of one worker process: start, payloads, end, peak memory.

Invariant: a worker is a new interpreter (`sys.executable`), never a fork of this process and never a second run of the
user's main module. It inherits only the descriptors named here, and passes none of them on. It leads a process group,
so that programs started by scenes end with it. It starts in the directory and environment of the moment when the feed
was made, even if this process has changed its own since. The process is waited for once, here, and
keeps its id until then.

On Linux the kernel kills a worker whose parent has ended, even in a scene that holds the GIL in compiled code. For the
kernel, the parent is the thread that started the worker: the pool's supervisor, which therefore outlives its workers.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import kerasfeed
from kerasfeed.pool.base import PoolOptions
from kerasfeed.pool.processes.protocol import STACK_SIGNAL
from kerasfeed.pool.task import UNKNOWN_ENDING

_GROUP_SECONDS = 0.5  # time for programs of scenes to end after SIGTERM
# Words in the names of Python interpreters; Maya and Houdini have their own.
_PYTHONS = ("python", "pypy", "graalpy", "mayapy", "hython")


@dataclass(eq=False)
class WorkerHandle:
    """One worker process.

    Attributes:
        number: Number of the worker.
        process: The process.
        link: Non-blocking socket for its payloads. End of file means that the process is gone.
        inbox: Payload bytes received and not yet claimed by a result.
        inherited_peak: Peak memory of this process at the start, which the system may count for the worker, bytes.
        where: Its host, in words.
        peak: Its peak memory, bytes; 0 if unknown.
        started: Whether it has loaded the sequence.
        hung: Its stack, if it was killed because of the timeout.
        is_lost: Whether the system does not report how it ended.
    """

    number: int
    process: subprocess.Popen[bytes]
    link: socket.socket
    inbox: bytearray
    inherited_peak: int
    where: str = ""
    peak: int = 0
    started: bool = False
    hung: str | None = None
    is_lost: bool = False

    @cached_property
    def name(self) -> str:
        """The name in messages."""
        return f"worker process {self.number} (pid {self.process.pid}){self.where}"

    def receive(self) -> bool:
        """Move received bytes into the inbox.

        Return False at the end of file.
        """
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
        """Return the next payload, which has `nbytes`.

        The worker sends all of it before the result.

        Raises:
            ValueError: Fewer bytes were received.
        """
        if len(self.inbox) < nbytes:
            self.receive()
        if not 0 <= nbytes <= len(self.inbox):
            raise ValueError(f"a payload of {nbytes:,} bytes was announced, received {len(self.inbox):,}")
        payload = bytes(self.inbox[:nbytes])
        del self.inbox[:nbytes]
        return payload

    def has_ended(self) -> bool:
        """Whether the process has ended; does not reap it."""
        if self.process.returncode is not None:
            return True
        if not hasattr(os, "waitid"):  # macOS before Python 3.13
            return self.process.poll() is not None
        try:
            return os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:  # other code has reaped it
            return True

    def end(self, grace: float) -> None:
        """Reap the process and record its peak memory.

        The process is killed if it does not end within `grace` seconds. Call this once: afterwards another process or
        group may have its id.
        """
        deadline = time.monotonic() + grace
        while not self.has_ended() and time.monotonic() < deadline:
            time.sleep(0.001)
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGKILL)  # Popen.kill would reap it, and its peak would be lost
            self._collect()
        self._end_group()

    def _collect(self) -> None:
        """Wait for the end of the process."""
        try:
            _, status, usage = os.wait4(self.process.pid, 0)
        except ChildProcessError:
            self.process.wait()  # returns a made-up exit code of 0
            self.is_lost = True
            return
        self.process.returncode = os.waitstatus_to_exitcode(status)
        most = _bytes(usage.ru_maxrss)
        if most > self.inherited_peak:
            self.peak = max(self.peak, most)

    def _end_group(self) -> None:
        """End the programs that scenes have started: SIGTERM first, then SIGKILL."""
        group, deadline = self.process.pid, time.monotonic() + _GROUP_SECONDS
        with contextlib.suppress(OSError):  # the group is empty
            os.killpg(group, signal.SIGTERM)
            while time.monotonic() < deadline:
                os.killpg(group, 0)
                time.sleep(0.001)
            os.killpg(group, signal.SIGKILL)

    def look(self) -> None:
        """Record the peak memory of the process so far."""
        try:
            status = Path(f"/proc/{self.process.pid}/status").read_text()
        except OSError:  # no /proc, or the process is gone
            return
        for line in status.splitlines():
            if line.startswith("VmHWM:"):
                self.peak = max(self.peak, 1024 * int(line.split()[1]))

    def ending(self) -> str:
        """How the reaped process ended, in words."""
        code = self.process.returncode
        if self.is_lost:
            return UNKNOWN_ENDING
        if code >= 0:
            return f"ended with exit code {code}"
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"


def why_no_processes() -> str | None:
    """Why this program cannot start worker processes, and the remedy.

    None if it can. A frozen program is never started: it would ignore `-c` and repeat its own work.
    """
    if sys.platform == "win32":
        return "worker processes need a POSIX system (Linux, macOS); use worker_type='thread'"
    name = Path(sys.executable or "").name.lower()
    remedy = "Use worker_type='thread' if several threads may read the class at once, or workers=0"
    if getattr(sys, "frozen", False):
        why = f"this program is frozen: sys.executable ({sys.executable}) is the program itself"
    elif not any(word in name for word in _PYTHONS):
        why = f"sys.executable ({sys.executable!r}) does not look like one: it may be this program itself"
        remedy += ", or set sys.executable to a Python that has the same packages"
    else:
        return None
    return f"worker processes need a Python interpreter to start, and {why}. {remedy}"


def own_peak() -> int:
    """Peak memory of this process, bytes.

    A child that begins as a copy of this process inherits this peak.
    """
    import resource  # absent on Windows, which imports this module and starts no worker

    return _bytes(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)


def _bytes(maxrss: int) -> int:
    return maxrss if sys.platform == "darwin" else 1024 * maxrss


def end_workers(handles: list[WorkerHandle], *, grace: float) -> None:
    """Wait for workers whose task pipe has been closed.

    After `grace` seconds, kill the workers that still run.
    """
    deadline = time.monotonic() + grace
    for handle in handles:
        if handle.link.fileno() >= 0:  # else it was reaped before
            handle.end(max(0.0, deadline - time.monotonic()))
            handle.receive()
            handle.link.close()


_COMMAND = """
import os, sys
if sys.platform == "linux":
    import ctypes
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
if os.getppid() != {parent}:  # it died before the line above
    os._exit(0)
for fd in {descriptors}:  # a process that a scene starts must not hold the pipes open
    os.set_inheritable(fd, False)
# Before other packages, so that it is this kerasfeed, and after the standard library.
packages = [n for n, path in enumerate(sys.path) if path.endswith("-packages")]
sys.path.insert(packages[0] if packages else len(sys.path), {root!r})
from kerasfeed.pool.processes.worker import main
main({arguments})
"""


def start_worker(number: int, options: PoolOptions, fds: tuple[int, int, int, int, int]) -> WorkerHandle:
    """Start worker `number` of a pool; it ends with the calling thread.

    It inherits `fds` (of tasks, results, slots, shared objects and stacks) and the options' descriptors.

    Raises:
        OSError: The process could not be started.
    """
    link, theirs = socket.socketpair()
    fds_there = (*fds[:2], theirs.fileno(), *fds[2:])
    count = options.workers
    command = _COMMAND.format(
        parent=os.getpid(),
        descriptors=(*fds_there, *options.inherit),
        root=str(Path(kerasfeed.__file__).parents[1]),
        arguments=", ".join(map(str, (number, count, *fds_there))),
    )
    # The worker inherits this mask. Ctrl-C, the end of a terminal and the request for a stack must not kill a worker
    # that cannot handle them yet. The last two stay blocked: they would stop a background group that uses the terminal.
    signals = {signal.SIGINT, signal.SIGHUP, STACK_SIGNAL, signal.SIGTTIN, signal.SIGTTOU}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        process = subprocess.Popen(
            # -P: do not import a struct.py from the working directory.
            [sys.executable, "-P", *["-O"] * sys.flags.optimize, "-c", command],
            stdin=subprocess.DEVNULL,
            # If the program was started without a stdout, descriptor 1 may be a file of the user; likewise stderr.
            stdout=None if sys.__stdout__ else subprocess.DEVNULL,
            stderr=None if sys.__stderr__ else subprocess.DEVNULL,
            pass_fds=(*fds_there, *options.inherit),
            process_group=0,
            cwd=options.environment.directory,
            env=options.environment.variables(options.seed, count),
        )
    except BaseException:
        link.close()
        raise
    finally:
        theirs.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    link.setblocking(False)
    return WorkerHandle(number, process, link, bytearray(), own_peak(), options.host_numbers.text)
