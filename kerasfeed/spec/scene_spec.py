"""The spec of a scene: shape and dtype of every field, inferred, merged and compared.

Invariant: a spec is a value. Inference looks at scenes and never at batches; every message names the field and what
to change, and the caller adds the scene's index. Nesting is optree's: tuples, lists, dicts, namedtuples, None; but a
list of numbers or text inside a scene is one array, as tf.data has it.
"""

import dataclasses
import datetime
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import optree

from kerasfeed.errors import SpecError
from kerasfeed.spec.lists import array_of, big_text, is_array
from kerasfeed.util.counted import counted
from kerasfeed.util.exact_text import exact_text

TEXT = np.dtype("U")
BYTES = np.dtype("S")
_FRACTIONS = {"ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds", "ps": "ps", "fs": "fs", "as": "as"}
_PYTHON_NUMBERS = (bool, int, float, complex)
# Types that are no nesting, as far as they are common: where a scene holds nothing else, there is no list in it.
_FLAT = frozenset(
    [np.ndarray, *_PYTHON_NUMBERS, str, bytes, np.bool_, np.int32, np.int64, np.uint8, np.float32, np.float64]
)


@dataclass(frozen=True)
class ArraySpec:
    """Shape and dtype of one field of a scene, or of one array of a batch.

    Attributes:
        shape: Sizes of the axes; None where the size differs from scene to scene.
        dtype: NumPy dtype in native byte order. `np.dtype("U")` stands for `str`, and `np.dtype("S")` for `bytes`, of
            any length; such fields arrive as object arrays.
        weak: True for a Python number, or a list of them. NumPy chose its dtype, which may therefore be promoted.
        untyped: True for an empty list, which gets the dtype and further axes that other scenes have.

    Examples:
        A scene of a point cloud of any length and a label:

        >>> spec = (kf.ArraySpec((None, 3), np.dtype("float32")), kf.ArraySpec((), np.dtype("int64")))
        >>> spec[0].fits((100, 3)), spec[0].fits((100, 4))
        (True, False)
    """

    shape: tuple[int | None, ...]
    dtype: np.dtype[Any]
    weak: bool = dataclasses.field(default=False, repr=False, compare=False)
    untyped: bool = dataclasses.field(default=False, repr=False, compare=False)

    @property
    def is_text(self) -> bool:
        """Whether the field holds `str` or `bytes`."""
        return self.dtype in (TEXT, BYTES)

    @property
    def is_fixed(self) -> bool:
        """Whether every axis has the same size in all scenes, and the field is not text."""
        return not self.is_text and None not in self.shape

    def fits(self, shape: tuple[int | None, ...]) -> bool:
        """Whether an array of shape `shape` may be a value of the field.

        Args:
            shape: Sizes of the axes.

        Returns:
            True if the number of axes agrees, and all sizes that are not None.

        Examples:
            >>> kf.ArraySpec((None, 3), np.dtype("float32")).fits((7, 3))
            True
        """
        return len(shape) == len(self.shape) and all(
            want is None or want == size for want, size in zip(self.shape, shape, strict=True)
        )

    @property
    def nbytes(self) -> int:
        """Bytes of one array of this spec, with unknown axes counted as 1; 0 for text."""
        if self.is_text:
            return 0
        return int(np.prod([size or (1 if size is None else 0) for size in self.shape])) * self.dtype.itemsize

    def __str__(self) -> str:
        name = {TEXT: "str", BYTES: "bytes"}.get(self.dtype) or self.dtype.name
        return f"{name}[{', '.join('?' if size is None else str(size) for size in self.shape)}]"


@dataclass(frozen=True)
class SceneSpec:
    """Structure of a scene and the `ArraySpec` of every field, in optree's order.

    Attributes:
        treespec: The nesting.
        fields: One `ArraySpec` a field.
    """

    treespec: optree.PyTreeSpec
    fields: tuple[ArraySpec, ...]

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """Name of every field: its keys and positions joined by dots, `1.points`."""
        return field_paths(self.treespec)

    @cached_property
    def has_lists(self) -> bool:
        """Whether a list is part of the nesting."""
        return "[" in structure_text(self.treespec)

    def unflatten(self, leaves: Sequence[Any]) -> Any:
        """The scene's nesting with `leaves` in place of its fields."""
        return optree.tree_unflatten(self.treespec, leaves)


def field_paths(treespec: optree.PyTreeSpec) -> tuple[str, ...]:
    """Dotted name of every leaf of `treespec`; a scene that is one array has the name `scene`."""
    return tuple(".".join(str(key) for key in path) or "scene" for path in treespec.paths())


def flatten(scene: Any) -> tuple[list[Any], optree.PyTreeSpec]:
    """Leaves of a scene and its nesting; costs about 1 us for a tuple of two arrays.

    A list that is the whole scene is nesting. Of those inside it, one of numbers or text is a leaf; `as_array` makes it
    an array.
    """
    kind = type(scene)
    values: Any = scene if kind is tuple else scene.values() if kind is dict else None
    if kind in _FLAT or (values is not None and _FLAT.issuperset(map(type, values))):
        return optree.tree_flatten(scene)
    return optree.tree_flatten(scene, is_leaf=lambda node: type(node) is list and node is not scene and is_array(node))


def is_nested(leaf: Any, treespec: optree.PyTreeSpec) -> bool:
    """Whether what stands where `treespec` has a field is nested itself, and so no field."""
    if type(leaf) is list:
        return treespec.is_leaf() or not is_array(leaf)  # a list that is the whole scene is nesting
    return bool(optree.tree_structure(leaf).num_nodes > 1)


def describe(scene: Any) -> SceneSpec:
    """The spec of one scene, all axes fixed.

    Raises:
        SpecError: A field is of a type or dtype that no batch can hold; the message names the field.
    """
    leaves, treespec = flatten(scene)
    paths = field_paths(treespec)
    if not leaves:
        remedy = "Return an array, or a tuple or dict of arrays"
        raise SpecError(no_field_text(scene, f"__getitem__ returned {_short(scene)}", remedy))
    return SceneSpec(treespec, tuple(describe_leaf(leaf, path) for leaf, path in zip(leaves, paths, strict=True)))


def no_field_text(scene: Any, made: str, remedy: str) -> str:
    """What is said of a scene that holds no array: what was made, which parts of it are None, and the remedy."""
    paths = [".".join(map(str, path)) for path in optree.tree_paths(scene, none_is_leaf=True)]
    if scene is None:
        remedy += " (is a `return` missing?)"
    elif paths:
        made += f", where {', '.join(map(repr, paths))} {'is' if len(paths) == 1 else 'are'} None"
    return f"the scene holds no field: {made}. {remedy}"


def describe_leaf(leaf: Any, path: str) -> ArraySpec:
    """The spec of one field's value.

    Raises:
        SpecError: The value cannot be part of a batch.
    """
    return _described(leaf, path)[1]


def _described(leaf: Any, path: str) -> tuple[Any, ArraySpec]:
    listed = array_of(leaf, path) if type(leaf) is list and is_array(leaf) else None
    array = as_array(leaf if listed is None else listed.array, path)
    if isinstance(array, str | bytes):
        return array, ArraySpec((), TEXT if isinstance(array, str) else BYTES)
    dtype = array.dtype
    if dtype.kind in "UTO":
        dtype = BYTES if dtype.kind == "O" and array.size and isinstance(array.flat[0], bytes) else TEXT
    elif dtype.kind == "S":
        dtype = BYTES
    weak, untyped = (isinstance(leaf, _PYTHON_NUMBERS), False) if listed is None else (listed.weak, listed.untyped)
    # A native one as it is: NumPy compares a dtype with itself five times as fast as with an equal one.
    return array, ArraySpec(array.shape, dtype if dtype.isnative else dtype.newbyteorder("="), weak, untyped)


def is_weak(leaf: Any) -> bool:
    """Whether a value is a Python number or a list of them, whose dtype NumPy chooses."""
    if type(leaf) is list:
        return is_array(leaf) and array_of(leaf, "").weak
    return isinstance(leaf, _PYTHON_NUMBERS)


def as_array(leaf: Any, path: str) -> Any:
    """The value of a field as an ndarray, or as plain `str` or `bytes` when it is a single one.

    Raises:
        SpecError: The value is of a type that no batch can hold.
    """
    if isinstance(leaf, str | bytes):
        return exact_text(leaf)
    if type(leaf) is list and is_array(leaf):
        return as_array(array_of(leaf, path).array, path)
    if not (
        isinstance(leaf, np.ndarray | np.generic | bool | int | float | complex)
        or hasattr(leaf, "__array__")
        or hasattr(leaf, "__array_interface__")
    ):
        raise SpecError(f"field {path!r} is {_remedy_for(leaf)}")
    if isinstance(leaf, np.ma.MaskedArray):
        raise SpecError(
            f"field {path!r} is a masked array, and a batch holds no masks. Return array.filled(value), and the mask "
            "as a field of its own if the model needs it"
        )
    if getattr(leaf, "requires_grad", False) is True:
        raise SpecError(f"field {path!r} is a {type(leaf).__name__} that requires grad: return tensor.detach()")
    array = np.asarray(leaf)
    if array.dtype.kind == "V" and (bad := _member_no_batch_holds(array.dtype)):
        raise SpecError(f"field {path!r} has dtype {array.dtype}, whose member {bad}. Return its members as fields")
    if array.dtype.kind in "Mm":
        raise SpecError(
            f"field {path!r} has dtype {array.dtype}, which no Keras backend can hold. Return it as a number, "
            f"{_number_of_time(array.dtype)}, or as text, np.asarray(value).astype(str)"
        )
    if array.dtype.kind == "O":
        if isinstance(leaf, int):
            raise SpecError(f"field {path!r} is {big_text(leaf)}")
        return _text_objects(array, path)
    return array


def _member_no_batch_holds(dtype: np.dtype[Any]) -> str:
    for name in dtype.names or ():
        member = dtype[name].base
        if member.kind in "OMm":
            return f"{name!r} is {member}"
        if inner := _member_no_batch_holds(member):
            return inner
    return ""


def _number_of_time(dtype: np.dtype[Any]) -> str:
    """The code that makes a number of a date or time span, in a unit that does not depend on how the value is given."""
    unit, kind = np.datetime_data(dtype)[0], "datetime64" if dtype.kind == "M" else "timedelta64"
    if kind == "timedelta64" and unit in ("Y", "M", "generic"):  # no number of seconds
        return "np.asarray(value).astype('int64')"
    unit = unit if unit in _FRACTIONS else "s"
    since = " since 1970" if kind == "datetime64" else ""
    return f"np.asarray(value).astype('{kind}[{unit}]').astype('int64') ({_FRACTIONS.get(unit, 'seconds')}{since})"


def _text_objects(array: np.ndarray[Any, Any], path: str) -> np.ndarray[Any, Any]:
    """An object array of `str`, or of `bytes`, without subclasses of them."""
    wanted: type = bytes if array.size and isinstance(array.flat[0], bytes) else str
    exact = True
    for value in array.flat:
        if not isinstance(value, wanted):
            raise SpecError(
                f"field {path!r} is an object array holding {_short(value)}. Only object arrays of str, or of bytes, "
                "can be part of a batch; give the others a numeric dtype (np.asarray(values, dtype=...))"
            )
        exact = exact and type(value) is wanted
    if exact:
        return array
    made = np.empty(array.shape, object)
    made.reshape(-1)[:] = [exact_text(value) for value in array.flat]
    return made


def _remedy_for(leaf: Any) -> str:
    if dataclasses.is_dataclass(leaf):
        return (
            f"a dataclass ({type(leaf).__name__}), whose fields have no order a model could rely on. Return "
            "dataclasses.asdict(...) or dataclasses.astuple(...) of it"
        )
    if isinstance(leaf, datetime.date | datetime.datetime | datetime.time | datetime.timedelta):
        return f"a {type(leaf).__name__}, which no Keras backend can hold. Return a number (.timestamp()) or str(...)"
    return (
        f"of type {type(leaf).__name__} ({_short(leaf)}), which is not an array. Return NumPy arrays, Python numbers, "
        "str or bytes, nested in tuples, lists or dicts"
    )


def merge(scenes: Sequence[tuple[int, SceneSpec]]) -> SceneSpec:
    """One spec for several scenes: axes that differ become None, Python numbers are promoted.

    Args:
        scenes: Pairs of index and spec of that scene, at least one.

    Raises:
        SpecError: Two scenes differ in nesting, in dtype or in number of axes; the message names both indices.
    """
    first_index, first = scenes[0]
    fields = list(first.fields)
    for index, spec in scenes[1:]:
        if spec.treespec != first.treespec:
            structures = f"{structure_text(first.treespec)} and {structure_text(spec.treespec)}"
            lists = ". A list that is a whole scene, or holds arrays, has a field for each item: np.array makes it one"
            raise SpecError(
                f"scenes {first_index} and {index} have different structures: {structures}. Return the same nesting of "
                f"tuples and dicts for every index{lists if '[' in structures else ''}"
            )
        for place, (path, one, other) in enumerate(zip(first.paths, fields, spec.fields, strict=True)):
            fields[place] = _merge_fields(path, one, other, first_index, index)
    return SceneSpec(first.treespec, tuple(fields))


def with_open_rows(spec: SceneSpec) -> SceneSpec:
    """`spec`, of batches, with any number of rows."""
    fields = [
        dataclasses.replace(field, shape=(None, *field.shape[1:])) if field.shape else field for field in spec.fields
    ]
    return SceneSpec(spec.treespec, tuple(fields))


def as_others(field: ArraySpec, other: ArraySpec) -> ArraySpec:
    """An empty list's spec with the dtype and the further axes of `other`; any other spec as it is."""
    if not field.untyped:
        return field
    shape = (*field.shape, *(size or 0 for size in other.shape[len(field.shape) :]))
    return ArraySpec(shape, other.dtype, other.weak, other.untyped)


def _merge_fields(path: str, one: ArraySpec, other: ArraySpec, first_index: int, index: int) -> ArraySpec:
    one, other = as_others(one, other), as_others(other, one)
    if len(one.shape) != len(other.shape):
        raise SpecError(
            f"field {path!r} has {counted(len(one.shape), 'axis', 'axes')} in scene {first_index} and "
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
        raise SpecError(
            f"field {path!r} is {one} in scene {first_index} and {other} in scene {index}. Return one dtype for every "
            f"index, for example array.astype(np.{one.dtype.name})"
        )
    shape = tuple(a if a == b else None for a, b in zip(one.shape, other.shape, strict=True))
    return ArraySpec(shape, dtype, weak, one.untyped and other.untyped)


def remedy_of(same_kind: bool, field: ArraySpec, found: ArraySpec) -> str:
    """The end of the message of a value that does not fit a field, though its dtype may (`same_kind`)."""
    if not same_kind:
        return ". Return one dtype for every index (array.astype(...) in __getitem__)"
    return (
        ". Return one shape for every index (crop, pad or resample in __getitem__); the spec was inferred from a few "
        "scenes spread over the sequence"
    )


def coerce(
    leaf: Any, field: ArraySpec, path: str, remedy: Callable[[bool, ArraySpec, ArraySpec], str] = remedy_of
) -> Any:
    """The value of a field as the array (or `str`, `bytes`) that `field` asks for.

    Byte order is made native, and Python numbers take the field's dtype where nothing is lost. Everything else must
    match exactly.

    Raises:
        SpecError: Shape or dtype differ; the message says what was expected and what came, and ends as `remedy` does.
    """
    if type(leaf) is np.ndarray and leaf.dtype == field.dtype and field.fits(leaf.shape):
        return leaf
    array, found = _described(leaf, path)
    if found.untyped:
        found = as_others(found, field)
        array = np.zeros([size or 0 for size in found.shape], object if field.is_text else field.dtype)
    same_kind = found.dtype == field.dtype
    if not same_kind and found.weak and not field.is_text:
        same_kind = bool(np.can_cast(found.dtype, field.dtype, "safe"))
    if not (same_kind and field.fits(found.shape)):
        raise SpecError(f"field {path!r}: expected {field}, received {found}{remedy(same_kind, field, found)}")
    if not field.is_text:
        return np.asarray(array, dtype=field.dtype)
    if isinstance(array, str | bytes):
        return array
    return array.astype(object)


def lists_as_arrays(structure: Any) -> Any:
    """The same nesting with an array for every list in it that is one."""
    leaves, treespec = flatten(structure)
    if not any(type(leaf) is list for leaf in leaves):
        return structure
    paths = field_paths(treespec)
    pairs = zip(leaves, paths, strict=True)
    return treespec.unflatten(as_array(leaf, path) if type(leaf) is list else leaf for leaf, path in pairs)


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


def probe_indices(length: int, count: int = 5) -> list[int]:
    """Indices of up to `count` scenes spread over a sequence: the first, the last and some between."""
    return sorted({round(k * (length - 1) / max(1, count - 1)) for k in range(count)})


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
