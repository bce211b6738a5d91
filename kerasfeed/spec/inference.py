"""Infer a spec: describe scenes, merge their specs, choose scenes to read.

Invariant: nothing here reads a sequence. Every message has the remedy. `merge` names the indices; the caller of
`describe` adds the index.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import optree

from kerasfeed.errors import SpecError
from kerasfeed.spec.field_values import described, start_of
from kerasfeed.spec.nesting import field_paths, flatten, structure_text
from kerasfeed.spec.scene_spec import ArraySpec, SceneSpec, as_others
from kerasfeed.util.error_text import message_of, pluralize


def describe(scene: Any) -> SceneSpec:
    """Return the spec of one scene, all axes fixed.

    Raises:
        SpecError: A field is of a type or dtype that no batch can hold; the message names the field.
    """
    leaves, treespec = flatten(scene)
    paths = field_paths(treespec)
    if not leaves:
        remedy = "Return an array, or a tuple or dict of arrays"
        raise SpecError(no_field_text(scene, f"__getitem__ returned {start_of(scene)}", remedy))
    return SceneSpec(treespec, tuple(described(leaf, path)[1] for leaf, path in zip(leaves, paths, strict=True)))


def no_field_text(scene: Any, made: str, remedy: str) -> str:
    """Return the message for a scene that holds no array."""
    paths = [".".join(map(str, path)) for path in optree.tree_paths(scene, none_is_leaf=True)]
    if scene is None:
        remedy += ' (is a `return` missing?). To leave such scenes out, pass on_error="skip" to the feed'
    elif paths:
        made += f", with None at {', '.join(map(repr, paths))}"
    return f"the scene holds no field: {made}. {remedy}"


def merge(scenes: Sequence[tuple[int, SceneSpec]]) -> SceneSpec:
    """Merge the specs of several scenes, with None for axes that differ.

    Args:
        scenes: Pairs of scene index and spec, at least one.

    Raises:
        SpecError: Two scenes differ in nesting, in dtype or in number of axes, or no integer dtype holds both; the
            message names both indices.
    """
    first_index, first = scenes[0]
    fields = list(first.fields)
    for index, spec in scenes[1:]:
        if spec.treespec != first.treespec:
            structures = f"{structure_text(first.treespec)} and {structure_text(spec.treespec)}"
            lists = ". A list that is a whole scene or holds arrays has one field per item; np.array makes it one field"
            raise SpecError(
                f"scenes {first_index} and {index} have different structures: {structures}. Return the same nesting of "
                f"tuples and dicts for every index{lists if '[' in structures else ''}"
            )
        for number, (path, one, other) in enumerate(zip(first.paths, fields, spec.fields, strict=True)):
            fields[number] = _merge_fields(path, one, other, first_index, index)
    return SceneSpec(first.treespec, tuple(fields))


def _merge_fields(path: str, one: ArraySpec, other: ArraySpec, first_index: int, index: int) -> ArraySpec:
    one, other = as_others(one, other), as_others(other, one)
    if len(one.shape) != len(other.shape):
        raise SpecError(
            f"field {path!r} has {pluralize(len(one.shape), 'axis', 'axes')} in scene {first_index} and "
            f"{len(other.shape)} in scene {index} ({one} and {other}). Return arrays with the same number of "
            "axes for every index"
        )
    weak = one.weak and other.weak
    dtype = np.result_type(one.dtype, other.dtype) if weak else one.dtype
    if dtype.kind == "f" and one.dtype.kind in "iu" and other.dtype.kind in "iu":
        raise SpecError(
            f"field {path!r} is {one} in scene {first_index} and {other} in scene {index}: no integer dtype holds "
            "both. Return np.uint64(...), or smaller numbers, for every index"
        )
    if not weak and one.dtype != other.dtype:
        wider = max(one.dtype, other.dtype, key=lambda dtype: "biufcSU".find(dtype.kind))  # the first if of one kind
        name = {"S": "bytes", "U": "str"}.get(wider.kind, f"np.{wider.name}")
        raise SpecError(
            f"field {path!r} is {one} in scene {first_index} and {other} in scene {index}. Return one dtype for every "
            f"index, for example array.astype({name})"
        )
    shape = tuple(a if a == b else None for a, b in zip(one.shape, other.shape, strict=True))
    return ArraySpec(shape, dtype, weak, one.untyped and other.untyped)


def difference_text(scenes: Sequence[tuple[int, Any]]) -> str:
    """Return the first difference between scenes as text: field and indices.

    Empty if there is no difference, or if a scene holds a value that no batch can hold.
    """
    try:
        specs = [(index, describe(scene)) for index, scene in scenes]
    except Exception:  # noqa: BLE001 - describe() runs methods of the user's objects
        return ""
    try:
        merged = merge(specs)
    except SpecError as error:
        return message_of(error)
    number = next((number for number, field in enumerate(merged.fields) if None in field.shape), None)
    if number is None:
        return ""
    index, shape = specs[0][0], specs[0][1].fields[number].shape
    other, unlike = next((k, spec.fields[number].shape) for k, spec in specs if spec.fields[number].shape != shape)
    return f"field {merged.paths[number]!r} has shape {shape} in scene {index} and {unlike} in scene {other}"


def probe_indices(length: int, count: int = 5) -> list[int]:
    """Return up to `count` indices spread evenly over [0, length), ascending."""
    count = min(count, length)
    gaps = max(1, count - 1)
    return [(2 * k * (length - 1) + gaps) // (2 * gaps) for k in range(count)]  # rounded, at any length
