"""Calls on the sequence, done by the workers of a pool: so they run where a feed's would, and end if they hang.

Invariant: loads no framework, for workers load it. Whoever calls gets what the function returned, or one of the errors
that `call` names.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from kerasfeed.explore.checks.reading import Reader
from kerasfeed.explore.checks.result import LostWorkerError, OutOfTimeError
from kerasfeed.pool.base import Pool, PoolOptions, Runner, WorkerContext
from kerasfeed.pool.environment import Environment
from kerasfeed.pool.factory import make_pool
from kerasfeed.pool.task import NOWHERE, Crash, FailedTaskError, FutureTask, Note, Place, Record, Task
from kerasfeed.util.error_text import class_name

Call = Callable[[Reader], Any]


class CallRunner(Runner):
    """Calls what was posted last, with a reader of the sequence.

    Args:
        sequence: The sequence.
        seed: Seed of the reader.
        hooks: Whether workers call its hooks.
    """

    def __init__(self, sequence: Any, seed: int, *, hooks: bool = True) -> None:
        self.sequence = sequence
        self.seed = seed
        self.target = sequence if hooks else None

    def run(self, record: Record, note: Note, context: WorkerContext) -> Any:
        """See `Runner.run`."""
        try:
            return context.posted()(Reader(self.sequence, self.seed, note, context.worker))
        except BaseException as error:
            raise FailedTaskError(Place()) from error


@dataclass(frozen=True, eq=False)
class _CallTask(FutureTask):
    """A call; a note is the index of a scene."""

    def text(self, note: int) -> str:
        """See `Task.text`."""
        return "" if note == NOWHERE else f"scene {note}"

    def crashed(self, note: int, crash: Crash, count: int) -> Sequence[Task]:
        """See `Task.crashed`."""
        self.set_exception(self._lost(note, crash, "a worker process"))
        return ()

    def stuck(self, note: int, crash: Crash) -> None:
        """See `Task.stuck`."""
        self.set_exception(self._lost(note, crash, "a worker thread"))

    def _lost(self, note: int, crash: Crash, where: str) -> LostWorkerError:
        index = None if note == NOWHERE else note
        if crash.hung:
            return LostWorkerError(
                f"{self.text(note) or 'a call'} takes more than {crash.timeout:g} s in {where}", index
            )
        return LostWorkerError(str(crash), index)


@dataclass(frozen=True)
class Where:
    """By whom a call is made.

    Attributes:
        worker_type: "inline", "thread" or "process".
        workers: How many of them each make it.
        environment: Directory and environment of processes; None for those of now.
        hooks: Whether the sequence's hooks are called.
    """

    worker_type: str = "thread"
    workers: int = 1
    environment: Environment | None = None
    hooks: bool = True


class Calling:
    """Workers that are making a call.

    Args:
        sequence: The sequence.
        seed: Seed of the feed that would read it.
        function: What they call, with a reader of the sequence.
        where: Who.
        scene_seconds: What outlasts this between two notes has hung, s.

    Raises:
        TypeError, OSError: The sequence cannot be sent to processes.
    """

    def __init__(self, sequence: Any, seed: int, function: Call, where: Where, scene_seconds: float) -> None:
        options = PoolOptions(
            where.workers, f"the check of {class_name(sequence)}", timeout=scene_seconds, tries=1, tries_in_time=1,
            addressed=True, environment=where.environment or Environment.now(),
        )  # fmt: skip
        self._pool: Pool = make_pool(CallRunner(sequence, seed, hooks=where.hooks), options, where.worker_type)
        self._tasks: Sequence[_CallTask] = [_CallTask(0, number, number) for number in range(where.workers)]
        try:
            self._pool.post(function)
            self._pool.submit(self._tasks)
        except BaseException:
            self.close()
            raise

    def results(self, deadline: float) -> list[Any]:
        """What the call returned, by worker.

        Raises:
            OutOfTimeError: It was not there at `deadline`, by `time.monotonic`.
            LostWorkerError, WorkerStartError: A worker hung, ended, or could not start.
            Exception: What the call raised.
        """
        try:
            return [task.future.result(max(0.05, deadline - time.monotonic())) for task in self._tasks]
        except FutureTimeoutError as error:
            if all(task.future.done() for task in self._tasks):  # the user's
                raise
            raise OutOfTimeError from error

    def close(self) -> None:
        """End the workers."""
        self._pool.close()


def call(sequence: Any, seed: int, function: Call, where: Where, scene_seconds: float, deadline: float) -> list[Any]:
    """What `function` returns, by worker; raises what `Calling` and `Calling.results` raise."""
    with closing(Calling(sequence, seed, function, where, scene_seconds)) as calling:
        return calling.results(deadline)
