"""The bytes of a file, and a check that it is unchanged.

Invariant: readers hold the object that owns the descriptor, so that the descriptor is neither closed nor reused while
they read. From 0.2 s after a local file was truncated or rewritten, reading it raises an error.
"""

import os
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Any

import numpy as np

from kerasfeed.readers.opened_files import Identity, file_identity
from kerasfeed.sequences.context import in_worker_process

_CHECK_SECONDS = 0.2  # between checks of size and time: each is a system call that releases the GIL


class ByteSource(ABC):
    """A file to read by byte offset, from any thread.

    Attributes:
        path: Path or URL.
        identity: Identity of the file when it was opened.
    """

    path: str
    identity: Identity

    @abstractmethod
    def check(self, *, now: bool = False) -> None:
        """Check cheaply whether the file changed, at most every 0.2 s.

        Args:
            now: Whether to check even if the last check was less than 0.2 s ago.

        Raises:
            OSError: The file changed.
        """

    @abstractmethod
    def read(self, address: int, size: int) -> bytes:
        """Return `size` bytes from `address` on.

        Raises:
            OSError: The file ends earlier, or changed.
        """

    def read_into(self, address: int, out: Any) -> None:
        """Fill `out`, a contiguous array of plain items, from `address` on.

        Raises:
            OSError: The file ends earlier, or changed.
        """
        out.reshape(-1).view(np.uint8)[...] = np.frombuffer(self.read(address, out.nbytes), np.uint8)


class OpenFile(ByteSource):
    """A local file, read through its descriptor."""

    def __init__(self, path: str, descriptor: int, identity: Identity) -> None:
        """Read through `descriptor`, which another object owns."""
        self.path = path
        self.descriptor = descriptor
        self.identity = identity
        self._next_check = 0.0

    def check(self, *, now: bool = False) -> None:
        """See `ByteSource.check`."""
        clock = time.monotonic()
        if clock < self._next_check and not now:
            return
        present = [Identity.of(os.fstat(self.descriptor))]
        if clock >= self._next_check and in_worker_process():
            with suppress(OSError):  # the file was deleted, so a new worker cannot open a wrong one
                present.append(file_identity(self.path))
        for identity in present:
            self.identity.refuse(identity, self.path)
        self._next_check = clock + _CHECK_SECONDS

    def read(self, address: int, size: int) -> bytes:
        """See `ByteSource.read`."""
        self.check()
        data = os.pread(self.descriptor, size, address)
        if len(data) != size:  # a signal, more than 2 GiB, or the end of the file
            whole = np.empty(size, np.uint8)
            self._fill(address, whole)
            return whole.tobytes()
        return data

    def read_into(self, address: int, out: Any) -> None:
        """See `ByteSource.read_into`."""
        self.check()
        if os.preadv(self.descriptor, (out,), address) != out.nbytes:
            self._fill(address, out.reshape(-1).view(np.uint8))

    def _fill(self, address: int, out: Any) -> None:
        done = 0
        while done < len(out):
            count = os.preadv(self.descriptor, (out[done:],), address + done)
            if count == 0:
                self.check(now=True)
                raise OSError(f"{self.path!r} ends at byte {address + done:,}, {len(out) - done:,} bytes too early")
            done += count
