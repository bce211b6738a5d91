"""`TFRecordSequence`: TFRecord files as a sequence with random access.

Invariant: a record is returned as it was written or not at all. The pickle holds the offsets of records and the
identities of files, so another process reads the same files or raises an error.
"""

import bisect
import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np

from kerasfeed.errors import FeedWarning, RecordError, SpecError
from kerasfeed.readers.tfrecord.example import Example
from kerasfeed.readers.tfrecord.fields import SceneCodec, infer_spec
from kerasfeed.readers.tfrecord.names import FileLocation, expand
from kerasfeed.readers.tfrecord.record_file import (
    FRAME_BYTES,
    HEADER_BYTES,
    FileIndex,
    RecordFile,
    data_length,
    index_files,
    is_whole,
    open_records,
    records_in_order,
)
from kerasfeed.readers.tfrecord.spec_file import find_sidecars
from kerasfeed.sequences.base import SceneSequence
from kerasfeed.sequences.context import in_worker_process
from kerasfeed.sequences.view_base import Refreshable
from kerasfeed.spec.inference import probe_indices
from kerasfeed.spec.nesting import flatten
from kerasfeed.spec.scene_spec import SceneSpec
from kerasfeed.spec.spec_json import as_scene_spec
from kerasfeed.util.deferred_warnings import warn_caller
from kerasfeed.util.error_text import message_of, pluralize
from kerasfeed.util.fingerprint import digest_of_names
from kerasfeed.util.lru import Lru, PerProcess
from kerasfeed.util.resources import cores

_OPEN_FILES = 128
_RUN_BYTES = 1 << 20
_INFERRED_FROM = 5  # records
_LEAST_THREADS, _MOST_THREADS = 4, 32  # indexing waits for the disk more than it computes


class TFRecordSequence(Refreshable, SceneSequence):
    """TFRecord files of `tf.train.Example`s as a sequence of scenes.

    Scene k is record k of the files, in their order. The constructor finds the offset of each record with several
    threads, and keeps the offsets in memory. The files may be written by `kf.write_tfrecords` or by TensorFlow, without
    compression; `read` reads compressed files in order. TensorFlow is not imported.

    Several threads may read a sequence. It is pickled with its index, and each process opens the files for itself.

    Args:
        paths: A file; a glob ("train-*.tfrecord", in natural order); a pattern
            ("train-{shard:05d}-of-{count:05d}.tfrecord"), whose shards must all exist; any of these as a URL
            ("s3://bucket/train-*.tfrecord"), which fsspec reads; or a list of these.
        spec: Spec of a scene: a nesting of `kf.ArraySpec`s. The features are named like the fields ("0", "1.points").
            None uses the spec that `write_tfrecords` wrote next to the files. Without one, a few records are read, and
            a scene is a dict of their features. A feature with one value in each record is a scalar, any other an
            array with one axis; bytes are unchanged. Records must then hold nothing but features.
        verify: Whether to compare each record with its checksum, which takes 0.1 ms for each MB.
        workers: Threads that index the files. "auto" is four times the number of cores, at most 32; 32 for URLs.

    Raises:
        FileNotFoundError: There is no such file.
        RecordError: The files hold no record, shards are missing, or a file is compressed or damaged.
        ImportError, ValueError: For a URL: fsspec or the package of its protocol is missing; or fsspec knows no such
            protocol.
        OSError: A file cannot be read; for a URL, after three tries.
        TypeError, SpecError: `spec` is not a spec; or none is given and the records disagree.

    Examples:
        >>> scenes = kf.Zip(points=np.zeros((10, 8, 3), np.float32), label=np.arange(10))
        >>> paths = kf.write_tfrecords(
        ...     scenes, "train-{shard}-of-{count}.tfrecord", num_shards=2, workers=0, progress=False
        ... )
        >>> records = kf.TFRecordSequence("train-{shard}-of-{count}.tfrecord")
        >>> len(records), records.counts, records[0]["points"].shape
        (10, (5, 5), (8, 3))
        >>> records.close()
    """

    thread_safe = True

    def __init__(
        self,
        paths: Any,
        spec: Any = None,
        *,
        verify: bool = True,
        workers: int | str = "auto",
    ) -> None:
        self.verify = bool(verify)
        users_spec = None if spec is None else as_scene_spec(spec)
        self._workers = None if workers == "auto" else max(1, int(workers))
        described = self._set_files(paths)
        self._open: PerProcess[Lru[int, RecordFile]] = PerProcess(partial(Lru, _OPEN_FILES))
        for file in self._files:
            if file.path in described and file.damage is None:
                _check_count(file.path, len(file), described[file.path][1])
        known = users_spec or _common_spec(described)
        self._is_inferred = known is None
        self._codec = SceneCodec(known or self._inferred_spec())
        self._warn_of_damage()

    def _set_files(self, paths: Any) -> dict[FileLocation, tuple[SceneSpec, int]]:
        """Index these files; change nothing if one is missing or cannot be read.

        Returns:
            What sidecars say of them; see `find_sidecars`.
        """
        paths_given = tuple(paths) if isinstance(paths, Iterator) else paths
        locations = expand(paths_given)
        has_urls = any(isinstance(path, str) for path in locations)
        threads = _MOST_THREADS if has_urls else min(_MOST_THREADS, _LEAST_THREADS * cores())
        files = index_files(locations, self._workers or threads)
        stops = list(itertools.accumulate(map(len, files)))
        if not stops[-1]:
            raise RecordError(f"{_listed(files)} hold{'s' * (len(locations) == 1)} no record")
        described = find_sidecars(locations, paths_given)
        self._paths_given, self._files, self._stops = paths_given, files, stops
        return described

    def _warn_of_damage(self) -> None:
        for file in self._files:
            if file.damage is not None:
                warn_caller(
                    f"{str(file.path)!r}: {file.damage}. Reading it raises kf.errors.RecordError; a feed with "
                    "on_error= continues without it",
                    FeedWarning,
                )

    # ---- properties

    def __len__(self) -> int:
        return self._stops[-1]

    @property
    def spec(self) -> Any:
        """Spec of a scene: an `ArraySpec` per field, nested like it."""
        return self._codec.spec.unflatten(self._codec.spec.fields)

    @property
    def paths(self) -> tuple[str, ...]:
        """The files, in order."""
        return tuple(str(file.path) for file in self._files)

    @property
    def counts(self) -> tuple[int, ...]:
        """Number of records in each file."""
        return tuple(map(len, self._files))

    @property
    def block_size(self) -> int:
        """Number of records in about 1 MiB; for `kf.BlockShuffled`."""
        nbytes = sum(int(file.starts[-1]) for file in self._files)
        return max(1, min(len(self), round(_RUN_BYTES * len(self) / max(1, nbytes))))

    def source_files(self) -> list[str]:
        """Paths and URLs of the files; see `kerasfeed.Cached`."""
        return [str(file.path) for file in self._files]

    def _identity(self) -> str:
        """See `kerasfeed.sequences.view_base.identity_of`."""
        return f"{type(self).__qualname__} of {len(self._files)} files ({digest_of_names(self.paths)})"

    def _inferred_spec(self) -> SceneSpec:
        examples = []
        for index in probe_indices(len(self)):
            try:
                record = self._record(index)
            except RecordError:
                if len(self) == 1:
                    raise
                continue
            name = self._record_name(index)
            examples.append((name, _example(name, record)))
        if not examples:
            raise RecordError(f"the records of {_listed(self._files)} that were tried are all damaged")
        return as_scene_spec(infer_spec(examples))

    # ---- scenes

    def __getitem__(self, index: Any) -> Any:
        """Return the scene of one record; negative indices count from the end.

        Raises:
            IndexError: `index` is out of range.
            RecordError: The record is damaged; the message names file, byte offset and record.
            SpecError: The record does not match the spec; the message names record and feature.
            OSError: The file cannot be read, or has changed; for a URL, changes are noticed when a process opens it.
        """
        return self._codec.spec.unflatten([_own(leaf) for leaf in self._leaves(index)])

    def read_into(self, index: int, out: Any) -> None:
        """Write the scene at `index` into `out`; see `SceneSequence`."""
        for leaf, target in zip(self._leaves(index), flatten(out)[0], strict=True):
            target[...] = leaf

    def _leaves(self, index: int) -> list[Any]:
        index = range(len(self))[index]
        record = self._record(index)
        try:
            return self._codec.decode(record)
        except ValueError as error:
            more = ". The spec was inferred from a few records: give spec=" if self._is_inferred else ""
            raise _named(error, self._record_name(index), more) from None

    @staticmethod
    def read(paths: Any, spec: Any = None, *, verify: bool = True) -> Iterator[Any]:
        """Iterate over scenes, also of compressed files, for a `kf.StreamFeed`.

        Args:
            paths: See the class.
            spec: See the class; without a spec next to the files, it is inferred from the first 5 records.
            verify: See the class.

        Returns:
            An iterator of scenes.

        Raises:
            FileNotFoundError, TypeError: See the class.
            RecordError: A record is damaged, the number of records differs from the number written, or shards are
                missing; the message names the file.
            SpecError: A record does not match the spec, or files have different specs; the message names file and
                record.

        Examples:
            >>> scenes = kf.Zip(x=np.arange(4.0))
            >>> paths = kf.write_tfrecords(
            ...     scenes, "{shard}.tfrecord", num_shards=2, compression="GZIP", workers=0, progress=False
            ... )
            >>> def make_generator(n, count):
            ...     return kf.TFRecordSequence.read(paths[n::count])
            >>> with kf.StreamFeed(make_generator, 2, count=2, workers=0) as feed:
            ...     print([batch["x"].tolist() for batch in feed])
            [[0.0, 1.0], [2.0, 3.0]]
        """
        paths = tuple(paths) if isinstance(paths, Iterator) else paths
        files = expand(paths)
        described = find_sidecars(files, paths)
        known = _common_spec(described) if spec is None else as_scene_spec(spec)
        return _scenes_of(_records_of(files, described, verify), known)

    def record(self, index: int) -> bytes:
        """Return the serialized `tf.train.Example` of one record.

        Args:
            index: Number of the record; negative ones count from the end.

        Returns:
            The bytes of the record.

        Raises:
            IndexError, RecordError, OSError: As `sequence[index]`.

        Examples:
            >>> scenes = kf.Zip(x=np.arange(4.0))
            >>> paths = kf.write_tfrecords(scenes, "{shard}.tfrecord", num_shards=1, workers=0, progress=False)
            >>> records = kf.TFRecordSequence(paths)
            >>> type(records.record(0))
            <class 'bytes'>
            >>> records.close()
        """
        return self._record(range(len(self))[index])

    def _record(self, index: int) -> bytes:
        number, row = self._find(index)
        file = self._files[number]
        if file.damage is not None and row == len(file) - 1:
            raise RecordError(f"{self._record_name(index)}: {file.damage}")
        start, stop = int(file.starts[row]), int(file.starts[row + 1])
        size = stop - start
        data = self._record_file(number).read(start, size)
        if len(data) != size or int.from_bytes(data[:8], "little") != size - FRAME_BYTES:
            raise RecordError(f"{self._record_name(index)} is not at its indexed offset: the file changed")
        if self.verify and (data_length(data) is None or not is_whole(data)):
            raise RecordError(f"{self._record_name(index)} is damaged: its checksum does not match")
        return data[HEADER_BYTES:-4]

    def _find(self, index: int) -> tuple[int, int]:
        """Return the number of the file, and of the record in it."""
        number = bisect.bisect_right(self._stops, index)
        return number, index - (self._stops[number - 1] if number else 0)

    def _record_name(self, index: int) -> str:
        number, row = self._find(index)
        file = self._files[number]
        return f"record {row} of {str(file.path)!r} (at byte {int(file.starts[row]):,})"

    def _record_file(self, number: int) -> RecordFile:
        """Return an open file; the least recently used files are closed."""
        file = self._files[number]
        return self._open.here().get_or_load(number, lambda: open_records(file.path, file.identity))[0]

    # ---- refresh and close

    def refresh(self, paths: Any = None) -> int:
        """Add new files, and records appended to files, between two epochs.

        The spec does not change. A feed sees the new length, and restarts its workers, when its next loop or `fit`
        begins. If an epoch is in progress, the feed's next batch raises an error. A record that is still being written
        counts as damaged until the next `refresh`.

        Args:
            paths: As in the constructor. None uses the same argument as last time.

        Returns:
            The increase of the number of records; negative if there are fewer.

        Raises:
            RuntimeError: Called in a worker.
            FileNotFoundError, RecordError: As in the constructor; the sequence does not change then.

        Examples:
            >>> scenes = kf.Zip(x=np.arange(4.0))
            >>> paths = kf.write_tfrecords(scenes, "a.tfrecord", num_shards=1, workers=0, progress=False)
            >>> records = kf.TFRecordSequence("*.tfrecord")
            >>> paths = kf.write_tfrecords(scenes, "b.tfrecord", num_shards=1, workers=0, progress=False)
            >>> records.refresh(), len(records)
            (4, 8)
            >>> records.close()
        """
        if in_worker_process():
            raise RuntimeError("refresh() was called in a worker: call it in the main program, between two epochs")
        before = len(self)
        self._set_files(self._paths_given if paths is None else paths)
        self.generation += 1
        self.close()
        self._warn_of_damage()
        return len(self) - before

    def close(self) -> None:
        """Close the files; reading opens them again. May be called again."""
        self._open.here().clear()

    def __repr__(self) -> str:
        spec = self._codec.spec
        fields = ", ".join(f"{path}: {field}" for path, field in zip(spec.paths, spec.fields, strict=True))
        files = pluralize(len(self._files), "file")
        return f"TFRecordSequence({pluralize(len(self), 'record')} of {files}: {fields})"


def _common_spec(described: dict[FileLocation, tuple[SceneSpec, int]]) -> SceneSpec | None:
    """Return the spec that was written next to the files, or None.

    Raises:
        SpecError: Two files have different specs.
    """
    common: SceneSpec | None = None
    for path, (spec, _) in described.items():
        if common is not None and spec != common:
            first = next(iter(described))
            raise SpecError(
                f"{str(first)!r} and {str(path)!r} have different specs: read them as two sequences, or give spec= "
                "with the fields that both have"
            )
        common = spec
    return common


def _check_count(path: FileLocation, found: int, written: int) -> None:
    """Refuse a file with another number of records than written.

    Raises:
        RecordError: The numbers differ.
    """
    if found != written:
        raise RecordError(
            f"{str(path)!r} holds {pluralize(found, 'record')}, but {written:,} were written to it: it was truncated "
            "or replaced"
        )


def _records_of(
    files: list[FileLocation], described: dict[FileLocation, tuple[SceneSpec, int]], verify: bool
) -> Iterator[tuple[str, bytes]]:
    """Yield the name of each record, for messages, and its data."""
    for path in files:
        number = 0
        for record in records_in_order(path, verify=verify):
            yield f"record {number} of {str(path)!r}", record
            number += 1
        if path in described:
            _check_count(path, number, described[path][1])


def _scenes_of(records: Iterator[tuple[str, bytes]], spec: SceneSpec | None) -> Iterator[Any]:
    first: list[tuple[str, bytes]] = []
    if spec is None:
        first = list(itertools.islice(records, _INFERRED_FROM))
        if not first:
            return
        spec = as_scene_spec(infer_spec([(name, _example(name, record)) for name, record in first]))
    codec = SceneCodec(spec)
    for name, record in itertools.chain(first, records):
        try:
            leaves = codec.decode(record)
        except ValueError as error:
            raise _named(error, name) from None
        yield spec.unflatten([_own(leaf) for leaf in leaves])


def _example(name: str, record: bytes) -> Example:
    try:
        return Example(record)
    except ValueError as error:
        raise _named(error, name) from None


def _named(error: ValueError, record: str, more: str = "") -> ValueError:
    """Return the error of a record with the record's name.

    `more` is the end of the message if the spec does not fit.
    """
    if isinstance(error, SpecError):
        return SpecError(f"{record}: {message_of(error)}{more}")
    return RecordError(f"{record}: {message_of(error)}")


def _own(leaf: Any) -> Any:
    """Return a value that the caller may change: decoded values are read-only."""
    if not isinstance(leaf, np.ndarray):
        return leaf
    return leaf.copy() if leaf.ndim else leaf[()]


def _listed(files: list[FileIndex]) -> str:
    return repr(str(files[0].path)) + (f" and {len(files) - 1:,} more files" if len(files) > 1 else "")
