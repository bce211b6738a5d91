"""The nesting of a scene: fields in optree's order, names, and text.

Invariant: nesting follows optree: tuples, lists, dicts, namedtuples, None. There are two exceptions: a list of numbers
or text inside a scene is one array, as in tf.data, and any other mapping is a dict.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import optree

from kerasfeed.spec.lists import is_array

_FIELDS = frozenset({np.ndarray, bool, int, float, complex, str, bytes, list})  # common types that are not mappings


def field_paths(treespec: optree.PyTreeSpec) -> tuple[str, ...]:
    """Return the dotted name of every leaf of `treespec`.

    A scene that is one array has the name `scene`.
    """
    return tuple(".".join(str(key) for key in path) or "scene" for path in treespec.paths())


def flatten(scene: Any) -> tuple[list[Any], optree.PyTreeSpec]:
    """Return a scene's leaves and nesting; 2 us for two arrays.

    A list that is the whole scene is nesting. A list inside it that holds numbers or text is a leaf; `as_array`
    converts it to an array.
    """
    leaves, treespec = optree.tree_flatten(
        scene, is_leaf=lambda node: type(node) is list and node is not scene and is_array(node)
    )
    for leaf in leaves:
        if type(leaf) not in _FIELDS and isinstance(leaf, Mapping):
            return flatten(with_dicts(scene))
    return leaves, treespec


def flatten_as(treespec: optree.PyTreeSpec, scene: Any) -> list[Any]:
    """Return the part of a scene for each field of `treespec`.

    Raises:
        ValueError: The scene has another nesting.
    """
    try:
        return treespec.flatten_up_to(scene)
    except ValueError:
        return treespec.flatten_up_to(with_dicts(scene))


def with_dicts(scene: Any) -> Any:
    """Return the scene with a dict for each mapping unknown to optree."""
    return optree.tree_map(lambda leaf: with_dicts(dict(leaf)) if isinstance(leaf, Mapping) else leaf, scene)


def is_nested(leaf: Any, treespec: optree.PyTreeSpec) -> bool:
    """Whether a scene's part for a field of `treespec` is nested itself."""
    if type(leaf) is list:
        return treespec.is_leaf() or not is_array(leaf)  # a list that is the whole scene is nesting
    return bool(flatten(leaf)[1].num_nodes > 1)


def lists_as_tuples(structure: Any) -> Any:
    """Replace lists by tuples, because tf.data converts a list to one tensor."""
    if isinstance(structure, list):
        return tuple(lists_as_tuples(item) for item in structure)
    if isinstance(structure, tuple):
        items = [lists_as_tuples(item) for item in structure]
        return type(structure)(*items) if hasattr(structure, "_fields") else tuple(items)
    if isinstance(structure, dict):
        return {key: lists_as_tuples(item) for key, item in structure.items()}
    return structure


def structure_text(treespec: optree.PyTreeSpec) -> str:
    """Return the nesting as users write it, with `*` for a field."""
    text = str(treespec)
    return text.removeprefix("PyTreeSpec(").removesuffix(")")
