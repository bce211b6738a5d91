"""`FileSequence`: files that each hold many scenes, as one sequence.

Invariant: an index refers to the same scene until `refresh`. A file is read when one of its scenes is needed: one
thread reads it, and others wait. Each process keeps a bounded number of files.
"""

import operator
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kerasfeed.readers import read_cost
from kerasfeed.readers.files.contents import Contents, contents_of
from kerasfeed.readers.files.counts import check_count, count_files, file_of, given_counts
from kerasfeed.readers.opened_files import Identity, file_identity
from kerasfeed.readers.tfrecord.names import expand
from kerasfeed.sequences.base import SceneSequence
from kerasfeed.sequences.context import in_worker_process
from kerasfeed.sequences.view_base import Refreshable, is_safe_function
from kerasfeed.util import resources
from kerasfeed.util.error_text import add_note, message_of, pluralize, reworded
from kerasfeed.util.fingerprint import digest_of_names
from kerasfeed.util.lru import Lru, PerProcess
from kerasfeed.util.validate import check_integer


@dataclass(frozen=True)
class FileRow:
    """The origin of a scene.

    Attributes:
        path: The file, as it was given.
        row: Number of the scene in the file, from 0.
    """

    path: Any
    row: int


@dataclass(frozen=True)
class FileStats:
    """The cost of reading files in this process so far.

    Attributes:
        reads: Number of reads of a file.
        again: Number of these reads of a file that had been read before and was no longer kept.
        seconds: Time spent in `read_file`, s, summed over threads.
        kept: Number of files kept now.
    """

    reads: int
    again: int
    seconds: float
    kept: int


class _FileCache(Lru[int, Contents]):
    """A cache of contents by number of the file.

    It drops the least recently used file first. It keeps the file just read, whatever its size.
    """

    def __init__(self, most_files: int, most_bytes: int) -> None:
        """Keep at most `most_files` files, and at most `most_bytes` bytes of them."""
        super().__init__(most_files)
        self._most_bytes = most_bytes

    def _keep(self, key: int, value: Contents) -> list[Contents]:
        evicted = super()._keep(key, value)
        nbytes = sum(contents.nbytes for contents in self._kept.values())
        while nbytes > self._most_bytes and len(self) > 1:
            evicted.append(self._pop())
            nbytes -= evicted[-1].nbytes
        return evicted


class _FilesRead:
    """The state of one process for the files of one sequence.

    Attributes:
        cache: Contents of files.
        log: Cost of reading.
        first: Identity of each file when it was first read, by its number.
    """

    def __init__(self, most_files: int, most_bytes: int) -> None:
        """Keep at most `most_files` files, and at most `most_bytes` bytes of them."""
        self.cache = _FileCache(most_files, most_bytes)
        self.log = read_cost.Meter()
        self.first: dict[int, Identity] = {}

    def clear(self) -> None:
        """Drop everything but the log."""
        self.cache.clear()
        self.first.clear()


class FileSequence(Refreshable, SceneSequence):
    """Files that each hold many scenes, as one sequence.

    `read_file(path)` returns the scenes of one file as one of these:

    * a tuple or dict of arrays that all have one row for each scene (lists also count as arrays); a scene is then a
      tuple or dict of rows. `numpy.load` of an NPZ file is such a dict;
    * one array, whose rows are the scenes;
    * a list of scenes, or any `Sequence` or `SceneSequence`, which may load scenes when they are requested.

    If a file does not fit in memory, give a "path" for each part of it, such as `(path, row_group)`; or yield its
    scenes from the generator of a `kf.StreamFeed`.

    With `order=kf.BlockShuffled(files, window=4)` the files come in random order, and the scenes of 4 files at a time
    are mixed. Each file is then read about once an epoch by each worker process, or once by all worker threads
    together. Files must not change while they are in use: a process that reads a changed file again raises an error.

    Arrays in scenes are read-only, because the process keeps them. Copy an array before you change it in place.

    Args:
        paths: The files, in order; or a glob, "scans/*.npz", whose files are in natural order (2 before 10); or a glob
            of URLs, "s3://bucket/*.npz", which needs fsspec. In a list, a "path" may be any picklable object that
            `read_file` accepts. `read_file` opens files and URLs itself. URLs are not watched for changes.
        read_file: Called with one of `paths`, in each worker process, or in one thread. If several threads may call it
            at once, set `read_file.thread_safe = True`; this is not needed for functions of NumPy.
        count: Number of scenes in each file: one integer for all, one integer for each, or a function from path to
            integer. None reads each file once to count, in parallel if `read_file` is thread-safe.
        cache_files: Largest number of files that each process keeps, at least 1.
        cache_bytes: Largest total size of the arrays that each process keeps, bytes; one file is kept whatever its
            size. "auto" is 1/16 of the memory, at most 1 GiB.
        on_error: What to do about a file that cannot be counted: "raise", or "skip", which leaves it out with a
            `kf.FeedWarning` and lists it in `skipped`. The `on_error` of the feed deals with later errors.

    Attributes:
        generation: How many times `refresh` has updated the files.
        paths: The files, without the skipped ones.
        counts: int64[F], number of scenes in each file.
        skipped: Pairs of a file that was left out and the reason.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of range, or there are no files, or no scenes in them.
        FileNotFoundError: No file matches the glob.
        ImportError: A glob is of URLs, and fsspec or the package of the protocol is missing.
        Exception: The error of `read_file` or `count` while files are counted, with the file as a note.

    Examples:
        >>> for name in ("a", "b"):
        ...     np.savez(name, points=np.zeros((5, 8, 3)), label=np.arange(5))
        >>> files = kf.FileSequence(["a.npz", "b.npz"], np.load)
        >>> len(files), sorted(files[7]), int(files[7]["label"])
        (10, ['label', 'points'], 2)
        >>> files.locate(7)
        FileRow(path='b.npz', row=2)
        >>> files.close()
    """

    def __init__(
        self,
        paths: Iterable[Any],
        read_file: Callable[[Any], Any],
        count: Any = None,
        *,
        cache_files: int = 64,
        cache_bytes: int | Literal["auto"] = "auto",
        on_error: Literal["raise", "skip"] = "raise",
    ) -> None:
        self.skipped: tuple[tuple[Any, str], ...] = ()
        self._read_file = _checked_function(read_file)
        self._cache_files = check_integer("cache_files", cache_files, 1)
        self._cache_bytes = resources.cache_bytes("cache_bytes", cache_bytes)
        if on_error not in ("raise", "skip"):
            raise ValueError(f"on_error must be 'raise' or 'skip' for counting, received {on_error!r}")
        self._files_read = PerProcess(partial(_FilesRead, self._cache_files, self._cache_bytes))
        self._count, self._skip = count, on_error == "skip"
        self._set_files(paths, count)

    def _set_files(self, named: Iterable[Any], count: Any) -> None:
        """Use these files; change nothing if one cannot be counted."""
        paths = _checked_paths(named)
        skipped: tuple[tuple[Any, str], ...] = ()
        known_counts = given_counts(count, len(paths))
        if known_counts is not None:
            kept, counts = paths, np.array(known_counts, np.int64)
        else:
            several = is_safe_function(self._read_file if count is None else count)
            count_one = self._count_read if count is None else partial(_count_by, count)
            kept, counts, skipped = count_files(paths, count_one, skip=self._skip, several=several)
        counts.setflags(write=False)
        if not counts.any():
            raise ValueError(f"there is no scene in any of the {len(kept)} files; the first is {kept[0]!r}")
        self._paths_given = named if isinstance(named, str | os.PathLike) else paths
        self.paths, self.counts, self.skipped = kept, counts, skipped
        self._stops = np.cumsum(counts)
        self._storage = read_cost.Storage(
            name=f"the {len(self.paths):,} files from {self.paths[0]!r} on",
            short_name="files",
            block_size=max(1, int(self.counts.mean())),
            row_bytes=1,
            nbytes=len(self),
            cache_bytes=self._cache_bytes,
            unit="file",
        )

    def _inside_is_thread_safe(self) -> bool:
        return is_safe_function(self._read_file)

    def _count_read(self, path: Any) -> int:
        """Read a file, and return its number of scenes."""
        return self._contents(path).count

    def source_files(self) -> list[str]:
        """Absolute paths and URLs of the files; see `kerasfeed.Cached`."""
        files = map(file_of, self.paths)
        return [str(file.absolute()) if isinstance(file, Path) else file for file in files if file is not None]

    def _identity(self) -> str:
        """See `kerasfeed.sequences.view_base.identity_of`."""
        files = (path if type(path) is str else file_of(path) for path in self.paths)
        names = digest_of_names(file for file in files if file is not None)
        return f"{type(self).__qualname__} of {len(self.paths)} files ({names})"

    # ---- scenes

    def __len__(self) -> int:
        return int(self._stops[-1])

    def __getitem__(self, index: Any) -> Any:
        """Return scene `index`; negative indices count from the end.

        Raises:
            IndexError: `index` is out of range.
            ValueError: The number of scenes in the file differs from its count.
            Exception: The error of `read_file`, with file and row as a note.
        """
        file, row = self._locate(index)
        try:
            files_read = self._files_read.here()
            contents = files_read.cache.get_or_load(file, lambda: self._read_counted(file, files_read))[0]
            return contents.row(row)
        except BaseException as error:
            add_note(error, f"kerasfeed: row {row} of file {self.paths[file]!r} (number {file} of {len(self.paths)})")
            raise

    def locate(self, index: int) -> FileRow:
        """Return the file and the row of scene `index`.

        Args:
            index: Index of the scene; negative ones count from the end.

        Returns:
            An object with the attributes `path`, as it was given, and `row`, the number of the scene in that file.

        Raises:
            IndexError: `index` is out of range.

        Examples:
            >>> np.save("a.npy", np.zeros((5, 3)))
            >>> kf.FileSequence(["a.npy"], np.load).locate(-1)
            FileRow(path='a.npy', row=4)
        """
        file, row = self._locate(index)
        return FileRow(self.paths[file], row)

    @property
    def block_of(self) -> NDArray[np.int64]:
        """int64[N], number of the file of each scene; `kf.BlockShuffled(files)` uses it."""
        return np.repeat(np.arange(len(self.counts)), self.counts)

    def _locate(self, index: int) -> tuple[int, int]:
        number = operator.index(index)
        length = len(self)
        if not -length <= number < length:
            raise IndexError(f"index {number} is out of range: there are {length} scenes, 0 to {length - 1}")
        number %= length
        file = int(self._stops.searchsorted(number, "right"))
        return file, number - int(self._stops[file] - self.counts[file])

    # ---- files

    def _contents(self, path: Any) -> Contents:
        value = self._read_file(path)
        try:
            return contents_of(value)
        except (TypeError, ValueError) as error:
            raise reworded(error, f"file {path!r}: {message_of(error)}") from error

    def _read_counted(self, file: int, files_read: _FilesRead) -> Contents:
        """Read a file for the cache, and check its number of scenes."""
        path, count = self.paths[file], int(self.counts[file])
        self._refuse_change(file, files_read)
        began = time.perf_counter()
        contents = self._contents(path)
        seconds = time.perf_counter() - began
        self._refuse_change(file, files_read)  # the file may have changed while it was read
        for meter in (files_read.log, read_cost.current()):
            if meter is not None:
                meter.record(self._storage, file, nbytes=count, seconds=seconds)
        if contents.count != count:
            raise ValueError(
                f"file {path!r} has {pluralize(contents.count, 'scene')}, but {count} were counted or given when the "
                "sequence was made. The file may have changed, or read_file leaves out scenes. Make a new "
                "FileSequence, without count if that is out of date"
            )
        return contents

    def _refuse_change(self, file: int, files_read: _FilesRead) -> None:
        """Raise if a file has changed since this process first read it."""
        path = file_of(self.paths[file])
        if not isinstance(path, Path):  # a URL is not watched: a check takes as long as a small read
            return
        if not path.is_file():  # a folder changes with its files, and read_file reports a missing file
            return
        identity = file_identity(path)
        files_read.first.setdefault(file, identity).refuse(identity, str(path.absolute()))

    def refresh(self, paths: Iterable[Any] | None = None, count: Any = None) -> int:
        """Add new files, and scenes appended to files, between two epochs.

        Files are counted again, unless `count` is given. A feed sees the new length, and restarts its workers, when its
        next loop or `fit` begins. If an epoch is in progress, the feed's next batch raises an error. A `tf.data`
        dataset made from the feed raises an error afterwards: make a new one.

        Args:
            paths: All files, in order, or a glob. None uses the same files as last time, or the same glob, which may
                match new files.
            count: As in the constructor. None uses the same argument as last time; a list must be given again.

        Returns:
            The increase of the number of scenes; negative if there are fewer.

        Raises:
            RuntimeError: Called in a worker.
            TypeError, ValueError, Exception: As in the constructor; the sequence does not change then.

        Examples:
            >>> np.save("a.npy", np.zeros((5, 3)))
            >>> files = kf.FileSequence(["a.npy"], np.load)
            >>> np.save("b.npy", np.zeros((2, 3)))
            >>> files.refresh(["a.npy", "b.npy"]), len(files)
            (2, 7)
        """
        if in_worker_process():
            raise RuntimeError("refresh() was called in a worker: call it in the main program, between two epochs")
        before = len(self)
        new_count = self._count if count is None else count
        self._set_files(self._paths_given if paths is None else paths, new_count)
        self._count = new_count
        self.generation += 1
        self.close()
        return len(self) - before

    def stats(self) -> FileStats:
        """Return the cost of reading files in this process so far.

        Each worker process counts only its own reads.

        Returns:
            A [FileStats][kerasfeed.readers.files.sequence.FileStats] with `reads`, `again`, `seconds` and `kept`.

        Examples:
            >>> np.save("a.npy", np.zeros((5, 3)))
            >>> files = kf.FileSequence(["a.npy"], np.load, count=5)
            >>> scene = files[2]
            >>> files.stats().reads
            1
        """
        files_read = self._files_read.here()
        counted = [(cost.decoded, cost.again, cost.seconds) for cost in files_read.log.costs()] or [(0, 0, 0.0)]
        return FileStats(*counted[0], kept=len(files_read.cache))

    def close(self) -> None:
        """Release the files that this process keeps.

        The sequence can still be used: it then reads files as they are, with the number of scenes counted before. May
        be called again.
        """
        self._files_read.here().clear()

    def __repr__(self) -> str:
        return f"FileSequence({pluralize(len(self.paths), 'file')}: {pluralize(len(self), 'scene')})"


def _checked_paths(paths: Any) -> tuple[Any, ...]:
    """Return paths as a tuple; expand a glob in natural order."""
    if isinstance(paths, str | os.PathLike):
        return tuple(map(str, expand(paths)))
    if isinstance(paths, AbstractSet | Mapping) or not isinstance(paths, Iterable):
        raise TypeError(
            f"FileSequence() needs a list of paths in the same order in every run, received a "
            f"{type(paths).__name__}: write sorted(...)"
        )
    found = tuple(paths)
    if not found:
        raise ValueError("FileSequence() needs at least one file, received no paths. Check how the list was made")
    return found


def _checked_function(read_file: Any) -> Callable[[Any], Any]:
    """Return `read_file` if it can be called."""
    if isinstance(read_file, Iterator):
        raise TypeError(
            f"read_file must be a function of a path, received a {type(read_file).__name__}, the result of such a "
            "function: pass the function itself, without calling it"
        )
    if not callable(read_file):
        raise TypeError(
            f"read_file must be a function of a path that returns the scenes of that file, received {read_file!r} of "
            f"type {type(read_file).__name__}"
        )
    return read_file  # type: ignore[no-any-return]


def _count_by(count: Callable[[Any], Any], path: Any) -> int:
    return check_count(count(path), f"the result of count({path!r})")
