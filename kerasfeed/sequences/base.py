"""`SceneSequence`, and `Subset`, the type of its slices.

Invariant: a `SceneSequence` returns one scene for an integer, and a `Subset` for a slice, a list or an array.
"""

from __future__ import annotations  # otherwise annotations import numpy.random: 15 ms of a worker's start

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.sequences.context import SceneContext as SceneContext
from kerasfeed.sequences.context import Worker as Worker
from kerasfeed.sequences.context import current_context, current_rng
from kerasfeed.sequences.context import scene_rng as scene_rng
from kerasfeed.sequences.indexing import Permuted, Picks, chosen_again, means_many, picked, picks_of
from kerasfeed.sequences.optional_methods import WRAPPED_FOR
from kerasfeed.sequences.optional_methods import optional_method as optional_method
from kerasfeed.sequences.routed import Routed
from kerasfeed.sequences.view_base import OfOne, blocks_in, kept_copier
from kerasfeed.util.error_text import class_name, pluralize
from kerasfeed.util.fingerprint import digest

_SLICEABLE = "_kerasfeed_sliceable"  # attribute of a `__getitem__` that also takes slices


class SceneSequence(ABC):
    """Base class of sequences: define `__len__` and `__getitem__` in a subclass.

    A scene is any nesting of tuples, dicts, lists and namedtuples of arrays, Python numbers, `str` and `bytes`, without
    a batch axis. A list of numbers or of text inside a tuple, dict or list is one array: `[[1, 2], [3, 4]]` is int64[2,
    2]. A list of arrays is nesting, and so is a list that is the whole scene. `__getitem__` must return the same
    structure, dtypes and number of axes for every index.

    Set `thread_safe = True`, in the class or in `__init__`, if several threads may call the methods of one object at
    once, for example if scenes are read through `kerasfeed.HDF5File`. Then `worker_type="auto"` may use worker threads.
    Otherwise (the default, inherited like any attribute) several threads are used only with `worker_type="thread"`.

    A subclass may also define the methods below. If a subclass overrides only `__getitem__`, feeds ignore an inherited
    `get_batch` or `read_into`: define these in the class that defines `__getitem__`, or in a subclass of it.

    * `read_into(index, out)`: writes scene `index` into `out`, which saves a copy. `out` is nested like a scene, with a
      writable array for each field (0-d for a number): the memory of the scene in the batch. Used if every field has a
      fixed shape and is not text. It must write the same bits that `__getitem__` returns. Feeds still call
      `__getitem__` to infer the spec, and once in each worker to compare.
    * `get_batch(indices)`: reads many scenes at once. `indices` is int64[B] and may contain an index several times. It
      returns what stacking these B scenes would give: each field with a leading axis of B. Use `self.rng_for(index)`
      instead of `self.rng`. Feeds prefer it to `read_into`.
    * `get_batch(indices, out=None)`: the same. If every field has a fixed shape and is not text, `out` is the memory of
      the scenes in the batch, each field with a leading axis of B. The method may write there and return None or `out`.
    * `read_ahead(indices)`: called before the scenes `indices`, int64[B], are loaded, so that reading them can begin in
      the background. It must return at once. With worker threads, the thread that asks for a batch calls it for each
      batch; with worker processes, a worker that is about to load several scenes calls it for these. If it raises, the
      batch fails with that error, as with `get_batch`. It must not use `self.rng`.
    * `on_worker_begin(worker)`: called once by each worker before its first scene. `worker` has the attributes `index`,
      `count` and `worker_type`; see [Worker][kerasfeed.sequences.context.Worker].
    * `on_worker_end()`: called once by each worker after its last scene. An exception in it loses no batch; a
      `kerasfeed.FeedWarning` reports it.
    * `on_epoch_begin()`, `on_epoch_end()`: called once per epoch in your process, while no scene is loaded. Workers
      then get the changes that these methods make to the sequence.

    A slice of a sequence, `sequence[10:20]`, is a `kerasfeed.Subset`. So is `sequence[[3, 0]]` or
    `sequence[labels == 2]`, with a list, a range, or an array of integers or bools. The `__getitem__` of a subclass
    gets only integers. (A type checker rejects the slice if the subclass declares `index: int`. Write
    `kerasfeed.Subset(sequence, slice(10, 20))`, or declare both with `typing.overload`.) A subclass need not call
    `super().__init__()`.

    Examples:
        >>> class Squares(kf.SceneSequence):
        ...     def __len__(self):
        ...         return 5
        ...     def __getitem__(self, index):
        ...         return {"x": np.float32(index), "y": np.float32(index**2)}
        >>> with kf.Feed(Squares(), batch_size=5, workers=0) as feed:
        ...     print(feed[0])
        {'x': array([0., 1., 2., 3., 4.], dtype=float32), 'y': array([ 0.,  1.,  4.,  9., 16.], dtype=float32)}

        With optional methods:

        >>> class Rooms(kf.SceneSequence):
        ...     def __init__(self, points):
        ...         self.points = points
        ...     def __len__(self):
        ...         return len(self.points)
        ...     def __getitem__(self, index):
        ...         return self.points[index]
        ...     def read_into(self, index, out):
        ...         out[...] = self.points[index]
        ...     def on_worker_begin(self, worker):
        ...         print("worker", worker.index, "of", worker.count)
        >>> with kf.Feed(Rooms(np.ones((4, 8, 3))), batch_size=4, workers=0) as feed:
        ...     print(feed[0].shape)
        worker 0 of 1
        (4, 8, 3)
    """

    _is_scene_sequence = True

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        reader = cls.__getitem__
        if not hasattr(reader, _SLICEABLE) and hasattr(type(reader), "__get__") and callable(reader):
            is_inherited = "__getitem__" not in vars(cls)
            cls.__getitem__ = _sliceable(reader)  # type: ignore[method-assign]
            setattr(cls.__getitem__, WRAPPED_FOR, cls if is_inherited else None)

    @abstractmethod
    def __len__(self) -> int:
        """Number of scenes."""

    @abstractmethod
    def __getitem__(self, index: Any) -> Any:
        """Return scene `index`, or a `Subset` for a slice, list or array.

        The method of a subclass gets only integers.

        `index` is declared as `Any`, because with overloads type checkers would reject each subclass that declares
        `index: int`.
        """

    def __iter__(self) -> Iterator[Any]:
        for index in range(len(self)):
            yield self[index]

    def __getitems__(self, indices: Sequence[Any]) -> list[Any]:
        """Return a list of scenes, for PyTorch's `DataLoader`, which reads whole batches.

        If the class has `read_ahead`, it is called first. `get_batch` is not called, because its batch of arrays has
        lost the scenes' Python numbers, text and lists. Feeds do not use this method.
        """
        announce = optional_method(self, "read_ahead")
        if announce is not None:
            length = len(self)  # a sampler may also pass other indices that `__getitem__` takes
            if ahead := [index for index in indices if type(index) is int and 0 <= index < length]:
                announce(np.array(ahead, np.int64))
        return [self[index] for index in indices]

    @property
    def thread_safe(self) -> bool:
        """Whether several threads may read scenes at once; default False."""
        return self.__dict__.get("thread_safe", self._inside_is_thread_safe()) is True

    @thread_safe.setter
    def thread_safe(self, value: bool) -> None:
        self.__dict__["thread_safe"] = value

    def _inside_is_thread_safe(self) -> bool:
        """Whether all parts are thread-safe; False for a plain sequence."""
        return False

    @property
    def rng(self) -> np.random.Generator:
        """Random generator of the current scene.

        It depends only on (seed of the feed, epoch, index). Using it several times within one scene continues the same
        stream of numbers. Outside a feed there is neither seed nor epoch, so `rng` is an unseeded generator of this
        thread. Inside a view, such as `kerasfeed.Subset`, it depends on the index in the outermost sequence. It is
        created on first use, which takes 15 us.

        Examples:
            >>> class Noise(kf.SceneSequence):
            ...     def __len__(self):
            ...         return 2
            ...     def __getitem__(self, index):
            ...         return self.rng.random()
            >>> with kf.Feed(Noise(), batch_size=2, seed=0, workers=0) as one:
            ...     with kf.Feed(Noise(), batch_size=2, seed=0, workers=2, worker_type="thread") as two:
            ...         print(np.array_equal(one[0], two[0]))
            True
        """
        context = current_context()
        return current_rng() if context is None else context.rng

    @rng.setter
    def rng(self, value: object) -> None:
        raise AttributeError(
            f"{type(self).__name__}.rng cannot be set: it is the scene's generator, which depends only on (seed, "
            "epoch, index). Give your own generator another name"
        )

    def rng_for(self, index: int) -> np.random.Generator:
        """Random generator of scene `index` in this epoch, for `get_batch`.

        It draws the same numbers as `self.rng` in that scene.

        Args:
            index: Index of the scene in this sequence.

        Returns:
            A new generator at the beginning of its stream of numbers; outside a feed, an unseeded one.

        Examples:
            >>> class Noise(kf.SceneSequence):
            ...     def __len__(self):
            ...         return 3
            ...     def __getitem__(self, index):
            ...         return self.rng.random()
            ...     def get_batch(self, indices):
            ...         return np.array([self.rng_for(index).random() for index in indices])
            >>> with kf.Feed(Noise(), batch_size=3, seed=0, workers=0) as feed:
            ...     print(feed[0].shape)
            (3,)
        """
        context = current_context()
        return np.random.default_rng() if context is None else context.rng_for(int(index))

    def __repr__(self) -> str:
        behind = type(self).__mro__[type(self).__mro__.index(SceneSequence) + 1 : -1]
        if any("__repr__" in vars(kind) for kind in behind):  # the user's class has another base with a __repr__
            return super().__repr__()
        try:
            return f"{class_name(self)}, {pluralize(len(self), 'scene')}"
        except Exception as error:  # noqa: BLE001 - __len__ may raise, for example for a missing file
            return f"{class_name(self)}, of unknown length ({type(error).__name__} in __len__)"


def _sliceable(reader: Callable[[Any, int], Any]) -> Callable[[Any, Any], Any]:
    @functools.wraps(reader)
    def __getitem__(self: Any, index: Any) -> Any:
        if type(index) is not int and means_many(index):
            return Subset(self, index)
        return reader(self, index)

    setattr(__getitem__, _SLICEABLE, True)
    return __getitem__


class Subset(Routed, OfOne, SceneSequence):
    """Some scenes of a sequence, in any order, with any repetitions.

    `sequence[10:20]` is a `Subset` too. Its length is fixed when it is made, and no scene is read. A subset of a subset
    becomes one subset of the inner sequence. In a feed of a subset, `self.rng` of the inner sequence depends on the
    index in the subset.

    Args:
        sequence: Any object with `__len__` and `__getitem__(index)`.
        indices: A slice or a range; integers in a list or array, where negative ones count from the end; or a mask,
            bool[len(sequence)].

    Attributes:
        sequence: The sequence.
        indices: The indices, in [0, len(sequence)): a `range`, a read-only int64 array, or a sequence that computes
            them (in a `kerasfeed.split` of very many scenes).

    Raises:
        TypeError: `sequence` cannot be indexed, or `indices` are not integers.
        ValueError: A mask has another length than the sequence, or `indices` have several axes.
        IndexError: An index is out of range.

    Examples:
        >>> letters = ["a", "b", "c", "d"]
        >>> list(kf.Subset(letters, [3, 0, 0]))
        ['d', 'a', 'a']
        >>> list(kf.Subset(letters, slice(1, 3)))
        ['b', 'c']
    """

    def __init__(self, sequence: Any, indices: Any) -> None:
        self._hold(sequence)
        self.indices: Picks = picks_of(indices, self._lengths[0], class_name(sequence))
        # A subset of a subset becomes one subset, because each level would add 1 us per scene and a recursive call.
        joined = chosen_again(sequence.indices, self.indices) if type(sequence) is Subset else None
        if joined is not None:
            self._hold(sequence.sequence)
            self.indices = joined

    def __len__(self) -> int:
        return len(self.indices)

    def _route(self, position: int) -> tuple[int, int]:
        return 0, int(self.indices[position])

    def _routes(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        return np.zeros_like(positions), picked(self.indices, positions)

    def _copy_kept(self, positions: NDArray[np.int64], structure: str, out: Sequence[NDArray[Any]]) -> bool:
        copy_kept = kept_copier(self.sequence)
        return copy_kept is not None and copy_kept(picked(self.indices, positions), structure, out)

    def _blocks(self) -> int | NDArray[Any] | None:
        blocks, picks = blocks_in(self.sequence), self.indices
        if isinstance(picks, Permuted):
            return None
        if isinstance(blocks, int):
            if isinstance(picks, range) and picks.step == 1 and picks.start % blocks == 0:
                return blocks
            return picked(picks, np.arange(len(self))) // blocks
        return None if blocks is None else blocks[picked(picks, np.arange(len(self)))]

    def _choice(self) -> str:
        picks = self.indices
        if not isinstance(picks, range):
            return str(picks) if isinstance(picks, Permuted) else digest(picks)
        return f"{picks.start}:{picks.stop}" + (f":{picks.step}" if picks.step != 1 else "")

    def __repr__(self) -> str:
        return f"Subset of {class_name(self.sequence)}, {len(self):,} of {self._lengths[0]:,} scenes"
