"""What a file was when it was first opened, by any worker process of a feed.

Invariant: readers know nothing of feeds. A worker process installs the table of its feed, and readers ask it whenever
they open a file: the first to open one enters it, all others get what was entered. So a worker that opens a file late,
because it takes the place of a dead one or was never needed before, does not mix the scenes of a file that was replaced
with those of the file as it was. Outside worker processes there is no table: there an object that reads a file holds
one handle, and remembers itself what it opened.

The table is a shared file of entries of 64 bytes, found by a digest of the name. It is written under a lock that the
kernel drops with the process, an entry's first word last, so that a worker which is killed leaves a valid table.
"""

import os
import struct
import threading
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

# 1 (0 for none), two words of the digest, device, inode, size, mtime_ns; the rest fills up a power of two.
_ENTRY = struct.Struct("=3q2Q2q8x")
_DIGEST = struct.Struct("=2q")
# The file is sparse: only the pages of entries take memory, at most 256 MB.
_PLACES = 1 << 22
_LOOKED_AT = 64  # places from that of the digest on; were all taken (of millions of files), the file would go unnoted


class Identity(NamedTuple):
    """What tells one state of a file from another.

    Attributes:
        device: Number of the file system; 0 for a URL.
        inode: Number of the file in it; of a URL, one made of its text.
        size: Bytes.
        mtime_ns: Time of the last modification, ns; of a URL, a number made of what the store says of the version.
    """

    device: int
    inode: int
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> "Identity":
        """The identity that `stat` tells."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)

    def difference(self, now: "Identity", *, may_grow: bool = False) -> str:
        """What changed since, for people; empty when nothing did.

        Args:
            now: What the file is now.
            may_grow: Whether somebody writes to the file meanwhile, so that only another file is a change.
        """
        if (self.device, self.inode) != (now.device, now.inode):
            return f"another file stands in its place (inode {now.inode}, was {self.inode})"
        if may_grow:
            return ""
        if self.size != now.size:
            return f"its size is {now.size:,} bytes, was {self.size:,}"
        if self.mtime_ns != now.mtime_ns and not self.device:
            return "another version stands in its place"
        if self.mtime_ns != now.mtime_ns:
            return f"it was modified {(now.mtime_ns - self.mtime_ns) / 1e9:,.3f} s later"
        return ""

    def refuse(self, now: "Identity", path: str, *, may_grow: bool = False) -> None:
        """Raise an OSError where the file at `path` changed since; see `difference`."""
        if difference := self.difference(now, may_grow=may_grow):
            raise changed(path, difference)


def identity_of(path: str | os.PathLike[str]) -> Identity:
    """The identity of the file at `path` now.

    Raises:
        OSError: There is none, or it cannot be looked at.
    """
    return Identity.of(Path(path).stat())


def changed(path: str, difference: str) -> OSError:
    """The error for a file that is not what it was."""
    return OSError(
        f"{path!r} changed since it was first opened: {difference}. Write files to the end before they are read, then "
        "close() what reads them or make it anew (and the feed that uses it)"
    )


class Table:
    """A worker's side of the table of its feed. All methods may be called from any thread."""

    def __init__(self, fd: int) -> None:
        """Use the file behind `fd`, which belongs to someone else."""
        self._fd = fd
        self._lock = threading.Lock()  # the kernel's lock is the process's: it does not keep threads apart
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget_threads)

    def _forget_threads(self) -> None:
        self._lock = threading.Lock()

    def first(self, name: str, found: Identity) -> Identity:
        """What was entered under `name`; `found`, which is entered, where nothing was. Takes about 10 us."""
        import fcntl  # which Windows lacks, as it does worker processes

        digest = _DIGEST.unpack(blake2b(os.fsencode(name), digest_size=_DIGEST.size).digest())
        with self._lock:
            fcntl.lockf(self._fd, fcntl.LOCK_EX)
            try:
                return self._entered(digest, found)
            finally:
                fcntl.lockf(self._fd, fcntl.LOCK_UN)

    def _entered(self, digest: tuple[int, int], found: Identity) -> Identity:
        for step in range(_LOOKED_AT):
            offset = (digest[0] + step) % _PLACES * _ENTRY.size
            entry = os.pread(self._fd, _ENTRY.size, offset).ljust(_ENTRY.size, b"\0")
            is_taken, low, high, *known = _ENTRY.unpack(entry)
            if not is_taken:
                entry = _ENTRY.pack(1, *digest, *found)
                os.pwrite(self._fd, entry[8:], offset + 8)
                os.pwrite(self._fd, entry[:8], offset)
                return found
            if (low, high) == digest:
                return Identity(*known)
        return found


_table: Table | None = None


def install(table: Table) -> None:
    """Make `table` that of this process, a worker."""
    global _table
    _table = table


def in_worker() -> bool:
    """Whether this process is a worker of a feed, whose files others open as well."""
    return _table is not None


def first_in_feed(name: str, found: Identity) -> Identity:
    """What any worker of this feed has entered under `name` first; `found` where none has, or this is no worker."""
    return found if _table is None else _table.first(name, found)


def same_as_first(
    path: str, taken: int, known: Identity | None, found: Identity, *, may_grow: bool = False
) -> Identity:
    """What the file at `path` was when it was first opened, here or by another worker of this feed.

    Args:
        path: Absolute path.
        taken: How often whoever holds the file has allowed another one to stand there, by `close()`.
        known: What it was when it was first opened here; None where it was not.
        found: What it is now; entered where nobody has opened it.
        may_grow: Whether somebody writes to it meanwhile.

    Raises:
        OSError: It is another one now.
    """
    shared = first_in_feed(f"{taken}\0{path}", found)
    for before in (known, shared):
        if before is not None:
            before.refuse(found, path, may_grow=may_grow)
    return known or shared
