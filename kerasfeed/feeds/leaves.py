"""The arrays of a batch, for a framework that has numbers alone.

Invariant: what a framework cannot hold is told by the name of its field.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import optree

from kerasfeed.spec.field_forms import RaggedArray
from kerasfeed.spec.nesting import field_paths
from kerasfeed.util.error_text import add_note

_REMEDY = "Turn text into numbers where scenes are made (in __getitem__, or with map)"


def numeric_leaves(batch: Any, framework: str) -> tuple[list[np.ndarray[Any, Any]], Any]:
    """The arrays of a batch and their nesting; a ragged field is two, its values and its row splits.

    Raises:
        TypeError: Fields are text; the message names them.
    """
    leaves, treespec = optree.tree_flatten(batch)
    arrays = [leaf if type(leaf) is np.ndarray else np.asarray(leaf) for leaf in leaves]
    if any(array.dtype.kind in "OSUT" for array in arrays):
        named = zip(field_paths(treespec), arrays, strict=True)
        paths = [repr(path) for path, array in named if array.dtype.kind in "OSUT"]
        are = "field" if len(paths) == 1 else "fields"
        raise TypeError(f"{framework} has no text: {are} {', '.join(paths)}. {_REMEDY}")
    return arrays, treespec


def ragged_paths(batch: Any) -> list[str]:
    """The names of the ragged fields of a batch."""

    def is_ragged(node: Any) -> bool:
        return isinstance(node, RaggedArray)

    leaves, treespec = optree.tree_flatten(batch, is_leaf=is_ragged)
    return [path for path, leaf in zip(field_paths(treespec), leaves, strict=True) if is_ragged(leaf)]


def converted(convert: Callable[[Any], Any], arrays: Sequence[Any], treespec: Any) -> list[Any]:
    """What `convert` makes of each array; what it raises has a note that names the field."""
    made = []
    for number, array in enumerate(arrays):
        try:
            made.append(convert(array))
        except Exception as error:
            shape = ", ".join(map(str, array.shape))
            add_note(error, f"field {field_paths(treespec)[number]!r} of the batch, {array.dtype}[{shape}]")
            raise
    return made
