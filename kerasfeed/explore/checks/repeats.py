"""Checks that a scene is a function of its index alone: read again, in another order, thread or copy."""

import time
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from kerasfeed.explore.checks.calls import Where, call
from kerasfeed.explore.checks.case import Case, length_of
from kerasfeed.explore.checks.finding import Finding, failed, passed, skipped, warned
from kerasfeed.explore.checks.places import elsewhere_of
from kerasfeed.explore.checks.reading import Reader, Reading, difference, first_difference, portable, read_all
from kerasfeed.pool.processes.pool import processes_supported
from kerasfeed.pool.processes.shared_objects import copy_as_sent, pickled
from kerasfeed.pool.task import Note
from kerasfeed.sequences.context import Worker
from kerasfeed.util.counted import counted
from kerasfeed.util.error_text import exception_text
from kerasfeed.util.frames import is_in_memory

_FIRST = "when it is read first"
_THREADS = 4
_THREAD_SHARE, _THREAD_MOST = 1 / 60, 0.5  # of the time; s
_ROUNDS = 200
_NOT_SAFE = (
    'Leave thread_safe unset, and worker_type="thread" alone: then several threads never read it. Or keep nothing of a '
    "scene in self while it is read, and open files for each thread or process (kerasfeed.HDF5File does)"
)
_LARGE_NBYTES, _LONG_SECONDS = 100e6, 1.0  # of a pickle


def same_twice(case: Case) -> Finding:
    """The same scene, read twice in a row, has the same bits."""
    for one, two in case.twice:
        found = difference(one, two, _FIRST, "when it is read again")
        if found is not None:
            return found
    return passed(f"{counted(len(case.twice), 'scene')}, each read twice in a row")


def any_order(case: Case) -> Finding:
    """Scenes do not depend on those that were read before."""
    plan = [*case.good[::-1], *np.random.default_rng(case.seed).permutation(case.good).tolist()]
    now = "after others"
    found = first_difference(case.readings, case.read(plan), "when they are read in ascending order", now)
    if found is not None:
        return found
    text = f"{counted(len(case.good), 'scene')}, read backwards and shuffled"
    one, other = case.unread(), case.unread()
    if one is None or other is None:
        return passed(f"{text}; not by new copies, for it cannot be pickled")
    # What the first scene leaves behind shows where that is another one: in copies of which nothing was read.
    ascending, backwards = case.read(case.good, one), case.read(case.good[::-1], other)
    before, now = "in a new copy that reads the first scene first", "in one that reads the last scene first"
    found = first_difference(ascending, backwards, before, now)
    if found is not None:
        return replace(found, remedy="Number, or work out, in __init__ what all scenes share, and keep it in self")
    return passed(f"{text}, also by new copies")


def threads(case: Case) -> Finding:
    """Several threads that share the sequence read the same bits: tried in a worker process, on a copy."""
    if case.thread_trouble is not None:
        return case.thread_trouble
    is_said = getattr(case.sequence, "thread_safe", False) is True
    seconds = min(_THREAD_MOST, _THREAD_SHARE * case.seconds)
    function = partial(
        _read_by_threads, plan=case.few, seed=case.seed, seconds=seconds, scene_seconds=case.scene_seconds / 2
    )
    copy = case.unread() if processes_supported() else None
    if copy is not None and elsewhere_of(case).is_broken:
        return skipped("the sequence cannot be read in a worker process; see process")
    if copy is not None:
        found = case.there(function, Where("process", hooks=False), copy)[0]
    elif is_said:
        found = case.here(function, hooks=False)
    else:
        return skipped("it cannot be sent to another process, where that is tried, and the class has no thread_safe")
    if isinstance(found, Finding):
        return found if is_said else replace(found, status="warned", remedy=_NOT_SAFE)
    text = f"{counted(found, 'scene')} read by {_THREADS} threads at once"
    may = "" if is_said or is_in_memory(case.sequence) else ", all the same: the class may set thread_safe = True"
    return passed(text + may)


def _read_by_threads(
    sequence: Any, note: Note, worker: object, *, plan: list[int], seed: int, seconds: float, scene_seconds: float
) -> Finding | int:
    """How many scenes several threads of this process have read; or the first that differs."""
    end = time.monotonic() + seconds + 2 * scene_seconds
    expected = call(sequence, partial(read_all, plan=plan, seed=seed), Where("thread"), scene_seconds, end)[0]
    expected = [portable(each) for each in expected]
    function = partial(_read_at_random, expected=expected, seed=seed, seconds=seconds)
    found = call(sequence, function, Where("thread", _THREADS), scene_seconds, end)
    return next((each for each in found if isinstance(each, Finding)), None) or sum(found)


def _read_at_random(
    sequence: Any, note: Note, worker: Worker, *, expected: list[Reading], seed: int, seconds: float
) -> Finding | int:
    """How many scenes were read in this time, in a random order; or the first that differs."""
    reader, rng = Reader(sequence, seed, note), np.random.default_rng(worker.index)
    end, count = time.monotonic() + seconds, 0
    for _ in range(_ROUNDS):
        for place in rng.permutation(len(expected)).tolist():
            one = expected[place]
            count += 1
            other = reader.read(one.index)
            found = difference(one, other, "in one thread", "while other threads read, too,")
            if found is not None:
                return found
        if time.monotonic() > end:
            break
    return count


def copied(case: Case) -> Finding:
    """A copy made by pickling has the same scenes."""
    try:
        copy = copy_as_sent(case.sequence, shares=False)
    except Exception as error:  # noqa: BLE001 - the user's
        return failed(f"the sequence cannot be pickled: {exception_text(error)}")
    if length_of(copy) != case.length:
        return failed(f"len of a copy made by pickling is {length_of(copy):,}, and of the sequence {case.length:,}")
    if case.read(case.good) != case.readings:
        return passed(
            "a copy has as many scenes; they were not compared, for they are not the same when they are read again"
        )
    found = first_difference(case.readings, case.read(case.good, copy), "in the sequence", "in a copy")
    return found or passed(f"a copy has the same {counted(len(case.good), 'scene')}")


def pickle_cost(case: Case) -> Finding:
    """The sequence is sent to a worker in little time."""
    begun = time.perf_counter()
    try:
        parts = pickled(case.sequence)
    except Exception as error:  # noqa: BLE001 - the user's
        return skipped(f"the sequence cannot be pickled ({type(error).__name__}); see pickle")
    seconds, nbytes = time.perf_counter() - begun, sum(part.nbytes for part in parts)
    text = f"{_size(nbytes)} in {1e3 * seconds:,.3g} ms"
    if seconds > _LONG_SECONDS or nbytes > _LARGE_NBYTES:
        return warned(f"pickling takes {text}; every start of worker processes pays that")
    return passed(text)


def _size(nbytes: float) -> str:
    return f"{nbytes / 1e6:,.3g} MB" if nbytes >= 1e6 else f"{nbytes / 1e3:,.3g} kB"
