"""The number of scenes in each file: given, or counted.

Invariant: the counts do not depend on the number of threads. Files are skipped only with `on_error="skip"`, with a
warning.
"""

import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.errors import FeedWarning
from kerasfeed.readers.remote import is_url
from kerasfeed.util.deferred_warnings import warn_caller
from kerasfeed.util.error_text import exception_text, pluralize, with_note
from kerasfeed.util.progress import progress_bar
from kerasfeed.util.resources import cores
from kerasfeed.util.validate import check_integer

_MOST_THREADS = 8  # each holds a whole file in memory
_AHEAD = 16  # files per thread in one round
_QUIET_SECONDS = 1.0
_SHOWN = 3


def given_counts(count: Any, files: int) -> list[int] | None:
    """Return one count per file, or None if files must be counted.

    Raises:
        TypeError, ValueError: `count` is neither an integer nor a list of integers, is negative, or has another length
            than the list of files.
    """
    if count is None or callable(count):
        return None
    if isinstance(count, Sequence | np.ndarray) and not isinstance(count, str | bytes):
        if len(count) != files:
            raise ValueError(f"count needs one number for each of the {files} files, received {len(count)}")
        return [check_count(value, f"count[{number}]") for number, value in enumerate(count)]
    return [check_count(count, "count")] * files


def check_count(value: Any, name: str) -> int:
    """Return `value` as a number of scenes.

    Raises:
        TypeError, ValueError: `value` is not a number of scenes.
    """
    what = "a number of scenes: an integer for all files, one integer per file, or a function from path to integer"
    return check_integer(name, value, 0, what=what)


def file_of(path: Any) -> Path | str | None:
    """Return the file or URL of a path or tuple, or None."""
    if isinstance(path, tuple) and path:
        path = path[0]
    if isinstance(path, str | os.PathLike):
        name = os.fspath(path)
        if isinstance(name, str):
            return name if isinstance(path, str) and is_url(path) else Path(name)
    return None


def count_files(
    paths: Sequence[Any], count_one: Callable[[Any], int], *, skip: bool, several: bool
) -> tuple[tuple[Any, ...], NDArray[np.int64], tuple[tuple[Any, str], ...]]:
    """Count the scenes of each file.

    Args:
        paths: The files.
        count_one: Returns the count of a file; called in several threads if `several` is set.
        skip: Whether to leave out files that cannot be counted, with a warning, instead of raising.
        several: Whether several threads may count at once.

    Returns:
        The files that could be counted; int64, scenes of each; and pairs of a skipped file and the reason.

    Raises:
        Exception: The error of `count_one`, with the file as a note.
        ValueError: No file is left.
    """
    counts: dict[int, int] = {}
    wanted = range(len(paths))
    threads = min(len(wanted), _MOST_THREADS, max(2, cores())) if several else 1
    step = _AHEAD * max(1, threads)
    failures: dict[int, BaseException] = {}
    pool = ThreadPoolExecutor(max(1, threads), "kerasfeed-count")
    try:
        with progress_bar("counting scenes", len(wanted), sys.stderr.isatty(), after=_QUIET_SECONDS) as advance:
            for first in range(0, len(wanted), step):
                futures = {number: pool.submit(count_one, paths[number]) for number in wanted[first : first + step]}
                for number, future in futures.items():
                    error = future.exception()
                    if error is None:
                        counts[number] = future.result()
                    elif skip and isinstance(error, Exception):
                        failures[number] = error
                    else:
                        what = f"while the scenes of {paths[number]!r} were counted"
                        note = f"kerasfeed: {what}; on_error='skip' leaves out files that cannot be read"
                        raise with_note(error, note, what="reading a file raised ")
                    advance(1)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    counted = sorted(counts)
    skipped = tuple((paths[number], exception_text(failures[number])) for number in sorted(failures))
    if not counted:
        raise ValueError(
            f"none of the {len(paths)} files could be read. The first: {skipped[0][0]!r}: {skipped[0][1]}"
        ) from failures[min(failures)]
    if skipped:
        _warn_of_skipped(skipped, len(paths))
    return (
        tuple(paths[number] for number in counted),
        np.array([counts[number] for number in counted], np.int64),
        skipped,
    )


def _warn_of_skipped(skipped: Sequence[tuple[Any, str]], files: int) -> None:
    shown = "; ".join(f"{path!r}: {text}" for path, text in skipped[:_SHOWN])
    more = f"; and {len(skipped) - _SHOWN:,} more, see `skipped`" if len(skipped) > _SHOWN else ""
    warn_caller(
        f"{len(skipped):,} of {pluralize(files, 'file')} cannot be read and are left out: {shown}{more}", FeedWarning
    )
