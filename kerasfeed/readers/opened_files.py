"""The identity of an open file, to detect later changes.

Invariant: each process compares a file with the one that it opened before. The identity of an open file is pickled with
its reader, so a worker that starts later refuses a replaced file. On another machine the file has other device and
inode numbers, and may be a copy: only its size is compared there.
"""

import os
import platform
import zlib
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

_ELSEWHERE = -1  # number of the file system of another machine


class Identity(NamedTuple):
    """Identifies one state of a file.

    Attributes:
        device: Number of the file system; 0 for a URL, -1 for a file of another machine.
        inode: Number of the file in that file system; for a URL, a hash of the URL.
        size: Bytes.
        mtime_ns: Time of the last modification, ns; for a URL, a hash of the version that the store reports.
    """

    device: int
    inode: int
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> "Identity":
        """Return the identity from the result of `stat`."""
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)

    def difference(self, now: "Identity", *, may_grow: bool = False) -> str:
        """Describe what changed since; empty if nothing did.

        Args:
            now: The present identity of the file.
            may_grow: Whether a program may be writing to the file, so that only another file counts as a change.
        """
        if self.device != _ELSEWHERE and (self.device, self.inode) != (now.device, now.inode):
            return f"another file has replaced it (inode {now.inode}, was {self.inode})"
        if may_grow:
            return ""
        if self.size != now.size:
            return f"its size is {now.size:,} bytes, was {self.size:,}"
        if self.mtime_ns != now.mtime_ns and not self.device:
            return "another version has replaced it"
        if self.mtime_ns != now.mtime_ns and self.device != _ELSEWHERE:
            return f"it was modified {(now.mtime_ns - self.mtime_ns) / 1e9:,.3f} s later"
        return ""

    def refuse(self, now: "Identity", path: str, *, may_grow: bool = False) -> None:
        """Raise an OSError if the file at `path` changed since; see `difference`."""
        if difference := self.difference(now, may_grow=may_grow):
            raise OSError(
                f"{path!r} changed since it was first opened: {difference}. Finish writing a file before it is read; "
                "then call close() on its reader, or make a new reader and a new feed"
            )

    def __reduce__(self) -> Any:
        return _unpickled, (*self, _machine())


def _unpickled(device: int, inode: int, size: int, mtime_ns: int, machine: int) -> Identity:
    """Return a pickled identity; `machine` identifies the pickling machine."""
    return Identity(device if not device or machine == _machine() else _ELSEWHERE, inode, size, mtime_ns)


@cache
def _machine() -> int:
    """Identify the boot and container that device and inode numbers belong to."""
    try:
        text = Path("/proc/sys/kernel/random/boot_id").read_text() + str(Path("/proc/self/ns/mnt").readlink())
    except OSError:  # not Linux
        text = platform.node()
    return zlib.crc32(text.encode())


def file_identity(path: str | os.PathLike[str]) -> Identity:
    """Return the present identity of the file at `path`.

    Raises:
        OSError: The file does not exist or cannot be accessed.
    """
    return Identity.of(Path(path).stat())
