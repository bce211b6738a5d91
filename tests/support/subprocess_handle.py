"""One worker of `SubprocessPool`, as the pool knows it."""

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
    """One worker, and the task that it is at."""

    number: int
    process: subprocess.Popen
    inbox: bytearray = field(default_factory=bytearray)
    task: object = None
    serial: int = 0
    note: int = NOWHERE
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
            pass  # it has ended, as the watching thread will see

    def read(self):
        """What has come, as a list of messages; None at the end of the stream, behind which nothing comes."""
        data = os.read(self.process.stdout.fileno(), 1 << 20)
        self.inbox += data
        return list(unframe(self.inbox)) if data else None

    def crash(self, task, timeout):
        """Wait for its end, which nobody asked for; what there is to say of it."""
        code = self.process.wait()
        self.process.stdout.close()
        self.process.stdin.close()
        return Crash(
            str(self),
            f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}",
            task.text(self.note) if task else "",
            hung=self.hung,
            started=self.started,
            timeout=timeout,
        )
