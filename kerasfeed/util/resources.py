"""What this process may use of the machine.

Invariant: asked anew each time; a container's limits count, not the host's size.
"""

import os
from pathlib import Path
from typing import Any

from kerasfeed.util.validate import check_integer

_CACHE_SHARE = 16  # of the memory: eight worker processes then take half of it at the very most
_MOST_CACHED = 1 << 30
_ASSUMED_MEMORY = 4 << 30  # where the system does not tell
_ASSUMED_DESCRIPTORS, _MOST_DESCRIPTORS = 512, 1 << 20
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


def cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory() -> int:
    """Bytes of memory: the machine's, or less where a container is held to less."""
    try:
        found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError):  # as on Windows
        found = _ASSUMED_MEMORY
    for limit in _LIMITS:
        try:
            found = min(found, int(Path(limit).read_text()))
        except (OSError, ValueError):  # no such file, or the word "max"
            continue
    return found


def descriptors() -> int:
    """Files that this process may have open at a time."""
    try:
        import resource  # which Windows lacks
    except ImportError:
        return _ASSUMED_DESCRIPTORS
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _MOST_DESCRIPTORS if limit == resource.RLIM_INFINITY else min(limit, _MOST_DESCRIPTORS)


def cache_bytes(name: str, value: Any) -> int:
    """Bytes that the bound of a cache stands for: "auto" is 1/16 of the memory, at most 1 GiB.

    Args:
        name: The argument, for the message.
        value: What came.

    Raises:
        ValueError: It is a negative number or another word.
        TypeError: It is neither a number of bytes nor a word.
    """
    what = f"'auto' or a number of bytes such as {256 << 20} (256 MiB; 0 keeps nothing)"
    if not isinstance(value, str):
        return check_integer(name, value, 0, what=what, unit=" bytes")
    if value != "auto":
        raise ValueError(f"{name} must be {what}, received {value!r}")
    return min(_MOST_CACHED, memory() // _CACHE_SHARE)
