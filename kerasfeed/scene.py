"""`SceneSequence`, and what a scene may know of the place where it is loaded.

Invariant: the context of a scene is (seed, epoch, index, worker), kept per thread and set by whoever loads the scene.
Randomness is a function of the first three alone, so it does not matter which worker loads a scene, or when.
"""

from __future__ import annotations  # so that annotations do not load numpy.random: 15 ms of a worker's start

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from kerasfeed.errors import KerasfeedError
from kerasfeed.spec import as_array, describe, flatten

_RNG_STREAM = 1  # orders draw from stream 0 of the same seed


@dataclass(frozen=True)
class Worker:
    """Who calls `on_worker_begin`.

    Attributes:
        index: Number of this worker, in [0, count).
        count: Number of workers of the feed, at least 1.
        worker_type: "inline", "thread" or "process".
    """

    index: int
    count: int
    worker_type: str


class SceneContext:
    """Place of the scene being loaded: seed, epoch and index; one object a thread, moved from scene to scene."""

    __slots__ = ("_rng", "epoch", "index", "seed")

    def __init__(self, seed: int, epoch: int) -> None:
        self.seed = seed
        self.epoch = epoch
        self.index: int | None = None
        self._rng: np.random.Generator | None = None

    def move_to(self, index: int | None) -> None:
        """Enter the scene `index`; None while many scenes are read at once."""
        self.index = index
        self._rng = None

    @property
    def rng(self) -> np.random.Generator:
        """The scene's generator, made when first asked for (15 us)."""
        if self._rng is None:
            if self.index is None:
                raise KerasfeedError(
                    "self.rng belongs to one scene and get_batch reads many: use self.rng_for(index) for each index"
                )
            self._rng = scene_rng(self.seed, self.epoch, self.index)
        return self._rng


def optional_method(sequence: Any, name: str) -> Any:
    """The bound method `name` of a sequence whose class defines it, else None.

    Looked up on the class: a `__getattr__` that finds columns, or wraps another object, is not asked.
    """
    return getattr(sequence, name) if getattr(type(sequence), name, None) is not None else None


class _Current(threading.local):
    context: SceneContext | None = None
    unseeded: np.random.Generator | None = None


_current = _Current()


def scene_rng(seed: int, epoch: int, index: int) -> np.random.Generator:
    """The generator of one scene, a function of its arguments alone (NumPy's SeedSequence and PCG64)."""
    source = np.random.SeedSequence(entropy=seed, spawn_key=(_RNG_STREAM, epoch, index))
    return np.random.Generator(np.random.PCG64(source))


def enter_context(context: SceneContext | None) -> SceneContext | None:
    """Make `context` this thread's; returns the one it replaces, to be put back."""
    previous = _current.context
    _current.context = context
    return previous


class SceneSequence(ABC):
    """A sequence of scenes: subclass it with `__len__` and `__getitem__`.

    One scene is any nesting of tuples, dicts, lists and namedtuples of arrays, Python numbers, `str` and `bytes`,
    without a batch axis. `__getitem__` must return the same structure, dtypes and number of axes for every index, and
    must be safe to call from several threads when the feed's workers are threads.

    Optional methods, used where a subclass defines them:

    * `read_into(index, out)`: writes the scene at `index` into `out`, which has the nesting of a scene with a writable
      array for each field (0-d for a number): the scene's place in the batch, so that nothing is copied. Used where
      every field has a fixed shape and is not text. It must write the bits that `__getitem__` gives, which is still
      called to infer the spec, and once by each worker to compare.
    * `get_batch(indices)`: `indices` int64[B]; returns what stacking the B scenes would give, each field with a
      leading axis of B. For data that is faster to read many scenes at a time. Takes precedence over `read_into`.
    * `get_batch(indices, out=None)`: the same; where every field has a fixed shape and is not text, `out` holds the
      scenes' places in the batch, each with a leading axis of B. It may write there and return None, or `out`.
    * `read_ahead(indices)`: called before the scenes `indices` int64[B] are loaded, some time ahead, so that reading
      can begin in the background. Must return at once. Worker threads: called with each batch by the thread that asks
      for it. Worker processes: called in the worker with the scenes that it is about to load. What it raises is the
      batch's error, as from `get_batch`; `self.rng` is not for use here.
    * `on_worker_begin(worker)`: called once by each worker before its first scene; `worker` has `index`, `count` and
      `worker_type`.
    * `on_worker_end()`: called once by each worker after its last scene.

    A subclass need not call `super().__init__()`.
    """

    @abstractmethod
    def __len__(self) -> int:
        """Number of scenes."""

    @abstractmethod
    def __getitem__(self, index: int) -> Any:
        """The scene at `index`, in [0, len(self))."""

    def __iter__(self) -> Iterator[Any]:
        for index in range(len(self)):
            yield self[index]

    @property
    def rng(self) -> np.random.Generator:
        """Random generator of the scene being loaded, a function of (feed seed, epoch, index) alone.

        Made only when asked for (15 us). Asked for again within one scene, it continues. Outside a feed, where there
        is neither seed nor epoch, it is an unseeded generator of this thread.
        """
        context = _current.context
        if context is not None:
            return context.rng
        if _current.unseeded is None:
            _current.unseeded = np.random.default_rng()
        return _current.unseeded

    @rng.setter
    def rng(self, value: object) -> None:
        raise AttributeError(
            f"{type(self).__name__}.rng is kerasfeed's: a generator of (seed, epoch, index) alone, so that "
            "augmentation does not depend on the worker. Give your own generator another name"
        )

    def rng_for(self, index: int) -> np.random.Generator:
        """Random generator of the scene `index` in this epoch; what `self.rng` is there. For use in `get_batch`."""
        context = _current.context
        if context is None:
            return np.random.default_rng()
        return scene_rng(context.seed, context.epoch, int(index))

    def _repr_html_(self) -> str:
        from kerasfeed.html import FieldRow, field_table, preview  # a worker has no notebook to draw in

        name = type(self).__name__
        try:
            facts = [("scenes", f"{len(self):,}")]
            scene = self[0]
            spec = describe(scene)
            leaves, _ = flatten(scene)
            rows = [
                FieldRow(
                    path, str(list(field.shape)), str(field).split("[")[0], preview(np.asarray(as_array(leaf, path)))
                )
                for path, field, leaf in zip(spec.paths, spec.fields, leaves, strict=True)
            ]
        except Exception as error:  # noqa: BLE001 - a notebook must show the sequence even when a scene cannot be read
            return field_table(name, [("error", f"{type(error).__name__}: {error}")], [])
        return field_table(f"{name}, scene 0", facts, rows)
