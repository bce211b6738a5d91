"""Write a set of shards with a pool, and show progress.

Invariant: workers start once. A call leaves no temporary files, unless the process is killed; the next call then
removes them. A shard under its final name is complete and stays. The small file `.NAME.unfinished` describes the set.
It is written before the first shard and removed after the last. While it exists, complete shards belong to its set. One
program at a time holds its lock.
"""

import contextlib
import glob
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from kerasfeed.errors import FeedWarning, KerasfeedError, WorkerDiedError
from kerasfeed.loaders.arguments import check_workers
from kerasfeed.loaders.loader import worker_type_for
from kerasfeed.loaders.sequence_argument import check_sequence
from kerasfeed.pool.base import Pool, PoolOptions
from kerasfeed.pool.factory import make_pool
from kerasfeed.readers.tfrecord.spec_file import FORMAT, VERSION, read_json
from kerasfeed.sequences.frames import as_sequence
from kerasfeed.sequences.global_random import random_warnings
from kerasfeed.sequences.view_base import identity_of, source_paths
from kerasfeed.spec.inference import merge, probe_indices
from kerasfeed.spec.scene_spec import SceneSpec
from kerasfeed.spec.spec_json import as_scene_spec, spec_to_json
from kerasfeed.util.atomic_write import check_target
from kerasfeed.util.deferred_warnings import DeferredWarnings, warn_caller
from kerasfeed.util.error_text import class_name
from kerasfeed.util.fingerprint import digest
from kerasfeed.util.progress import progress_bar
from kerasfeed.util.validate import check_flag, check_integer
from kerasfeed.writers.shard_task import (
    DESCRIBE,
    WRITE,
    PlannedShard,
    ShardFormat,
    ShardRunner,
    ShardTask,
    WritePlan,
)

if sys.platform != "win32":
    import fcntl

_SHOWN = 3


class WorkerOptions:
    """The sequence to write, and number and type of the workers, checked.

    Args:
        sequence: The sequence whose scenes are written; the same kinds as for `Feed`.
        workers: As in `Feed`.
        worker_type: As in `Feed`.
        seed: Seed of each scene's `rng`.

    Attributes:
        sequence: The sequence.
        length: Its length.
        seed: The seed.
        count: Number of workers; 0 is the calling thread.
        worker_type: Their type.

    Raises:
        TypeError, ValueError: An argument is wrong: for example a feed, or an empty sequence.
    """

    def __init__(self, sequence: Any, workers: Any, worker_type: str, seed: Any) -> None:
        self.sequence = as_sequence(sequence)
        self.length = check_sequence(self.sequence, "writing")
        self.seed = check_integer("seed", seed, 0)
        self.count = check_workers(workers, worker_type)
        self.worker_type = worker_type_for(self.sequence, worker_type)


@dataclass(frozen=True)
class FileSet:
    """The files that a call writes.

    Attributes:
        target: A path of the set; hidden files of an unfinished set have its name and folder.
        names: The files that exist at the end.
        arguments: Arguments that must not change if a call continues an unfinished set, as JSON.
        most: Largest number of shards.
        plan_shards: Returns the shards and their format for the spec of a scene.
        discard: Removes an earlier set completely; takes the names of files in an unfinished set.
        finish: Makes the set from complete shards.
        title: Title of the progress bar.
    """

    target: Path
    names: tuple[Path, ...]
    arguments: dict[str, Any]
    most: int
    plan_shards: Callable[[SceneSpec], tuple[tuple[PlannedShard, ...], ShardFormat]]
    discard: Callable[[list[str]], None]
    finish: Callable[[SceneSpec, tuple[PlannedShard, ...]], None]
    title: str


def write_set(
    options: WorkerOptions, files: FileSet, *, spec: SceneSpec | None = None, overwrite: bool, progress: bool
) -> None:
    """Write a set of files, each shard by one worker.

    Complete shards are kept.

    Raises:
        Exception: The sequence raised it; a note names scene and shard.
        FileExistsError: There are files of these names, or an unfinished set with other arguments.
        KerasfeedError: Another program is writing the set.
        SpecError: A scene does not match the spec.
        OSError: A file cannot be written, or the path of a shard is a folder or another special file.
        WorkerDiedError: Worker processes died repeatedly.
    """
    overwrite = check_flag("overwrite", overwrite)
    for name in files.names:
        check_target(name)
    unfinished = files.target.with_name(f".{files.target.name}.unfinished")
    with _locked_description(unfinished) as descriptor:
        begun = read_json(unfinished)
        if begun is None and not overwrite:
            refuse_existing(files.names)
        shards: tuple[PlannedShard, ...] = ()
        try:
            with _workers(options, files.most) as (pool, deferred_warnings):
                try:
                    spec = spec or _inferred(pool, options.length)
                    shards, shard_format = files.plan_shards(spec)
                    wanted = {
                        "sequence": identity_of(options.sequence),
                        "source_files": digest(source_paths(options.sequence)),
                        "length": options.length,
                        "seed": options.seed,
                        **files.arguments,
                        "files": [path.name for path in files.names],
                        "shards": len(shards),
                        "spec": spec_to_json(spec),
                    }
                    if overwrite:
                        os.ftruncate(descriptor, 0)  # from here on, no file of these names counts as complete
                        files.discard([] if begun is None else begun["fingerprint"]["files"])
                    if overwrite or begun is None:
                        value = {"format": FORMAT, "version": VERSION, "fingerprint": wanted}
                        os.pwrite(descriptor, json.dumps(value).encode(), 0)
                        os.fsync(descriptor)
                    else:
                        _compare(begun["fingerprint"], wanted, unfinished)
                    deferred_warnings.mute("respawn")  # the warning below replaces it
                    _write(pool, shards, shard_format, files.title, bar=progress)
                except BaseException:
                    _remove_parts_of(shards)  # a worker that writes to one notices, and stops
                    raise
        finally:
            _remove_parts_of(shards)
        if count := pool.respawns:
            warn_caller(
                f"{count} worker process{'es' * (count > 1)} died and had to be replaced. Their unfinished shards were "
                "written again: no scene is missing or written twice",
                FeedWarning,
            )
        files.finish(spec, shards)
        unfinished.unlink(missing_ok=True)


@contextlib.contextmanager
def _workers(options: WorkerOptions, most: int) -> Iterator[tuple[Pool, DeferredWarnings]]:
    """Start a pool; yield it and its warnings.

    The pool writes at most `most` shards at a time.
    """
    deferred_warnings = DeferredWarnings()
    count, owner = min(options.count, most), f"the writing of {class_name(options.sequence)}"
    pool_options = PoolOptions(max(1, count), owner, deferred_warnings=deferred_warnings)
    runner = ShardRunner(options.sequence, options.seed)
    pool = make_pool(runner, pool_options, options.worker_type if count else "inline")
    try:
        yield pool, deferred_warnings
    finally:
        for kind, text in random_warnings(
            pool.used_random, runner.held, options.sequence, None, seeded=True, has_seed=True
        ):
            deferred_warnings.defer(kind, text, FeedWarning)
        pool.close()
        deferred_warnings.issue_last()


def _inferred(pool: Pool, length: int) -> SceneSpec:
    """Infer the spec of a scene from a few scenes.

    Raises:
        Exception: The sequence raised it.
        SpecError: The scenes have no common spec.
    """
    indices = probe_indices(length)
    futures = [_submitted(pool, ShardTask(DESCRIBE, index)) for index in indices]
    return as_scene_spec(merge([(index, future.result()) for index, future in zip(indices, futures, strict=True)]))


def _submitted(pool: Pool, task: ShardTask) -> Future[Any]:
    """Submit a task and return its future.

    The future has already failed if the pool has failed.
    """
    try:
        pool.submit([task])
    except WorkerDiedError as error:
        task.give_up(error)
    return task.future


def _write(pool: Pool, shards: tuple[PlannedShard, ...], shard_format: ShardFormat, title: str, *, bar: bool) -> None:
    """Write all shards until the first failure.

    Each worker writes one shard at a time.

    Raises:
        Exception: The first failure.
    """
    for folder in {shard.path.parent for shard in shards}:
        folder.mkdir(exist_ok=True)
    pool.post(WritePlan(shards, shard_format))
    remaining = (ShardTask(WRITE, shard.number, shard=shard) for shard in shards)
    waiting: set[Future[int]] = set()
    total = sum(len(shard.indices) for shard in shards)
    with progress_bar(title, total, bar, tty=True, unit="scenes") as advance:
        while True:
            # At most as many tasks as workers: a worker that stops must find no other task.
            new = islice(remaining, pool.options.workers - len(waiting))
            waiting |= {_submitted(pool, task) for task in new}
            if not waiting:
                return
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                advance(future.result())


def _remove_parts_of(shards: Sequence[PlannedShard]) -> None:
    for shard in shards:
        remove_parts(shard.path)


def remove_parts(path: Path) -> None:
    """Remove temporary files of `path`."""
    for part in path.parent.glob(f".{glob.escape(path.name)}.*.part"):
        part.unlink(missing_ok=True)


def refuse_existing(names: Sequence[Path]) -> None:
    """Refuse to write over existing files.

    Raises:
        FileExistsError: Some of the files exist.
    """
    existing = [str(name) for name in names if name.exists()]
    if existing:
        listed = ", ".join(existing[:_SHOWN]) + (", ..." if len(existing) > _SHOWN else "")
        raise FileExistsError(
            f"{len(existing)} of the files to be written exist already: {listed}. Write elsewhere, or replace "
            "them with overwrite=True"
        )


@contextlib.contextmanager
def _locked_description(path: Path) -> Iterator[int]:
    """Open and lock the file that describes an unfinished set.

    The file is empty if there is no unfinished set.

    Raises:
        KerasfeedError: Another program is writing the set.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            _lock(descriptor, path)
            if path.exists() and os.path.samestat(path.stat(), os.fstat(descriptor)):
                break
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # another program has just finished the set and removed this file
    try:
        yield descriptor
    finally:
        if os.fstat(descriptor).st_size == 0:  # the call was refused before it wrote anything
            path.unlink(missing_ok=True)
        os.close(descriptor)


def _lock(descriptor: int, path: Path) -> None:
    if sys.platform == "win32":
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise KerasfeedError(
            f"another program is writing the same files now ({str(path)!r} is locked). Wait for it, or write elsewhere"
        ) from None
    except OSError:
        pass  # some network file systems have no locks


def _compare(begun: dict[str, Any], wanted: dict[str, Any], path: Path) -> None:
    wanted = json.loads(json.dumps(wanted))
    different = [name for name in wanted if begun.get(name) != wanted[name]]
    if different:
        name = different[0]
        raise FileExistsError(
            f"{str(path.parent)!r} has an unfinished write with {name}={_short(begun.get(name))}, but this call has "
            f"{name}={_short(wanted[name])}. Repeat the first call to continue it, or start again with overwrite=True"
        )


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 120 else text[:117] + "..."
