"""What a scene may know of the place where it is loaded.

Invariant: the context of a scene is (seed, epoch, index, worker), kept per thread and set by whoever loads the scene.
Randomness is a function of the first three alone, so it does not matter which worker loads a scene, or when. The index
is that of the sequence that the feed was given: a sequence inside a view draws the numbers of its place in the feed.
A collate function has a generator of its own, a function of (seed, epoch, step, shard).
"""

from __future__ import annotations  # so that annotations do not load numpy.random: 15 ms of a worker's start

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from kerasfeed.errors import KerasfeedError
from kerasfeed.util.lru import PerProcess
from kerasfeed.util.seed_streams import SeedStream

_READS_MANY = (
    "self.rng belongs to one scene, and get_batch and read_ahead are given many: use self.rng_for(index) for each index"
)
_COLLATES_MANY = (
    "self.rng belongs to one scene, and a collate function makes a batch of many: use kf.current_rng(), which there is "
    "the generator of the batch; or draw in __getitem__, and return the numbers as a part of the scene"
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
    """Note that this process is a worker process."""
    global _is_worker_process
    _is_worker_process = True


def in_worker_process() -> bool:
    """Whether this process is a worker process of a pool."""
    return _is_worker_process


class SceneContext:
    """Seed, epoch and index of the scene that a thread is loading; the thread moves one object from scene to scene.

    `with context:` makes it the context of this thread.
    """

    __slots__ = ("_batch", "_batch_rng", "_outer", "_places", "_rng", "epoch", "index", "seed")

    def __init__(self, seed: int, epoch: int) -> None:
        self.seed = seed
        self.epoch = epoch
        self.index: int | None = None
        self._rng: np.random.Generator | None = None
        self._batch: int | None = None  # the number of the batch of which a collate function is given the scenes
        self._batch_rng: np.random.Generator | None = None
        self._outer: list[SceneContext | None] = []
        self._places: dict[int, int] | None = None  # index inside a view -> index of the feed, while many are read

    def __enter__(self) -> None:
        """Make this the thread's context."""
        self._outer.append(_current.context)
        _current.context = self

    def __exit__(self, *_: object) -> None:
        """Make the context before this one the thread's again."""
        _current.context = self._outer.pop()

    def move_to(self, index: int | None) -> None:
        """Go to the scene `index`; None while many scenes are read at once."""
        self.index = index
        self._rng = None

    def begin_collate(self, batch: int) -> None:
        """Leave the last scene, for the function that makes a batch: number `batch` of the epoch, of all shards."""
        self.move_to(None)
        self._batch, self._batch_rng = batch, None

    @property
    def rng(self) -> np.random.Generator:
        """The scene's generator, made when first asked for (15 us)."""
        if self._rng is None:
            if self.index is None:
                raise KerasfeedError(_READS_MANY if self._batch is None else _COLLATES_MANY)
            self._rng = scene_rng(self.seed, self.epoch, self.index)
        return self._rng

    @property
    def current_rng(self) -> np.random.Generator:
        """The scene's generator; in a collate function that of the batch."""
        if self._batch is None or self.index is not None:
            return self.rng
        if self._batch_rng is None:
            self._batch_rng = _rng(self.seed, SeedStream.COLLATE, self.epoch, self._batch)
        return self._batch_rng

    @property
    def scene_epoch(self) -> int:
        """The epoch, for what gives other scenes in each."""
        return self.epoch

    def rng_for(self, index: int) -> np.random.Generator:
        """The generator of the scene that the sequence being read knows as `index`."""
        place = index if self._places is None else self._places.get(index, index)
        return scene_rng(self.seed, self.epoch, place)

    def restart_rng(self, following: np.random.Generator | None = None) -> np.random.Generator | None:
        """Let `rng` begin again, or go on with `following`; returns the generator in use so far, if any."""
        previous = self._rng
        self._rng = following
        return previous

    @contextmanager
    def inside(self, outer: Iterable[int], inner: Iterable[int]) -> Iterator[None]:
        """Around the reading of many scenes of a sequence inside a view: they draw the numbers of their places in it.

        Args:
            outer: Indices of the scenes in the view.
            inner: Their indices in the sequence inside, in the same order.
        """
        previous = self._places
        known = previous or {}
        self._places = {within: known.get(place, place) for within, place in zip(inner, outer, strict=True)}
        try:
            yield
        finally:
            self._places = previous


MakeContext = Callable[[int, int], SceneContext]  # of seed and epoch


class UnrandomContext(SceneContext):
    """The context of a scene that must be the same in every epoch: whatever would make it differ is refused."""

    __slots__ = ("_refusal",)

    def __init__(self, refusal: str) -> None:
        """`refusal` is the message for a scene that asks for random numbers, or for its epoch."""
        super().__init__(0, 0)
        self._refusal = refusal

    @property
    def rng(self) -> np.random.Generator:
        """Refused.

        Raises:
            KerasfeedError: Always.
        """
        raise KerasfeedError(self._refusal)

    @property
    def scene_epoch(self) -> int:
        """Refused, as `rng` is."""
        raise KerasfeedError(self._refusal)

    def rng_for(self, index: int) -> np.random.Generator:
        """Refused, as `rng` is."""
        return self.rng


class _CurrentContext(threading.local):
    context: SceneContext | None = None

    def __init__(self) -> None:
        # All forks would draw the same numbers from one generator, as workers of PyTorch's DataLoader.
        self.unseeded = PerProcess(lambda: np.random.default_rng())


_current = _CurrentContext()


def scene_rng(seed: int, epoch: int, index: int) -> np.random.Generator:
    """The generator of one scene, a function of its arguments alone (NumPy's SeedSequence and PCG64)."""
    return _rng(seed, SeedStream.SCENE, epoch, index)


def _rng(seed: int, *key: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy=seed, spawn_key=key)))


def current_context() -> SceneContext | None:
    """This thread's context; None outside a feed."""
    return _current.context


def current_epoch() -> int:
    """Epoch of the scene that this thread is loading; 0 outside a feed."""
    return 0 if _current.context is None else _current.context.scene_epoch


def current_rng() -> np.random.Generator:
    """Random generator of the scene that this thread is loading; in a collate function, of the batch.

    The same as `self.rng` in a `SceneSequence`, for functions that have no `self`. It depends only on (seed, epoch,
    index); in a stream on (seed, repetition, number of the item). In a function given as `collate` it depends only on
    (seed, epoch, step) and on the shard, in a stream on (seed, repetition, step). Outside a feed it is an unseeded
    generator of this thread.

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
