"""How many scenes each file holds: given, or found by reading several files at once.

Invariant: the counts do not depend on the number of threads. Files are skipped only with `on_error="skip"`, with a
warning. A count is used again only while its file is unchanged.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.errors import FeedWarning
from kerasfeed.readers.remote import is_url
from kerasfeed.util.deferred_warnings import warn_caller
from kerasfeed.util.error_text import counted, exception_text, noted
from kerasfeed.util.progress import progress_bar
from kerasfeed.util.resources import cores
from kerasfeed.util.validate import check_integer

_MOST_THREADS = 8  # each holds a whole file in memory
_AHEAD = 16  # files a thread that are counted before the next ones are begun
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


class KnownCounts:
    """Counts of files, for `refresh`: a file whose size and modification time are unchanged is not counted again.

    Workers do not call `refresh`, so the counts are not pickled.
    """

    def __init__(self) -> None:
        self._counts: dict[str, tuple[Any, int]] = {}  # state of the file when it was counted, and count
        self._states: dict[str, Any] = {}  # before the file was counted

    def __reduce__(self) -> Any:
        return KnownCounts, ()

    def known(self, paths: Sequence[Any]) -> dict[int, int]:
        """Counts of the files that have not changed, by number."""
        found = {}
        for number, path in enumerate(paths):
            name = _name(path)
            self._states[name] = state = _state_of(path)
            if name in self._counts and self._counts[name][0] == state:
                found[number] = self._counts[name][1]
        return found

    def add(self, paths: Sequence[Any], counts: Mapping[int, int]) -> None:
        """Add counts, by number, of files that were passed to `known`."""
        for number, count in counts.items():
            name = _name(paths[number])
            if self._states[name] is not None:
                self._counts[name] = self._states[name], count


def _state_of(path: Any) -> tuple[int, int] | None:
    """Size and modification time of a file; None for a URL and for anything else, which is counted each time."""
    file = file_of(path)
    if not isinstance(file, Path) or not file.is_file():
        return None
    status = file.stat()
    return status.st_size, status.st_mtime_ns


def file_of(path: Any) -> Path | str | None:
    """The file, or URL, that a path, or a tuple that begins with one, names; None for anything else."""
    if isinstance(path, tuple) and path:
        path = path[0]
    if isinstance(path, str | os.PathLike):
        name = os.fspath(path)
        if isinstance(name, str):
            return name if isinstance(path, str) and is_url(path) else Path(name)
    return None


def _name(path: Any) -> str:
    """What identifies a path, or a tuple that begins with one: the file's full name, and the rest."""
    file = file_of(path)
    rest = repr(path[1:]) if isinstance(path, tuple) else ""
    if file is None:
        return ""
    return f"{file if isinstance(file, str) else file.absolute()}{rest}"


def count_files(
    paths: Sequence[Any], count_one: Callable[[Any], int], before: KnownCounts, *, skip: bool, several: bool
) -> tuple[tuple[Any, ...], NDArray[np.int64], tuple[tuple[Any, str], ...]]:
    """Count the scenes of each file, those that are not known in parallel.

    Args:
        paths: The files.
        count_one: From a file to its count; called in several threads where `several` is set.
        before: What is known from earlier. What is found is added.
        skip: Whether files that cannot be counted are left out, with a warning, instead of raising.
        several: Whether several threads may count at once.

    Returns:
        The files that could be counted; int64, scenes of each; and pairs of a file that could not be counted and why.

    Raises:
        Exception: What `count_one` raises, with the file as a note; a ValueError where nothing is left.
    """
    known = before.known(paths)
    wanted = [number for number in range(len(paths)) if number not in known]
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
                        known[number] = future.result()
                    elif skip and isinstance(error, Exception):
                        failures[number] = error
                    else:
                        what = f"while the scenes of {paths[number]!r} were counted"
                        note = f"kerasfeed: {what}; on_error='skip' leaves files out that cannot be read"
                        raise noted(error, note, what="reading a file raised ")
                    advance(1)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    before.add(paths, {number: known[number] for number in wanted if number in known})
    kept = sorted(known)
    skipped = tuple((paths[number], exception_text(failures[number])) for number in sorted(failures))
    if not kept:
        raise ValueError(
            f"none of the {len(paths)} files could be read. The first: {skipped[0][0]!r}: {skipped[0][1]}"
        ) from failures[min(failures)]
    if skipped:
        _warn_of_skipped(skipped, len(paths))
    return tuple(paths[number] for number in kept), np.array([known[number] for number in kept], np.int64), skipped


def _warn_of_skipped(skipped: Sequence[tuple[Any, str]], files: int) -> None:
    shown = "; ".join(f"{path!r}: {text}" for path, text in skipped[:_SHOWN])
    more = f"; and {len(skipped) - _SHOWN:,} more, see `skipped`" if len(skipped) > _SHOWN else ""
    warn_caller(
        f"{len(skipped):,} of {counted(files, 'file')} cannot be read and are left out: {shown}{more}", FeedWarning
    )
