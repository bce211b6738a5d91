"""How many scenes each file holds: given, kept from an earlier time, or found by reading, several files at once.

Invariant: which files are counted, and what comes out, does not depend on the number of threads. Nothing is skipped
unless it was asked for, and then it is told. A number is believed only as long as its file is what it was. What is kept
in a file is written under another name and then renamed, and nothing that is not such a file is ever overwritten.
"""

import contextlib
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.errors import FeedWarning
from kerasfeed.readers.remote import identity_at, is_url
from kerasfeed.util.atomic_write import write_whole
from kerasfeed.util.counted import counted
from kerasfeed.util.deferred_warnings import warn_caller
from kerasfeed.util.error_text import exception_text, noted
from kerasfeed.util.progress import progress_bar
from kerasfeed.util.resources import cores
from kerasfeed.util.validate import check_integer, local_path

_MOST_THREADS = 8  # each holds a whole file in memory
_AHEAD = 16  # files a thread that are counted before the next ones are begun
_LOOKS_AT_ONCE = 32
_QUIET_SECONDS = 1.0
_SHOWN = 3
_FORMAT = "kerasfeed counts 1"


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
    """Counts by file, in memory and, where there is a path, in a small JSON file, which other sequences may share.

    Only `refresh` needs them later, which workers do not call, so they are not pickled.
    """

    def __init__(self, path: Any = None) -> None:
        """Keep counts at `path`, too.

        Raises:
            TypeError: `path` is no path.
            ValueError: It is a URL.
        """
        self._path = None if path is None else local_path("counts_cache", path)
        self._counts: dict[str, list[int]] = {}  # size, time of change (ns) and count
        self._states: dict[str, list[int] | None] = {}  # size and time of change, before anybody counted

    def __reduce__(self) -> Any:
        return KnownCounts, (self._path,)

    def _read(self) -> dict[str, list[int]]:
        if self._path is None:
            return {}
        try:
            content = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (ValueError, IsADirectoryError):
            content = None
        if not isinstance(content, dict) or content.get("format") != _FORMAT:
            raise ValueError(
                f"counts_cache={str(self._path)!r} exists and is no cache of counts, so it will not be overwritten. "
                "Name another file, or delete this one"
            )
        return dict(content["counts"])

    def known(self, paths: Sequence[Any]) -> dict[int, int]:
        """Counts of those of `paths` that have not changed, by number.

        Raises:
            ValueError: What is at the path is something else.
        """
        self._counts = {**self._read(), **self._counts}
        found = {}
        with ThreadPoolExecutor(_LOOKS_AT_ONCE) as pool:  # each at a URL takes as long as a small read
            are_urls = any(isinstance(file_of(path), str) for path in paths)
            states = list((pool.map if are_urls else map)(self._state, paths))
        for number, (path, state) in enumerate(zip(paths, states, strict=True)):
            name = _name(path)
            self._states[name] = state
            *before, count = self._counts.get(name, [0])
            if before == state:
                found[number] = count
        return found

    def _state(self, path: Any) -> list[int] | None:
        """Size and time of change of a file now; None where there is none to look at."""
        file = file_of(path)
        if file is None or (self._path is None and not (isinstance(file, Path) and file.is_file())):
            return None
        with contextlib.suppress(OSError, ImportError, ValueError):  # also a URL of which only `read_file` knows
            identity = identity_at(file)
            return [identity.size, identity.mtime_ns]
        return None

    def add(self, paths: Sequence[Any], counts: Mapping[int, int]) -> None:
        """Note counts, by number, of files that `known` was asked for; warns where they cannot be written."""
        for number, count in counts.items():
            name = _name(paths[number])
            state = self._states[name]
            if state is not None:
                self._counts[name] = [*state, count]
        if self._path is None:
            return
        try:
            write_whole(self._path, json.dumps({"format": _FORMAT, "counts": self._counts}, indent=0).encode())
        except OSError as error:
            warn_caller(f"counts_cache={str(self._path)!r} cannot be written: {exception_text(error)}", FeedWarning)


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
    futures: dict[int, Future[int]] = {}
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
    finally:  # hours of counting are not lost by a Ctrl-C, nor by one bad file
        pool.shutdown(wait=False, cancel_futures=True)
        for number, future in futures.items():
            if future.done() and not future.cancelled() and future.exception() is None:
                known[number] = future.result()
        if wanted:
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
