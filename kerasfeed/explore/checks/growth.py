"""Checks that memory and descriptors do not grow while scenes are read, over and over.

Invariant: the same scenes are read in each round, so what is cached for each of them is there after the first rounds.
Growth counts where it goes on in both halves of what is measured. Loads no framework, for workers load it.
"""

import gc
import sys
import time
import tracemalloc
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from kerasfeed.explore.checks.case import Case
from kerasfeed.explore.checks.reading import MOST_GROWTH, Reader, resident
from kerasfeed.explore.checks.repeats import loses_workers
from kerasfeed.explore.checks.result import Finding, LostWorker, MemoryGrown, failed, skipped
from kerasfeed.pool.processes.pool import processes_supported
from kerasfeed.util.counted import counted

_READS, _FEWEST = 1000, 64
_SHARE, _MOST = 1 / 6, 10.0  # of the time; s
_WARM_ROUNDS = 2
_LEAST_A_SCENE = 24  # bytes: a list that takes a number for every scene grows by 36, and the noise is 10
_TRACED_LEAST = 4_096  # bytes; looking costs up to 700, whatever the number of scenes
_RSS_LEAST = 8e6  # bytes; what comes and goes with the allocator is less
_PACKAGE = str(Path(__file__).parent)
# Python keeps the names that C code looks attributes up by, 50 bytes each, up to 4,096: np.load makes three anew.
_forget_lookups: Any = getattr(sys, "_clear_internal_caches", None) or getattr(sys, "_clear_type_cache", gc.collect)


@dataclass(frozen=True)
class Growth:
    """What has grown; of the two halves of what was measured, the smaller growth.

    Attributes:
        reads: Scenes read in each half.
        traced: Memory that Python and NumPy have allocated, bytes.
        resident: All memory of the process, bytes; 0 where the system does not tell.
        descriptors: Open files and sockets; 0 likewise.
        opened: How many more of these were open at the end than at the beginning; None where the system does not tell.
        line: Where in the code most of the memory was allocated; empty for nowhere.
    """

    reads: int
    traced: int
    resident: int
    descriptors: int
    opened: int | None
    line: str


def descriptors_open() -> int:
    """Open descriptors of this process; 0 where the system does not tell."""
    for folder in ("/proc/self/fd", "/dev/fd"):
        try:
            return len(list(Path(folder).iterdir()))
        except OSError:
            continue
    return 0


def _sample() -> tuple[int, int, int]:
    _forget_lookups()
    gc.collect()
    return tracemalloc.get_traced_memory()[0], resident(), descriptors_open()


def _measured(reader: Reader, *, plan: list[int], seconds: float) -> Growth:
    """Read the scenes of `plan` again and again, for so long at most."""
    begun = time.monotonic()
    for _ in range(_WARM_ROUNDS):
        before_round = resident()
        _read(reader, plan, len(plan))
    scene_seconds = (time.monotonic() - begun) / (_WARM_ROUNDS * len(plan))
    # Traced, Python takes some three times as long.
    count = min(_READS, int(seconds / (3 * scene_seconds + 1e-9)))
    if (grown := resident() - before_round) > 0:
        count = min(count, max(_FEWEST, int(MOST_GROWTH / 2 / grown * len(plan))))
    half = count // (2 * len(plan)) * len(plan)
    if half < _FEWEST / 2:
        raise skipped(f"fewer than {_FEWEST} scenes can be read in the time: give more seconds=")
    ours = not tracemalloc.is_tracing()
    if ours:
        tracemalloc.start()
    try:
        _read(reader, plan, len(plan))  # what is measured is measured alike
        _sample()
        samples = [_sample()]
        _read(reader, plan, half)
        samples.append(_sample())
        before = tracemalloc.take_snapshot()
        _read(reader, plan, half)
        samples.append(_sample())
        line = _most(before, tracemalloc.take_snapshot())
    finally:
        if ours:
            tracemalloc.stop()
    traced, whole, files = (min(two - one, three - two) for one, two, three in zip(*samples, strict=True))
    first, last = samples[0][-1], samples[-1][-1]
    return Growth(half, traced, whole, files, last - first if first else None, line)


def _read(reader: Reader, plan: list[int], count: int) -> None:
    for number in range(count):
        reader.scene(plan[number % len(plan)])


def _most(before: tracemalloc.Snapshot, after: tracemalloc.Snapshot) -> str:
    for difference in after.compare_to(before, "lineno"):
        frame = difference.traceback[0]
        if difference.size_diff > 0 and not frame.filename.startswith(_PACKAGE) and "tracemalloc" not in frame.filename:
            return f"{frame.filename}:{frame.lineno}"
    return ""


def _growth(case: Case) -> Growth | Finding:
    """What grows: in a worker process, where nothing else goes on, if it can be had."""
    call = partial(case.call, _measured, plan=case.few, seconds=min(_MOST, _SHARE * case.seconds))
    try:
        if processes_supported() and not loses_workers(case):  # other checks say why it is
            with suppress(TypeError, OSError, LostWorker):
                return call(case.unread(), worker_type="process")  # type: ignore[no-any-return]
        return call()  # type: ignore[no-any-return]
    except Finding as finding:  # which both checks tell; without the frames that raised it
        return replace(finding)


def memory(case: Case) -> str:
    """Memory does not grow."""
    growth = case.once(_growth)
    if isinstance(growth, MemoryGrown):
        raise failed(f"{growth.message} ({counted(len(case.few), 'scene')}, over and over)")
    if isinstance(growth, Finding):
        raise growth
    traced = growth.traced if growth.traced > max(_TRACED_LEAST, _LEAST_A_SCENE * growth.reads) else 0
    whole = growth.resident if growth.resident > _RSS_LEAST else 0
    if traced or whole:
        grown = max(growth.traced, whole) / growth.reads
        where = f", most of it at {growth.line}" if growth.line and traced else ""
        raise failed(
            f"memory grows by {grown:,.0f} bytes a scene, over {2 * growth.reads:,} readings of {len(case.few)} scenes"
            f"{where}"
        )
    return f"none over {2 * growth.reads:,} scenes"


def descriptors(case: Case) -> str:
    """No descriptors are left open."""
    growth = case.once(_growth)
    if isinstance(growth, Finding):
        raise growth
    if growth.opened is None:
        raise skipped("this system does not tell how many descriptors are open")
    if growth.descriptors >= max(2, growth.reads // 100):
        raise failed(f"{growth.opened:,} more descriptors are open after {2 * growth.reads:,} scenes")
    return f"none left open by {2 * growth.reads:,} scenes"
