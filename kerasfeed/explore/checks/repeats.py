"""Checks that a scene is a function of its index alone: in another order, thread, copy, process or directory.

Invariant: a process with everything changed is looked at first. Only where its scenes differ are further ones started,
each with one change, to tell what the scenes depend on.
"""

import contextlib
import os
import tempfile
import time
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from kerasfeed.explore.checks.case import Case, called, length_of
from kerasfeed.explore.checks.reading import Reader, SceneReading, compare, first_difference, read_all
from kerasfeed.explore.checks.result import Finding, LostWorker, failed, skipped, warned
from kerasfeed.pool.environment import Environment
from kerasfeed.pool.processes.pool import processes_supported
from kerasfeed.pool.processes.shared_objects import copy_as_sent, pickled
from kerasfeed.sequences.frames import is_in_memory
from kerasfeed.util.counted import counted
from kerasfeed.util.error_text import exception_text
from kerasfeed.util.report import bytes_text

_THREADS = 4
_THREAD_SHARE, _THREAD_MOST = 1 / 60, 0.5  # of the time; s
_ROUNDS = 200
_NOT_SAFE = (
    'Leave thread_safe unset, and worker_type="thread" alone: then several threads never read it. Or keep nothing of a '
    "scene in self while it is read, and open files for each thread or process (kerasfeed.HDF5File does)"
)
_SHARED_REMEDY = "Number, or work out, in __init__ what all scenes share, and keep it in self"
_LARGE_NBYTES, _LONG_SECONDS = 100e6, 1.0  # of a pickle


def same_twice(case: Case) -> str:
    """The same scene, read twice in a row, has the same bits."""
    ones, twos = zip(*case.twice, strict=True)
    compare(ones, twos, "when it is read first", "when it is read again")
    return f"{counted(len(case.twice), 'scene')}, each read twice in a row"


def any_order(case: Case) -> str:
    """Scenes do not depend on those that were read before."""
    plan = [*case.good[::-1], *np.random.default_rng(case.seed).permutation(case.good).tolist()]
    compare(case.readings, case.read(plan), "when they are read in ascending order", "after others")
    text = f"{counted(len(case.good), 'scene')}, read backwards and shuffled"
    one, other = case.unread(), case.unread()
    if one is None or other is None:
        return f"{text}; not by new copies, for it cannot be pickled"
    # What the first scene leaves behind shows where that is another one: in copies of which nothing was read.
    ascending, backwards = case.read(case.good, one), case.read(case.good[::-1], other)
    before, now = "in a new copy that reads the first scene first", "in one that reads the last scene first"
    finding = first_difference(ascending, backwards, before, now)
    if finding is not None:
        raise replace(finding, remedy=_SHARED_REMEDY)
    return f"{text}, also by new copies"


def threads(case: Case) -> str:
    """Several threads that share the sequence read the same bits: tried in a worker process, on a copy."""
    if case.thread_trouble:
        trouble = f"scene 0 in a worker thread raises {case.thread_trouble}; in the calling thread it does not"
        raise failed(trouble, index=0)
    is_said = getattr(case.sequence, "thread_safe", False) is True
    copy = case.unread() if processes_supported() else None
    if copy is not None and loses_workers(case):
        raise skipped("the sequence cannot be read in a worker process; see process")
    if copy is None and not is_said:
        raise skipped("it cannot be sent to another process, where that is tried, and the class has no thread_safe")
    seconds = min(_THREAD_MOST, _THREAD_SHARE * case.seconds)
    try:
        # The threads are watched from where they are: the worker that waits for them notes no scene meanwhile.
        count = case.call(
            _read_by_threads, copy, worker_type="" if copy is None else "process", hooks=False, timeout=case.seconds,
            plan=case.few, seconds=seconds, scene_seconds=case.scene_seconds / 2,
        )  # fmt: skip
    except Finding as found:
        if is_said or found.status != "failed":
            raise
        raise replace(found, status="warned", remedy=_NOT_SAFE) from None
    text = f"{counted(count, 'scene')} read by {_THREADS} threads at once"
    may = "" if is_said or is_in_memory(case.sequence) else ", all the same: the class may set thread_safe = True"
    return text + may


def _read_by_threads(reader: Reader, *, plan: list[int], seconds: float, scene_seconds: float) -> int:
    """How many scenes several threads of this process have read."""
    end = time.monotonic() + seconds + 2 * scene_seconds
    start = partial(called, reader.sequence, reader.seed, deadline=end, timeout=scene_seconds)
    (expected,) = start(partial(read_all, plan=plan))
    return sum(start(partial(_read_at_random, expected=expected, seconds=seconds), workers=_THREADS))


def _read_at_random(reader: Reader, *, expected: list[SceneReading], seconds: float) -> int:
    """How many scenes were read in this time, in a random order."""
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
    try:
        copy = copy_as_sent(case.sequence, shares=False)
    except Exception as error:
        raise failed(f"the sequence cannot be pickled: {exception_text(error)}") from error
    if length_of(copy) != case.length:
        raise failed(f"len of a copy made by pickling is {length_of(copy):,}, and of the sequence {case.length:,}")
    if case.read(case.good) != case.readings:
        return "a copy has as many scenes; they were not compared, for they are not the same when they are read again"
    compare(case.readings, case.read(case.good, copy), "in the sequence", "in a copy")
    return f"a copy has the same {counted(len(case.good), 'scene')}"


def pickle_cost(case: Case) -> str:
    """The sequence is sent to a worker in little time."""
    begun = time.perf_counter()
    try:
        parts = pickled(case.sequence)
    except Exception as error:
        raise skipped(f"the sequence cannot be pickled ({type(error).__name__}); see pickle") from error
    seconds, nbytes = time.perf_counter() - begun, sum(part.nbytes for part in parts)
    text = f"{bytes_text(nbytes)} in {1e3 * seconds:,.3g} ms"
    if seconds > _LONG_SECONDS or nbytes > _LARGE_NBYTES:
        raise warned(f"pickling takes {text}; every start of worker processes pays that")
    return text


# ---- other processes


@dataclass(frozen=True)
class Setting:
    """How a worker process is started, and in which order it reads.

    Attributes:
        hash_seed: Its PYTHONHASHSEED.
        elsewhere: Whether its current directory is another one.
        number: Another number is another process of the same kind.
        backwards: Whether it reads the last scene first.
    """

    hash_seed: int = 1
    elsewhere: bool = False
    number: int = 0
    backwards: bool = False


_LIKE_THIS = Setting()
_ALL_CHANGED = Setting(2, elsewhere=True, backwards=True)


def _read_elsewhere(case: Case, setting: Setting) -> list[SceneReading] | LostWorker:
    """What such a process reads; why it was lost, if it was."""
    now = Environment.now()
    environment = {**now.environment, "PYTHONHASHSEED": str(setting.hash_seed)}
    plan = case.good[::-1] if setting.backwards else case.good
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="check-")) if setting.elsewhere else ""
        try:
            return case.call(  # type: ignore[no-any-return]
                _read_from, case.unread(), worker_type="process", environment=replace(now, environment=environment),
                folder=folder, plan=plan,
            )  # fmt: skip
        except LostWorker as lost:
            return replace(lost)  # without its frames


def _unlike(case: Case, one: Setting | None, other: Setting, before: str = "", now: str = "") -> Finding | None:
    """What tells the scenes of two processes apart; None stands for this process."""
    expected = case.readings if one is None else case.once(_read_elsewhere, one)
    readings = case.once(_read_elsewhere, other)
    if isinstance(expected, LostWorker):
        return expected
    return readings if isinstance(readings, LostWorker) else first_difference(expected, readings, before, now)


def loses_workers(case: Case) -> bool:
    """Whether a process that was to read the sequence ended, hung or did not start, so far."""
    return any(isinstance(found, LostWorker) for found in case.known.values())


def _read_from(reader: Reader, *, folder: str, plan: list[int]) -> list[SceneReading]:
    """What a process, a worker that does nothing else, reads from a directory; from its own where that is empty."""
    if not folder:
        return read_all(reader, plan=plan)
    os.chdir(folder)  # contextlib.chdir would ask for the directory before, which may be gone
    try:
        return read_all(reader, plan=plan)
    finally:
        os.chdir("/")


def process(case: Case) -> str:
    """A worker process reads the same bits."""
    if not processes_supported():
        raise skipped("there are no worker processes on this system")
    text = f"{counted(len(case.good), 'scene')} read by a worker process"
    if _unlike(case, None, _ALL_CHANGED) is None:
        return text
    finding = _unlike(case, None, _LIKE_THIS, "in this process", "in a worker process")
    if finding is None:
        now = "in another one that reads the last scene first"
        backwards = _unlike(case, _LIKE_THIS, Setting(backwards=True), "in a worker process", now)
        if backwards is not None:
            raise replace(backwards, remedy=_SHARED_REMEDY)
        return text
    if isinstance(finding, LostWorker):
        raise finding
    # Processes of one hash seed: the one of this process nobody knows.
    unlike = _unlike(case, _LIKE_THIS, Setting(number=1), "in one worker process", "in another one")
    if unlike is None and _unlike(case, _LIKE_THIS, Setting(2)) is not None:
        raise skipped("scenes depend on the hash seed, in which every process differs; see hash_seed")
    raise unlike or finding


def hash_seed(case: Case) -> str:
    """Scenes do not depend on the hash seed of the process."""
    if _unlike(case, None, _ALL_CHANGED) is not None:
        before, now = "in a process with PYTHONHASHSEED=1", "in one with PYTHONHASHSEED=2"
        finding = _unlike(case, _LIKE_THIS, Setting(2), before, now)
        if finding is not None:
            raise finding
    return "the same with PYTHONHASHSEED=1 and 2"


def directory(case: Case) -> str:
    """Scenes do not depend on the current directory."""
    if _unlike(case, None, _ALL_CHANGED) is not None:
        elsewhere = Setting(elsewhere=True)
        finding = _unlike(case, _LIKE_THIS, elsewhere, "in this directory", "in another directory")
        readings = case.once(_read_elsewhere, elsewhere)
        if finding is not None and isinstance(readings, list) and any(reading.error for reading in readings):
            raise replace(finding, status="warned")  # workers of a feed start in its directory: none reads wrong
        if finding is not None:
            raise finding
    return "the same from another directory"
