"""Memory that the workers of a pool share with its user.

Invariant: a segment keeps its address and size as long as any reference to it exists.
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
    """Memory that grows by segments.

    If `shared`, it is one file that other processes map. The file is anonymous: nothing appears in /dev/shm, Docker's
    limit of 64 MB there does not apply, and a killed process leaves nothing behind. Without memfd, an unlinked
    temporary file is used. POSIX shared memory is not used, because macOS cannot grow it.
    """

    def __init__(self, *, shared: bool, owner: str = "the feed") -> None:
        """Create empty memory for `owner`, as messages name it."""
        self._owner = owner
        self.fd = anonymous_file("kerasfeed-slots") if shared else None
        self._discard = getattr(mmap, "MADV_REMOVE" if shared else "MADV_DONTNEED", None)
        self.nbytes = 0
        self._segments: dict[int, mmap.mmap] = {}

    def grow(self, nbytes: int) -> tuple[mmap.mmap, int]:
        """Add a segment; return its memory and its offset in the file.

        `nbytes` is a whole number of pages.

        Raises:
            OSError: The system refuses the memory. The message names the user, the size and a remedy.
        """
        offset = self.nbytes
        with naming_memory(self._owner, nbytes, offset, shared=self.fd is not None):
            if self.fd is not None:
                with naming_descriptors(self._owner, 1):
                    os.ftruncate(self.fd, offset + nbytes)
                    memory = mmap.mmap(self.fd, nbytes, offset=offset)
            elif sys.platform == "win32":
                memory = mmap.mmap(-1, nbytes)
            else:  # private: a fork of this process must not write into this process's batches
                memory = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.nbytes += nbytes
        self._segments[offset] = memory
        return memory, offset

    def at(self, offset: int) -> mmap.mmap:
        """The segment at `offset`, for worker threads; worker processes map the file."""
        return self._segments[offset]

    def discard(self, memory: mmap.mmap, offset: int, nbytes: int) -> None:
        """Return pages to the system if it supports that.

        They then read as zeros.
        """
        if self._discard is not None:
            with suppress(OSError):
                memory.madvise(self._discard, offset, nbytes)

    def close(self) -> None:
        """Close the descriptor. Memory that is still referenced stays valid."""
        self._segments.clear()
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


def anonymous_file(name: str) -> int:
    """Descriptor of a new empty file without a path.

    The file is in memory, or without memfd in the folder of temporary files.
    """
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, os.MFD_CLOEXEC)
    with tempfile.TemporaryFile(prefix=name) as file:
        return os.dup(file.fileno())
