"""`SceneSequence`, and `Subset`, which is what a slice of one is.

Invariant: a `SceneSequence` gives one scene for an integer and a `Subset` for a slice. Loaders ask for integers alone
and pay nothing for the difference (`scene_reader`).
"""

from __future__ import annotations  # so that annotations do not load numpy.random: 15 ms of a worker's start

import functools
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.sequences.context import SceneContext as SceneContext
from kerasfeed.sequences.context import Worker as Worker
from kerasfeed.sequences.context import current_context, current_rng
from kerasfeed.sequences.context import enter_context as enter_context
from kerasfeed.sequences.context import scene_rng as scene_rng
from kerasfeed.sequences.indexing import picked, picks_of
from kerasfeed.sequences.view_base import OfOne, Routed
from kerasfeed.util.fingerprint import digest
from kerasfeed.util.optional_methods import READER, blocks_in, name_of
from kerasfeed.util.optional_methods import optional_method as optional_method


class SceneSequence(ABC):
    """A sequence of scenes: subclass it with `__len__` and `__getitem__`.

    One scene is any nesting of tuples, dicts, lists and namedtuples of arrays, Python numbers, `str` and `bytes`,
    without a batch axis. A list of numbers, or of text, inside a tuple, dict or list is one array: `[[1, 2], [3, 4]]`
    is int64[2, 2]. A list of arrays is nesting, and so is a list that is the whole scene. `__getitem__` must return the
    same structure, dtypes and number of axes for every index, and must be safe to call from several threads when the
    feed's workers are threads.

    Optional methods, used where a subclass defines them:

    * `read_into(index, out)`: writes the scene at `index` into `out`, which has the nesting of a scene with a writable
      array for each field (0-d for a number): the scene's place in the batch, so that nothing is copied. Used where
      every field has a fixed shape and is not text. It must write the bits that `__getitem__` gives, which is still
      called to infer the spec, and once by each worker to compare.
    * `get_batch(indices)`: `indices` int64[B], of which some may repeat; returns what stacking the B scenes would give,
      each field with a leading axis of B. For data that is faster to read many scenes at a time. Takes precedence over
      `read_into`.
    * `get_batch(indices, out=None)`: the same; where every field has a fixed shape and is not text, `out` holds the
      scenes' places in the batch, each with a leading axis of B. It may write there and return None, or `out`.
    * `read_ahead(indices)`: called before the scenes `indices` int64[B] are loaded, some time ahead, so that reading
      can begin in the background. Must return at once. Worker threads: called with each batch by the thread that asks
      for it. Worker processes: called in the worker with the scenes that it is about to load. What it raises is the
      batch's error, as from `get_batch`; `self.rng` is not for use here.
    * `on_worker_begin(worker)`: called once by each worker before its first scene; `worker` has `index`, `count` and
      `worker_type`.
    * `on_worker_end()`: called once by each worker after its last scene. One that raises loses no batch, and is told in
      a `kerasfeed.FeedWarning`.

    A slice of a sequence is a `kerasfeed.Subset` of it: `__getitem__` of a subclass is given integers only. (A type
    checker takes no slices of one that declares `index: int`: write `kerasfeed.Subset(sequence, slice(10, 20))`.) A
    subclass need not call `super().__init__()`.
    """

    _is_scene_sequence = True

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        reader = cls.__getitem__
        if not hasattr(reader, READER) and hasattr(type(reader), "__get__") and callable(reader):
            cls.__getitem__ = _sliceable(reader)  # type: ignore[method-assign]

    @abstractmethod
    def __len__(self) -> int:
        """Number of scenes."""

    @abstractmethod
    def __getitem__(self, index: Any) -> Any:
        """The scene at `index`, in [0, len(self)); of a slice a `Subset`. A subclass is given integers only.

        Declared with `Any`, so that a type checker takes both a subclass that declares `index: int` and a slice of what
        is declared as a `SceneSequence`.
        """

    def __iter__(self) -> Iterator[Any]:
        for index in range(len(self)):
            yield self[index]

    @property
    def rng(self) -> np.random.Generator:
        """Random generator of the scene being loaded, a function of (feed seed, epoch, index) alone.

        Made only when asked for (15 us). Asked for again within one scene, it continues. Outside a feed, where there
        is neither seed nor epoch, it is an unseeded generator of this thread. Inside a view, index is the view's.
        """
        return current_rng()

    @rng.setter
    def rng(self, value: object) -> None:
        raise AttributeError(
            f"{type(self).__name__}.rng is kerasfeed's: a generator of (seed, epoch, index) alone, so that "
            "augmentation does not depend on the worker. Give your own generator another name"
        )

    def rng_for(self, index: int) -> np.random.Generator:
        """Random generator of the scene `index` in this epoch; what `self.rng` is there. For use in `get_batch`."""
        context = current_context()
        return np.random.default_rng() if context is None else context.rng_for(int(index))

    def __repr__(self) -> str:
        behind = type(self).__mro__[type(self).__mro__.index(SceneSequence) + 1 : -1]
        if any("__repr__" in vars(kind) for kind in behind):  # a class of the user's, named after this one
            return super().__repr__()
        try:
            return f"{name_of(self)}, {len(self):,} scenes"
        except Exception as error:  # noqa: BLE001 - a file that is not there yet, or is gone
            return f"{name_of(self)}, of unknown length ({type(error).__name__} in __len__)"

    def _repr_html_(self) -> str:
        from kerasfeed.spec.html import sequence_table  # a worker has no notebook to draw in

        return sequence_table(self)


def _sliceable(reader: Callable[[Any, int], Any]) -> Callable[[Any, Any], Any]:
    @functools.wraps(reader)
    def __getitem__(self: Any, index: Any) -> Any:
        if type(index) is slice:
            return Subset(self, index)
        return reader(self, index)

    setattr(__getitem__, READER, reader)
    return __getitem__


def scene_reader(sequence: Any) -> Callable[[int], Any]:
    """What `sequence[index]` does, for integers alone and so 40 ns faster."""
    reader = getattr(getattr(type(sequence), "__getitem__", None), READER, None)
    if reader is not None:
        return reader.__get__(sequence)  # type: ignore[no-any-return]
    return functools.partial(operator.getitem, sequence)


class Subset(Routed, OfOne, SceneSequence):
    """Some scenes of a sequence, in any order, also several times.

    Its length is fixed when it is made; nothing is read. It draws random numbers by its own indices: `self.rng` of the
    sequence inside is that of the place in the subset.

    Args:
        sequence: Any object with `__len__` and `__getitem__(index)`.
        indices: A slice or a range, which stay as they are; integers in a list or array, negative ones counted from
            the end; or a mask of bools, one a scene.

    Attributes:
        sequence: The sequence.
        indices: The indices in [0, len(sequence)): a `range`, or an int64 array that cannot be written.

    Raises:
        TypeError: `sequence` cannot be indexed, or `indices` are no integers.
        ValueError: A mask of another length, or indices with several axes.
        IndexError: An index is out of range.
    """

    def __init__(self, sequence: Any, indices: Any) -> None:
        self._hold(sequence)
        self.indices = picks_of(indices, self._lengths[0], name_of(sequence))

    def __len__(self) -> int:
        return len(self.indices)

    def _route(self, place: int) -> tuple[int, int]:
        return 0, int(self.indices[place])

    def _routes(self, places: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return np.zeros_like(places), picked(self.indices, places)

    def _block_size(self) -> int | None:
        size: int | None = getattr(self.sequence, "block_size", None)
        picks = self.indices
        aligned = size is not None and isinstance(picks, range) and picks.step == 1 and picks.start % size == 0
        return size if aligned else None

    def _block_of(self) -> NDArray[Any] | None:
        blocks = blocks_in(self.sequence)
        return None if blocks is None else blocks[picked(self.indices, np.arange(len(self)))]

    def _choice(self) -> str:
        picks = self.indices
        if not isinstance(picks, range):
            return digest(picks)
        return f"{picks.start}:{picks.stop}" + (f":{picks.step}" if picks.step != 1 else "")

    def __repr__(self) -> str:
        return f"Subset of {name_of(self.sequence)}, {len(self):,} of {self._lengths[0]:,} scenes"
