"""How many scenes each file holds: given, kept from an earlier time, or found by reading, several files at once.

Invariant: which files are counted, and what comes out, does not depend on the number of threads. Nothing is skipped
unless it was asked for, and then it is told.
"""

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import closing
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.errors import FeedWarning
from kerasfeed.pool.base import PoolOptions, Runner, WorkerContext
from kerasfeed.pool.task import FailedTaskError, FutureTask, Note, Place, Record
from kerasfeed.pool.threads import ThreadPool
from kerasfeed.readers.files.counts_cache import CountsCache
from kerasfeed.util.counted import counted
from kerasfeed.util.deferred_warnings import DeferredWarnings, warn_caller
from kerasfeed.util.error_notes import noted
from kerasfeed.util.error_text import exception_text
from kerasfeed.util.progress import progress_bar
from kerasfeed.util.resources import cores
from kerasfeed.util.validate import check_integer

_MOST_THREADS = 8  # each holds a whole file in memory
_QUIET_SECONDS = 1.0
_SHOWN = 3


def given_counts(count: Any, files: int) -> list[int] | None:
    """The counts that `count`, an integer or one for each file, stands for; None where files are to be asked.

    Raises:
        TypeError, ValueError: It is neither, or negative, or not as many as there are files.
    """
    if count is None or callable(count):
        return None
    if isinstance(count, Sequence | np.ndarray) and not isinstance(count, str | bytes):
        if len(count) != files:
            raise ValueError(f"count needs one number for each of the {files} files, received {len(count)}")
        return [check_count(value, f"count[{number}]") for number, value in enumerate(count)]
    return [check_count(count, "count")] * files


def check_count(value: Any, name: str) -> int:
    """`value` as a number of scenes.

    Raises:
        TypeError, ValueError: It is none.
    """
    what = "a number of scenes: an integer for all files, one integer a file, or a function from path to integer"
    return check_integer(name, value, 0, what=what)


def count_files(
    paths: Sequence[Any], count_one: Callable[[int], int], cache: CountsCache | None, *, skip: bool, several: bool
) -> tuple[list[int], NDArray[np.int64], tuple[tuple[Any, str], ...]]:
    """Count the scenes of each file, those that `cache` does not know in parallel.

    Args:
        paths: The files.
        count_one: From the number of a file to its count; called in several threads where `several` is set.
        cache: What is known from earlier; None for nothing. What is found is added.
        skip: Whether files that cannot be counted are left out, with a warning, instead of raising.
        several: Whether several threads may count at once.

    Returns:
        Numbers of the files that could be counted, ascending; int64, scenes of each; and pairs of a file that could
        not be counted and why.

    Raises:
        Exception: What `count_one` raises, with the file as a note; a ValueError where nothing is left.
    """
    known = {} if cache is None else cache.known(paths)
    wanted = [number for number in range(len(paths)) if number not in known]
    failures: dict[int, BaseException] = {}
    try:
        _count(paths, wanted, count_one, known, failures if skip else None, several=several)
    finally:  # hours of counting are not lost by a Ctrl-C, nor by one bad file
        if cache is not None and wanted:
            cache.add(paths, {number: known[number] for number in wanted if number in known})
    kept = sorted(known)
    skipped = tuple((paths[number], exception_text(failures[number])) for number in sorted(failures))
    if not kept:
        raise ValueError(
            f"none of the {len(paths)} files could be read. The first: {skipped[0][0]!r}: {skipped[0][1]}"
        ) from failures[min(failures)]
    if skipped:
        _warn_of_skipped(skipped, len(paths))
    return kept, np.array([known[number] for number in kept], np.int64), skipped


def _warn_of_skipped(skipped: Sequence[tuple[Any, str]], files: int) -> None:
    shown = "; ".join(f"{path!r}: {text}" for path, text in skipped[:_SHOWN])
    more = f"; and {len(skipped) - _SHOWN:,} more, see `skipped`" if len(skipped) > _SHOWN else ""
    warn_caller(
        f"{len(skipped):,} of {counted(files, 'file')} cannot be read and are left out: {shown}{more}", FeedWarning
    )


class _Counter(Runner):
    target = None

    def __init__(self, count_one: Callable[[int], int]) -> None:
        self._count_one = count_one

    def run(self, record: Record, note: Note, context: WorkerContext) -> int:
        try:
            return self._count_one(record[1])
        except BaseException as error:
            raise FailedTaskError(Place()) from error


def _count(
    paths: Sequence[Any],
    wanted: list[int],
    count_one: Callable[[int], int],
    found: dict[int, int],
    failures: dict[int, BaseException] | None,
    *,
    several: bool,
) -> None:
    """Put counts into `found`, and exceptions into `failures` if there is such a thing."""
    if not wanted:
        return
    threads = min(len(wanted), _MOST_THREADS, max(2, cores())) if several else 1
    numbers = iter(wanted)
    running: dict[Future[int], int] = {}
    quiet = DeferredWarnings()
    quiet.mute("stall")  # which speaks of scenes, and of arguments of a feed
    bar = progress_bar("counting scenes", len(wanted), sys.stderr.isatty(), after=_QUIET_SECONDS)
    options = PoolOptions(threads, "the counting of files", deferred_warnings=quiet)
    with closing(ThreadPool(_Counter(count_one), options)) as pool, bar as advance:
        while True:
            for number in numbers:
                running[pool.run(FutureTask(0, number))] = number
                if len(running) >= 2 * threads:
                    break
            if not running:
                return
            done, _ = wait(running, timeout=0.2, return_when=FIRST_COMPLETED)
            for future in sorted(done, key=running.__getitem__):
                number = running.pop(future)
                if failures is None:
                    number, future = _first_failed(number, future, running)
                _note_result(future, number, paths[number], found, failures)
            advance(len(done))


def _first_failed(number: int, future: "Future[int]", running: "dict[Future[int], int]") -> "tuple[int, Future[int]]":
    """Of a file that failed and those before it, the first that did, so that each run tells of the same one."""
    if future.exception() is None:
        return number, future
    before = {other: place for other, place in running.items() if place < number}
    wait(before)
    failed = [(place, other) for other, place in before.items() if other.exception() is not None]
    return min(failed, key=lambda each: each[0], default=(number, future))


def _note_result(
    future: "Future[int]", number: int, path: Any, found: dict[int, int], failures: dict[int, BaseException] | None
) -> None:
    error = future.exception()
    if error is None:
        found[number] = future.result()
    elif failures is None or not issubclass(type(error), Exception):
        note = f"while the scenes of {path!r} were counted; on_error='skip' leaves files out that cannot be read"
        raise noted(error, "reading a file raised ", f"kerasfeed: {note}")
    else:
        failures[number] = error
