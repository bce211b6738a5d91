"""Checks that a scene is a function of its index alone: read again, in another order, thread or copy."""

import time
from functools import partial
from typing import Any

import numpy as np

from kerasfeed.explore.checks.calls import Where
from kerasfeed.explore.checks.case import Case
from kerasfeed.explore.checks.finding import Finding, failed, passed, skipped, warned
from kerasfeed.explore.checks.reading import Reader, Reading, difference, first_difference
from kerasfeed.pool.processes.shared_objects import copy_as_sent, pickled
from kerasfeed.pool.task import Note
from kerasfeed.sequences.context import Worker
from kerasfeed.util.counted import counted
from kerasfeed.util.error_text import exception_text

_FIRST = "when it is read first"
_THREADS = 4
_THREAD_SHARE, _THREAD_MOST = 1 / 60, 0.5  # of the time; s
_ROUNDS = 200
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
    return found or passed(f"{counted(len(case.good), 'scene')}, read backwards and shuffled")


def threads(case: Case) -> Finding:
    """Threads that share the sequence read the same bits."""
    if case.thread_trouble is not None:
        return case.thread_trouble
    seconds = min(_THREAD_MOST, _THREAD_SHARE * case.seconds)
    call = partial(_read_at_random, expected=case.readings, seed=case.seed, seconds=seconds)
    found = case.there(call, Where("thread", _THREADS))
    trouble = next((each for each in found if isinstance(each, Finding)), None)
    return trouble or passed(f"{counted(sum(found), 'scene')} read by {_THREADS} threads at once")


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
    if len(copy) != case.length:
        return failed(f"len of a copy made by pickling is {len(copy):,}, and of the sequence {case.length:,}")
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
