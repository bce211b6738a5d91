"""The resources of the machine that this process may use.

Invariant: each call reads the system again. A container's memory limit and set of cores apply, not the host's size; its
CPU quota is not read.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from kerasfeed.util.validate import check_integer

_CACHE_SHARE = 16  # of the memory, so that the caches of eight worker processes take at most half of it
_MOST_CACHED = 1 << 30
_ASSUMED_MEMORY = 4 << 30  # if the system does not report it
_ASSUMED_DESCRIPTORS, _MOST_DESCRIPTORS = 512, 1 << 20
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def cores() -> int:
    """Return the number of cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory() -> int:
    """Return the bytes of memory of the machine or container."""
    try:
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError):  # as on Windows
        size = _ASSUMED_MEMORY
    for limit in _LIMITS:
        try:
            size = min(size, int(Path(limit).read_text()))
        except (OSError, ValueError):  # no such file, or the word "max"
            continue
    return size


def descriptors() -> int:
    """Return how many files this process may have open."""
    try:
        import resource  # missing on Windows
    except ImportError:
        return _ASSUMED_DESCRIPTORS
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _MOST_DESCRIPTORS if limit == resource.RLIM_INFINITY else min(limit, _MOST_DESCRIPTORS)


def open_closed() -> None:
    """Open /dev/null at each closed standard descriptor (0, 1, 2); 2 us.

    Otherwise the next file or socket gets one of these numbers, and C libraries print into it. Moving our descriptors
    to higher numbers is not enough, because `mmap` and HDF5 open their own.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            with suppress(OSError):  # there is no /dev/null, or no descriptor left
                os.open(os.devnull, os.O_RDWR)  # gets the lowest free number


def cache_bytes(name: str, value: Any) -> int:
    """Return the size limit of a cache in bytes.

    Args:
        name: Name of the argument in messages.
        value: A number of bytes, or "auto" for 1/16 of the memory, at most 1 GiB.

    Raises:
        ValueError: It is negative, or text other than "auto".
        TypeError: It is neither a number nor text.
    """
    what = f"'auto' or a number of bytes such as {256 << 20} (256 MiB; 0 keeps nothing)"
    if not isinstance(value, str):
        return check_integer(name, value, 0, what=what, unit=" bytes")
    if value != "auto":
        raise ValueError(f"{name} must be {what}, received {value!r}")
    return min(_MOST_CACHED, memory() // _CACHE_SHARE)
