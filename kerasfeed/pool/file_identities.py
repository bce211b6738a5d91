"""What the files of a feed were when first opened, shared by all its worker processes: the parent's side.

Invariant: one for all processes that load for one feed, those that take the place of dead ones too. It outlives the
sessions, which hold it, and is freed by whoever made it, or with the last session of one that was dropped unclosed.
"""

import os
import threading
import weakref

from kerasfeed.pool.memory import anonymous_file


class FirstOpened:
    """The file behind `kerasfeed.util.opened_files.Table`. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._closed = False
        self._fd = -1
        self._finalizer: weakref.finalize[..., FirstOpened] | None = None

    def descriptor(self) -> int:
        """The descriptor, which worker processes inherit; made when first asked for.

        Raises:
            OSError: There is none left, or this is closed.
        """
        with self._lock:
            if self._closed:
                raise OSError("no worker is started for a feed that is closed")
            if self._finalizer is None:
                self._fd = anonymous_file("kerasfeed-first-opened")
                self._finalizer = weakref.finalize(self, os.close, self._fd)
                self._finalizer.atexit = False
            return self._fd

    def close(self) -> None:
        """Close it; idempotent."""
        with self._lock:
            self._closed = True
            if self._finalizer is not None:
                self._finalizer()
