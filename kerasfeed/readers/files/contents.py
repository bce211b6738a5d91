"""What `read_file` returned, as scenes by row.

Invariant: nobody can change what is kept: the arrays handed out are read-only, and nestings are made anew. What a row
holds does not depend on which rows were asked for before: of an iterator, whatever is asked for, in whatever order and
by however many threads, row r is the r-th scene that it gives from the beginning.
"""

import operator
import threading
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import optree

from kerasfeed.sequences.base import SceneSequence
from kerasfeed.sequences.frames import DataFrameRows, as_sequence

_FORMS = (
    "Return a tuple (or dict) of arrays with one row a scene, an array, a list of scenes, or write read_file as a "
    "generator function that yields them"
)


class Contents(ABC):
    """The scenes of one file. All methods may be called from any thread.

    Attributes:
        count: Number of scenes; None where only reading to the end would tell.
        nbytes: Bytes that are kept now, as far as they can be told; 0 for arrays mapped from a file, and for scenes
            made when asked for.
    """

    count: int | None
    nbytes: int

    @abstractmethod
    def row(self, row: int) -> Any:
        """The scene at `row`."""

    def retire(self) -> None:  # noqa: B027 - most have nothing open
        """Let go of what is open, now or once nobody uses it; the scenes can still be asked for."""


class ColumnContents(Contents):
    """Arrays with a leading axis of one row a scene, in any nesting but lists."""

    def __init__(self, value: Any) -> None:
        leaves, self._treespec = optree.tree_flatten(value, is_leaf=_is_list)
        paths = [".".join(map(str, path)) for path in optree.tree_paths(value, is_leaf=_is_list)]
        self._columns = [_column(leaf, path) for leaf, path in zip(leaves, paths, strict=True)]
        lengths = list(map(len, self._columns))
        if not lengths:
            raise ValueError(f"read_file returned {value!r}, which holds no array. {_FORMS}")
        for path, length in zip(paths, lengths, strict=True):
            if length != lengths[0]:
                raise ValueError(
                    f"the arrays of one file need one row a scene, all the same number: field {paths[0]!r} has "
                    f"{lengths[0]} rows and field {path!r} has {length}"
                )
        self.count: int = lengths[0]
        self.nbytes = sum(map(_bytes_of, self._columns))

    def row(self, row: int) -> Any:
        """A row of each array."""
        return optree.tree_unflatten(
            self._treespec,
            [column[row] if type(column) is np.ndarray else _guarded(column[row]) for column in self._columns],
        )


class Scenes(Contents):
    """A list of scenes, or whatever gives them by row."""

    def __init__(self, scenes: Any) -> None:
        self._scenes = scenes
        self.count: int = len(scenes)
        kept = scenes if isinstance(scenes, list) else []
        self.nbytes = sum(map(_size, kept))

    def row(self, row: int) -> Any:
        """The scene."""
        return _guarded(self._scenes[row])


def _guarded(scene: Any) -> Any:
    """The scene in a nesting of its own, its arrays as read-only views."""
    if type(scene) is np.ndarray:
        return _read_only(scene)
    return optree.tree_map(_read_only, scene)


def _read_only(leaf: Any) -> Any:
    if not isinstance(leaf, np.ndarray) or not leaf.flags.writeable:
        return leaf
    view = leaf.view()
    view.flags.writeable = False
    return view


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _column(leaf: Any, path: str) -> Any:
    if isinstance(leaf, list):
        return leaf
    if not isinstance(leaf, np.ndarray | np.generic) and hasattr(leaf, "__array__"):
        leaf = np.asarray(leaf)
    if not isinstance(leaf, np.ndarray) or leaf.ndim == 0:
        what = f"of type {type(leaf).__name__}" if not isinstance(leaf, np.ndarray) else "an array without axes"
        raise TypeError(
            f"read_file returned a tuple or dict whose field {path!r} is {what}, and not an array of one row a scene. "
            f"{_FORMS}"
        )
    return leaf.tolist() if leaf.dtype == object else _read_only(leaf)


def _bytes_of(leaf: Any) -> int:
    """Bytes of one value, about; 0 for an array that is mapped from a file."""
    if isinstance(leaf, list):
        return sum(map(_bytes_of, leaf))
    if isinstance(leaf, np.memmap):
        return 0
    if isinstance(leaf, str | bytes):
        return len(leaf)
    return operator.index(getattr(leaf, "nbytes", 8))


class ForwardContents(Contents):
    """Scenes by row, of an iterator: a file that is read forward only.

    Rows asked for in order cost nothing. A row ahead is reached by reading on; the scenes passed over are kept, the
    last of them, each until it is asked for, at most `lookback` scenes of `most_bytes` together. A row that is neither
    ahead nor kept begins anew.
    """

    count = None

    def __init__(
        self, first: Iterator[Any], reopen: Callable[[int], Iterator[Any]], lookback: int, most_bytes: int
    ) -> None:
        """Read `first` to begin with, and what `reopen(scenes read so far)` gives from then on."""
        self._iterator: Iterator[Any] | None = first
        self._reopen = reopen
        self._lookback = lookback
        self._most_bytes = most_bytes
        self._next = 0
        self._kept: OrderedDict[int, Any] = OrderedDict()
        self.nbytes = 0
        self._retired = False
        self._lock = threading.Lock()

    def row(self, row: int) -> Any:
        """The scene at `row`.

        Raises:
            StreamEnded: The iterator ends before.
            Exception: What the iterator raises; the next call begins anew.
        """
        with self._lock:
            try:
                scene = _guarded(self._take(row))
            except BaseException:
                self._close()
                raise
            finally:
                if self._retired:
                    self._close()
        if self._retired and self._iterator is not None:  # retired after the look above, before the lock was free
            self.retire()
        return scene

    def ends_after(self, row: int) -> bool:
        """Whether the scene at `row`, which was the last to be read, is the last there is; if so, closes the iterator.

        True where others have read on, or begun anew: then they have looked, or will.
        """
        with self._lock:
            if self._iterator is None or self._next != row + 1:
                return True
            if next(self._iterator, _END) is not _END:
                self._close()
                return False
            self._iterator = None  # an iterator that has ended has nothing open
            return True

    def _take(self, row: int) -> Any:
        if row in self._kept:
            scene = self._kept.pop(row)
            self.nbytes -= _size(scene)
            return scene
        if self._iterator is None or row < self._next:
            read = self._next
            self._close()
            self._iterator = self._reopen(read)
        while True:
            scene = next(self._iterator, _END)
            if scene is _END:
                raise StreamEnded(self._next)
            self._next += 1
            if self._next > row:
                return scene
            self._keep(self._next - 1, scene)

    def _keep(self, row: int, scene: Any) -> None:
        self._kept[row] = scene
        self.nbytes += _size(scene)
        while self._kept and (len(self._kept) > self._lookback or self.nbytes > self._most_bytes):
            self.nbytes -= _size(self._kept.popitem(last=False)[1])

    def count_all(self) -> int:
        """Read to the end, and tell how many scenes there are."""
        with self._lock:
            assert self._iterator is not None
            assert self._next == 0
            try:
                return sum(1 for _ in self._iterator)
            finally:
                self._close()

    def _close(self) -> None:
        iterator, self._iterator = self._iterator, None
        self._next, self.nbytes = 0, 0
        self._kept.clear()
        close = getattr(iterator, "close", None)
        if callable(close):
            close()

    def retire(self) -> None:
        """See `Contents.retire`; never waits for a thread that reads."""
        self._retired = True
        if self._lock.acquire(blocking=False):
            try:
                self._close()
            finally:
                self._lock.release()


class StreamEnded(Exception):
    """Internal: an iterator ended; the argument is how many scenes it gave."""


_END = object()


def _size(scene: Any) -> int:
    return sum(map(_bytes_of, optree.tree_leaves(scene)))


def contents_of(value: Any, reopen: Callable[[int], Iterator[Any]], lookback: int, most_bytes: int) -> Contents:
    """What `read_file` returned, by row.

    Args:
        value: What it returned.
        reopen: Where `value` is an iterator, gives another one, from the beginning; its argument is how many scenes
            the one before has given.
        lookback: Most scenes that an iterator's contents keep.
        most_bytes: Most bytes of these.

    Raises:
        TypeError, ValueError: It is nothing that holds scenes; the message says what would.
    """
    if isinstance(value, Iterator):
        return ForwardContents(value, reopen, lookback, most_bytes)
    if isinstance(value, np.lib.npyio.NpzFile):  # it reads, and decompresses, an array each time it is asked for it
        with value:
            return ColumnContents({name: value[name] for name in value.files})
    if isinstance(value, np.ndarray | tuple):
        return ColumnContents(value)
    if isinstance(value, Mapping):
        return ColumnContents(dict(value))
    if isinstance(value, Sequence | SceneSequence) and not isinstance(value, str | bytes | bytearray | memoryview):
        return Scenes(value)
    value = as_sequence(value)
    if isinstance(value, DataFrameRows):
        return ColumnContents(value.columns)
    is_table = hasattr(value, "iloc") or hasattr(value, "column_names")
    if hasattr(value, "__array__") and not is_table:  # a tensor, a dataset of an HDF5 file
        return ColumnContents(np.asarray(value))
    remedy = _FORMS
    if value is None:
        remedy = f"{_FORMS} (is a `return` missing?)"
    elif is_table:
        remedy = "Return its columns as arrays: tuple(table[name].to_numpy() for name in ...)"
    raise TypeError(f"read_file returned a {type(value).__name__}. {remedy}")
