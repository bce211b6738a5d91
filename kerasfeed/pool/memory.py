"""Memory that a pool's workers share with whoever gives them tasks.

Invariant: a segment stays where it is, and as large as it was made, as long as anything refers to it.
"""

import mmap
import os
import sys
import tempfile
from contextlib import suppress

from kerasfeed.pool.resource_errors import naming_descriptors, naming_memory

ALIGNMENT = 64


def align(nbytes: int, boundary: int = ALIGNMENT) -> int:
    """`nbytes` rounded up to a multiple of `boundary`."""
    return -(-nbytes // boundary) * boundary


class PoolMemory:
    """Memory that grows by segments; shared with other processes through one descriptor where asked for.

    One anonymous file holds all segments: nothing appears in /dev/shm, Docker's 64 MB limit there does not apply, and
    nothing is left behind by a killed process. Where the system has no memfd, an unlinked temporary file serves (a
    POSIX shared memory object would not: macOS does not let one grow).
    """

    def __init__(self, *, shared: bool, who: str = "the feed") -> None:
        """Memory of `who`, as messages name it."""
        self._who = who
        self.fd = anonymous_file("kerasfeed-slots") if shared else None
        self._discard = getattr(mmap, "MADV_REMOVE" if shared else "MADV_DONTNEED", None)
        self.nbytes = 0
        self._segments: dict[int, mmap.mmap] = {}

    def grow(self, nbytes: int) -> tuple[mmap.mmap, int]:
        """Add a segment of `nbytes`, a whole number of pages; returns its memory and its offset in the file.

        Raises:
            OSError: The system refuses so much; the message says who asked, how much, and what to do.
        """
        offset = self.nbytes
        with naming_memory(self._who, nbytes, offset, shared=self.fd is not None):
            if self.fd is not None:
                with naming_descriptors(self._who, 1):
                    os.ftruncate(self.fd, offset + nbytes)
                    memory = mmap.mmap(self.fd, nbytes, offset=offset)
            elif sys.platform == "win32":
                memory = mmap.mmap(-1, nbytes)
            else:  # private: a fork of this process must not write into this process's batches
                memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.nbytes += nbytes
        self._segments[offset] = memory
        return memory, offset

    def at(self, offset: int, nbytes: int) -> mmap.mmap:
        """The segment at `offset`, for a worker that is a thread; a process maps it, as long as `nbytes`, by itself."""
        return self._segments[offset]

    def discard(self, memory: mmap.mmap, offset: int, nbytes: int) -> None:
        """Give pages back to the system, where it takes them; they read as zeros afterwards."""
        if self._discard is not None:
            with suppress(OSError):
                memory.madvise(self._discard, offset, nbytes)

    def close(self) -> None:
        """Close the descriptor; memory still referred to stays valid."""
        self._segments.clear()
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


def anonymous_file(name: str) -> int:
    """Descriptor of a new empty file in memory that no path leads to."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, os.MFD_CLOEXEC)
    with tempfile.TemporaryFile(prefix=name) as file:
        return os.dup(file.fileno())
