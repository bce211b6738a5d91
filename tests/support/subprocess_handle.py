"""One worker of `SubprocessPool`, from the side of the pool."""

import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field

from subprocess_worker import frame, unframe

from kerasfeed.pool.task import NOWHERE, Crash

_COMMAND = "import sys; sys.path[:] = {!r}; import subprocess_worker; subprocess_worker.serve()"


@dataclass(eq=False)
class Handle:
    """One worker and its present task."""

    number: int
    process: subprocess.Popen
    inbox: bytearray = field(default_factory=bytearray)
    task: object = None
    serial: int = 0
    position: int = NOWHERE
    sees: tuple = (0, 0)
    started: bool = False
    alive: bool = True
    hung: bool = False

    def __str__(self):
        return f"worker process {self.number} (pid {self.process.pid})"

    @classmethod
    def start(cls, number, options):
        """Start worker `number` of a pool."""
        process = subprocess.Popen(
            [sys.executable, "-c", _COMMAND.format(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            cwd=options.environment.directory,
            env=options.environment.variables(options.seed, options.workers),
        )
        handle = cls(number, process)
        handle.tell((number, options.workers, str(handle)))
        return handle

    def tell(self, message):
        """Send a message."""
        try:
            self.process.stdin.write(frame(message))
        except BrokenPipeError:
            pass  # it has ended, and the watching thread will notice

    def read(self):
        """Messages that have come, as a list; None at the end of the stream."""
        data = os.read(self.process.stdout.fileno(), 1 << 20)
        self.inbox += data
        return list(unframe(self.inbox)) if data else None

    def crash(self, task, timeout):
        """Wait for its unexpected end; return the crash."""
        code = self.process.wait()
        self.process.stdout.close()
        self.process.stdin.close()
        return Crash(
            str(self),
            f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}",
            task.text(self.position) if task else "",
            hung=self.hung,
            started=self.started,
            timeout=timeout,
        )
