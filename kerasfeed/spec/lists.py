"""Lists of numbers or text, also nested lists, as arrays.

Invariant: only the types and axes of its values decide whether a list is an array. The conversion rounds no list of
integers and truncates no text. As in NumPy, an integer beyond 2**53 is rounded in a list that also holds floats.
"""

import functools
import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.errors import SpecError
from kerasfeed.util.array_bits import exact_text, is_masked_array, object_array

PYTHON_NUMBERS: tuple[Any, ...] = (bool, int, float, complex)
_REMEDY = "crop or pad the inner lists to one length, or return np.concatenate(...) of them and their lengths"


def is_array(values: list[Any]) -> bool:
    """Whether a scene's list is an array of numbers or text.

    An empty list is an array. A list of tuples, dicts or arrays with axes is not. If inner lists differ in length, the
    list still counts as an array; `array_of` raises for it.
    """
    return _kind_of(values) is not None


def is_weak(value: Any) -> bool:
    """Whether NumPy chooses the dtype: for Python numbers, and lists of them.

    `np.float64` and `np.complex128` count as Python numbers, because they are subclasses of `float` and `complex`.
    """
    if type(value) is not list:
        return isinstance(value, PYTHON_NUMBERS)
    kinds = set(map(type, value))
    if not all(kind is list or issubclass(kind, PYTHON_NUMBERS) for kind in kinds):
        return False
    return list not in kinds or all(map(is_weak, value))


def array_of(values: list[Any], path: str) -> NDArray[Any]:
    """Return the array of a list that `is_array` accepts.

    Text becomes an object array.

    Raises:
        SpecError: Lists in it differ in length, or it holds integers that no dtype holds; the message names the field.
    """
    kind = _kind_of(values)
    assert kind is not None
    shape = _shape_of(values, path)
    if kind in ("str", "bytes"):
        return object_array([_text(value) for value in _flat(values, len(shape))], shape)
    if kind == "":
        return np.zeros(shape)
    types = set(map(type, _flat(values, len(shape))))
    if any(not issubclass(each, (*PYTHON_NUMBERS, np.generic, np.ndarray)) for each in types):  # tensors
        array: NDArray[Any] = np.array([np.asarray(value)[()] for value in _flat(values, len(shape))]).reshape(shape)
    else:
        array = np.asarray(values)
    integers = all(issubclass(each, int | np.integer) for each in types)
    if array.dtype.kind == "O" or (integers and array.dtype.kind == "f"):
        big = max((value for value in _flat(values, len(shape)) if isinstance(value, int)), key=abs, default=0)
        if integers or abs(big) >= 1 << 63:
            raise SpecError(f"field {path!r} is a list with {big_text(big)}")
    return array


def own(leaf: Any) -> Any:
    """Return a copy of an array or list; return other values unchanged."""
    if isinstance(leaf, np.ndarray):
        return leaf.copy()
    return [own(value) if type(value) is list else value for value in leaf] if type(leaf) is list else leaf


def big_text(value: Any) -> str:
    """Return the message for an integer that its field's dtype cannot hold."""
    return (
        f"the integer {value}, but no integer dtype holds all its values (int64 ends at 2**63 - 1, uint64 at "
        "2**64 - 1). Return smaller integers, np.float64(...), or str"
    )


def _text(value: Any) -> Any:
    return exact_text(value.item() if isinstance(value, np.ndarray) else value)


def _kind_of(values: list[Any]) -> str | None:
    """Return "number", "str" or "bytes"; "" for empty lists, None for others."""
    common = ""
    for kind in set(map(type, values)):
        if kind is list:
            inside = [_kind_of(value) for value in values if type(value) is list]
        elif (name := _name_of(kind)) is not None:
            inside = [name]
        else:
            inside = [_kind_of_array(value) for value in values if type(value) is kind]
        for name in inside:
            if name is None or (common and name and name != common):
                return None
            common = common or name
    return common


@functools.lru_cache(maxsize=256)
def _name_of(kind: type) -> str | None:
    if issubclass(kind, str):
        return "str"
    if issubclass(kind, bytes):
        return "bytes"
    return "number" if issubclass(kind, (*PYTHON_NUMBERS, np.generic)) else None


def _kind_of_array(value: Any) -> str | None:
    """Return the kind of a 0-d array or tensor.

    None for anything else.
    """
    if not hasattr(value, "__array__") or getattr(value, "shape", None) != () or is_masked_array(value):
        return None
    kind = value.dtype.kind if isinstance(value, np.ndarray) else ""
    return {"U": "str", "T": "str", "S": "bytes", "O": None}.get(kind, "number")


def _shape_of(values: list[Any], path: str) -> tuple[int, ...]:
    if not any(type(value) is list for value in values):
        return (len(values),)
    shapes = [_shape_of(value, path) if type(value) is list else () for value in values]
    for shape in shapes[1:]:
        if shape != shapes[0]:
            one, other = (f"a list of shape {each}" if each else "a single value" for each in (shapes[0], shape))
            raise SpecError(
                f"field {path!r} is a list that is nested unevenly: it holds {one} and {other}, but an array has "
                f"one size on each axis. To make it an array, {_REMEDY}"
            )
    return (len(values), *shapes[0])


def _flat(values: list[Any], axes: int) -> Any:
    for _ in range(axes - 1):
        values = itertools.chain.from_iterable(values)  # type: ignore[assignment]
    return values
