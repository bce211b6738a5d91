"""The bytes of an open file, read past HDF5, and the check that it is still the same file.

Invariant: whoever reads holds the `SharedFile` that owns the descriptor, so that it is not closed, and its number not
used for another file, meanwhile. A file that was truncated or rewritten under us is an error, not data.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

_CHECK_SECONDS = 0.2  # between looks at size and time of modification: each is a system call that gives up the GIL


@dataclass(frozen=True)
class Identity:
    """What tells one state of a file from another.

    Attributes:
        device: Number of the file system.
        inode: Number of the file in it.
        size: Bytes.
        mtime_ns: Time of the last modification, ns.
    """

    device: int
    inode: int
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> "Identity":
        """The identity that `stat` tells."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)

    def difference(self, now: "Identity") -> str:
        """What changed since, for people; empty when nothing did."""
        if (self.device, self.inode) != (now.device, now.inode):
            return f"another file stands in its place (inode {now.inode}, was {self.inode})"
        if self.size != now.size:
            return f"its size is {now.size:,} bytes, was {self.size:,}"
        if self.mtime_ns != now.mtime_ns:
            return f"it was modified {(now.mtime_ns - self.mtime_ns) / 1e9:,.3f} s later"
        return ""


def changed(path: str, difference: str) -> OSError:
    """The error for a file that is not what it was."""
    return OSError(
        f"{path!r} changed since it was first opened: {difference}. Write files to the end before they are read, then "
        "close() what reads them or make it anew (and the feed that uses it)"
    )


class Source:
    """Reads an open file by byte offset. All methods may be called from any thread."""

    def __init__(self, path: str, descriptor: int, identity: Identity) -> None:
        """Read through `descriptor`, which belongs to someone else."""
        self.path = path
        self.descriptor = descriptor
        self.identity = identity
        self._next_check = 0.0

    def check(self, *, now: bool = False) -> None:
        """Look whether the file changed; unless `now`, at most five times a second.

        Raises:
            OSError: It did.
        """
        clock = time.monotonic()
        if clock < self._next_check and not now:
            return
        difference = self.identity.difference(Identity.of(os.fstat(self.descriptor)))
        if difference:
            raise changed(self.path, difference)
        self._next_check = clock + _CHECK_SECONDS

    def read(self, address: int, size: int) -> bytes:
        """`size` bytes from `address` on.

        Raises:
            OSError: The file ends before, or changed.
        """
        self.check()
        data = os.pread(self.descriptor, size, address)
        if len(data) != size:  # a signal, more than 2 GiB, or the end of the file
            whole = np.empty(size, np.uint8)
            self._fill(address, whole)
            return whole.tobytes()
        return data

    def read_into(self, address: int, out: Any) -> None:
        """Fill `out`, a contiguous array of plain items, from `address` on.

        Raises:
            OSError: The file ends before, or changed.
        """
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


def identity_of(path: str) -> Identity:
    """The identity of the file at `path` now."""
    return Identity.of(Path(path).stat())
