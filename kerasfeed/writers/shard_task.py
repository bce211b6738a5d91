"""What workers that write are told to do: describe a scene, or write a shard, which takes its name when it is complete.

Invariant: a shard's name stands for a complete shard, through to the disk, or for nothing. Writing one again, after a
crash or because two were told to, gives the same file, so nothing is doubled and nothing lost.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from kerasfeed.errors import SceneTimeoutError, SpecError, WorkerDiedError, WorkerStartError
from kerasfeed.loaders.batch_runner import WATCHED, load_seeded
from kerasfeed.loaders.batches.filler import probe
from kerasfeed.pool.base import Runner, WorkerContext
from kerasfeed.pool.task import NOWHERE, CancelledTaskError, FailedTaskError, FutureTask, Note, Place, Record, Task
from kerasfeed.sequences.context import SceneContext, enter_context
from kerasfeed.spec.scene_spec import SceneSpec
from kerasfeed.util.error_notes import noted
from kerasfeed.util.error_text import message_of, reworded
from kerasfeed.writers.hdf5.sink import appearing
from kerasfeed.writers.shared_progress import PlannedShard, ShardFormat, SharedProgress

DESCRIBE, WRITE = 1, 2
_T = TypeVar("_T")


class ShardRunner(Runner):
    """What workers that write hold: the sequence, whose scenes they describe, or write."""

    def __init__(self, sequence: Any, seed: int) -> None:
        """Write scenes of `sequence`; `seed` is behind each scene's `rng`."""
        self.target = sequence
        self._seed = seed
        self._progress: SharedProgress | None = None
        self._to_watch = WATCHED

    def run(self, record: Record, note: Note, context: WorkerContext) -> Any:
        """See `Runner.run`: the spec of a scene, or whether a shard is complete and was not stopped."""
        kind, number = record[:2]
        if kind == DESCRIBE:
            note[1] = number
            return self._seeded(lambda context_type: self._described(number, context_type), context)
        if self._progress is None:
            self._progress = SharedProgress(context.posted(), context.memory_at)
        try:
            self._complete(self._progress.plan.shards[number], self._progress, note, context)
        except CancelledTaskError:
            raise
        except BaseException as error:
            self._progress.stop()  # nobody begins another
            if isinstance(error, FailedTaskError):
                raise
            raise FailedTaskError(Place()) from error
        return True

    def _seeded(self, load: Callable[[type[SceneContext]], _T], context: WorkerContext) -> _T:
        """`load`, given the class of the context of scenes: in worker processes one that seeds, where these need it."""
        if context.worker.worker_type != "process":
            return load(SceneContext)
        watched = self._to_watch > 0
        self._to_watch -= watched
        return load_seeded(load, context, watched=watched)

    def _described(self, index: int, context_type: type[SceneContext]) -> SceneSpec:
        context = context_type(self._seed, 0)
        context.move_to(index)
        return probe(self.target, index, context)[1]

    def _complete(self, shard: PlannedShard, progress: SharedProgress, note: Note, context: WorkerContext) -> None:
        """Write a shard, unless it is there."""
        shard_format, path = progress.plan.shard_format, Path(shard.path)
        note[1] = shard.indices[0]
        if not (path.exists() and shard_format.count(path) == len(shard.indices)):
            with appearing(path, overwrite=True) as (_, descriptor):

                def write(context_type: type[SceneContext]) -> Any:
                    os.ftruncate(descriptor, 0)  # it may be written once more, with seeded generators
                    os.lseek(descriptor, 0, os.SEEK_SET)
                    encoded = self._encoded(_noted(shard, progress, note), shard_format, context_type)
                    return shard_format.write(descriptor, encoded, len(shard.indices))

                try:
                    written = self._seeded(write, context)
                except OSError as error:
                    raise failed_write(error, shard.path) from error
            shard_format.finish(path, written)
        progress.note(shard.number, len(shard.indices), shard.indices[-1])

    def _encoded(
        self, indices: Iterable[int], shard_format: ShardFormat, context_type: type[SceneContext]
    ) -> Iterator[Any]:
        context = context_type(self._seed, 0)
        for index in indices:
            previous = enter_context(context)
            try:
                context.move_to(index)
                encoded = _checked(shard_format, self.target[index], index)
            except BaseException as error:
                raise FailedTaskError(Place(index)) from error
            finally:
                enter_context(previous)
            yield encoded


def _noted(shard: PlannedShard, progress: SharedProgress, note: Note) -> Iterator[int]:
    for done, index in enumerate(shard.indices):
        if progress.stopped:
            raise CancelledTaskError
        progress.note(shard.number, done, index)
        note[1] = index
        yield index


def _checked(shard_format: ShardFormat, scene: Any, index: int) -> Any:
    try:
        return shard_format.encode(scene)
    except SpecError as error:
        raise SpecError(f"scene {index}: {message_of(error)}") from None


def failed_write(error: OSError, path: str) -> OSError:
    """The same error, of a file that was to be written whole."""
    return reworded(error, f"writing {path!r} failed and left nothing of it: {message_of(error)}")


@dataclass(frozen=True)
class ScenePlace:
    """Which scene was at work, and what for.

    Attributes:
        scene: Its index.
        shard: The shard that it belongs to; None where it was read to learn the spec.
    """

    scene: int
    shard: PlannedShard | None = None

    def __str__(self) -> str:
        return f"scene {self.scene} {'(read to learn the spec)' if self.shard is None else f'of {self.shard}'}"

    @property
    def note(self) -> str:
        """The note on what the sequence has raised."""
        return f"kerasfeed: {self}\nReproduce it here: sequence[{self.scene}]"

    @property
    def lost_text(self) -> str:
        """The message where workers end there."""
        what = f"read scene {self.scene}"
        if self.shard is not None:
            what = f"wrote {self.shard}, the last at scene {self.scene} or next to it"
        return (
            f"workers ended again and again while they {what}. Load it in a Python of its own, for it may end that "
            f"too: sequence[{self.scene}]. Out of memory shows as SIGKILL, a fault in a compiled library as SIGSEGV. "
            "Shards that are complete stay; the same call goes on with the others"
        )


@dataclass(frozen=True, eq=False)
class ShardTask(FutureTask):
    """The shard `number` to be written, or the scene `number` to be described; see `ShardRunner.run` for the future.

    Attributes:
        progress: How far the shards are; None for a scene.
    """

    progress: SharedProgress | None = None

    def failed(self, place: Place, error: BaseException, worker: str, traceback: str) -> Sequence[Task]:
        """See `Task.failed`."""
        note = "" if place.scene is None else self._place(place.scene).note
        self.set_exception(noted(error, note, traceback))
        return ()

    def cancelled(self) -> None:
        """See `Task.cancelled`."""
        self.set_result(False)

    def text(self, note: int) -> str:
        """See `Task.text`."""
        return "" if note == NOWHERE else str(self._place(note))

    def set_exception(self, error: BaseException) -> None:
        """See `FutureTask`; where workers were lost, says at which scene."""
        if issubclass(type(error), WorkerDiedError | SceneTimeoutError) and not isinstance(error, WorkerStartError):
            last = self.number if self.progress is None else self.progress.index(self.number)
            cause, error = error, WorkerDiedError(self._place(last).lost_text)
            error.__cause__ = cause
        super().set_exception(error)

    def _place(self, scene: int) -> ScenePlace:
        return ScenePlace(scene, None if self.progress is None else self.progress.plan.shards[self.number])
