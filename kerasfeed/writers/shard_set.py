"""A set of shards written by the workers of a pool, as asked for: the spec found, each shard a task, progress shown.

Invariant: workers are started once. Whatever ends this, no temporary file of ours is left but those of a program that
was killed, which the next call removes; shards that were complete stay. Under their final names they are complete, and
belong to the set that a small file beside them describes, as long as that exists: it is written before the first shard
and removed after the last, and one program at a time holds it locked.
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
from kerasfeed.spec.inference import merge, probe_indices
from kerasfeed.spec.scene_spec import SceneSpec
from kerasfeed.spec.spec_json import as_scene_spec, spec_to_json
from kerasfeed.util.atomic_write import check_place
from kerasfeed.util.deferred_warnings import DeferredWarnings, warn_caller
from kerasfeed.util.error_text import class_name
from kerasfeed.util.progress import progress_bar
from kerasfeed.util.validate import check_integer
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
    """What is written by whom: a sequence, and number and type of workers, checked.

    Args:
        sequence: Whose scenes are written; what a `Feed` takes.
        workers: As in `Feed`.
        worker_type: As in `Feed`.
        seed: Behind each scene's `rng`.

    Attributes:
        sequence: The sequence.
        length: Its length.
        seed: As given.
        count: Number of workers; 0 is the calling thread.
        worker_type: Their type.

    Raises:
        TypeError, ValueError: An argument is wrong: a feed, or no sequence, or an empty one.
    """

    def __init__(self, sequence: Any, workers: Any, worker_type: str, seed: Any) -> None:
        self.sequence = as_sequence(sequence)
        self.length = check_sequence(self.sequence, "writing")
        self.seed = check_integer("seed", seed, 0)
        self.count = check_workers(workers, worker_type)
        self.worker_type = worker_type_for(self.sequence, worker_type)


@dataclass(frozen=True)
class FileSet:
    """What a call writes.

    Attributes:
        beside: A path of the set, after which the hidden files of an unfinished one are named.
        names: The files that will be there at the end.
        arguments: Those that a call must have to go on with what another began, as JSON.
        most: Shards there are at most.
        cut: From the spec of a scene to the shards, and what a shard is.
        discard: Removes all of an earlier set; takes names of files that an unfinished one had.
        finish: Makes the set of the complete shards.
        title: Of the progress bar.
    """

    beside: Path
    names: tuple[Path, ...]
    arguments: dict[str, Any]
    most: int
    cut: Callable[[SceneSpec], tuple[tuple[PlannedShard, ...], ShardFormat]]
    discard: Callable[[list[str]], None]
    finish: Callable[[SceneSpec, tuple[PlannedShard, ...]], None]
    title: str


def write_set(
    options: WorkerOptions, files: FileSet, *, spec: SceneSpec | None = None, overwrite: bool, progress: bool
) -> None:
    """Write a set of files, each shard by one worker, those that are there already left as they are.

    Raises:
        Exception: What the sequence raised, with scene and shard as a note; FileExistsError; SpecError; OSError, also
            where a folder or what is no regular file stands in the place of a shard; WorkerDiedError.
    """
    for name in files.names:
        check_place(name)
    unfinished = files.beside.with_name(f".{files.beside.name}.unfinished")
    with _held(unfinished) as descriptor:
        begun = read_json(unfinished)
        if begun is None and not overwrite:
            _refuse(files.names)
        shards: tuple[PlannedShard, ...] = ()
        try:
            with _workers(options, files.most) as (pool, deferred_warnings):
                try:
                    spec = spec or _learned(pool, options.length)
                    shards, shard_format = files.cut(spec)
                    wanted = {
                        "sequence": type(options.sequence).__qualname__,
                        "length": options.length,
                        "seed": options.seed,
                        **files.arguments,
                        "files": [path.name for path in files.names],
                        "shards": len(shards),
                        "spec": spec_to_json(spec),
                    }
                    if overwrite:
                        os.ftruncate(descriptor, 0)  # from here on nothing under these names is taken for complete
                        files.discard([] if begun is None else begun["fingerprint"]["files"])
                    if overwrite or begun is None:
                        value = {"format": FORMAT, "version": VERSION, "fingerprint": wanted}
                        os.pwrite(descriptor, json.dumps(value).encode(), 0)
                        os.fsync(descriptor)
                    else:
                        _compare(begun["fingerprint"], wanted, unfinished)
                    deferred_warnings.mute("respawn")  # what it would say is said here
                    _write(pool, shards, shard_format, files.title, bar=progress)
                except BaseException:
                    _remove_parts_of(shards)  # whoever writes to one finds it gone, and stops
                    raise
        finally:
            _remove_parts_of(shards)
        if count := pool.respawns:
            warn_caller(
                f"{count} worker process{'es' * (count > 1)} died and had to be replaced. What they "
                "were writing was begun anew: no scene is lost, none is there twice",
                FeedWarning,
            )
        files.finish(spec, shards)
        unfinished.unlink(missing_ok=True)


@contextlib.contextmanager
def _workers(options: WorkerOptions, most: int) -> Iterator[tuple[Pool, DeferredWarnings]]:
    """A pool that can describe and write, at most `most` shards at a time, and what it has to tell the user."""
    deferred_warnings = DeferredWarnings()
    count, who = min(options.count, most), f"the writing of {class_name(options.sequence)}"
    pool_options = PoolOptions(max(1, count), who, deferred_warnings=deferred_warnings)
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


def _learned(pool: Pool, length: int) -> SceneSpec:
    """The spec of a scene, from a few of them.

    Raises:
        Exception: What the sequence raised; SpecError.
    """
    indices = probe_indices(length)
    futures = [_submitted(pool, ShardTask(DESCRIBE, index)) for index in indices]
    return as_scene_spec(merge([(index, future.result()) for index, future in zip(indices, futures, strict=True)]))


def _submitted(pool: Pool, task: ShardTask) -> Future[Any]:
    """The future of a task that is on its way, or was given up because the pool has just failed."""
    try:
        pool.submit([task])
    except WorkerDiedError as error:
        task.give_up(error)
    return task.future


def _write(pool: Pool, shards: tuple[PlannedShard, ...], shard_format: ShardFormat, title: str, *, bar: bool) -> None:
    """Have all shards written in turn, one by each worker at a time; whichever fails first ends it.

    Raises:
        Exception: What has failed.
    """
    for folder in {shard.path.parent for shard in shards}:
        folder.mkdir(exist_ok=True)
    pool.post(WritePlan(shards, shard_format))
    remaining = (ShardTask(WRITE, shard.number, shard=shard) for shard in shards)
    waiting: set[Future[int]] = set()
    total = sum(len(shard.indices) for shard in shards)
    with progress_bar(title, total, bar, tty=True, unit="scenes") as advance:
        while True:
            # No more than there are workers: one that stops shall find no other task.
            free = islice(remaining, pool.options.workers - len(waiting))
            waiting |= {_submitted(pool, task) for task in free}
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


def _refuse(names: Sequence[Path]) -> None:
    """Refuse to write where files are.

    Raises:
        FileExistsError: There are some of these names.
    """
    existing = [str(name) for name in names if name.exists()]
    if existing:
        listed = ", ".join(existing[:_SHOWN]) + (", ..." if len(existing) > _SHOWN else "")
        raise FileExistsError(
            f"{len(existing)} of the files to be written exist already: {listed}. Write elsewhere, or replace "
            "them with overwrite=True"
        )


@contextlib.contextmanager
def _held(path: Path) -> Iterator[int]:
    """The descriptor of the file that tells of an unfinished set, locked; it is empty where nothing has begun.

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
        os.close(descriptor)  # whoever had it has just finished
    try:
        yield descriptor
    finally:
        if os.fstat(descriptor).st_size == 0:  # refused before anything began
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
        pass  # some network file systems cannot


def _compare(begun: dict[str, Any], wanted: dict[str, Any], path: Path) -> None:
    wanted = json.loads(json.dumps(wanted))
    different = [name for name in wanted if begun.get(name) != wanted[name]]
    if different:
        name = different[0]
        raise FileExistsError(
            f"an unfinished write stands in {str(path.parent)!r}, begun with another {name}: "
            f"{_short(begun.get(name))}, now {_short(wanted[name])}. Call it as before to "
            "go on, or begin anew with overwrite=True"
        )


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 120 else text[:117] + "..."
