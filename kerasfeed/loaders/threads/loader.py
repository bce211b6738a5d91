"""The loader on a thread pool: for scenes that wait (disks, networks) or leave the interpreter (NumPy, zlib).

Invariant: see `kerasfeed.loaders.session`.
"""

from kerasfeed.loaders.session import SessionLoader
from kerasfeed.loaders.threads.session import ThreadSession


class ThreadLoader(SessionLoader[ThreadSession]):
    """Loads batches on `job.workers` threads, which read the sequence itself."""

    worker_type = "thread"

    def _start(self) -> ThreadSession:
        return ThreadSession(self._job, self.failure_log)
