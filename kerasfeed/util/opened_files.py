"""What a file was when it was first opened, by any worker process of a feed.

Invariant: readers know nothing of feeds. Whenever a worker opens a file, it compares it with what it knows, and tells
the feed of files that are new to it before it tells the result of the task. The feed refuses what differs from what
another worker has told, and workers that start later begin with all of it. So a worker that opens a file late, because
it takes the place of a dead one or was never needed before, does not mix the scenes of a file that was replaced with
those of the file as it was. Outside worker processes an object that reads a file holds one handle, and remembers itself
what it opened. On another machine, to which the object was sent, the file has other numbers, and may be a copy: it need
only be as large there.
"""

import os
import platform
import zlib
from collections.abc import Mapping
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

    def _cache_state(self) -> Any:
        return tuple(self)  # as it is, wherever it is looked at


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


class WorkersDisagreeError(OSError):
    """Internal: two workers of a feed have opened different files at one path."""


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


class Opened(NamedTuple):
    """What is opened.

    Attributes:
        path: Absolute path, or URL.
        taken: How often whoever holds the file has allowed another one to stand there.
        may_grow: Whether somebody writes to it meanwhile.
        module: Name of the module that it was imported as; empty for data.
    """

    path: str
    taken: int = 0
    may_grow: bool = False
    module: str = ""


_first: dict[Opened, Identity] | None = None  # None: this process is no worker
_untold: dict[Opened, Identity] = {}


def begin_worker(first: Mapping[Opened, Identity]) -> None:
    """This process is a worker of a feed, whose workers have found `first` so far."""
    global _first
    _first = dict(first)


def in_worker() -> bool:
    """Whether this process is a worker of a feed, whose files others open as well."""
    return _first is not None


def first_in_feed(opened: Opened, found: Identity) -> Identity:
    """What was found first, as far as this worker knows; `found` where nothing was, or this is no worker."""
    if _first is None:
        return found
    known = _first.setdefault(opened, found)
    if known is found:
        _untold[opened] = found
    return known


def take_untold() -> dict[Opened, Identity]:
    """What this worker was the first to find, as far as it knows, since the last call."""
    told = _untold.copy()
    for opened in told:
        del _untold[opened]
    return told


def same_as_first(
    path: str, taken: int, known: Identity | None, found: Identity, *, may_grow: bool = False
) -> Identity:
    """What the file at `path` was when it was first opened, here or by another worker of this feed.

    Args:
        path: Absolute path.
        taken: How often whoever holds the file has allowed another one to stand there, by `close()`.
        known: What it was when it was first opened here; None where it was not.
        found: What it is now; noted where nobody has opened it.
        may_grow: Whether somebody writes to it meanwhile.

    Raises:
        OSError: It is another one now.
    """
    shared = first_in_feed(Opened(path, taken, may_grow), found)
    for before in (known, shared):
        if before is not None:
            before.refuse(found, path, may_grow=may_grow)
    return known or shared
