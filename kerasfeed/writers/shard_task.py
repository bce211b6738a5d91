"""Tasks of writing workers: describe a scene, or write a shard.

Invariant: a file with a shard's name is a complete shard, synced to the disk. Writing it again, after a crash or
because two workers got the task, makes the same file, so no scene is missing or duplicated.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from kerasfeed.errors import SpecError, WorkerDiedError
from kerasfeed.loaders.batch_runner import load_seeded
from kerasfeed.loaders.batches.row_loader import probe
from kerasfeed.loaders.failures.exceptions import reproduction
from kerasfeed.pool.base import Runner, WorkerContext
from kerasfeed.pool.task import (
    NOWHERE,
    Crash,
    FailedTaskError,
    FailurePosition,
    FutureTask,
    Record,
    Task,
    TaskProgress,
)
from kerasfeed.sequences.context import MakeContext, SceneContext
from kerasfeed.sequences.held_random import Held
from kerasfeed.spec.scene_spec import SceneSpec
from kerasfeed.util.atomic_write import appearing
from kerasfeed.util.error_text import message_of, reworded, with_note

DESCRIBE, WRITE = 1, 2
_T = TypeVar("_T")


@dataclass(frozen=True, eq=False)
class PlannedShard:
    """A shard to write.

    Attributes:
        number: Its number.
        path: Its file.
        indices: Indices of its scenes, at least one, in its order: a range, or int64[n].
    """

    number: int
    path: Path
    indices: range | NDArray[np.int64]

    def __str__(self) -> str:
        return f"shard {self.number} ({self.path.name!r})"


class ShardFormat(ABC):
    """The format of a shard.

    It can be pickled; every worker has a copy.
    """

    @abstractmethod
    def encode(self, scene: Any) -> Any:
        """Encode a scene for `write`.

        Raises:
            SpecError: The scene does not match the spec; the message names the field.
        """

    @abstractmethod
    def write(self, descriptor: int, encoded: Iterator[Any], scenes: int) -> None:
        """Write a shard of `scenes` scenes to an open file."""

    @abstractmethod
    def count(self, path: Path) -> int | None:
        """Return the number of scenes in the shard at `path`.

        None for any other file.
        """


@dataclass(frozen=True)
class WritePlan:
    """The shards to write.

    Attributes:
        shards: The shards, by number.
        shard_format: Their format.
    """

    shards: tuple[PlannedShard, ...]
    shard_format: ShardFormat


class ShardRunner(Runner):
    """The workers' object: describes scenes of a sequence, or writes them."""

    def __init__(self, sequence: Any, seed: int) -> None:
        """Write scenes of `sequence`; `seed` is the seed of each scene's `rng`."""
        self.target = sequence
        self.held = Held()
        self._seed = seed
        self._plan: WritePlan | None = None

    def run(self, record: Record, progress: TaskProgress, context: WorkerContext) -> Any:
        """See `Runner.run`.

        Returns the spec of a scene, or the number of scenes in a complete shard.
        """
        kind, number = record[:2]
        if kind == DESCRIBE:
            progress[1] = number
            return self._seeded(lambda make: self._described(number, make), context)
        if self._plan is None:
            self._plan = context.posted()
            assert self._plan is not None
        shard = self._plan.shards[number]
        try:
            self._complete(shard, self._plan.shard_format, progress, context)
        except FailedTaskError:
            raise
        except BaseException as error:
            raise FailedTaskError(FailurePosition()) from error
        return len(shard.indices)

    def _seeded(self, load: Callable[[MakeContext], _T], context: WorkerContext) -> _T:
        """Call `load` with the context for scenes.

        In worker processes, the context also seeds the generators that scenes use.
        """
        if context.worker.worker_type != "process":
            return load(SceneContext)
        return load_seeded(load, context, self.held, watched=True)

    def _described(self, index: int, make: MakeContext) -> SceneSpec:
        context = make(self._seed, 0)
        context.move_to(index)
        return probe(self.target, index, context)[1]

    def _complete(
        self, shard: PlannedShard, shard_format: ShardFormat, progress: TaskProgress, context: WorkerContext
    ) -> None:
        """Write a shard, unless it exists."""
        path = shard.path
        progress[1] = int(shard.indices[0])
        if path.exists() and shard_format.count(path) == len(shard.indices):
            return
        with appearing(path, overwrite=True) as descriptor:

            def write(make: MakeContext) -> None:
                os.ftruncate(descriptor, 0)  # `write` may run again, with seeded generators
                os.lseek(descriptor, 0, os.SEEK_SET)
                encoded = self._encoded(shard.indices, shard_format, descriptor, progress, make)
                shard_format.write(descriptor, encoded, len(shard.indices))

            try:
                self._seeded(write, context)
            except OSError as error:
                raise failed_write(error, path) from error

    def _encoded(
        self,
        indices: range | NDArray[np.int64],
        shard_format: ShardFormat,
        descriptor: int,
        progress: TaskProgress,
        make: MakeContext,
    ) -> Iterator[Any]:
        context = make(self._seed, 0)
        links = os.fstat(descriptor).st_nlink  # 0 on some file systems
        for index in map(int, indices):
            if os.fstat(descriptor).st_nlink < links:  # the call has failed or was interrupted
                raise FileNotFoundError("its temporary file was removed meanwhile")
            progress[1] = index
            try:
                with context:
                    context.move_to(index)
                    encoded = _checked(shard_format, self.target[index], index)
            except BaseException as error:
                raise FailedTaskError(FailurePosition(index)) from error
            yield encoded


def _checked(shard_format: ShardFormat, scene: Any, index: int) -> Any:
    try:
        return shard_format.encode(scene)
    except SpecError as error:
        raise SpecError(f"scene {index}: {message_of(error)}") from None


def failed_write(error: OSError, path: Path) -> OSError:
    """Return the error with a message that `path` was not written."""
    return reworded(error, f"writing {str(path)!r} failed, and its incomplete file was deleted: {message_of(error)}")


@dataclass(frozen=True, eq=False)
class ShardTask(FutureTask):
    """Write the shard `number`, or describe the scene `number`.

    `ShardRunner.run` returns the result of the future.

    Attributes:
        shard: The shard; None for a scene.
    """

    shard: PlannedShard | None = None

    def failed(self, position: FailurePosition, error: BaseException, worker: str, traceback: str) -> Sequence[Task]:
        """See `Task.failed`."""
        note = ""
        if position.scene is not None:
            note = f"kerasfeed: {self.text(position.scene)}\n{reproduction(f'sequence[{position.scene}]', worker)}"
        self.set_exception(with_note(error, note, traceback))
        return ()

    def crashed(self, position: int, crash: Crash, count: int) -> Sequence[Task]:
        """See `Task.crashed`."""
        what = f"read scene {position}" if self.shard is None else f"wrote {self.shard}, the last at scene {position}"
        error = WorkerDiedError(
            f"workers ended repeatedly while they {what}. To find the cause, load that scene in another Python: "
            f"sequence[{position}]. Complete shards are kept; the same call continues with the others"
        )
        error.__cause__ = crash.kind(f"{crash}, {count} times.{crash.stack_text}")
        self.set_exception(error)
        return ()

    def text(self, position: int) -> str:
        """See `Task.text`."""
        if position == NOWHERE:
            return ""
        return f"scene {position} {'(read to infer the spec)' if self.shard is None else f'of {self.shard}'}"
