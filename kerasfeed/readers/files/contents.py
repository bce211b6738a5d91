"""What `read_file` returned, as scenes by row.

Invariant: nobody can change what is kept: the arrays handed out are read-only, and nestings are made anew. What a row
holds does not depend on which rows were asked for before.
"""

import operator
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import optree

FORMS = (
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
            raise ValueError(f"read_file returned {value!r}, which holds no array. {FORMS}")
        for path, length in zip(paths, lengths, strict=True):
            if length != lengths[0]:
                raise ValueError(
                    f"the arrays of one file need one row a scene, all the same number: field {paths[0]!r} has "
                    f"{lengths[0]} rows and field {path!r} has {length}"
                )
        self.count: int = lengths[0]
        self.nbytes = sum(map(bytes_of, self._columns))

    def row(self, row: int) -> Any:
        """A row of each array."""
        return optree.tree_unflatten(
            self._treespec,
            [column[row] if type(column) is np.ndarray else guarded(column[row]) for column in self._columns],
        )


class Scenes(Contents):
    """A list of scenes, or whatever gives them by row."""

    def __init__(self, scenes: Any) -> None:
        self._scenes = scenes
        self.count: int = len(scenes)
        kept = scenes if isinstance(scenes, list) else []
        self.nbytes = sum(bytes_of(leaf) for scene in kept for leaf in optree.tree_leaves(scene))

    def row(self, row: int) -> Any:
        """The scene."""
        return guarded(self._scenes[row])


def guarded(scene: Any) -> Any:
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
            f"{FORMS}"
        )
    return leaf.tolist() if leaf.dtype == object else _read_only(leaf)


def bytes_of(leaf: Any) -> int:
    """Bytes of one value, about; 0 for an array that is mapped from a file."""
    if isinstance(leaf, list):
        return sum(map(bytes_of, leaf))
    if isinstance(leaf, np.memmap):
        return 0
    if isinstance(leaf, str | bytes):
        return len(leaf)
    return operator.index(getattr(leaf, "nbytes", 8))
