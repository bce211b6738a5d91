"""Specs of scenes as JSON, and specs that users write.

Invariant: `spec_from_json(spec_to_json(spec)) == spec` for every spec that `spec_to_json` accepts, except that
namedtuples come back as new classes with the same name and fields. `weak` and `untyped` are lost. Reading a file
imports no module that the file names.
"""

import functools
import re
from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import optree

from kerasfeed.errors import SpecError
from kerasfeed.spec.field_values import coerce
from kerasfeed.spec.inference import describe
from kerasfeed.spec.nesting import flatten, flatten_as, structure_text
from kerasfeed.spec.scene_spec import BYTES, TEXT, ArraySpec, SceneSpec
from kerasfeed.util.error_text import summary

_NAMED = re.compile(r"(\w+)\((\w+(?:,\w+)*)\)")


def as_scene_spec(spec: Any) -> SceneSpec:
    """Return the spec for a user's nesting of `ArraySpec`s or `tf.TensorSpec`s.

    Raises:
        TypeError: A leaf is something else.
        ValueError: A size is negative.
        SpecError: There is no field, two fields have one name, or a list holds only single values.
    """
    scene = spec
    if not isinstance(spec, SceneSpec):
        spec = optree.tree_map(_array_spec, spec)
        leaves, treespec = optree.tree_flatten(spec)
        if not leaves:
            raise SpecError(f"the spec holds no field: received {spec!r}. Give a kf.ArraySpec for every field")
        parts = optree.tree_leaves(spec, is_leaf=lambda node: node is not spec and _is_array(node))
        if any(type(leaf) is list for leaf in parts):
            raise SpecError(
                f"a list of single values inside a scene is one array, received the spec {spec!r}. Give one "
                "kf.ArraySpec((n,), dtype) instead of a list of n specs, or a tuple if scenes have a tuple there"
            )
        scene = SceneSpec(treespec, tuple(_checked(leaf) for leaf in leaves))
    assert isinstance(scene, SceneSpec)
    if len(set(scene.paths)) < len(scene.paths):
        double = next(path for path in scene.paths if scene.paths.count(path) > 1)
        raise SpecError(f"two fields have the name {double!r} ({structure_text(scene.treespec)}): rename one of them")
    return scene


def _array_spec(leaf: Any) -> ArraySpec:
    if type(leaf).__name__ == "TensorSpec" and leaf.shape.rank is not None:  # known without TensorFlow
        return ArraySpec(tuple(leaf.shape), TEXT if leaf.dtype.name == "string" else leaf.dtype.as_numpy_dtype)
    if not isinstance(leaf, ArraySpec):
        raise TypeError(
            "a spec is a nesting of kf.ArraySpec(shape, dtype) or tf.TensorSpec(shape, dtype), as the scenes are "
            f"nested, for example {{'image': kf.ArraySpec((28, 28), np.uint8)}}; received {leaf!r} of type "
            f"{type(leaf).__name__}"
        )
    return leaf


def _is_array(node: Any) -> bool:
    """Whether a spec's list is an array of numbers or text."""
    if type(node) is not list:
        return False
    fields = [field for field in node if not _is_array(field)]
    if not all(isinstance(field, ArraySpec) and field.shape == () for field in fields):
        return False
    return len({np.dtype(field.dtype).char if np.dtype(field.dtype).kind in "US" else "" for field in fields}) < 2


def _checked(field: ArraySpec) -> ArraySpec:
    shape: Any = field.shape
    sizes = (shape,) if isinstance(shape, int) else shape
    if any(size is not None and size < 0 for size in sizes):
        raise ValueError(f"the sizes of a spec must be at least 0, or None for an axis that varies, received {sizes}")
    dtype: np.dtype[Any] = np.dtype(field.dtype)
    if dtype.kind in "US":
        dtype = TEXT if dtype.kind == "U" else BYTES
    return ArraySpec(tuple(None if size is None else int(size) for size in sizes), dtype.newbyteorder("="), field.weak)


def leaves_of(spec: SceneSpec, scene: Any) -> list[Any]:
    """Return the fields of a scene, in the spec's order.

    Raises:
        SpecError: The scene has another nesting than the spec.
    """
    try:
        leaves: list[Any] = flatten_as(spec.treespec, scene)
        if not spec.treespec.is_leaf() or type(scene) is not list:
            return leaves
    except ValueError:
        pass
    describe(scene)
    raise SpecError(
        f"expected the structure {structure_text(spec.treespec)}, received {structure_text(flatten(scene)[1])}. "
        "Return the same nesting for every index"
    )


def coerced_leaves(spec: SceneSpec, scene: Any) -> list[Any]:
    """Return the fields of a scene as the spec describes them.

    See `kerasfeed.spec.field_values.coerce`.

    Raises:
        SpecError: Nesting, shape or dtype differ.
    """
    leaves = leaves_of(spec, scene)
    return [coerce(leaf, field, path) for leaf, field, path in zip(leaves, spec.fields, spec.paths, strict=True)]


def spec_to_json(spec: SceneSpec) -> Any:
    """Return the spec as an object for `json.dumps`.

    Raises:
        SpecError: The nesting holds a type or a dict key that a file cannot describe.
    """
    return _to_json(spec.unflatten(spec.fields))


def _to_json(value: Any) -> Any:
    if isinstance(value, ArraySpec):
        return {"array": {"shape": list(value.shape), "dtype": dtype_to_json(value.dtype)}}
    if value is None:
        return None
    kind = type(value)
    if kind in (tuple, list):
        return {kind.__name__: [_to_json(item) for item in value]}
    if kind in (dict, OrderedDict):
        for key in value:
            if type(key) not in (str, int):
                raise SpecError(f"a scene has the dict key {key!r}: in a file, keys are str or int")
        return {kind.__name__: [[key, _to_json(item)] for key, item in value.items()]}
    if optree.is_namedtuple(value):
        items = [[name, _to_json(item)] for name, item in zip(kind._fields, value, strict=True)]
        return {"namedtuple": [kind.__name__, items]}
    raise SpecError(
        f"a scene holds a {kind.__name__}, but a file describes only tuples, lists, dicts and namedtuples. Return one "
        "of these"
    )


def spec_from_json(value: Any) -> SceneSpec:
    """Return the spec that `spec_to_json` described.

    Raises:
        ValueError: `value` does not describe a spec.
    """
    try:
        leaves, treespec = optree.tree_flatten(_from_json(value, whole=True))
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the JSON does not describe a spec: {summary(error)}") from None
    if not leaves:
        raise ValueError("the JSON describes a spec without fields")
    return SceneSpec(treespec, tuple(leaves))


def _from_json(value: Any, *, whole: bool = False) -> Any:
    if value is None:
        return None
    ((kind, inner),) = value.items()
    if kind == "array":
        return ArraySpec(tuple(inner["shape"]), dtype_from_json(inner["dtype"]))
    if kind in ("tuple", "list"):
        items = [_from_json(item) for item in inner]
        # A list of single values inside a scene is one array. If a file has them as separate fields, make a tuple.
        return items if kind == "list" and (whole or not _is_array(items)) else tuple(items)
    if kind in ("dict", "OrderedDict"):
        return (dict if kind == "dict" else OrderedDict)((key, _from_json(item)) for key, item in inner)
    if kind == "namedtuple":
        name, items = inner
        return _named_class(name, tuple(key for key, _ in items))(*(_from_json(item) for _, item in items))
    raise KeyError(kind)


@functools.lru_cache(maxsize=1024)
def _named_class(name: str, fields: tuple[str, ...]) -> Any:
    """Return the class for this name and fields, which pickles by name."""
    made = namedtuple(name, fields)  # type: ignore[misc]
    made.__module__, made.__qualname__ = __name__, f"{name}({','.join(fields)})"
    return made


def __getattr__(name: str) -> Any:
    """Return the class for a namedtuple in a pickle."""
    match = _NAMED.fullmatch(name)
    if match is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _named_class(match[1], tuple(match[2].split(",")))


def dtype_to_json(dtype: np.dtype[Any]) -> Any:
    """Return a dtype's name, or a list for a structured dtype."""
    if dtype in (TEXT, BYTES):
        return "str" if dtype == TEXT else "bytes"
    if dtype.names:
        return [[name, dtype_to_json(dtype[name].base), list(dtype[name].shape)] for name in dtype.names]
    return dtype.str[1:] if dtype.kind == "V" and dtype.type is np.void else dtype.name


def dtype_from_json(value: Any) -> np.dtype[Any]:
    """Return the dtype that `dtype_to_json` described.

    Raises:
        TypeError: This NumPy has no dtype of this name.
    """
    if isinstance(value, list):
        made: np.dtype[Any] = np.dtype([(name, dtype_from_json(member), tuple(shape)) for name, member, shape in value])
        return made
    if value in ("str", "bytes"):
        return TEXT if value == "str" else BYTES
    try:
        named: np.dtype[Any] = np.dtype(value)
        return named
    except TypeError:
        import ml_dtypes  # bfloat16 and the like: TensorFlow and JAX install them, NumPy has none

        found = getattr(ml_dtypes, value, None)
        if found is None:
            raise
        return np.dtype(found)  # type: ignore[no-any-return]
