"""`kf.from_indexable`: the scenes of a sequence as elements of a `tf.data.Dataset`.

Invariant: scenes are read by as many threads as calls were asked for, on any number of cores, in none of TensorFlow's
calls. A task's scenes come in the order of their indices, each as `sequence[index]` gives it; those of equal shapes
travel together, and are parted again where no Python runs. The threads end with the dataset.
"""

import itertools
import queue
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kerasfeed.errors import SpecError
from kerasfeed.feeds.cursor import EndOfData, check_alive
from kerasfeed.feeds.feed_cursor import Prefetcher
from kerasfeed.loaders.arguments import check_seed
from kerasfeed.loaders.failures.exceptions import SceneLocation, for_consumer, without_reproduction
from kerasfeed.loaders.sequence_argument import check_sequence
from kerasfeed.orders.base import Sequential
from kerasfeed.pool.worker_hooks import begin_worker
from kerasfeed.sequences.base import SceneContext, Worker, optional_method
from kerasfeed.sequences.frames import as_sequence
from kerasfeed.sequences.view_base import is_thread_safe
from kerasfeed.spec.conformance import conform
from kerasfeed.spec.inference import describe, merge, probe_indices
from kerasfeed.spec.nesting import flatten_as
from kerasfeed.spec.scene_spec import ArraySpec, SceneSpec
from kerasfeed.util.error_text import message_of
from kerasfeed.util.polling import NotYet
from kerasfeed.util.resources import cores
from kerasfeed.util.validate import check_integer

if TYPE_CHECKING:
    import tensorflow as tf

_MOST_SCENES, _MOST_BYTES = 64, 1 << 22  # of a task
_TASK_SECONDS = 0.002  # a task costs about 50 us


def from_indexable(
    sequence: Any, *, num_parallel_calls: int | None = None, deterministic: bool = True, seed: int | None = None
) -> "tf.data.Dataset":
    """A `tf.data.Dataset` of the scenes of a sequence, one scene an element.

    For pipelines that shuffle, batch and prefetch with tf.data. `Feed(...).to_tf_dataset()` does that by itself, in
    worker processes, and is several times faster.

    Args:
        sequence: Any object with `__len__` and `__getitem__(index)` that returns one scene; see `kerasfeed.Feed`. Its
            `on_worker_begin` and `on_worker_end` are called in each thread; its epoch hooks are not called.
        num_parallel_calls: Number of concurrent `__getitem__` calls, each in a thread, whatever the number of cores and
            of TensorFlow's threads. None, or `tf.data.AUTOTUNE`, is the number of cores where the class says
            `thread_safe = True`, and 1 elsewhere.
        deterministic: Whether scenes come in the order of their indices. False delivers whichever is read first.
        seed: Integer >= 0 that decides `self.rng`, which depends only on (seed, iteration, index); iterations of the
            dataset count from 0. None draws one.

    Returns:
        A dataset of `len(sequence)` scenes, nested as they are (lists become tuples), not prefetched. Shapes and dtypes
        are those of a few scenes that are read now; an axis whose size differs among them is None. An exception of a
        scene is raised by a loop over the dataset, and the next element is the next scene.

    Raises:
        ImportError: TensorFlow is not installed.
        TypeError: An argument has the wrong type, or a field has a dtype that TensorFlow does not have.
        ValueError: An argument is out of range, or the sequence is empty.
        Exception: What the sequence raises for one of the scenes that are read now.

    Examples:
        >>> dataset = kf.from_indexable(np.zeros((10, 3), np.float32), num_parallel_calls=2)
        >>> for batch in dataset.batch(5):
        ...     print(batch.shape)
        (5, 3)
        (5, 3)
    """
    from kerasfeed.adapters.tensorflow.dataset import scenes_dataset

    sequence = as_sequence(sequence)
    length = check_sequence(sequence, "from_indexable()")
    seed = check_seed(seed, Sequential(), 1)
    if num_parallel_calls in (None, -1):  # tf.data.AUTOTUNE
        num_parallel_calls = cores() if is_thread_safe(sequence) else 1
    calls = check_integer("num_parallel_calls", num_parallel_calls, 1)
    readers = SceneReaders(sequence, seed, min(calls, length))
    spec = readers.infer(probe_indices(length))
    structure = spec.unflatten([ArraySpec((None, *field.shape), field.dtype) for field in spec.fields])
    iterations = itertools.count()

    def begin(_: Any) -> ScenesCursor:
        return ScenesCursor(weakref.ref(readers), next(iterations), length, in_order=deterministic)

    return scenes_dataset(begin, structure, count=length)


class ScenesCursor:
    """The scenes of one iteration, in stacks; see `kerasfeed.feeds.cursor.Cursor`."""

    def __init__(
        self, readers: "Callable[[], SceneReaders | None]", iteration: int, length: int, *, in_order: bool
    ) -> None:
        """Take `length` scenes that `readers`, a weak reference, read."""
        self._readers = readers
        self._iteration = iteration
        self._length = length
        self._begun = self._given = 0  # scenes
        self._stacks: deque[Any] = deque()
        ahead = 2 * self._known().count + 2  # every thread at one task while it has another waiting
        self._window = Prefetcher(self._submit, 0, sys.maxsize, ahead, in_order=in_order)

    def _known(self) -> "SceneReaders":
        return check_alive(self._readers(), "the dataset is gone: keep a reference to it while it is iterated")

    def _submit(self, number: int, timeout: float | None) -> "Future[list[Any]]":
        if self._begun == self._length:
            raise NotYet  # nor ever: the window is as full as it gets
        future, self._begun = self._known().read(self._iteration, self._begun, self._length)
        return future

    def take(self, timeout: float | None) -> tuple[int, Any]:
        """See `kerasfeed.feeds.cursor.Cursor.take`: arrays of the fields, scene axis first."""
        if not self._stacks:
            if self._given == self._length:
                raise EndOfData
            self._stacks.extend(self._window.next_batch(timeout))
        stack = self._stacks.popleft()
        if isinstance(stack, BaseException):
            self._given += 1
            raise stack
        first = self._given
        self._given += len(stack[0])
        return first, stack

    def received(self, place: int | None) -> None:
        """See `kerasfeed.feeds.cursor.Cursor.received`: nobody asks where a consumer stands."""

    def close(self, returned: list[Any]) -> None:
        """See `kerasfeed.feeds.cursor.Cursor.close`."""
        self._window.close()


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
        weakref.finalize(self, self._tasks.put, None)

    def infer(self, indices: list[int]) -> SceneSpec:
        """The spec of the scenes; reads those at `indices`."""
        found = [self._submit(None, [index]) for index in indices]
        described = [future.result()[0] for future in found]
        for one in described:
            if isinstance(one, BaseException):
                raise one
        spec = merge(list(zip(indices, described, strict=True)))
        fields_of = partial(flatten_as, spec.treespec)
        self._reading.check = lambda scene: fields_of(conform(scene, spec))
        return spec

    def _submit(self, iteration: int | None, indices: Sequence[int]) -> "Future[list[Any]]":
        future: Future[list[Any]] = Future()
        self._tasks.put(_ReadTask(self._reading, future, iteration, indices))
        return future

    def read(self, iteration: int, start: int, stop: int) -> "tuple[Future[list[Any]], int]":
        """Promise some of the scenes in [`start`, `stop`); returns the index after the last of them, too."""
        following = min(stop, start + self._reading.scenes_of_a_task)
        return self._submit(iteration, range(start, following)), following


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
    tasks.put(None)  # for the next thread
    if end is not None:
        end()


class _Reading:
    """Reads the scenes of tasks; thread-safe.

    Attributes:
        check: Makes of a scene the list of its fields, as the spec has them; its own spec while that is inferred.
        scenes_of_a_task: How many scenes make a task of about 2 ms.
    """

    def __init__(self, sequence: Any, seed: int) -> None:
        self._sequence = sequence
        self._seed = seed
        self.check: Callable[[Any], Any] = describe
        self.scenes_of_a_task = 1

    def begin(self, worker: Worker, name: str) -> tuple[Callable[[], None] | None, BaseException | None]:
        """Tell the sequence of a thread; returns what to call at its end, and what went wrong."""
        trouble = begin_worker(self._sequence, worker, name)
        return (optional_method(self._sequence, "on_worker_end") if trouble is None else None), trouble

    def read(self, task: _ReadTask, name: str, trouble: BaseException | None) -> list[Any]:
        """What the future of `task` is to give; every scene fails of `trouble`, if there is any."""
        found: list[Any] = []  # lists of scenes of equal shapes, and exceptions
        context = SceneContext(self._seed, task.iteration or 0)
        started = time.perf_counter()
        with context:
            for index in task.indices:
                context.move_to(index)
                try:
                    if trouble is not None:
                        raise trouble
                    scene = self._checked(index)
                except BaseException as error:  # noqa: BLE001 - whatever it is, somebody waits
                    found.append(for_consumer(error, SceneLocation((index,), task.iteration, None, name)))
                    without_reproduction(found[-1])
                    continue
                if task.iteration is None:
                    return [scene]
                if found and isinstance(found[-1], list) and _shapes(found[-1][0]) == _shapes(scene):
                    found[-1].append(scene)
                else:
                    found.append([scene])
        read = [_stacked(each) if isinstance(each, list) else each for each in found]
        self._note(time.perf_counter() - started, len(task.indices), read[-1])
        return read

    def _checked(self, index: int) -> Any:
        scene = self._sequence[index]
        try:
            return self.check(scene)
        except SpecError as error:
            raise SpecError(f"scene {index}: {message_of(error)}") from None

    def _note(self, seconds: float, scenes: int, last: Any) -> None:
        fitting = min(int(_TASK_SECONDS * scenes / max(seconds, 1e-9)), _MOST_SCENES)
        if isinstance(last, list):
            scene_bytes = sum(field[0].nbytes for field in last if field.dtype != object)
            fitting = min(fitting, _MOST_BYTES // max(1, scene_bytes))
        self.scenes_of_a_task = max(1, fitting)


def _shapes(fields: list[Any]) -> list[Any]:
    return [np.shape(field) for field in fields]


def _stacked(scenes: list[list[Any]]) -> list[Any]:
    """The fields of scenes of equal shapes, scene axis first; text is an array of objects."""
    stack = []
    for values in zip(*scenes, strict=True):
        made = np.empty((len(values), *np.shape(values[0])), getattr(values[0], "dtype", object))
        for number, value in enumerate(values):
            made[number] = value
        stack.append(made)
    return stack
