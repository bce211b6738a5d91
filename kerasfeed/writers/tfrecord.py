"""`write_tfrecords`: the scenes of any sequence as TFRecord shards, in parallel.

Invariant: each shard is written by one worker under a temporary name, and is renamed when it is complete and synced to
the disk. After an interruption, the same call continues: a shard with its final name is complete. A scene is written or
copied before the next one is read, because the sequence may reuse its arrays.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from isal import isal_zlib

from kerasfeed.errors import RecordError
from kerasfeed.readers.tfrecord.example import Piece
from kerasfeed.readers.tfrecord.fields import SceneCodec
from kerasfeed.readers.tfrecord.names import shard_paths, sidecar_path
from kerasfeed.readers.tfrecord.record_file import framed, records_in_order
from kerasfeed.readers.tfrecord.spec_file import read_sidecar, write_sidecar
from kerasfeed.spec.scene_spec import SceneSpec
from kerasfeed.spec.spec_json import as_scene_spec
from kerasfeed.util.deferred_warnings import warn_caller
from kerasfeed.util.error_text import pluralize
from kerasfeed.util.validate import check_integer, local_path
from kerasfeed.writers.shard_set import FileSet, WorkerOptions, remove_parts, write_set
from kerasfeed.writers.shard_task import PlannedShard, ShardFormat

_WRITTEN_BYTES = 1 << 20
_GZIP_LEVEL, _GZIP_WBITS = 2, 31


def write_tfrecords(
    sequence: Any,
    pattern: str | os.PathLike[str],
    *,
    num_shards: int,
    workers: int | Literal["auto"] = "auto",
    worker_type: Literal["auto", "process", "thread"] = "auto",
    assignment: Literal["round_robin", "contiguous"] = "round_robin",
    compression: Literal["GZIP"] | None = None,
    spec: Any = None,
    overwrite: bool = False,
    seed: int = 0,
    progress: bool = True,
) -> list[str]:
    """Write a sequence as TFRecord files of `tf.train.Example`s, without TensorFlow.

    Each shard is written by one worker, under a temporary name until it is complete. If the call is interrupted (an
    error, Ctrl-C, a crash, a power cut), the same call continues: complete shards are kept, the others are written
    again, and every scene is written exactly once. `overwrite=True` always starts again.

    float32 fields become a `float_list`; int32, int64, single integers and booleans an `int64_list`; text a
    `bytes_list`. Every other dtype becomes one bytes value: the array's memory, little-endian. Features are named like
    the fields ("0", "1.points"). If the size of an axis varies, a feature `<name>/shape` is added. A file `<pattern
    without the shard>.spec.json` beside the shards holds the spec. `kf.TFRecordSequence` reads the scenes; in tf.data,
    `kf.parse_record` does.

    Args:
        sequence: Any object with `__len__` and `__getitem__(index)` that returns one scene; see `Feed`.
        pattern: Path of the shards, such as "train-{shard:05d}-of-{count:05d}.tfrecord".
        num_shards: Number of files, at most one for each scene.
        workers: Shards written at the same time; 0 writes in the calling thread, which is fastest if the work takes
            less than a second. "auto" is the number of cores.
        worker_type: "thread" or "process". "auto" uses threads for a list, tuple, array or data frame, and otherwise
            processes, or one thread if they cannot start.
        assignment: "round_robin": scene i goes to shard i % num_shards. "contiguous": each shard gets consecutive
            scenes.
        compression: None, or "GZIP". Compressed shards can only be read in their order: by tf.data, or by
            `kf.TFRecordSequence.read` in a `kf.StreamFeed`.
        spec: A nesting of `kf.ArraySpec`s, needed if five scenes spread over the sequence do not show which axes vary.
        overwrite: Whether to replace files of these names, and the rest of the set that they belong to.
        seed: Integer >= 0 for each scene's `rng`, with epoch 0.
        progress: Whether to show a progress bar, if there is a terminal or a notebook; it moves with each shard.

    Returns:
        The absolute paths of the shards, in order.

    Raises:
        TypeError, ValueError: An argument is wrong.
        FileExistsError: `overwrite` is False, and a file or an unfinished set of a call with other arguments exists.
        KerasfeedError: Another program is writing the same files.
        SpecError: Scenes differ, or cannot be stored.
        WorkerDiedError: A scene ended its worker process several times.
        OSError: Writing failed (a full disk); only complete shards stay.
        Exception: The sequence raised it; a note names scene and shard. Complete shards stay.

    Examples:
        >>> scenes = kf.Zip(np.zeros((10, 8, 3), np.float32), np.arange(10))
        >>> kf.write_tfrecords(
        ...     scenes, "train-{shard:02d}-of-{count:02d}.tfrecord", num_shards=2, workers=0, progress=False
        ... )
        ['...train-00-of-02.tfrecord', '...train-01-of-02.tfrecord']
    """
    options = WorkerOptions(sequence, workers, worker_type, seed)
    length = options.length
    count = check_integer("num_shards", num_shards, 1)
    if count > length:
        raise ValueError(
            f"num_shards is {count}, but the sequence has {pluralize(length, 'scene')}: use at most one shard per scene"
        )
    if assignment not in ("round_robin", "contiguous"):
        raise ValueError(f"assignment must be one of 'round_robin', 'contiguous', received {assignment!r}")
    if compression not in (None, "GZIP"):
        raise ValueError(f"compression must be None or 'GZIP', received {compression!r}")
    if workers != "auto" and options.count > count:
        warn_caller(
            f"{options.count} workers have {pluralize(count, 'shard')} to write, each by one worker: "
            f"{options.count - count} have nothing to do. Use num_shards={options.count} or more",
            UserWarning,
        )
    pattern = str(local_path("pattern", pattern, what="a pattern of files"))
    paths, sidecar = shard_paths(pattern, count), sidecar_path(pattern)

    def plan_shards(found: SceneSpec) -> tuple[tuple[PlannedShard, ...], ShardFormat]:
        parts = [assigned(length, count, number, assignment) for number in range(count)]
        shards = (
            PlannedShard(number, path, part) for number, (path, part) in enumerate(zip(paths, parts, strict=True))
        )
        return tuple(shards), TFRecordFormat(found, compression)

    def finish(found: SceneSpec, shards: tuple[PlannedShard, ...]) -> None:
        files = [
            {"name": path.name, "scenes": len(shard.indices), "bytes": path.stat().st_size}
            for path, shard in zip(paths, shards, strict=True)
        ]
        write_sidecar(sidecar, found, files, assignment=assignment, compression=compression, seed=options.seed)

    files = FileSet(
        target=sidecar,
        names=(*paths, sidecar),
        arguments={"num_shards": count, "assignment": assignment, "compression": compression},
        most=count,
        plan_shards=plan_shards,
        discard=lambda names: _discard(paths, sidecar, names),
        finish=finish,
        title="writing records",
    )
    known = None if spec is None else as_scene_spec(spec)
    write_set(options, files, spec=known, overwrite=overwrite, progress=progress)
    return [str(path) for path in paths]


def assigned(length: int, count: int, shard: int, assignment: str) -> range:
    """Return the indices of the scenes in one shard."""
    if assignment == "round_robin":
        return range(shard, length, count)
    return range(shard * length // count, (shard + 1) * length // count)


def _discard(paths: list[Path], sidecar: Path, names: list[str]) -> None:
    """Remove `paths`, the files `names`, and the set that the sidecar describes."""
    described = read_sidecar(sidecar)
    names = names if described is None else [*names, *described.scenes]
    sidecar.unlink(missing_ok=True)
    for path in {*paths, *map(sidecar.with_name, names)}:
        remove_parts(path)
        path.unlink(missing_ok=True)


class TFRecordFormat(ShardFormat):
    """Shards that are TFRecord files.

    Args:
        spec: Spec of a scene.
        compression: None or "GZIP".
    """

    def __init__(self, spec: SceneSpec, compression: str | None) -> None:
        self._codec = SceneCodec(spec)
        self._compression = compression

    def encode(self, scene: Any) -> list[Piece]:
        """See `ShardFormat.encode`; the pieces may be the scene's own arrays."""
        return framed(self._codec.pieces(scene))

    def write(self, descriptor: int, encoded: Iterator[Any], scenes: int) -> None:
        """See `ShardFormat.write`."""
        with open(descriptor, "wb", _WRITTEN_BYTES, closefd=False) as file:
            if self._compression is None:
                for pieces in encoded:
                    file.writelines(pieces)  # written now, because the sequence may reuse its arrays
                return
            compressor = isal_zlib.compressobj(_GZIP_LEVEL, wbits=_GZIP_WBITS)
            for pieces in encoded:
                file.write(compressor.compress(b"".join(pieces)))
            file.write(compressor.flush())

    def count(self, path: Path) -> int | None:
        """See `ShardFormat.count`."""
        try:
            return sum(1 for _ in records_in_order(path))
        except RecordError:
            return None
