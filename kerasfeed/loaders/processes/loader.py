"""The loader on worker processes: for scenes that hold the GIL, and for isolation.

Invariant: see `kerasfeed.loaders.session`; a session replaces workers that die.
"""

import sys

from kerasfeed.loaders.base import Job
from kerasfeed.loaders.file_identities import FirstOpened
from kerasfeed.loaders.processes.session import ProcessSession
from kerasfeed.loaders.session import SessionLoader


def processes_supported() -> bool:
    """Whether this system can run worker processes (it needs `pass_fds` and `poll`: any POSIX system)."""
    return sys.platform != "win32"


class ProcessLoader(SessionLoader[ProcessSession]):
    """Loads batches in `job.workers` processes."""

    worker_type = "process"

    def __init__(self, job: Job) -> None:
        if not processes_supported():
            raise OSError("worker processes need a POSIX system (Linux, macOS); use worker_type='thread'")
        own_first_opened = FirstOpened()
        super().__init__(job, own_first_opened)
        self._first_opened = job.first_opened or own_first_opened

    def start(self) -> None:
        """Start the workers without waiting for them.

        Raises:
            TypeError: The sequence cannot be pickled.
        """
        with self._lock:
            self._session()

    def _start(self) -> ProcessSession:
        return ProcessSession(self._job, self.failure_log, self._first_opened)
