"""What a file was when it was opened, and whether it has changed since.

Invariant: each process compares a file with the one that it opened before. An object that has opened its file keeps
the identity in its pickle, so a worker that starts later refuses a file that was replaced meanwhile. On another machine
the file has other numbers, and may be a copy: only its size is compared there.
"""

import os
import platform
import zlib
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

_ELSEWHERE = -1  # in place of the number of a file system of another machine


class Identity(NamedTuple):
    """What tells one state of a file from another.

    Attributes:
        device: Number of the file system; 0 for a URL, -1 for a file of another machine.
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
        if self.device != _ELSEWHERE and (self.device, self.inode) != (now.device, now.inode):
            return f"another file stands in its place (inode {now.inode}, was {self.inode})"
        if may_grow:
            return ""
        if self.size != now.size:
            return f"its size is {now.size:,} bytes, was {self.size:,}"
        if self.mtime_ns != now.mtime_ns and not self.device:
            return "another version stands in its place"
        if self.mtime_ns != now.mtime_ns and self.device != _ELSEWHERE:
            return f"it was modified {(now.mtime_ns - self.mtime_ns) / 1e9:,.3f} s later"
        return ""

    def refuse(self, now: "Identity", path: str, *, may_grow: bool = False) -> None:
        """Raise an OSError where the file at `path` changed since; see `difference`."""
        if difference := self.difference(now, may_grow=may_grow):
            raise changed(path, difference)

    def __reduce__(self) -> Any:
        return _arrived, (*self, _files_of())


def _arrived(device: int, inode: int, size: int, mtime_ns: int, files: int) -> Identity:
    """An identity that was pickled where `files` are."""
    return Identity(device if not device or files == _files_of() else _ELSEWHERE, inode, size, mtime_ns)


@cache
def _files_of() -> int:
    """A number of the machine, since it was started, and the container: file systems and inodes are the same there."""
    try:
        place = Path("/proc/sys/kernel/random/boot_id").read_text() + str(Path("/proc/self/ns/mnt").readlink())
    except OSError:  # not Linux
        place = platform.node()
    return zlib.crc32(place.encode())


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
