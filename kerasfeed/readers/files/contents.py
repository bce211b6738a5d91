"""The scenes of one file, made from the result of `read_file`.

Invariant: the caller cannot change the contents: arrays of a scene are read-only, and containers are copied.
"""

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import optree

from kerasfeed.sequences.base import SceneSequence
from kerasfeed.sequences.frames import DataFrameRows, as_sequence

_FORMS = "Return a tuple (or dict) of arrays with one row per scene, an array, or a list of scenes"


class Contents(ABC):
    """The scenes of one file, for any thread.

    Attributes:
        count: Number of scenes.
        nbytes: Bytes kept now, if known; 0 for arrays mapped from a file, and for scenes that are made on demand.
    """

    count: int
    nbytes: int

    @abstractmethod
    def row(self, row: int) -> Any:
        """Return the scene at `row`."""


class ColumnContents(Contents):
    """Arrays with one row per scene, nested in anything but lists."""

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
                    f"the arrays of one file need the same number of rows, one per scene: field {paths[0]!r} has "
                    f"{lengths[0]} rows and field {path!r} has {length}"
                )
        self.count = lengths[0]
        self.nbytes = sum(map(_bytes_of, self._columns))

    def row(self, row: int) -> Any:
        """Return a row of each array."""
        return optree.tree_unflatten(
            self._treespec,
            [column[row] if type(column) is np.ndarray else _guarded(column[row]) for column in self._columns],
        )


class Scenes(Contents):
    """A list of scenes, or another sequence of them."""

    def __init__(self, scenes: Any) -> None:
        self._scenes = scenes
        self.count = len(scenes)
        kept: Any = list(scenes) if isinstance(scenes, list) else []
        self.nbytes = sum(map(_bytes_of, optree.tree_leaves(kept)))

    def row(self, row: int) -> Any:
        """Return the scene."""
        return _guarded(self._scenes[row])


def _guarded(scene: Any) -> Any:
    """Return the scene with copied containers, and arrays as read-only views."""
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
            f"read_file returned a tuple or dict whose field {path!r} is {what}, not an array with one row per scene. "
            f"{_FORMS}"
        )
    return leaf.tolist() if leaf.dtype == object else _read_only(leaf)


def _bytes_of(leaf: Any) -> int:
    """Estimate the bytes of a value; 0 for a mapped array."""
    if isinstance(leaf, list):
        return sum(map(_bytes_of, leaf))
    if isinstance(leaf, np.memmap):
        return 0
    if isinstance(leaf, str | bytes):
        return len(leaf)
    return operator.index(getattr(leaf, "nbytes", 8))


def contents_of(value: Any) -> Contents:
    """Wrap the result of `read_file`.

    Args:
        value: The result.

    Raises:
        TypeError, ValueError: It holds no scenes; the message names the valid results.
    """
    if isinstance(value, Iterator):
        raise TypeError(
            f"read_file returned a {type(value).__name__}, which cannot be indexed. Return list(...) of it; or, for a "
            "file that does not fit in memory, yield its scenes from the generator of a kf.StreamFeed"
        )
    if isinstance(value, np.lib.npyio.NpzFile):  # reads and decompresses an array at each access
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
