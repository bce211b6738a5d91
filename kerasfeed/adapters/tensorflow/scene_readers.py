"""`SceneReaders`: threads that read the scenes of one sequence, several at a time where they are read quickly.

Invariant: a task's scenes come in the order of their indices, each as `sequence[index]` gives it. The threads end with
whoever holds the readers.
"""

import queue
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

import numpy as np

from kerasfeed.errors import SpecError
from kerasfeed.loaders.failures.exceptions import SceneLocation, for_consumer, without_reproduction
from kerasfeed.pool.worker_hooks import begin_worker
from kerasfeed.sequences.base import SceneContext, Worker, optional_method, scene_reader
from kerasfeed.spec.conformance import SceneCheck
from kerasfeed.spec.inference import describe, merge
from kerasfeed.spec.scene_spec import SceneSpec
from kerasfeed.util.error_text import message_of

MOST_SCENES, _MOST_BYTES = 64, 1 << 22  # of a task
_TASK_SECONDS = 0.002  # a task costs about 50 us


class _ReadTask(NamedTuple):
    """Scenes to read one after the other.

    Attributes:
        reading: Reads them.
        future: The promise of them: stacks of scenes of equal shapes, and what scenes raised, in the order of
            `indices`; while the spec is inferred, their specs.
        iteration: Number of the iteration; None to infer the spec.
        indices: Which.
    """

    reading: "_Reading"
    future: "Future[list[Any]]"
    iteration: int | None
    indices: Sequence[int]


class SceneReaders:
    """Threads that read scenes of a sequence; they end with this object.

    A thread that waits holds neither it nor the sequence (but for its `on_worker_end`), which may refer to this object.

    Args:
        sequence: The sequence.
        seed: Behind `self.rng`.
        count: Number of threads.
    """

    def __init__(self, sequence: Any, seed: int, count: int) -> None:
        self.count = count
        self._tasks: queue.SimpleQueue[_ReadTask | None] = queue.SimpleQueue()
        self._reading = _Reading(sequence, seed)
        for number in range(count):
            threading.Thread(
                target=_work, args=(self._tasks, Worker(number, count, "thread")), name=f"kerasfeed-scenes-{number}",
                daemon=True,
            ).start()  # fmt: skip
        weakref.finalize(self, _end, self._tasks, count)

    def infer(self, indices: list[int]) -> SceneSpec:
        """The spec of the scenes; reads those at `indices`."""
        found = [self._submit(None, [index]) for index in indices]
        described = [future.result()[0] for future in found]
        for one in described:
            if isinstance(one, BaseException):
                raise one
        spec = merge(list(zip(indices, described, strict=True)))
        self._reading.check = SceneCheck(spec)
        return spec

    def _submit(self, iteration: int | None, indices: Sequence[int]) -> "Future[list[Any]]":
        future: Future[list[Any]] = Future()
        self._tasks.put(_ReadTask(self._reading, future, iteration, indices))
        return future

    def read(self, iteration: int, start: int, stop: int) -> "tuple[Future[list[Any]], int]":
        """Promise some of the scenes in [`start`, `stop`); returns the index after the last of them, too."""
        following = min(stop, start + self._reading.scenes_of_a_task)
        return self._submit(iteration, range(start, following)), following


def _end(tasks: "queue.SimpleQueue[_ReadTask | None]", count: int) -> None:
    for _ in range(count):
        tasks.put(None)


def _work(tasks: "queue.SimpleQueue[_ReadTask | None]", worker: Worker) -> None:
    """Body of a thread."""
    name = f"scene thread {worker.index}"
    begun, end = False, None
    while (task := tasks.get()) is not None:
        trouble = None
        if not begun:
            end, trouble = task.reading.begin(worker, name)
            begun = trouble is None  # else it is tried again for the next task
        if task.future.set_running_or_notify_cancel():
            task.future.set_result(task.reading.read(task, name, trouble))
        del task, trouble  # not while it waits: the error's traceback holds what its consumers hold
    if end is not None:
        end()


class _Reading:
    """Reads the scenes of tasks; thread-safe.

    Attributes:
        check: Compares scenes with the spec; None while that is not known.
        scenes_of_a_task: How many scenes make a task of about 2 ms.
    """

    def __init__(self, sequence: Any, seed: int) -> None:
        self._sequence = sequence
        self._scene = scene_reader(sequence)
        self._seed = seed
        self.check: SceneCheck | None = None
        self.scenes_of_a_task = 1

    def begin(self, worker: Worker, name: str) -> tuple[Callable[[], None] | None, BaseException | None]:
        """Tell the sequence of a thread; returns what to call at its end, and what went wrong."""
        trouble = begin_worker(self._sequence, worker, name)
        return (optional_method(self._sequence, "on_worker_end") if trouble is None else None), trouble

    def read(self, task: _ReadTask, name: str, trouble: BaseException | None) -> list[Any]:
        """What the future of `task` is to give; every scene fails of `trouble`, if there is any."""
        found: list[Any] = []
        stack: _Stack | None = None
        context = SceneContext(self._seed, task.iteration or 0)
        started = time.perf_counter()
        with context:
            for place, index in enumerate(task.indices):
                context.move_to(index)
                try:
                    if trouble is not None:
                        raise trouble
                    read = self._checked(index, task.iteration is None)
                except BaseException as error:  # noqa: BLE001 - whatever it is, somebody waits
                    stack = None
                    found.append(for_consumer(error, SceneLocation((index,), task.iteration, None, name)))
                    without_reproduction(found[-1])
                    continue
                if task.iteration is None:
                    found.append(read)
                elif stack is None or not stack.add(read):
                    stack = _Stack(read, len(task.indices) - place)
                    found.append(stack)
        if task.iteration is not None:
            self._note(time.perf_counter() - started, len(task.indices), stack)
        return [each.fields() if isinstance(each, _Stack) else each for each in found]

    def _checked(self, index: int, unknown: bool) -> Any:
        scene = self._scene(index)
        try:
            if unknown:
                return describe(scene)
            assert self.check is not None
            return self.check.spec.treespec.flatten_up_to(self.check.conform(scene, copy=False))
        except SpecError as error:
            raise SpecError(f"scene {index}: {message_of(error)}") from None

    def _note(self, seconds: float, scenes: int, stack: "_Stack | None") -> None:
        fitting = min(int(_TASK_SECONDS * scenes / max(seconds, 1e-9)), MOST_SCENES)
        if stack is not None:
            fitting = min(fitting, _MOST_BYTES // max(1, stack.scene_bytes))
        self.scenes_of_a_task = max(1, fitting)


class _Stack:
    """Scenes of equal shapes, one array a field; each is copied, as the sequence may use its arrays again."""

    def __init__(self, leaves: list[Any], room: int) -> None:
        self._shapes = [np.shape(leaf) for leaf in leaves]
        self._arrays = [
            np.empty((room, *shape), getattr(leaf, "dtype", object))
            for leaf, shape in zip(leaves, self._shapes, strict=True)
        ]
        self._count = 0
        self.add(leaves)

    def add(self, leaves: list[Any]) -> bool:
        """Add a scene; False where its shapes differ."""
        if [np.shape(leaf) for leaf in leaves] != self._shapes:
            return False
        for array, leaf in zip(self._arrays, leaves, strict=True):
            array[self._count] = leaf
        self._count += 1
        return True

    def fields(self) -> list[Any]:
        """The arrays, scene axis first."""
        return [array[: self._count] for array in self._arrays]

    @property
    def scene_bytes(self) -> int:
        """Bytes of one scene."""
        return sum(array[0].nbytes if array.dtype != object else 0 for array in self._arrays)
