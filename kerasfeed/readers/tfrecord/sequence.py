"""`TFRecordSequence`: TFRecord files as a sequence, any record at any time.

Invariant: a record is returned as it was written or not at all. What pickles is where records begin and what their
files were; whoever reads in another process gets the same files or an error.
"""

import bisect
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from kerasfeed.errors import FeedWarning, RecordError, SpecError
from kerasfeed.readers.tfrecord.example import Example
from kerasfeed.readers.tfrecord.fields import SceneCodec, infer_spec
from kerasfeed.readers.tfrecord.index import FileIndex, index_files
from kerasfeed.readers.tfrecord.names import Place, expand
from kerasfeed.readers.tfrecord.record_file import (
    FRAME_BYTES,
    HEADER_BYTES,
    RecordFile,
    data_length,
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
from kerasfeed.util.error_text import counted, message_of
from kerasfeed.util.lru import Lru, PerProcess
from kerasfeed.util.resources import cores

_OPEN_FILES = 128
_RUN_BYTES = 1 << 20
_INFERRED_FROM = 5  # records
_LEAST_THREADS, _MOST_THREADS = 4, 32  # heads are found by waiting for the disk more than by computing


def _open_files() -> Lru[int, RecordFile]:
    return Lru(_OPEN_FILES, lambda _: 1)


class TFRecordSequence(Refreshable, SceneSequence):
    """TFRecord files of `tf.train.Example`s as a sequence of scenes, for a `Feed` with any order.

    Scene k is record k of the files, in their order. Several threads find the start of each record when the sequence is
    made, and keep them in memory. The files may be written by `kf.write_tfrecords` or by TensorFlow, without
    compression; `read` reads compressed ones in their order. TensorFlow is not imported.

    It may be read from several threads. It is pickled with its index, and each process opens the files for itself.

    Args:
        paths: A file; a glob ("train-*.tfrecord", in natural order); a pattern
            ("train-{shard:05d}-of-{count:05d}.tfrecord", all of whose shards must exist); any of these as a URL
            ("s3://bucket/train-*.tfrecord"), which fsspec reads; or a list of these.
        spec: Spec of a scene: a nesting of `kf.ArraySpec`s. The features are named like the fields ("0", "1.points").
            None takes the spec that `write_tfrecords` wrote beside the files. Without one, a scene is a dict of the
            features found in a few records: scalars where a feature holds one value in each, else arrays of one axis;
            bytes unchanged. What a record holds beside features is an error then.
        verify: Whether to compare each record with its checksum, which takes 0.1 ms for each MB.
        workers: Threads that find the records. "auto" is four times the number of cores, at most 32; 32 for URLs.

    Raises:
        FileNotFoundError: There is no such file.
        RecordError: The files hold no record, shards are missing, or a file is compressed or damaged.
        ImportError, ValueError: A URL, and fsspec or the package of the protocol is missing; or fsspec knows no such
            protocol.
        OSError: A file cannot be read; for a URL, also at the third try.
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
        given = None if spec is None else as_scene_spec(spec)
        self._workers = None if workers == "auto" else max(1, int(workers))
        self._take_in(paths)
        self._open = PerProcess(_open_files)
        described = find_sidecars([file.path for file in self._files])
        self._check_counts(described)
        known = given or _spec_beside(described)
        self._is_inferred = known is None
        self._codec = SceneCodec(known or self._inferred_spec())
        self._warn_of_damage()

    def _take_in(self, paths: Any) -> None:
        """Have the records of these files, all at once or, where one cannot be read, none of them."""
        given = tuple(paths) if isinstance(paths, Iterator) else paths
        found = expand(given)
        has_urls = any(isinstance(path, str) for path in found)
        threads = _MOST_THREADS if has_urls else min(_MOST_THREADS, _LEAST_THREADS * cores())
        files = index_files(found, self._workers or threads)
        stops = list(itertools.accumulate(map(len, files)))
        if not stops[-1]:
            raise RecordError(f"{_listed(files)} hold{'s' * (len(found) == 1)} no record")
        self._given, self._files, self._stops = given, files, stops

    def _warn_of_damage(self) -> None:
        for file in self._files:
            if file.damage is not None:
                warn_caller(
                    f"{str(file.path)!r}: {file.damage}. Reading it raises kf.RecordError; a feed with on_error= goes "
                    "on without it",
                    FeedWarning,
                )

    # ---- what it is

    def __len__(self) -> int:
        return self._stops[-1]

    @property
    def spec(self) -> Any:
        """Spec of a scene: nested as a scene, with an `ArraySpec` for each field."""
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
        """Number of records that are cheap to read together, about 1 MiB of them; for `kf.BlockShuffled`."""
        nbytes = sum(int(file.starts[-1]) for file in self._files)
        return max(1, min(len(self), round(_RUN_BYTES * len(self) / max(1, nbytes))))

    def source_files(self) -> list[str]:
        """Paths of the files of this machine; see `kerasfeed.Cached`."""
        return [str(file.path) for file in self._files if not isinstance(file.path, str)]

    def _check_counts(self, described: dict[Place, tuple[SceneSpec, int]]) -> None:
        """Compare the number of records of each file with the number that was written."""
        for file in self._files:
            if file.path in described and file.damage is None:
                _check_count(file.path, len(file), described[file.path][1])

    def _inferred_spec(self) -> SceneSpec:
        examples = []
        for index in probe_indices(len(self)):
            try:
                record = self._record(index)
            except RecordError:
                if len(self) == 1:
                    raise
                continue
            place = self._place(index)
            examples.append((place, _example(place, record)))
        if not examples:
            raise RecordError(f"no record of {_listed(self._files)} that was looked at is whole")
        return as_scene_spec(infer_spec(examples))

    # ---- scenes

    def __getitem__(self, index: Any) -> Any:
        """The scene of one record; negative indices count from the end.

        Raises:
            IndexError: `index` is out of range.
            RecordError: The record is damaged; the message names file, byte offset and record.
            SpecError: The record does not match the spec; the message names record and feature.
            OSError: The file cannot be read, or has changed; a URL is looked at when a process opens it.
        """
        return self._codec.spec.unflatten([_own(leaf) for leaf in self._leaves(index)])

    def read_into(self, index: int, out: Any) -> None:
        """Write the scene at `index` into `out`, which has its nesting; see `SceneSequence`."""
        for leaf, target in zip(self._leaves(index), flatten(out)[0], strict=True):
            target[...] = leaf

    def _leaves(self, index: int) -> list[Any]:
        index = range(len(self))[index]
        record = self._record(index)
        try:
            return self._codec.decode(record)
        except SpecError as error:
            more = ". The spec was inferred from a few records: give spec=" if self._is_inferred else ""
            raise SpecError(f"{self._place(index)}: {message_of(error)}{more}") from None
        except ValueError as error:
            raise RecordError(f"{self._place(index)}: {message_of(error)}") from None

    @staticmethod
    def read(paths: Any, spec: Any = None, *, verify: bool = True) -> Iterator[Any]:
        """The scenes of TFRecord files, compressed or not, in their order; for a `kf.StreamFeed`.

        Args:
            paths: See the class.
            spec: See the class; without a spec beside the files, it is inferred from the first 5 records.
            verify: See the class.

        Returns:
            An iterator of scenes.

        Raises:
            FileNotFoundError, TypeError: See the class.
            RecordError, SpecError: A record is damaged, or does not match the spec; the message names file and record.
                A file has another number of records than was written to it; or files have two specs beside them.

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
        files = expand(paths)
        described = find_sidecars(files)
        known = _spec_beside(described) if spec is None else as_scene_spec(spec)
        return _scenes_of(_records_of(files, described, verify), known)

    def record(self, index: int) -> bytes:
        """The serialized `tf.train.Example` of one record.

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
            raise RecordError(f"{self._place(index)}: {file.damage}")
        start, stop = int(file.starts[row]), int(file.starts[row + 1])
        size = stop - start
        data = self._record_file(number).read(start, size)
        if len(data) != size or int.from_bytes(data[:8], "little") != size - FRAME_BYTES:
            raise RecordError(f"{self._place(index)} is not where the index has it: the file was changed or is damaged")
        if self.verify and (data_length(data) is None or not is_whole(data)):
            raise RecordError(f"{self._place(index)} is damaged: its checksum does not hold")
        return data[HEADER_BYTES:-4]

    def _find(self, index: int) -> tuple[int, int]:
        """Number of the file, and of the record in it."""
        number = bisect.bisect_right(self._stops, index)
        return number, index - (self._stops[number - 1] if number else 0)

    def _place(self, index: int) -> str:
        number, row = self._find(index)
        file = self._files[number]
        return f"record {row} of {str(file.path)!r} (at byte {int(file.starts[row]):,})"

    def _record_file(self, number: int) -> RecordFile:
        """The open file of this number; the least recently used ones are closed."""
        file = self._files[number]
        return self._open.here().get_or_load(number, lambda: open_records(file.path, file.identity))[0]

    # ---- life

    def refresh(self, paths: Any = None) -> int:
        """Take in files that have come, and records that were added to files, between two epochs.

        The spec stays. A feed sees the new length when its next loop or `fit` begins: it then starts its workers anew.
        While an epoch runs, its next batch is an error. A record that is being written just now counts as a damaged one
        until the next `refresh`.

        Args:
            paths: As when the sequence was made. None looks again for what was given last.

        Returns:
            How many records there are more than before; negative where there are fewer.

        Raises:
            RuntimeError: Called in a worker.
            FileNotFoundError, RecordError: As when the sequence is made; it is then as it was.

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
            raise RuntimeError("refresh() is called where the feed is, between two epochs, and not in a worker")
        before = len(self)
        self._take_in(self._given if paths is None else paths)
        self.generation += 1
        self.close()
        self._warn_of_damage()
        return len(self) - before

    def close(self) -> None:
        """Close the files; they are opened again when they are read. May be called again."""
        self._open.here().clear()

    def __repr__(self) -> str:
        spec = self._codec.spec
        fields = ", ".join(f"{path}: {field}" for path, field in zip(spec.paths, spec.fields, strict=True))
        files = counted(len(self._files), "file")
        return f"TFRecordSequence({counted(len(self), 'record')} of {files}: {fields})"


def _spec_beside(described: dict[Place, tuple[SceneSpec, int]]) -> SceneSpec | None:
    """The spec that was written beside files; None if there is none.

    Raises:
        SpecError: Two files have two specs.
    """
    found: SceneSpec | None = None
    for path, (spec, _) in described.items():
        if found is not None and spec != found:
            first = next(iter(described))
            raise SpecError(
                f"{str(first)!r} and {str(path)!r} hold scenes of two kinds: read them as two sequences, or give spec= "
                "with the fields that both have"
            )
        found = spec
    return found


def _check_count(path: Place, found: int, written: int) -> None:
    """Refuse a file that has another number of records than was written to it.

    Raises:
        RecordError: It has.
    """
    if found != written:
        raise RecordError(
            f"{str(path)!r} holds {counted(found, 'record')}, and {written:,} were written to it: it is cut off or "
            "another file stands in its place"
        )


def _records_of(
    files: list[Place], described: dict[Place, tuple[SceneSpec, int]], verify: bool
) -> Iterator[tuple[str, bytes]]:
    """What each record is called, and its data."""
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
        except SpecError as error:
            raise SpecError(f"{name}: {message_of(error)}") from None
        except ValueError as error:
            raise RecordError(f"{name}: {message_of(error)}") from None
        yield spec.unflatten([_own(leaf) for leaf in leaves])


def _example(name: str, record: bytes) -> Example:
    try:
        return Example(record)
    except ValueError as error:
        raise RecordError(f"{name}: {message_of(error)}") from None


def _own(leaf: Any) -> Any:
    """A value that its owner may change: what was decoded is read-only."""
    if not isinstance(leaf, np.ndarray):
        return leaf
    return leaf.copy() if leaf.ndim else leaf[()]


def _listed(files: list[FileIndex]) -> str:
    return repr(str(files[0].path)) + (f" and {len(files) - 1:,} more files" if len(files) > 1 else "")
