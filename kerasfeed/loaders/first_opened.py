"""What the files of a feed were when first opened, shared by all its worker processes: the parent's side.

Invariant: one for all processes that load for one feed, those that take the place of dead ones too. It outlives the
sessions, and is freed by whoever made it.
"""

import os
import threading

from kerasfeed.loaders.slots import anonymous_file


class FirstOpened:
    """The file behind `kerasfeed.opened.Table`. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._fd = -1
        self._lock = threading.Lock()

    def descriptor(self) -> int:
        """The descriptor, which worker processes inherit; made when first asked for.

        Raises:
            OSError: There is none left.
        """
        with self._lock:
            if self._fd < 0:
                self._fd = anonymous_file("kerasfeed-first-opened")
            return self._fd

    def close(self) -> None:
        """Close it; idempotent. No worker may be started with it any more."""
        with self._lock:
            fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)
