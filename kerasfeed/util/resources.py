"""What this process may use of the machine.

Invariant: asked anew each time; a container's limits count, not the host's size.
"""

import os
from pathlib import Path

_ASSUMED_MEMORY = 4 << 30  # where the system does not tell
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
