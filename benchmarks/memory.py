"""Measure the memory of a tree of processes.

Invariant: shared pages count once. On Linux, this is the sum of the proportional anonymous and shared memory
(`Pss_Anon`, `Pss_Shmem`), and the pages of files (mostly code) of the largest process: these pages are the same for all
processes, and do not depend on other programs of the machine. On other systems, it is the sum of resident sizes.
"""

from collections.abc import Iterable
from pathlib import Path

import psutil

MEGABYTE = 1_000_000


def tree(root: psutil.Process) -> list[psutil.Process]:
    """`root` and all its living descendants; empty if `root` has ended."""
    try:
        return [root, *root.children(recursive=True)]
    except psutil.Error:
        return []


def held_bytes(processes: Iterable[psutil.Process]) -> int:
    """Bytes that `processes` hold together."""
    own, files = 0, 0
    for process in processes:
        try:
            private, file = _parts(process)
        except (psutil.Error, OSError):
            continue
        own += private
        files = max(files, file)
    return own + files


def _parts(process: psutil.Process) -> tuple[int, int]:
    rollup = Path(f"/proc/{process.pid}/smaps_rollup")
    if not rollup.exists():
        return process.memory_info().rss, 0
    kilobytes = dict(_fields(rollup.read_text()))
    files = dict(_fields(Path(f"/proc/{process.pid}/status").read_text())).get("RssFile", 0)
    if "Pss_Anon" not in kilobytes:
        return kilobytes.get("Pss", 0) * 1024, 0
    return (kilobytes["Pss_Anon"] + kilobytes["Pss_Shmem"]) * 1024, files * 1024


def _fields(text: str) -> Iterable[tuple[str, int]]:
    for line in text.splitlines():
        words = line.split()
        if len(words) == 3 and words[2] == "kB":
            yield words[0].rstrip(":"), int(words[1])


def growth(readings: list[tuple[float, int]]) -> float | None:
    """Growth of memory from the first quarter of the readings to the last, in megabytes.

    Args:
        readings: Times in seconds and bytes held, in order.

    Returns:
        The difference of the two medians; None with fewer than 8 readings.
    """
    if len(readings) < 8:
        return None
    held = [bytes_held for _, bytes_held in readings]
    quarter = len(held) // 4
    first, last = sorted(held[:quarter]), sorted(held[-quarter:])
    return (last[len(last) // 2] - first[len(first) // 2]) / MEGABYTE
