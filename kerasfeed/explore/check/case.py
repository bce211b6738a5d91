"""The sequence under check, shared facts, and calls in workers.

Invariant: calls run in workers, as in a feed, and a call that hangs raises a `Finding`. Calls run in the calling thread
only if scenes can be read nowhere else. Checks change the sequence only as reading does. Workers import this module: no
framework here.
"""

import functools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError as FutureTimeoutError
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from kerasfeed.errors import KerasfeedError
from kerasfeed.explore.check.reading import Reader, SceneReading, Survey, read_all, survey
from kerasfeed.explore.check.result import Finding, LostWorker, skipped
from kerasfeed.loaders.sequence_argument import check_sequence
from kerasfeed.pool.base import PoolOptions, Runner, WorkerContext
from kerasfeed.pool.environment import Environment
from kerasfeed.pool.factory import make_pool
from kerasfeed.pool.processes.shared_objects import pickled
from kerasfeed.pool.task import NOWHERE, Crash, FailedTaskError, FailurePosition, FutureTask, Record, Task, TaskProgress
from kerasfeed.spec.inference import merge, probe_indices
from kerasfeed.spec.scene_spec import SceneSpec
from kerasfeed.util.error_text import class_name, message_of
from kerasfeed.util.picklers import unpickled

Call = Callable[[Reader], Any]
_PASSES = 32  # over the scenes, by all checks together
_SHARE = 0.5  # of the time, spent on these passes
_HANG_SHARE = 1 / 3  # of the time: a call that takes longer counts as hung
_HANG_MOST = 20.0  # s
_FEWEST = 2
_FEW = 16  # compared scenes that several threads read again and again
_SURVEY_SHARE = 1 / 4  # of the time, for reading many scenes once
_QUICK_SECONDS = 1.0  # a shorter epoch needs no worker process
_LEAST_SECONDS = 1e-4  # lower bound of the time to read and examine a scene
_MOST_KEPT = 256e6  # bytes: an unread copy up to this size has its own arrays


class CallRunner(Runner):
    """Calls the function posted last, with a reader of the sequence.

    Args:
        sequence: The sequence.
        seed: Seed of the reader.
        hooks: Whether workers call the sequence's hooks.
    """

    def __init__(self, sequence: Any, seed: int, *, hooks: bool) -> None:
        self.sequence = sequence
        self.seed = seed
        self.target = sequence if hooks else None

    def run(self, record: Record, progress: TaskProgress, context: WorkerContext) -> Any:
        """See `Runner.run`."""
        try:
            return context.posted()(Reader(self.sequence, self.seed, progress, context.worker))
        except BaseException as error:
            raise FailedTaskError(FailurePosition()) from error


@dataclass(frozen=True, eq=False)
class _CallTask(FutureTask):
    """A call; a position is the index of a scene."""

    def text(self, position: int) -> str:
        """See `Task.text`."""
        return "" if position == NOWHERE else f"scene {position}"

    def crashed(self, position: int, crash: Crash, count: int) -> Sequence[Task]:
        """See `Task.crashed`."""
        self.set_exception(self._lost(position, crash, "a worker process"))
        return ()

    def stuck(self, position: int, crash: Crash) -> None:
        """See `Task.stuck`."""
        self.set_exception(self._lost(position, crash, "a worker thread"))

    def _lost(self, position: int, crash: Crash, where: str) -> LostWorker:
        hung = f"{self.text(position) or 'a call'} takes more than {crash.timeout:g} s in {where}" if crash.hung else ""
        return LostWorker("failed", hung or str(crash), None if position == NOWHERE else position)


def called(
    sequence: Any, seed: int, function: Call, *, deadline: float, timeout: float, worker_type: str = "thread",
    workers: int = 1, environment: Environment | None = None, hooks: bool = True,
) -> list[Any]:  # fmt: skip
    """Call a function in workers, and return their results.

    Args:
        sequence: The sequence.
        seed: Seed of the feed that is imitated.
        function: Each worker calls it, with a reader of the sequence.
        deadline: Time limit, by `time.monotonic`.
        timeout: Longest time for one scene, s; a call that takes longer counts as hung.
        worker_type: "inline", "thread" or "process".
        workers: Number of workers.
        environment: Directory and environment of worker processes; None to use this process's own.
        hooks: Whether the sequence's hooks are called.

    Raises:
        Finding: A worker hung, died or could not start, or the time is over.
        TypeError, OSError: The sequence cannot be sent to processes.
        Exception: The error of the function.
    """
    options = PoolOptions(
        workers, f"the check of {class_name(sequence)}", timeout=timeout, tries=1, addressed=True,
        environment=environment or Environment.now(),
    )  # fmt: skip
    with closing(make_pool(CallRunner(sequence, seed, hooks=hooks), options, worker_type)) as pool:
        tasks = [_CallTask(0, number, number) for number in range(workers)]
        pool.post(function)
        pool.submit(tasks)
        try:
            return [task.future.result(max(0.05, deadline - time.monotonic())) for task in tasks]
        except KerasfeedError as error:
            raise LostWorker("failed", message_of(error).strip()) from error
        except FutureTimeoutError as error:
            if all(task.future.done() for task in tasks):  # the user's own error
                raise
            raise skipped("the check did not end in the remaining time: pass a larger seconds=") from error


def length_of(sequence: Any) -> int:
    """Number of scenes; for a Keras `PyDataset`, number of batches."""
    return len(sequence) if hasattr(type(sequence), "__len__") else check_sequence(sequence)


class Case:
    """A sequence under check.

    Args:
        sequence: The sequence.
        scenes: Largest number of scenes to compare.
        seconds: Time limit for the checks, s.
        seed: Seed of each scene's `rng`.
        processes: Whether to start worker processes even if reading all scenes takes less than a second.
    """

    def __init__(self, sequence: Any, *, scenes: int, seconds: float, seed: int, processes: bool) -> None:
        self.sequence = sequence
        self.seconds = seconds
        self.seed = seed
        self._most = scenes
        self._worker_type = "thread"
        self.thread_trouble = ""  # error of scene 0 in a worker thread, if the calling thread can read it
        self.scene_seconds = min(_HANG_MOST, _HANG_SHARE * seconds)
        self._processes = processes
        self.lost = False  # whether a worker process died, hung or did not start
        self.deadline = time.monotonic() + self.seconds

    @functools.cached_property
    def length(self) -> int:
        """Number of scenes. Raises the error of `len`."""
        return length_of(self.sequence)

    @functools.cached_property
    def items_are_batches(self) -> bool:
        """Whether items are batches, as in a Keras `PyDataset`."""
        bases = type(self.sequence).__mro__
        return any(base.__name__ == "PyDataset" and base.__module__.partition(".")[0] == "keras" for base in bases)

    @property
    def is_quick(self) -> bool:
        """Whether a feed needs no worker process to read all scenes."""
        seconds = [reading.seconds for pair in self.twice for reading in pair]
        return not self._processes and self.length * float(np.median(seconds)) < _QUICK_SECONDS

    @functools.cached_property
    def _unread(self) -> list[Any] | None:
        """Pickle of the sequence, made before any scene was read, or None."""
        try:
            head, *buffers = pickled(self.sequence)
        except Exception:  # noqa: BLE001 - the user's error; another check reports it
            return None
        few = sum(buffer.nbytes for buffer in buffers) <= _MOST_KEPT
        return [bytes(head), *(bytes(buffer) if few else buffer for buffer in buffers)]

    def unread(self) -> Any:
        """Return a copy made before any scene was read, or None."""
        if self._unread is None:
            return None
        head, *buffers = self._unread
        try:
            return unpickled(head, [bytearray(buffer) for buffer in buffers])
        except Exception:  # noqa: BLE001 - the user's error; another check reports it
            return None

    # ---- calls

    def call(
        self, function: Callable[..., Any], sequence: Any = None, *, worker_type: str = "", hooks: bool = True,
        timeout: float | None = None, environment: Environment | None = None, **arguments: Any,
    ) -> Any:  # fmt: skip
        """Call `function` in one worker with a reader and the arguments.

        The worker runs in this process, unless `worker_type` is "process".
        """
        target = self.sequence if sequence is None else sequence
        return called(
            target, self.seed, partial(function, **arguments), deadline=self.deadline,
            timeout=timeout or self.scene_seconds, worker_type=worker_type or self._worker_type,
            environment=environment, hooks=hooks,
        )[0]  # fmt: skip

    def read(self, plan: Sequence[int], sequence: Any = None) -> list[SceneReading]:
        """Read these scenes in this order."""
        return self.call(read_all, sequence, plan=plan)  # type: ignore[no-any-return]

    # ---- facts about the scenes

    @functools.cached_property
    def first(self) -> tuple[SceneReading, SceneReading]:
        """Two readings of scene 0, which decide which thread reads scenes."""
        _ = self._unread
        one, two = self.read([0, 0])
        if one.error and not one.out_of_range:
            self._worker_type = "inline"
            here = self.read([0, 0])
            if not here[0].error:
                self.thread_trouble = one.error
                return here[0], here[1]
            self._worker_type = "thread"
        return one, two

    @functools.cached_property
    def indices(self) -> list[int]:
        """Indices of the scenes to compare, spread over the sequence."""
        # Examining the first scene takes longer, because of imports.
        seconds = max(one.seconds for one in self.first) + min(one.examine_seconds for one in self.first)
        fitting = int(_SHARE * self.seconds / (_PASSES * seconds + 1e-9))
        return probe_indices(self.length, max(_FEWEST, min(self._most, fitting)))

    def is_fatal(self, finding: Finding) -> bool:
        """Whether checks that need this one are skipped."""
        compared = vars(self).get("indices", [finding.index])
        would_hang = isinstance(finding, LostWorker)
        return finding.status == "failed" and (finding.index is None or finding.index in compared or would_hang)

    @functools.cached_property
    def survey(self) -> Survey:
        """Survey of as many scenes as the time allows."""
        seconds = _SURVEY_SHARE * self.seconds
        usual = float(np.median([one.seconds + one.examine_seconds for one, _ in self.twice]))
        fitting = max(1, int(seconds / max(usual, _LEAST_SECONDS)))
        plan = range(0, self.length, -(-self.length // fitting))
        return self.call(survey, plan=plan, seconds=seconds)  # type: ignore[no-any-return]

    def counts(self) -> tuple[int, int, int]:
        """Numbers of compared scenes, of scenes read, and of all scenes."""
        known = vars(self)  # only the cached properties that were used
        read = max(len(known.get("twice", ())), known["survey"].count if "survey" in known else 0)
        return len(known.get("readings", ())), read, known.get("length", 0)

    @functools.cached_property
    def twice(self) -> list[tuple[SceneReading, SceneReading]]:
        """Two readings in a row of each compared scene, in ascending order."""
        _ = self.first
        readings = self.read([index for index in self.indices for _ in range(2)])
        return list(zip(readings[::2], readings[1::2], strict=True))

    @functools.cached_property
    def readings(self) -> list[SceneReading]:
        """First readings of the scenes that can be read."""
        return [one for one, _ in self.twice if not one.error and not one.refusal]

    @property
    def good(self) -> list[int]:
        """Indices of `readings`."""
        return [reading.index for reading in self.readings]

    @property
    def few(self) -> list[int]:
        """Some of `good`."""
        return self.good[:: -(-len(self.good) // _FEW)]

    @functools.cached_property
    def spec(self) -> SceneSpec:
        """Common spec of `readings`; raises SpecError if there is none."""
        return merge([(reading.index, reading.spec) for reading in self.readings if reading.spec is not None])
