"""Checks that a scene depends on nothing but its index."""

import time
from dataclasses import replace
from functools import partial

import numpy as np

from kerasfeed.explore.check.case import Case, called, length_of
from kerasfeed.explore.check.reading import Reader, SceneReading, compare, first_difference, read_all
from kerasfeed.explore.check.result import Finding, LostWorker, failed, skipped, warned
from kerasfeed.pool.environment import Environment
from kerasfeed.pool.processes.pool import processes_supported
from kerasfeed.pool.processes.shared_objects import copy_as_sent
from kerasfeed.sequences.frames import is_in_memory
from kerasfeed.util.error_text import exception_text, pluralize

_THREADS = 4
_THREAD_SHARE, _THREAD_MOST = 1 / 60, 0.5  # of the time; s
_ROUNDS = 200
_NOT_SAFE = (
    'Leave thread_safe unset and do not use worker_type="thread", so that several threads never read it. Or keep '
    "nothing of a scene in self while it is read, and open files for each thread or process (kerasfeed.HDF5File does)"
)
_SHARED_REMEDY = "Compute values that all scenes share in __init__, and keep them in self"
_QUICK = (
    "reading all scenes takes less than a second, so a feed starts no process: name this check in checks= to run it"
)


def same_twice(case: Case) -> str:
    """A scene read twice in a row has the same bits."""
    ones, twos = zip(*case.twice, strict=True)
    compare(ones, twos, "when it is read first", "when it is read again")
    return f"{pluralize(len(case.twice), 'scene')}, each read twice in a row"


def any_order(case: Case) -> str:
    """Scenes do not depend on scenes read before."""
    plan = [*case.good[::-1], *np.random.default_rng(case.seed).permutation(case.good).tolist()]
    compare(case.readings, case.read(plan), "when they are read in ascending order", "after others")
    text = f"{pluralize(len(case.good), 'scene')}, read backwards and shuffled"
    one, other = case.unread(), case.unread()
    if one is None or other is None:
        return f"{text}; new copies were not tried, because it cannot be pickled"
    # Use copies made before any scene is read, because a sequence may keep data of the first scene that it reads.
    ascending, backwards = case.read(case.good, one), case.read(case.good[::-1], other)
    before, now = "in a new copy that reads the first scene first", "in one that reads the last scene first"
    finding = first_difference(ascending, backwards, before, now)
    if finding is not None:
        raise replace(finding, remedy=_SHARED_REMEDY)
    return f"{text}, also by new copies"


def threads(case: Case) -> str:
    """Threads that share the sequence read the same bits."""
    if case.thread_trouble:
        trouble = f"scene 0 in a worker thread raises {case.thread_trouble}; in the calling thread it does not"
        raise failed(trouble, index=0)
    is_declared = getattr(case.sequence, "thread_safe", False) is True
    if case.is_quick and not is_declared:
        raise skipped(_QUICK)
    copy = case.unread() if processes_supported() and not case.is_quick else None
    if case.lost:
        raise skipped("the sequence cannot be read in a worker process; see the check 'process'")
    if copy is None and not is_declared:
        raise skipped("the sequence cannot be sent to a worker process, and its class does not set thread_safe")
    seconds = min(_THREAD_MOST, _THREAD_SHARE * case.seconds)
    try:
        # `scene_seconds` guards each thread. The worker that waits for them reads no scene, so its timeout is long.
        count = case.call(
            _read_by_threads, copy, worker_type="" if copy is None else "process", hooks=False, timeout=case.seconds,
            plan=case.few, seconds=seconds, scene_seconds=case.scene_seconds / 2,
        )  # fmt: skip
    except Finding as found:
        if is_declared or found.status != "failed":
            raise
        raise replace(found, status="warned", remedy=_NOT_SAFE) from None
    text = f"{pluralize(count, 'scene')} read by {_THREADS} threads at once"
    if is_declared or is_in_memory(case.sequence):
        return text
    return f"{text}, with the same bits: the class may set thread_safe = True"


def _read_by_threads(reader: Reader, *, plan: list[int], seconds: float, scene_seconds: float) -> int:
    """Read scenes by several threads; return how many were read."""
    end = time.monotonic() + seconds + 2 * scene_seconds
    start = partial(called, reader.sequence, reader.seed, deadline=end, timeout=scene_seconds)
    (expected,) = start(partial(read_all, plan=plan))
    return sum(start(partial(_read_at_random, expected=expected, seconds=seconds), workers=_THREADS))


def _read_at_random(reader: Reader, *, expected: list[SceneReading], seconds: float) -> int:
    """Read scenes in random order; return how many were read."""
    rng = np.random.default_rng(reader.worker.index)
    end, count = time.monotonic() + seconds, 0
    for _ in range(_ROUNDS):
        for number in rng.permutation(len(expected)).tolist():
            one = expected[number]
            compare([one], [reader.read(one.index)], "in one thread", "while other threads read, too,")
            count += 1
        if time.monotonic() > end:
            break
    return count


def copied(case: Case) -> str:
    """A copy made by pickling has the same scenes."""
    copy, trouble = case.unread(), ""
    try:
        again = copy_as_sent(case.sequence, shares=False)
    except Exception as error:
        trouble = exception_text(error)
        if copy is None:
            raise failed(f"the sequence cannot be pickled: {trouble}") from error
    copy = again if copy is None else copy
    if length_of(copy) != case.length:
        raise failed(f"a pickled copy has length {length_of(copy):,}, the sequence has length {case.length:,}")
    if case.read(case.good) != case.readings:
        return "a copy has as many scenes; they were not compared, because scenes change when they are read again"
    compare(case.readings, case.read(case.good, copy), "in the sequence", "in a copy")
    if trouble:
        raise warned(f"the sequence can be pickled before a scene is read, but not afterwards: {trouble}")
    compare(case.readings, case.read(case.good, again), "in the sequence", "in a copy made after it was read")
    return f"a copy has the same {pluralize(len(case.good), 'scene')}"


# ---- other processes


def process(case: Case) -> str:
    """A worker process, with another hash seed, reads the same bits."""
    if not processes_supported():
        raise skipped("there are no worker processes on this system")
    if case.is_quick:
        raise skipped(_QUICK)
    now = Environment.now()
    changed = replace(now, environment={**now.environment, "PYTHONHASHSEED": str(case.seed % 1000 + 1)})
    try:
        readings = case.call(
            read_all, case.unread(), worker_type="process", environment=changed, plan=case.good[::-1]
        )  # fmt: skip
    except LostWorker:
        case.lost = True
        raise
    compare(case.readings, readings, "in this process", "in a worker process that reads the last scene first")
    return f"{pluralize(len(case.good), 'scene')} read by a worker process"
