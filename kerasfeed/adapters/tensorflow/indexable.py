"""`kf.from_indexable`: the scenes of a sequence as elements of a `tf.data.Dataset`.

Invariant: `num_parallel_calls` threads read the scenes, on any number of cores, and not in calls by TensorFlow. The
scenes of a task are in the order of their indices, as `sequence[index]` returns them. One call by TensorFlow takes all
scenes of equal shapes that have been read; tf.data splits them again without Python. The threads end with the dataset.
"""

import contextlib
import itertools
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kerasfeed.errors import SpecError
from kerasfeed.feeds.cursor import Convert, Cursor, EndOfData, check_alive
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
from kerasfeed.spec.spec_json import as_scene_spec
from kerasfeed.util.error_text import message_of
from kerasfeed.util.polling import NotYet
from kerasfeed.util.resources import cores
from kerasfeed.util.validate import check_integer

if TYPE_CHECKING:
    import tensorflow as tf

_MOST_SCENES, _MOST_BYTES = 64, 1 << 22  # of a task, and of a stack
_TASK_SECONDS = 0.002  # a task costs about 50 us
_CALL_SECONDS = 0.001  # cost of a call by TensorFlow, so waiting this long for the next scene pays off


def from_indexable(
    sequence: Any,
    *,
    num_parallel_calls: int | None = None,
    deterministic: bool = True,
    seed: int | None = None,
    output_signature: Any = None,
) -> "tf.data.Dataset":
    """Make a `tf.data.Dataset` whose elements are the scenes of a sequence.

    For pipelines that shuffle, batch and prefetch with tf.data. `Feed(...).to_tf_dataset()` does these itself, in
    worker processes, and is several times faster.

    Args:
        sequence: Any object with `__len__` and `__getitem__(index)` that returns one scene; see `kerasfeed.Feed`. Its
            `on_worker_begin` and `on_worker_end` are called in each thread; its epoch hooks are not called.
        num_parallel_calls: Number of concurrent `__getitem__` calls, each in a thread, for any number of cores and
            TensorFlow threads. None, or `tf.data.AUTOTUNE`, is the number of cores if the class sets
            `thread_safe = True`, otherwise 1.
        deterministic: Whether scenes are in the order of their indices. False returns scenes as they are read.
        seed: Integer >= 0 for `self.rng`, which depends only on (seed, iteration, index); iterations of the dataset
            count from 0. None draws a seed.
        output_signature: Spec of a scene, as in tf.data: nested like the scenes, with a `tf.TensorSpec` or a
            `kerasfeed.ArraySpec(shape, dtype)` for each field, and None for an axis that varies. Each scene is checked
            against it. None infers it from a few scenes, read immediately; an axis whose size differs among them is
            None.

    Returns:
        A dataset of `len(sequence)` scenes, nested as they are (lists become tuples), not prefetched. An exception of a
        scene arrives as a `tf.errors.OpError` with its message, notes and traceback, and the next element is the next
        scene.

    Raises:
        ImportError: TensorFlow is not installed.
        TypeError: An argument has the wrong type, or a field has a dtype that TensorFlow does not have.
        ValueError: An argument is out of range, or the sequence is empty.
        Exception: The error of a scene that is read immediately.

    Examples:
        >>> dataset = kf.from_indexable(np.zeros((10, 3), np.float32), num_parallel_calls=2)
        >>> for batch in dataset.batch(5):
        ...     print(batch.shape)
        (5, 3)
        (5, 3)
    """
    from kerasfeed.adapters.tensorflow.dataset import scenes_dataset
    from kerasfeed.adapters.tensorflow.dtypes import arrays_of

    sequence = as_sequence(sequence)
    length = check_sequence(sequence, "from_indexable()")
    seed = check_seed(seed, Sequential(), 1)
    if num_parallel_calls in (None, -1):  # tf.data.AUTOTUNE
        num_parallel_calls = cores() if is_thread_safe(sequence) else 1
    calls = check_integer("num_parallel_calls", num_parallel_calls, 1)
    readers = SceneReaders(sequence, seed, min(calls, length))
    spec = readers.infer(probe_indices(length)) if output_signature is None else as_scene_spec(output_signature)
    readers.expect(spec, arrays_of)
    structure = spec.unflatten([ArraySpec((None, *field.shape), field.dtype) for field in spec.fields])
    iterations = itertools.count()

    def begin(convert: Convert) -> Cursor:
        return convert(ScenesCursor(weakref.ref(readers), next(iterations), length, in_order=deterministic))

    return scenes_dataset(begin, structure, count=length)


class ScenesCursor:
    """The scenes of one iteration, in stacks. See `kerasfeed.feeds.cursor.Cursor`."""

    def __init__(
        self, readers: "Callable[[], SceneReaders | None]", iteration: int, length: int, *, in_order: bool
    ) -> None:
        """Take `length` scenes from `readers`, a weak reference."""
        self._readers = readers
        self._iteration = iteration
        self._length = length
        self._in_order = in_order
        self._begun = self._given = 0  # scenes
        self._results = _Results()
        self._waiting: dict[int, list[Any]] = {}  # results of later tasks, by first index
        self._ready: deque[Any] = deque()  # the next scenes, or their errors
        self._next = 0  # first index of the next task to deliver
        self._in_flight = 0  # tasks

    def take(self, timeout: float | None) -> tuple[int, Any]:
        """See `kerasfeed.feeds.cursor.Cursor.take`: arrays of the fields, scene axis first.

        A call by TensorFlow costs as much as reading many scenes. So one call takes all scenes that have been read, and
        waits up to `_CALL_SECONDS` for each further task.
        """
        if self._given == self._length:
            raise EndOfData
        if not self._ready:
            self._receive(timeout)
        with contextlib.suppress(NotYet):
            while len(self._ready) < _MOST_SCENES:
                self._receive(_CALL_SECONDS)
        scene = self._ready.popleft()
        first = self._given
        self._given += 1
        if isinstance(scene, BaseException):
            raise scene
        scenes, shapes, most = [scene], _shapes(scene), _fitting(scene)
        while len(scenes) < most and self._ready and _shapes(self._ready[0]) == shapes:
            scenes.append(self._ready.popleft())
        self._given = first + len(scenes)
        return first, _stacked(scenes)

    def _receive(self, timeout: float | None) -> None:
        """Move the scenes of one task to `_ready`.

        Raises:
            NotYet: The task is not finished.
        """
        readers = check_alive(self._readers(), "the dataset was deleted: keep a reference to it while it is iterated")
        while self._in_flight < 2 * readers.count + 2 and self._begun < self._length:  # keeps all threads busy
            self._begun = readers.read(self._results, self._iteration, self._begun, self._length)
            self._in_flight += 1
        del readers  # do not keep the dataset alive while waiting
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._next not in self._waiting:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                first, scenes = self._results.get(timeout=left)
            except queue.Empty:
                raise NotYet from None
            self._in_flight -= 1
            self._waiting[first if self._in_order else self._next] = scenes
        scenes = self._waiting.pop(self._next)
        self._next += len(scenes)
        self._ready.extend(scenes)

    def close(self) -> None:
        """See `kerasfeed.feeds.cursor.Cursor.close`."""
        self._results.closed = True


class _Results(queue.SimpleQueue[tuple[int, list[Any]]]):
    """First index and scenes, or errors, of each finished task.

    Attributes:
        closed: Whether to skip tasks that have not begun.
    """

    closed = False


class _ReadTask(NamedTuple):
    """Scenes to read one after the other.

    Attributes:
        reading: Reads the scenes.
        results: Receives the scenes, each a list of its fields; or their specs, to infer the spec.
        iteration: Number of the iteration; None to infer the spec.
        indices: Indices of the scenes.
    """

    reading: "_Reading"
    results: _Results
    iteration: int | None
    indices: range


class SceneReaders:
    """Threads that read scenes of a sequence; they end with this object.

    A waiting thread holds neither this object nor the sequence, because the sequence may refer to this object. The
    exception is a sequence with `on_worker_end`, which the thread must call.

    Args:
        sequence: The sequence.
        seed: Seed of `self.rng`.
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
        """Infer the spec of the scenes from the scenes at `indices`."""
        results = _Results()
        for index in indices:
            self._tasks.put(_ReadTask(self._reading, results, None, range(index, index + 1)))
        described = sorted((results.get() for _ in indices), key=lambda result: result[0])
        for _, (one,) in described:
            if isinstance(one, BaseException):
                raise one
        return merge([(index, one) for index, (one,) in described])

    def expect(self, spec: SceneSpec, arrays_of: Callable[[Any, Sequence[str]], list[Any]]) -> None:
        """Check scenes against `spec` from now on, and their text with `arrays_of`."""
        fields_of = partial(flatten_as, spec.treespec)
        has_text = any(field.is_text for field in spec.fields)

        def check(scene: Any) -> list[Any]:
            fields: list[Any] = fields_of(conform(scene, spec))
            if has_text:
                arrays_of(fields, spec.paths)
            return fields

        self._reading.check = check

    def read(self, results: _Results, iteration: int, start: int, stop: int) -> int:
        """Start reading from `start`; return the index after the last scene."""
        following = min(stop, start + self._reading.scenes_of_a_task)
        self._tasks.put(_ReadTask(self._reading, results, iteration, range(start, following)))
        return following


def _work(tasks: "queue.SimpleQueue[_ReadTask | None]", worker: Worker) -> None:
    """Body of a thread."""
    name = f"scene thread {worker.index}"
    begun, end = False, None
    while (task := tasks.get()) is not None:
        trouble = None
        if not begun:
            end, trouble = task.reading.begin(worker, name)
            begun = trouble is None  # otherwise try again for the next task
        if not task.results.closed:
            task.results.put((task.indices.start, task.reading.read(task, name, trouble)))
        del task, trouble  # before waiting: the traceback of an error holds objects of the consumer
    tasks.put(None)  # for the next thread
    if end is not None:
        end()


class _Reading:
    """Reads the scenes of tasks; thread-safe.

    Attributes:
        check: Turns a scene into the list of its fields, or into its spec while the spec is inferred.
        scenes_of_a_task: Number of scenes that make a task of about 2 ms.
    """

    def __init__(self, sequence: Any, seed: int) -> None:
        self._sequence = sequence
        self._seed = seed
        self.check: Callable[[Any], Any] = describe
        self.scenes_of_a_task = 1

    def begin(self, worker: Worker, name: str) -> tuple[Callable[[], None] | None, BaseException | None]:
        """Call `on_worker_begin`; return `on_worker_end` and the error, if any."""
        trouble = begin_worker(self._sequence, worker, name)
        return (optional_method(self._sequence, "on_worker_end") if trouble is None else None), trouble

    def read(self, task: _ReadTask, name: str, trouble: BaseException | None) -> list[Any]:
        """Return the scenes of `task`, or their errors."""
        scenes: list[Any] = []
        context = SceneContext(self._seed, task.iteration or 0)
        started = time.perf_counter()
        with context:
            for index in task.indices:
                context.move_to(index)
                try:
                    if trouble is not None:
                        raise trouble
                    scenes.append(self._checked(index))
                except BaseException as error:  # noqa: BLE001 - the consumer waits for a result
                    scenes.append(for_consumer(error, SceneLocation((index,), task.iteration, None, name)))
                    without_reproduction(scenes[-1])
        if task.iteration is not None:
            fitting = int(_TASK_SECONDS * len(scenes) / max(time.perf_counter() - started, 1e-9))
            most = _fitting(scenes[-1]) if isinstance(scenes[-1], list) else _MOST_SCENES
            self.scenes_of_a_task = max(1, min(fitting, most))
        return scenes

    def _checked(self, index: int) -> Any:
        scene = self._sequence[index]
        try:
            return self.check(scene)
        except SpecError as error:
            raise SpecError(f"scene {index}: {message_of(error)}") from None


def _fitting(scene: list[Any]) -> int:
    """Return how many scenes like this one to stack at most."""
    return max(1, min(_MOST_SCENES, _MOST_BYTES // max(1, sum(getattr(field, "nbytes", 0) for field in scene))))


def _shapes(scene: Any) -> list[Any] | None:
    """Return the shapes of a scene's fields; None for an error."""
    return None if isinstance(scene, BaseException) else [getattr(field, "shape", ()) for field in scene]


def _stacked(scenes: list[list[Any]]) -> list[Any]:
    """Stack the fields of scenes of equal shapes, scene axis first."""
    stack = []
    for values in zip(*scenes, strict=True):
        field = np.empty((len(values), *np.shape(values[0])), getattr(values[0], "dtype", object))
        for number, value in enumerate(values):
            field[number] = value
        stack.append(field)
    return stack
