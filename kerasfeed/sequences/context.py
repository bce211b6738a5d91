"""The context of a scene: seed, epoch and index.

Invariant: a thread has at most one current context, set by the code that loads the scene. Random numbers are a function
of (seed, epoch, index), so the worker and the time of loading do not matter. Here, index means the index in the feed's
sequence: a sequence inside a view draws the numbers of the index in the view. A collate function has another generator,
a function of (seed, epoch, step, shard).
"""

from __future__ import annotations  # otherwise annotations import numpy.random: 15 ms of a worker's start

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from kerasfeed.errors import KerasfeedError
from kerasfeed.util.lru import PerProcess
from kerasfeed.util.seed_streams import SeedStream

_READS_MANY = (
    "self.rng belongs to one scene, but get_batch and read_ahead get many: use self.rng_for(index) for each index"
)
_COLLATES_MANY = (
    "self.rng belongs to one scene, but a collate function makes a batch of many: use kf.current_rng(), the generator "
    "of the batch; or draw in __getitem__, and return the numbers as part of the scene"
)


@dataclass(frozen=True)
class Worker:
    """The worker that calls `on_worker_begin`.

    Attributes:
        index: Number of this worker, in [0, count).
        count: Number of workers of the feed, at least 1.
        worker_type: "inline" (the calling thread, `workers=0`), "thread" or "process".
    """

    index: int
    count: int
    worker_type: str


_is_worker_process = False


def begin_worker_process() -> None:
    """Mark this process as a worker process."""
    global _is_worker_process
    _is_worker_process = True


def in_worker_process() -> bool:
    """Whether this process is a worker process of a pool."""
    return _is_worker_process


class SceneContext:
    """Seed, epoch and index of the scene that a thread is loading.

    A thread uses one object for all its scenes. `with context:` makes it the context of this thread.
    """

    __slots__ = ("_batch", "_batch_rng", "_inside", "_outer", "_rng", "epoch", "index", "seed")

    def __init__(self, seed: int, epoch: int) -> None:
        self.seed = seed
        self.epoch = epoch
        self.index: int | None = None
        self._rng: np.random.Generator | None = None
        self._batch: int | None = None  # number of the batch whose scenes a collate function gets
        self._batch_rng: np.random.Generator | None = None
        self._outer: list[SceneContext | None] = []
        self._inside: dict[int, int] | None = None  # index inside a view -> index of the feed, while many are read

    def __enter__(self) -> None:
        """Make this the thread's context."""
        self._outer.append(_current.context)
        _current.context = self

    def __exit__(self, *_: object) -> None:
        """Restore the thread's previous context."""
        _current.context = self._outer.pop()

    def move_to(self, index: int | None) -> None:
        """Set the current scene; None while many scenes are read at once."""
        self.index = index
        self._rng = None

    def begin_collate(self, batch: int) -> None:
        """Prepare for the collate function of batch `batch`: no scene is current."""
        self.move_to(None)
        self._batch, self._batch_rng = batch, None

    @property
    def rng(self) -> np.random.Generator:
        """The scene's generator, made on first use (15 us)."""
        if self._rng is None:
            if self.index is None:
                raise KerasfeedError(_READS_MANY if self._batch is None else _COLLATES_MANY)
            self._rng = scene_rng(self.seed, self.epoch, self.index)
        return self._rng

    @property
    def current_rng(self) -> np.random.Generator:
        """The scene's generator; in a collate function, the batch's."""
        if self._batch is None or self.index is not None:
            return self.rng
        if self._batch_rng is None:
            self._batch_rng = _rng(self.seed, SeedStream.COLLATE, self.epoch, self._batch)
        return self._batch_rng

    @property
    def scene_epoch(self) -> int:
        """The epoch, for sequences whose scenes depend on it."""
        return self.epoch

    def rng_for(self, index: int) -> np.random.Generator:
        """Return the generator of scene `index` of the sequence being read."""
        index = index if self._inside is None else self._inside.get(index, index)
        return scene_rng(self.seed, self.epoch, index)

    def restart_rng(self, following: np.random.Generator | None = None) -> np.random.Generator | None:
        """Start `rng` again, or continue with `following`.

        Return the generator used before, if any.
        """
        previous = self._rng
        self._rng = following
        return previous

    @contextmanager
    def inside(self, outer: Iterable[int], inner: Iterable[int]) -> Iterator[None]:
        """Map indices inside a view to indices of the view, for `rng_for`.

        Args:
            outer: Indices of the scenes in the view.
            inner: Their indices in the sequence inside, in the same order.
        """
        previous = self._inside
        known = previous or {}
        self._inside = {within: known.get(index, index) for within, index in zip(inner, outer, strict=True)}
        try:
            yield
        finally:
            self._inside = previous


MakeContext = Callable[[int, int], SceneContext]  # of seed and epoch


class UnrandomContext(SceneContext):
    """The context of scenes that must be the same in every epoch.

    It refuses random numbers and the epoch.
    """

    __slots__ = ("_refusal",)

    def __init__(self, refusal: str) -> None:
        """`refusal` is the message for random numbers, or for the epoch."""
        super().__init__(0, 0)
        self._refusal = refusal

    @property
    def rng(self) -> np.random.Generator:
        """Refuse random numbers.

        Raises:
            KerasfeedError: Always.
        """
        raise KerasfeedError(self._refusal)

    @property
    def scene_epoch(self) -> int:
        """Refuse the epoch, as `rng` does."""
        raise KerasfeedError(self._refusal)

    def rng_for(self, index: int) -> np.random.Generator:
        """Refuse random numbers, as `rng` does."""
        return self.rng


class _CurrentContext(threading.local):
    context: SceneContext | None = None

    def __init__(self) -> None:
        # PerProcess, because forks of one generator would all draw the same numbers.
        self.unseeded = PerProcess(lambda: np.random.default_rng())


_current = _CurrentContext()


def scene_rng(seed: int, epoch: int, index: int) -> np.random.Generator:
    """Return the generator of one scene (NumPy's SeedSequence and PCG64)."""
    return _rng(seed, SeedStream.SCENE, epoch, index)


def _rng(seed: int, *key: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy=seed, spawn_key=key)))


def current_context() -> SceneContext | None:
    """Return this thread's context; None outside a feed."""
    return _current.context


def current_epoch() -> int:
    """Return the epoch of the scene that this thread is loading.

    0 outside a feed.
    """
    return 0 if _current.context is None else _current.context.scene_epoch


def current_rng() -> np.random.Generator:
    """Random generator of the scene that this thread is loading.

    The same as `self.rng` in a `SceneSequence`, for functions that have no `self`. It depends only on (seed, epoch,
    index); in a stream on (seed, repetition, number of the item). In a function passed as `collate` it is the generator
    of the batch, which depends only on (seed, epoch, step) and on the shard; in a stream on (seed, repetition, step).
    Outside a feed it is an unseeded generator of this thread.

    Returns:
        A `numpy.random.Generator`.

    Examples:
        >>> def jitter(scene):
        ...     return scene + kf.current_rng().normal()
        >>> with kf.Feed(kf.Map([1.0, 2.0], jitter), batch_size=2, seed=0, workers=0) as feed:
        ...     print(np.array_equal(list(feed.epoch(0)), list(feed.epoch(0))))
        True
        >>> def shuffled(scenes):
        ...     return kf.current_rng().permutation(np.stack(scenes))
        >>> with kf.Feed([1.0, 2.0, 3.0], batch_size=3, seed=0, workers=0, collate=shuffled) as feed:
        ...     print(np.array_equal(feed[0], kf.load(feed, epoch=0, step=0)))
        True
    """
    context = _current.context
    return _current.unseeded.here() if context is None else context.current_rng
