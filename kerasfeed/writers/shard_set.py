"""A set of shards written by the workers of a pool, as asked for: the spec found, each shard a task, progress shown.

Invariant: workers are started once. Whatever ends this, no temporary file of ours is left but those of a program that
was killed, which the next call removes; shards that were complete stay.
"""

import contextlib
import re
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from kerasfeed.errors import FeedWarning, WorkerDiedError
from kerasfeed.loaders.arguments import check_workers
from kerasfeed.loaders.loader import worker_type_for
from kerasfeed.loaders.sequence_argument import check_sequence
from kerasfeed.pool.base import Pool, PoolOptions
from kerasfeed.pool.factory import make_pool
from kerasfeed.sequences.global_random import WARNING_KIND, warning_text
from kerasfeed.spec.inference import merge, probe_indices
from kerasfeed.spec.scene_spec import SceneSpec
from kerasfeed.spec.spec_json import as_scene_spec, spec_to_json
from kerasfeed.util.deferred_warnings import DeferredWarnings, warn_caller
from kerasfeed.util.error_text import class_name
from kerasfeed.util.frames import as_sequence
from kerasfeed.util.progress import progress_bar
from kerasfeed.util.validate import check_integer
from kerasfeed.writers.resume_lock import claimed
from kerasfeed.writers.shard_task import (
    DESCRIBE,
    WRITE,
    PlannedShard,
    ShardFormat,
    ShardRunner,
    ShardTask,
    WritePlan,
)


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
        count: Number of workers.

    Raises:
        TypeError, ValueError: An argument is wrong: a feed, or no sequence, or an empty one.
    """

    def __init__(self, sequence: Any, workers: Any, worker_type: str, seed: Any) -> None:
        self.sequence = as_sequence(sequence)
        if hasattr(sequence, "plan") and hasattr(sequence, "sequence"):
            raise TypeError("the sequence is a Feed, whose items are batches: pass its `sequence`")
        self.length = check_sequence(self.sequence, "writing")
        self.seed = check_integer("seed", seed, 0)
        self.count = check_workers(workers, worker_type)
        self._type = worker_type_for(self.sequence, worker_type)

    def pool(self, runner: ShardRunner, most: int, deferred_warnings: DeferredWarnings) -> Pool:
        """A pool that holds `runner`, `most` of whose workers have something to do; for 0 the calling thread."""
        count = min(self.count, most)
        who = f"the writing of {class_name(runner.target)}"
        options = PoolOptions(max(1, count), who, deferred_warnings=deferred_warnings)
        return make_pool(runner, options, self._type if count else "inline")


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
        Exception: What the sequence raised, with scene and shard as a note; FileExistsError; SpecError; OSError;
            WorkerDiedError.
    """
    hidden = files.beside.with_name(f".{files.beside.name}")
    with claimed(Path(f"{hidden}.unfinished")) as claim:
        if not overwrite:
            claim.refuse(files.names)
        with _Writer(options, files) as writer:
            spec = writer.learn(spec)
            shards, shard_format = files.cut(spec)
            fingerprint = {
                "sequence": type(options.sequence).__qualname__,
                "length": options.length,
                "seed": options.seed,
                **files.arguments,
                "files": [path.name for path in files.names],
                "shards": len(shards),
                "spec": spec_to_json(spec),
            }
            claim.begin(fingerprint, overwrite=overwrite, discard=files.discard)
            writer.write(shards, shard_format, bar=progress)
        writer.issue_warnings()
        files.finish(spec, shards)
        claim.done()


class _Writer(contextlib.AbstractContextManager["_Writer"]):
    """One pool that learns the spec, then writes the shards."""

    def __init__(self, options: WorkerOptions, files: FileSet) -> None:
        self._options = options
        self._files = files
        self._warnings = DeferredWarnings()
        self._runner = ShardRunner(options.sequence, options.seed)
        self._pool: Pool | None = None
        self._shards: tuple[PlannedShard, ...] = ()

    def learn(self, spec: SceneSpec | None) -> SceneSpec:
        """Start the workers, and have them find the spec of a scene from a few of them, where it is not given.

        Raises:
            Exception: What the sequence raised; SpecError.
        """
        self._pool = self._options.pool(self._runner, self._files.most, self._warnings)
        if spec is not None:
            return spec
        indices = probe_indices(self._options.length)
        futures = [_submitted(self._pool, ShardTask(DESCRIBE, index)) for index in indices]
        return as_scene_spec(merge([(index, future.result()) for index, future in zip(indices, futures, strict=True)]))

    def write(self, shards: tuple[PlannedShard, ...], shard_format: ShardFormat, *, bar: bool) -> None:
        """Write all shards.

        Raises:
            Exception: What the sequence raised; OSError; WorkerDiedError.
        """
        for folder in {Path(shard.path).parent for shard in shards}:
            folder.mkdir(exist_ok=True)
        pool = self._pool
        assert pool is not None
        self._shards = shards
        pool.post(WritePlan(shards, shard_format))
        self._warnings.mute("respawn")  # what it would say is said here
        total = sum(len(shard.indices) for shard in shards)
        with progress_bar(self._files.title, total, bar, tty=True, unit="scenes") as advance:
            _do_all(pool, [ShardTask(WRITE, shard.number, shard=shard) for shard in shards], advance)

    def __exit__(self, *_: object) -> None:
        self._runner.stopped = True
        pool = self._pool
        if pool is not None:
            if pool.used_random:
                self._warnings.defer(WARNING_KIND, warning_text(pool.used_random, seeded=True), FeedWarning)
            pool.close()
        self._warnings.issue_last()
        for shard in self._shards:
            remove_parts(Path(shard.path))

    def issue_warnings(self) -> None:
        """Warn of workers that died."""
        assert self._pool is not None
        count = self._pool.respawns
        if count:
            warn_caller(
                f"{count} worker process{'es' * (count > 1)} died and had to be replaced. What they "
                "were writing was begun anew: no scene is lost, none is there twice",
                FeedWarning,
            )


def _submitted(pool: Pool, task: ShardTask) -> Future[Any]:
    """The future of a task that is on its way, or was given up because the pool has just failed."""
    try:
        pool.submit([task])
    except WorkerDiedError as error:
        task.give_up(error)
    return task.future


def _do_all(pool: Pool, tasks: Sequence[ShardTask], advance: Callable[[int], None]) -> None:
    """Have all tasks done in turn, a few submitted ahead; whichever fails first ends it.

    Args:
        pool: Who does them.
        tasks: The tasks.
        advance: Called with the number of scenes of each shard that is complete.

    Raises:
        Exception: What has failed.
    """
    ahead = 1 if pool.worker_type == "inline" else 2 * pool.options.workers
    remaining = iter(tasks)
    waiting: set[Future[int]] = set()
    while True:
        waiting |= {_submitted(pool, task) for task in islice(remaining, ahead - len(waiting))}
        if not waiting:
            return
        done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
        for future in done:
            advance(future.result())


def remove_parts(path: Path) -> None:
    """Remove temporary files of `path`."""
    for part in path.parent.glob(f".{_literal(path.name)}.*.part"):
        part.unlink(missing_ok=True)


def _literal(name: str) -> str:
    return re.sub(r"([*?\[])", r"[\1]", name)
