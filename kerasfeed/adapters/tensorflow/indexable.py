"""`kf.from_indexable`: the scenes of a sequence as elements of a `tf.data.Dataset`.

Invariant: scenes are read by as many threads as calls were asked for, on any number of cores, in none of TensorFlow's
calls. Those of equal shapes that are read together travel together, and are parted again where no Python runs.
"""

import itertools
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import numpy as np

from kerasfeed.adapters.tensorflow.scene_readers import MOST_SCENES, SceneReaders
from kerasfeed.feeds.cursor import EndOfData, check_alive
from kerasfeed.feeds.feed_cursor import Prefetcher
from kerasfeed.loaders.arguments import check_seed
from kerasfeed.loaders.sequence_argument import check_sequence
from kerasfeed.orders.base import Sequential
from kerasfeed.sequences.view_base import is_thread_safe
from kerasfeed.spec.inference import probe_indices
from kerasfeed.spec.scene_spec import ArraySpec
from kerasfeed.util.frames import as_sequence
from kerasfeed.util.polling import NotYet
from kerasfeed.util.resources import cores
from kerasfeed.util.validate import check_integer

if TYPE_CHECKING:
    import tensorflow as tf

_MOMENT = 0.001  # s; calls follow one another quickly where they are at most two moments apart
_MOST_COPIED = 1 << 20  # bytes of scenes that are put together for one call of TensorFlow


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

    if hasattr(sequence, "plan") and hasattr(sequence, "sequence"):
        raise TypeError(
            "from_indexable() takes the sequence of scenes, received a feed, of batches: pass feed.sequence"
        )
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
        self, readers: Callable[[], SceneReaders | None], iteration: int, length: int, *, in_order: bool
    ) -> None:
        """Take `length` scenes that `readers`, a weak reference, read."""
        self._readers = readers
        self._iteration = iteration
        self._length = length
        self._begun = self._given = 0  # scenes
        self._called = 0.0  # when scenes were last taken
        self._stacks: deque[Any] = deque()
        ahead = 2 * self._known().count + 2  # every thread at one task while it has another waiting
        self._window = Prefetcher(self._submit, 0, sys.maxsize, ahead, in_order=in_order)

    def _known(self) -> SceneReaders:
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
            self._stacks.extend(self._window.take(timeout))
        stack = self._stacks.popleft()
        if isinstance(stack, BaseException):
            self._given += 1
            raise stack
        stack = self._with_those_behind(stack)
        first = self._given
        self._given += len(stack[0])
        return first, stack

    def received(self, place: int) -> None:
        """See `kerasfeed.feeds.cursor.Cursor.received`: nobody asks where a consumer stands."""

    def end(self) -> None:
        """See `kerasfeed.feeds.cursor.Cursor.end`."""

    def _with_those_behind(self, stack: list[Any]) -> list[Any]:
        """`stack`, and what of the scenes behind it is read and small and of the same shapes.

        A call of TensorFlow costs as much as copying 1 MB. So the more scenes there are a second, the more are taken
        with each call; where calls follow one another quickly, it waits for a moment for the next scenes.
        """
        now = time.perf_counter()
        may_wait, self._called = now - self._called < 2 * _MOMENT, now
        found, shapes = [stack], [field.shape[1:] for field in stack]
        scenes = len(stack[0])
        most = min(MOST_SCENES, _MOST_COPIED // max(1, sum(field.nbytes for field in stack) // scenes))
        while scenes < most:
            if not self._stacks:
                try:
                    self._stacks.extend(self._window.take(0))
                except NotYet:
                    if not may_wait or self._given + scenes == self._length:
                        break
                    may_wait = False
                    time.sleep(_MOMENT)
                    continue
            behind = self._stacks[0]
            if isinstance(behind, BaseException) or [field.shape[1:] for field in behind] != shapes:
                break
            found.append(self._stacks.popleft())
            scenes += len(behind[0])
        return stack if len(found) == 1 else [np.concatenate(fields) for fields in zip(*found, strict=True)]

    def close(self, returned: list[Any]) -> None:
        """See `kerasfeed.feeds.cursor.Cursor.close`."""
        self._window.close()
