"""The nesting of a scene: its fields in optree's order, their names, and the nesting as text.

Invariant: nesting is optree's: tuples, lists, dicts, namedtuples, None; but a list of numbers or text inside a scene is
one array, as tf.data has it, and any other mapping is a dict.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import optree

from kerasfeed.spec.lists import is_array

_FIELDS = frozenset({np.ndarray, bool, int, float, complex, str, bytes, list})  # no mappings, as nearly all values


def field_paths(treespec: optree.PyTreeSpec) -> tuple[str, ...]:
    """Dotted name of every leaf of `treespec`; a scene that is one array has the name `scene`."""
    return tuple(".".join(str(key) for key in path) or "scene" for path in treespec.paths())


def flatten(scene: Any) -> tuple[list[Any], optree.PyTreeSpec]:
    """Leaves of a scene and its nesting; costs 2 us for a tuple of two arrays.

    A list that is the whole scene is nesting. Of those inside it, one of numbers or text is a leaf; `as_array` makes it
    an array.
    """
    leaves, treespec = optree.tree_flatten(
        scene, is_leaf=lambda node: type(node) is list and node is not scene and is_array(node)
    )
    for leaf in leaves:
        if type(leaf) not in _FIELDS and isinstance(leaf, Mapping):
            return flatten(with_dicts(scene))
    return leaves, treespec


def flatten_as(treespec: optree.PyTreeSpec, scene: Any) -> list[Any]:
    """What a scene has in place of each field of `treespec`.

    Raises:
        ValueError: It is nested otherwise.
    """
    try:
        return treespec.flatten_up_to(scene)
    except ValueError:
        return treespec.flatten_up_to(with_dicts(scene))


def with_dicts(scene: Any) -> Any:
    """A scene with a dict for each mapping in it that optree does not know: a subclass of dict, a UserDict."""
    return optree.tree_map(lambda leaf: with_dicts(dict(leaf)) if isinstance(leaf, Mapping) else leaf, scene)


def is_nested(leaf: Any, treespec: optree.PyTreeSpec) -> bool:
    """Whether what stands where `treespec` has a field is nested itself, and so no field."""
    if type(leaf) is list:
        return treespec.is_leaf() or not is_array(leaf)  # a list that is the whole scene is nesting
    return bool(flatten(leaf)[1].num_nodes > 1)


def lists_as_tuples(structure: Any) -> Any:
    """The same nesting with tuples for lists: tf.data, and so Keras on TensorFlow, takes a list for one tensor."""
    if isinstance(structure, list):
        return tuple(lists_as_tuples(item) for item in structure)
    if isinstance(structure, tuple):
        items = [lists_as_tuples(item) for item in structure]
        return type(structure)(*items) if hasattr(structure, "_fields") else tuple(items)
    if isinstance(structure, dict):
        return {key: lists_as_tuples(item) for key, item in structure.items()}
    return structure


def structure_text(treespec: optree.PyTreeSpec) -> str:
    """The nesting as a user would write it, with `*` for a field."""
    text = str(treespec)
    return text.removeprefix("PyTreeSpec(").removesuffix(")")
