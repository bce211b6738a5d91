"""`write_hdf5`: the scenes of any sequence as one HDF5 file, in parallel.

Invariant: `path` has its old content or the complete file. Workers write segments: files that each hold some of the
scenes, and get their names when they are complete. Their compressed chunks are then copied unchanged into the file.
After an interruption, the same call continues.
"""

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import h5py

from kerasfeed.orders.permutation import shuffled
from kerasfeed.spec.scene_spec import SceneSpec
from kerasfeed.spec.spec_json import leaves_of
from kerasfeed.util.atomic_write import appearing
from kerasfeed.util.seed_streams import SeedStream
from kerasfeed.util.validate import check_flag, check_integer, local_path
from kerasfeed.writers.hdf5.columns import Columns, ColumnWriter, columns_for, write_rows
from kerasfeed.writers.hdf5.sink import Sink, interruptible
from kerasfeed.writers.shard_set import FileSet, WorkerOptions, refuse_existing, remove_parts, write_set
from kerasfeed.writers.shard_task import PlannedShard, ShardFormat, failed_write

_COPIED_BYTES = 1 << 24


def write_hdf5(
    sequence: Any,
    path: str | os.PathLike[str],
    *,
    scenes_per_chunk: int | None = None,
    compression: str | int | None = None,
    workers: int | Literal["auto"] = "auto",
    worker_type: Literal["auto", "process", "thread"] = "auto",
    shuffle: bool = False,
    overwrite: bool = False,
    seed: int = 0,
    progress: bool = True,
) -> str:
    """Write the scenes of a sequence to an HDF5 file.

    Scenes are loaded and compressed in parallel. Each field becomes a dataset with the field's name ("points",
    "1/mask") and the scenes along its first axis. `kf.HDF5File` reads these datasets, and `kf.HDF5Scenes` returns the
    scenes. If the call is interrupted, the same call continues: complete segments are kept in a hidden folder next to
    `path` until the file is complete. Until then the scenes take twice their space on the disk.

    Args:
        sequence: Any object with `__len__` and `__getitem__(index)` that returns one scene; see `Feed`. Every field
            must have one shape. `str` become variable-length strings, and `bytes` variable-length uint8.
        path: The file.
        scenes_per_chunk: Scenes in a chunk, at least 1; fields of less than 4 KiB get a multiple of it. None means
            about 64 KiB of scenes, or one larger scene. With None, storage is contiguous if there is no compression,
            and for a small field beside large ones if its chunks would be less than 16 KiB.
        compression: None, "gzip" (level 4, after byte shuffling), an integer from 0 to 9 (gzip of that level), "lzf";
            or "blosc", "zstd" or "lz4", if `hdf5plugin` is installed.
        workers: Segments written at the same time; see `write_tfrecords`.
        worker_type: "thread", "process" or "auto"; see `write_tfrecords`. h5py compresses on one thread of a process at
            a time.
        shuffle: Whether to write the scenes in random order: the order of epoch 0 of `kf.Feed(sequence, shuffle=True,
            seed=seed)`. A feed that reads such a file in sequence gets its scenes in random order.
        overwrite: Whether to replace `path`, and to restart an interrupted call.
        seed: Integer >= 0 that decides the order, and each scene's `rng` (of epoch 0).
        progress: Whether to show a progress bar, if there is a terminal or a notebook; it moves with each segment.

    Returns:
        The absolute path.

    Raises:
        TypeError, ValueError: An argument is wrong.
        FileExistsError: `overwrite` is False, and `path` or an unfinished file of a call with other arguments exists.
        KerasfeedError: Another program is writing the same file.
        SpecError: Scenes differ, or contain values that HDF5 cannot store.
        WorkerDiedError: A scene ended its worker process several times.
        OSError: Writing failed (a full disk); `path` has not changed.
        Exception: The sequence raised it; a note names the scene.

    Examples:
        >>> scenes = kf.Zip(np.zeros((10, 8, 3), np.float32), np.arange(10))
        >>> kf.write_hdf5(scenes, "rooms.h5", workers=0, progress=False)
        '...rooms.h5'
        >>> file = kf.HDF5File("rooms.h5")
        >>> file.dataset_paths()
        ['0', '1']
        >>> file.close()
    """
    options = WorkerOptions(sequence, workers, worker_type, seed)
    length, shuffle = options.length, check_flag("shuffle", shuffle)
    if scenes_per_chunk is not None:
        scenes_per_chunk = check_integer("scenes_per_chunk", scenes_per_chunk, 1)
    out = Path(os.path.realpath(local_path("path", path)))
    if not check_flag("overwrite", overwrite) and out.is_file():
        refuse_existing((out,))  # now, because an interrupted overwrite would be continued and then refused at its end
    folder = out.with_name(f".{out.name}.segments")

    def plan_shards(spec: SceneSpec) -> tuple[tuple[PlannedShard, ...], ShardFormat]:
        columns = columns_for(spec, scenes_per_chunk, compression, length)
        segments = []
        for number, part in enumerate(columns.segments(length)):
            indices: Any = part
            if shuffle:
                indices = shuffled(part.start, part.stop, length, options.seed, (SeedStream.SHUFFLE, 0))
            segments.append(PlannedShard(number, folder / f"{number:06d}.h5", indices))
        return tuple(segments), SegmentFormat(columns)

    def discard(_: list[str]) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        remove_parts(out)

    def finish(spec: SceneSpec, segments: tuple[PlannedShard, ...]) -> None:
        remove_parts(out)
        columns = columns_for(spec, scenes_per_chunk, compression, length)
        _join(segments, columns, out, length, overwrite=overwrite)
        shutil.rmtree(folder)

    files = FileSet(
        target=out,
        names=(out,),
        arguments={"scenes_per_chunk": scenes_per_chunk, "compression": compression, "shuffle": shuffle},
        most=-(-length // (scenes_per_chunk or 1)),
        plan_shards=plan_shards,
        discard=discard,
        finish=finish,
        title="writing scenes",
    )
    write_set(options, files, overwrite=overwrite, progress=progress)
    return str(out)


class SegmentFormat(ShardFormat):
    """Segments: HDF5 files with the same datasets as the complete file."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns

    def encode(self, scene: Any) -> list[Any]:
        """See `ShardFormat.encode`."""
        leaves = leaves_of(self._columns.spec, scene)
        return [column.encoded(leaf) for column, leaf in zip(self._columns.columns, leaves, strict=True)]

    def write(self, descriptor: int, encoded: Iterator[Any], scenes: int) -> Any:
        """See `ShardFormat.write`."""
        sink = Sink(descriptor)
        with h5py.File(sink, "w", libver="v110") as file:
            datasets = self._columns.create(file, scenes)
            writers = [
                ColumnWriter(column, dataset, sink.check)
                for column, dataset in zip(self._columns.columns, datasets, strict=True)
            ]
            for row in encoded:
                for writer, value in zip(writers, row, strict=True):
                    writer.add(value)
            for writer in writers:
                writer.flush()
        sink.check()

    def count(self, path: Path) -> int | None:
        """See `ShardFormat.count`."""
        try:
            with h5py.File(path, "r") as file:
                counts = {len(file[column.name]) for column in self._columns.columns}
        except (OSError, KeyError):
            return None
        return counts.pop() if len(counts) == 1 else None


def _join(segments: Sequence[PlannedShard], columns: Columns, out: Path, length: int, *, overwrite: bool) -> None:
    """Copy segments into one file, chunks unchanged."""

    def job(check: Callable[[], None]) -> None:
        sink = Sink(descriptor)

        def check_both() -> None:
            check()
            sink.check()

        with h5py.File(sink, "w", libver="v110") as whole:
            columns.describe(whole)
            targets = columns.create(whole, length)
            start = 0
            for segment in segments:
                with h5py.File(segment.path, "r") as file:
                    for column, target in zip(columns.columns, targets, strict=True):
                        _copy(file[column.name], target, start, check_both)
                start += len(segment.indices)
        sink.check()

    with appearing(out, overwrite=overwrite) as descriptor:
        try:
            interruptible(job)
        except OSError as error:
            raise failed_write(error, out) from error


def _copy(source: h5py.Dataset, target: h5py.Dataset, start: int, check: Callable[[], None]) -> None:
    """Copy all rows of `source` to `target`, from row `start` on."""
    rows = len(source)
    if source.chunks is None or source.dtype.hasobject:
        row = max(1, source.nbytes // max(1, rows))
        step = max(1, _COPIED_BYTES // row)
        for first in range(0, rows, step):
            write_rows(target, start + first, source[first : first + step])
            check()
        return
    rest = (0,) * (source.ndim - 1)
    for first in range(0, rows, source.chunks[0]):
        mask, chunk = source.id.read_direct_chunk((first, *rest))
        target.id.write_direct_chunk((start + first, *rest), chunk, mask)
        check()
