"""`FileSequence`: files that each hold many scenes, as one sequence.

Invariant: which scene stands at an index is fixed when the sequence is made, until `refresh`. A file is read when one
of its scenes is wanted, by one thread while others wait, and kept within bounds; every process keeps files of its own.
"""

import heapq
import operator
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kerasfeed.readers.files.contents import Contents, ForwardContents, StreamEnded, contents_of
from kerasfeed.readers.files.counts import KnownCounts, check_count, count_files, file_of, given_counts
from kerasfeed.readers.tfrecord.names import expand
from kerasfeed.sequences.base import SceneSequence
from kerasfeed.sequences.view_base import Refreshable, is_safe_function
from kerasfeed.util import opened_files, read_cost, resources
from kerasfeed.util.counted import counted
from kerasfeed.util.error_text import add_note, message_of, reworded
from kerasfeed.util.lru import Lru, PerProcess
from kerasfeed.util.opened_files import Identity, identity_of
from kerasfeed.util.validate import check_integer

_STREAM_SHARE = 8  # of the bytes of the cache, for what is kept of one file that is read forward


@dataclass(frozen=True)
class FileRow:
    """Where a scene comes from.

    Attributes:
        path: The file, as it was given.
        row: Number of the scene in the file, from 0.
    """

    path: Any
    row: int


@dataclass(frozen=True)
class FileStats:
    """What reading files has cost this process so far.

    Attributes:
        reads: Files read; for files that are read forward, how often one was begun.
        again: Of these, files that had been read before, and were no longer kept or had been read past the scene.
        seconds: Time spent in `read_file`, s, summed over threads; for a generator, only the time to create it.
        kept: Files kept now.
    """

    reads: int
    again: int
    seconds: float
    kept: int


class _FileCache(Lru[int, Contents]):
    """Contents by number of the file, within bounds of number and bytes.

    The file used longest ago leaves first; the one just read stays, however large it is.
    """

    def __init__(self, most_files: int, most_bytes: int) -> None:
        """Keep up to `most_files` files of `most_bytes` bytes together."""
        super().__init__(most_files, lambda _: 1)
        self._most_bytes = most_bytes

    def _keep(self, key: int, value: Contents) -> list[Contents]:
        leaving = super()._keep(key, value)
        nbytes = sum(contents.nbytes for contents in self._kept.values())  # which changes as some are read
        while nbytes > self._most_bytes and len(self) > 1:
            leaving.append(self._pop())
            nbytes -= leaving[-1].nbytes
        return leaving

    def _let_go(self, leaving: list[Contents]) -> None:
        for contents in leaving:
            contents.retire()


class _FilesRead:
    """What one process keeps of the files of one sequence.

    Attributes:
        cache: Contents of files.
        log: What reading has cost.
        first: What each file was when it was first read, by its number.
    """

    def __init__(self, most_files: int, most_bytes: int) -> None:
        """Keep up to `most_files` files of `most_bytes` bytes together."""
        self.cache = _FileCache(most_files, most_bytes)
        self.log = read_cost.Meter()
        self.first: dict[int, Identity] = {}

    def clear(self) -> None:
        """Let go of everything but the log."""
        self.cache.clear()
        self.first.clear()


class FileSequence(Refreshable, SceneSequence):
    """Files that each hold many scenes, as one sequence.

    `read_file(path)` returns the scenes of one file as one of these:

    * a tuple or dict of arrays that all have one row for each scene (lists also count as arrays); a scene is then a
      tuple or dict of rows. `numpy.load` of an NPZ file is such a dict;
    * one array, whose rows are the scenes;
    * a list of scenes, or any `Sequence` or `SceneSequence`, which may load scenes when they are requested;
    * an iterator, for a file that does not fit in memory; simplest is to make `read_file` a generator function. Such a
      file is read forward. Scenes requested in order cost nothing extra. A request further ahead reads the scenes
      between and keeps up to `lookback` of them. A request further back reads the file again from its beginning. Use it
      with `kf.Sequential()` and threads, since each worker process reads the whole file for its share of the scenes. If
      the format allows it, give a "path" for each part of a file instead, such as `(path, row_group)`.

    With `order=kf.BlockShuffled(files, window=4)` the files come in random order, and the scenes of 4 files at a time
    are mixed. Each file is then read about once an epoch by each worker process, or once by all worker threads
    together. Files must not change while they are in use: a file that has changed when it is read again, or by another
    worker, is an error.

    Arrays in scenes are read-only, because they are kept: copy what you want to change in place.

    Args:
        paths: The files, in order; or a glob, "scans/*.npz", whose files come in natural order (2 before 10); or a glob
            of URLs, "s3://bucket/*.npz", for which fsspec is needed. In a list any picklable object that `read_file`
            accepts may stand for a file. `read_file` opens what it is given, also a URL. Files by URL are not watched.
        read_file: Called with one of `paths`, in each worker process, or in one thread. If several threads may call it
            at once, say so by `read_file.thread_safe = True`; functions of NumPy are known to be.
        count: Number of scenes in each file: one integer for all, one integer for each, or a function from path to
            integer. None reads each file once, in parallel, to find out.
        interleave: Number of files that take turns in the order of the indices: with k the order is that of
            `tf.data.Dataset.interleave(cycle_length=k)`. 1 is one file after another.
        cache_files: Files that each process keeps, or holds open, at most; at least 1 and at least `interleave`.
        cache_bytes: Bytes of arrays that each process keeps at most; one file is kept whatever its size. "auto" is 1/16
            of the memory, at most 1 GiB.
        counts_cache: Path of a JSON file that keeps the numbers of scenes. A file whose size or modification time, or
            at a URL the version, differs is counted again.
        lookback: Scenes kept of a file that is read forward, at least 1; they take at most an eighth of `cache_bytes`.
        on_error: What to do about a file that cannot be counted: "raise", or "skip", which leaves it out with a
            `kf.FeedWarning` and lists it in `skipped`. The `on_error` of the feed deals with later errors.

    Attributes:
        generation: How often `refresh` has taken files in.
        paths: The files, without those skipped.
        counts: int64[F], number of scenes in each file.
        skipped: Pairs of a file that was left out and the reason.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: An argument is out of range, or there are no files, or no scenes in them.
        FileNotFoundError: No file matches the glob.
        ImportError: A glob is of URLs, and fsspec or the package of the protocol is missing.
        Exception: What `read_file` or `count` raises while files are counted, with the file as a note.

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
        interleave: int = 1,
        cache_files: int = 64,
        cache_bytes: int | Literal["auto"] = "auto",
        counts_cache: str | os.PathLike[str] | None = None,
        lookback: int = 1024,
        on_error: Literal["raise", "skip"] = "raise",
    ) -> None:
        self.skipped: tuple[tuple[Any, str], ...] = ()
        self._read_file = _checked_function(read_file)
        self._interleave = check_integer("interleave", interleave, 1)
        self._cache_files = _checked_cache_files(cache_files, self._interleave)
        self._cache_bytes = resources.cache_bytes("cache_bytes", cache_bytes)
        self._lookback = check_integer("lookback", lookback, 1)
        if on_error not in ("raise", "skip"):
            raise ValueError(f"on_error must be 'raise' or 'skip' for counting, received {on_error!r}")
        self._taken = 0  # how often `close` has allowed files to be others
        self._kept = PerProcess(partial(_FilesRead, self._cache_files, self._cache_bytes))
        self._count, self._counts_cache, self._skip = count, counts_cache, on_error == "skip"
        self._known: KnownCounts | None = None  # what was counted, for `refresh`
        self._take_in(_checked_paths(paths), count, None)

    def _take_in(self, paths: tuple[Any, ...], count: Any, known: KnownCounts | None) -> None:
        """Have the scenes of these files, all at once or, where they cannot be counted, none of them."""
        skipped: tuple[tuple[Any, str], ...] = ()
        given = given_counts(count, len(paths))
        if given is not None:
            kept, counts = paths, np.array(given, np.int64)
        else:
            known = known or KnownCounts(self._counts_cache)
            several = is_safe_function(self._read_file if count is None else count)
            count_one = self._count_read if count is None else partial(_count_by, count)
            kept, counts, skipped = count_files(paths, count_one, known, skip=self._skip, several=several)
        counts.setflags(write=False)
        places = places_of(counts, self._interleave)
        if not places.length:
            raise ValueError(f"there is no scene in any of the {len(kept)} files; the first is {kept[0]!r}")
        self._given, self.paths, self.counts, self.skipped = paths, kept, counts, skipped
        self._places, self._known = places, known
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
        """Number of scenes of a file, which is read for it."""
        contents = self._contents(path, lambda _: self._reopened(path))
        return contents.count_all() if isinstance(contents, ForwardContents) else contents.count or 0

    def _cache_state(self) -> Any:
        """What the data depends on, for `kerasfeed.sequences.cache_key`, which looks at the files as well."""
        return self.paths, self._read_file, self.counts, self._interleave

    # ---- scenes

    def __len__(self) -> int:
        return self._places.length

    def __getitem__(self, index: Any) -> Any:
        """Scene `index`; negative indices count from the end.

        Raises:
            IndexError: `index` is out of range.
            ValueError: The file has another number of scenes than was counted.
            Exception: What `read_file` raises, with file and row as a note.
        """
        file, row = self._locate(index)
        try:
            kept = self._kept.here()
            contents = kept.cache.get_or_load(file, lambda: self._read_counted(file, kept))[0]
            try:
                scene = contents.row(row)
            except StreamEnded as ended:
                raise self._miscounted(file, ended.args[0]) from None
            if isinstance(contents, ForwardContents) and row + 1 == self.counts[file] and not contents.ends_after(row):
                raise self._miscounted(file, None)
        except BaseException as error:
            add_note(error, f"kerasfeed: row {row} of file {self.paths[file]!r} (number {file} of {len(self.paths)})")
            raise
        return scene

    def locate(self, index: int) -> FileRow:
        """The file and row of scene `index`.

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
        return self._places.file_of

    def _locate(self, index: int) -> tuple[int, int]:
        number = operator.index(index)
        length = self._places.length
        if not -length <= number < length:
            raise IndexError(f"index {number} is out of range: there are {length} scenes, 0 to {length - 1}")
        return self._places.locate(number % length)

    # ---- files

    def _contents(self, path: Any, reopen: Callable[[int], Iterator[Any]]) -> Contents:
        value = self._read_file(path)
        try:
            return contents_of(value, reopen, self._lookback, self._cache_bytes // _STREAM_SHARE)
        except (TypeError, ValueError) as error:
            raise reworded(error, f"file {path!r}: {message_of(error)}") from error

    def _reopened(self, path: Any) -> Iterator[Any]:
        return iter(self._read_file(path))

    def _read_counted(self, file: int, kept: _FilesRead) -> Contents:
        """The contents of a file that has as many scenes as were counted, for the cache."""
        path, count = self.paths[file], int(self.counts[file])
        began = time.perf_counter()

        def note(rows: int) -> None:
            seconds = time.perf_counter() - began
            for meter in (kept.log, read_cost.current()):
                if meter is not None:
                    meter.note(self._storage, file, nbytes=rows, seconds=seconds)

        def reopen(rows: int) -> Iterator[Any]:
            nonlocal began
            note(rows)
            began = time.perf_counter()
            self._refuse_change(file, kept)
            return self._reopened(path)

        self._refuse_change(file, kept)
        contents = self._contents(path, reopen)
        self._refuse_change(file, kept)  # which it may have done while it was read
        note(0 if contents.count is None else count)
        if contents.count not in (None, count):
            raise self._miscounted(file, contents.count)
        return contents

    def _refuse_change(self, file: int, kept: _FilesRead) -> None:
        """Raise where a file is not what it was when it was first read, here or by another worker process."""
        where = file_of(self.paths[file])
        if not isinstance(where, Path):  # a URL is not watched: to look at it takes as long as a small read
            return
        if not where.is_file():  # a folder changes with what is put into it, and what is missing read_file tells
            return
        found = identity_of(where)
        known = kept.first.setdefault(file, found)
        opened_files.same_as_first(str(where.absolute()), self._taken, known, found)

    def _miscounted(self, file: int, found: int | None) -> ValueError:
        return ValueError(
            f"file {self.paths[file]!r} has {'more scenes' if found is None else counted(found, 'scene')}, and "
            f"{self.counts[file]} were counted, or given, when the sequence was made. Has it changed, or does "
            "read_file leave scenes out? Make a new FileSequence, without count and "
            "counts_cache if they are out of date"
        )

    def refresh(self, paths: Iterable[Any] | None = None, count: Any = None) -> int:
        """Take in files that have come, and scenes that were added to files, between two epochs.

        Files that are as they were are not counted again. A feed sees the new length when its next loop or `fit`
        begins: it then starts its workers anew. While an epoch runs, its next batch is an error. A dataset made of the
        feed before is refused then: make it anew.

        Args:
            paths: All files as they are now, in order. None looks again at those that were given last.
            count: As when the sequence was made. None is what was given then; a list needs a new one.

        Returns:
            How many scenes there are more than before; negative where there are fewer.

        Raises:
            RuntimeError: Called in a worker.
            TypeError, ValueError, Exception: As when the sequence is made; it is then as it was.

        Examples:
            >>> np.save("a.npy", np.zeros((5, 3)))
            >>> files = kf.FileSequence(["a.npy"], np.load)
            >>> np.save("b.npy", np.zeros((2, 3)))
            >>> files.refresh(["a.npy", "b.npy"]), len(files)
            (2, 7)
        """
        if opened_files.in_worker():
            raise RuntimeError("refresh() is called where the feed is, between two epochs, and not in a worker")
        before = len(self)
        given = self._count if count is None else count
        known = self._known if count is None else None  # counts of another function are none of this one
        self._take_in(self._given if paths is None else _checked_paths(paths), given, known)
        self._count = given
        self.generation += 1
        self.close()
        return len(self) - before

    def stats(self) -> FileStats:
        """What reading files has cost this process so far; each worker process counts its own.

        Returns:
            A [FileStats][kerasfeed.readers.files.sequence.FileStats] with `reads`, `again`, `seconds` and `kept`.

        Examples:
            >>> np.save("a.npy", np.zeros((5, 3)))
            >>> files = kf.FileSequence(["a.npy"], np.load, count=5)
            >>> scene = files[2]
            >>> files.stats().reads
            1
        """
        kept = self._kept.here()
        counted = [(cost.decoded, cost.again, cost.seconds) for cost in kept.log.costs()] or [(0, 0, 0.0)]
        return FileStats(*counted[0], kept=len(kept.cache))

    def close(self) -> None:
        """Release the files that this process keeps. The sequence can be used again. May be called again.

        Files are then read as they are now, with the number of scenes that was counted; in a worker process, as they
        were when one of the workers first read them.
        """
        self._kept.here().clear()
        if not opened_files.in_worker():
            self._taken += 1

    def __repr__(self) -> str:
        turns = "" if self._interleave == 1 else f", {self._interleave} in turn"
        return f"FileSequence({counted(len(self.paths), 'file')}{turns}: {counted(len(self), 'scene')})"


def _checked_paths(paths: Any) -> tuple[Any, ...]:
    """`paths` as a tuple, in their order; of one path, or a glob, the files that it means, in natural order."""
    if isinstance(paths, str | os.PathLike):
        return tuple(map(str, expand(paths)))
    if isinstance(paths, AbstractSet | Mapping) or not isinstance(paths, Iterable):
        raise TypeError(
            f"FileSequence() needs a list of paths, in an order that is the same in every run, received a "
            f"{type(paths).__name__}: write sorted(...)"
        )
    found = tuple(paths)
    if not found:
        raise ValueError("FileSequence() needs at least one file, received no paths. Check the pattern that found none")
    return found


def _checked_function(read_file: Any) -> Callable[[Any], Any]:
    """`read_file`, if it can be called."""
    if isinstance(read_file, Iterator):
        raise TypeError(
            f"read_file must be a function of a path, received a {type(read_file).__name__}, which is what such a "
            "function returns: pass the function itself, without calling it"
        )
    if not callable(read_file):
        raise TypeError(
            f"read_file must be a function of a path that returns the scenes of that file, received {read_file!r} of "
            f"type {type(read_file).__name__}"
        )
    return read_file  # type: ignore[no-any-return]


def _checked_cache_files(cache_files: Any, interleave: int) -> int:
    """`cache_files`, if the files that take turns find room."""
    most = check_integer("cache_files", cache_files, 1)
    if most < interleave:
        raise ValueError(
            f"interleave={interleave} lets {interleave} files take turns, and cache_files={most} keeps fewer, so each "
            f"would be read again for every scene: use cache_files={interleave} or more, or a smaller interleave"
        )
    return most


def _count_by(count: Callable[[Any], Any], path: Any) -> int:
    return check_count(count(path), f"what count({path!r}) returned")


@dataclass(frozen=True, eq=False)
class Places:
    """Which file, and which of its scenes, stands at an index: pure arithmetic on counts.

    Every scene of every file stands at exactly one index, and those of one file stand in their own order. In
    a stretch of indices a fixed set of files takes turns, one scene each a turn.

    Attributes:
        starts: int64[S + 1], first index of each stretch, ascending; then the number of scenes.
        offsets: int64[S + 1], where the files of a stretch begin in `files`; then the length of `files`.
        files: int64[M], the files of all stretches, each in the order of its turn.
        rows: int64[M], the scene of that file that comes first in the stretch.
    """

    starts: NDArray[np.int64]
    offsets: NDArray[np.int64]
    files: NDArray[np.int64]
    rows: NDArray[np.int64]

    def __reduce__(self) -> Any:
        return Places, (self.starts, self.offsets, self.files, self.rows)  # without what can be computed

    @property
    def length(self) -> int:
        """Number of scenes."""
        return int(self.starts[-1])

    def locate(self, index: int) -> tuple[int, int]:
        """File and row of the scene at `index`, in [0, length); about 1 us."""
        stretch = int(self.starts.searchsorted(index, "right")) - 1
        first = int(self.offsets[stretch])
        turn, place = divmod(index - int(self.starts[stretch]), int(self.offsets[stretch + 1]) - first)
        return int(self.files[first + place]), int(self.rows[first + place]) + turn

    @cached_property
    def file_of(self) -> NDArray[np.int64]:
        """int64[length], the file of every scene; read-only."""
        sizes, widths = np.diff(self.starts), np.diff(self.offsets)
        places = (np.arange(self.length) - np.repeat(self.starts[:-1], sizes)) % np.repeat(widths, sizes)
        found: NDArray[np.int64] = self.files[np.repeat(self.offsets[:-1], sizes) + places]
        found.setflags(write=False)
        return found


def places_of(counts: NDArray[np.int64], interleave: int) -> Places:
    """The places of files that hold `counts` scenes, `interleave` of which take turns.

    With 1, one file comes after the other. With k the order is that of `tf.data.Dataset.interleave(cycle_length=k,
    block_length=1)`: k places go round; a file that is found to have ended leaves its place empty for that round, and
    the next file takes it.

    Args:
        counts: int64[F], scenes of each file, at least 0.
        interleave: Files that take turns, at least 1.
    """
    free = [(0, place) for place in range(min(interleave, len(counts)))]  # from which round on each place is free
    begins, places = np.zeros((2, len(counts)), np.int64)
    for file, count in enumerate(counts.tolist()):
        begins[file], places[file] = begin, place = heapq.heappop(free)
        heapq.heappush(free, (begin + count + 1, place))
    # Rounds between two of these edges are a stretch: no file begins in it or ends.
    edges = np.unique([begins, begins + counts])
    firsts, stops = edges.searchsorted(begins), edges.searchsorted(begins + counts)
    files = np.repeat(np.arange(len(counts)), stops - firsts)
    stretches = np.arange(len(files)) - np.repeat(np.cumsum(stops - firsts) - stops, stops - firsts)
    order = np.lexsort((places[files], stretches))
    files, stretches = files[order], stretches[order]
    widths = np.bincount(stretches, minlength=len(edges) - 1)
    starts, offsets = (np.concatenate([[0], np.cumsum(part)]) for part in (widths * np.diff(edges), widths))
    return Places(starts, offsets, files, edges[stretches] - begins[files])
