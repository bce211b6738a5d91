"""Values of fields: conversion to arrays, description, check against a spec.

Invariant: a conversion changes no value, except that float64 rounds a Python integer beyond 2**53. It makes byte order
native and gives Python numbers the field's dtype. Every message names the field and the remedy; the caller adds the
scene's index.
"""

import datetime
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from kerasfeed.errors import SpecError
from kerasfeed.spec.lists import array_of, big_text, is_array, is_weak
from kerasfeed.spec.nesting import field_paths, flatten
from kerasfeed.spec.scene_spec import BYTES, TEXT, ArraySpec, as_others
from kerasfeed.util.array_bits import exact_text, is_masked_array, object_array


def described(leaf: Any, path: str) -> tuple[Any, ArraySpec]:
    """Return a field's value as array, `str` or `bytes`, and its spec.

    Raises:
        SpecError: The value cannot be part of a batch.
    """
    array = as_array(leaf, path)
    if isinstance(array, str | bytes):
        return array, ArraySpec((), TEXT if isinstance(array, str) else BYTES)
    dtype = array.dtype
    if dtype.kind in "UTO":
        dtype = BYTES if dtype.kind == "O" and array.size and isinstance(array.flat[0], bytes) else TEXT
    elif dtype.kind == "S":
        dtype = BYTES
    untyped = type(leaf) is list and not array.size
    # Keep a native dtype object: NumPy compares a dtype with itself five times as fast as with an equal one.
    return array, ArraySpec(array.shape, dtype if dtype.isnative else dtype.newbyteorder("="), is_weak(leaf), untyped)


def as_array(leaf: Any, path: str) -> Any:
    """Return a field's value as an ndarray.

    A single string stays a plain `str` or `bytes`.

    Raises:
        SpecError: The value is of a type that no batch can hold.
    """
    if type(leaf) is np.ndarray and leaf.dtype.kind in "biufc":
        return leaf
    if isinstance(leaf, str | bytes):
        return exact_text(leaf)
    if type(leaf) is list and is_array(leaf):
        return as_array(array_of(leaf, path), path)
    if not (
        isinstance(leaf, np.ndarray | np.generic | bool | int | float | complex)
        or hasattr(leaf, "__array__")
        or hasattr(leaf, "__array_interface__")
    ):
        raise SpecError(f"field {path!r} is {_remedy_for(leaf)}")
    if is_masked_array(leaf):
        raise SpecError(
            f"field {path!r} is a masked array, but a batch holds no masks. Return array.filled(value), and the mask "
            "as another field if the model needs it"
        )
    if getattr(leaf, "requires_grad", False) is True:
        raise SpecError(f"field {path!r} is a {type(leaf).__name__} that requires grad: return tensor.detach()")
    array = _bfloat16_of(leaf) if str(getattr(leaf, "dtype", "")) == "torch.bfloat16" else np.asarray(leaf)
    if array.dtype.kind == "V" and (bad := _member_no_batch_holds(array.dtype)):
        raise SpecError(f"field {path!r} has dtype {array.dtype}, whose member {bad}. Return its members as fields")
    if array.dtype.kind in "Mm":
        raise SpecError(
            f"field {path!r} has dtype {array.dtype}, which no Keras backend can hold. Return it as a number in "
            "its unit (the same in all scenes), np.asarray(value).astype('int64'), or as text, "
            "np.asarray(value).astype(str)"
        )
    if array.dtype.kind == "T" and hasattr(array.dtype, "na_object"):  # missing values may not be text
        array = array.astype(object)
    if array.dtype.kind == "O":
        if isinstance(leaf, int):
            raise SpecError(f"field {path!r} is {big_text(leaf)}")
        if type(leaf).__module__.partition(".")[0] == "pandas":
            raise SpecError(
                f"field {path!r} is a {type(leaf).__name__} of pandas whose values have several dtypes. Return a dict "
                "of them, row.to_dict(), or feed the DataFrame itself"
            )
        array = _text_objects(array, path)
    return array.item() if not array.ndim and array.dtype.kind in "UTSO" else array


def _bfloat16_of(tensor: Any) -> np.ndarray[Any, Any]:
    """Convert PyTorch's bfloat16 bit for bit, because `numpy()` refuses it."""
    import ml_dtypes  # a dependency of Keras

    return np.asarray(tensor.view(sys.modules["torch"].int16)).view(ml_dtypes.bfloat16)


def _member_no_batch_holds(dtype: np.dtype[Any]) -> str:
    for name in dtype.names or ():
        member = dtype[name].base
        if member.kind in "OMm":
            return f"{name!r} is {member}"
        if inner := _member_no_batch_holds(member):
            return inner
    return ""


def _text_objects(array: np.ndarray[Any, Any], path: str) -> np.ndarray[Any, Any]:
    """Return an object array of exact `str`, or of exact `bytes`."""
    wanted: type = bytes if array.size and isinstance(array.flat[0], bytes) else str
    exact = True
    for value in array.flat:
        if not isinstance(value, wanted):
            raise SpecError(
                f"field {path!r} is an object array holding {start_of(value)}. Only object arrays of str, or of bytes, "
                "can be part of a batch; give the others a numeric dtype (np.asarray(values, dtype=...))"
            )
        exact = exact and type(value) is wanted
    return array if exact else object_array([exact_text(value) for value in array.flat], array.shape)


def _remedy_for(leaf: Any) -> str:
    kind = type(leaf).__name__
    if isinstance(leaf, datetime.date | datetime.datetime | datetime.time | datetime.timedelta):
        return f"a {kind}, which no Keras backend can hold. Return a number (.timestamp()) or str(...)"
    if callable(getattr(leaf, "toarray", None)):
        return f"sparse ({kind}), but a batch is dense. Return value.toarray(), or value.toarray()[0] for one row"
    return (
        f"of type {kind} ({start_of(leaf)}), which is not an array. Return NumPy arrays, Python numbers, str or bytes, "
        "nested in tuples, lists or dicts"
    )


def remedy_of(same_kind: bool, field: ArraySpec, found: ArraySpec) -> str:
    """Return the end of a message for a value that cannot fit.

    `same_kind` means that the dtype fits, and only the shape differs.
    """
    if not same_kind:
        return ". Return one dtype for every index (array.astype(...) in __getitem__)"
    return (
        ". Return one shape for every index (crop, pad or resample in __getitem__); the spec was inferred from a few "
        "scenes spread over the sequence"
    )


def coerce(
    leaf: Any, field: ArraySpec, path: str, remedy: Callable[[bool, ArraySpec, ArraySpec], str] = remedy_of
) -> Any:
    """Return a field's value as the array, `str` or `bytes` of `field`.

    Byte order becomes native. Python numbers get the field's dtype if that is a safe cast in NumPy. Everything else
    must match exactly.

    Raises:
        SpecError: Shape or dtype differ; the message has the expected and received spec, and ends with the text of
            `remedy`.
    """
    if type(leaf) is np.ndarray and leaf.dtype == field.dtype and field.fits(leaf.shape):
        return leaf
    array, received = described(leaf, path)
    if received.untyped:
        received = as_others(received, field)
        array = np.zeros([size or 0 for size in received.shape], object if field.is_text else field.dtype)
    same_kind = received.dtype == field.dtype
    if not same_kind and received.weak and not field.is_text:
        same_kind = bool(np.can_cast(received.dtype, field.dtype, "safe"))
    if not (same_kind and field.fits(received.shape)):
        raise SpecError(f"field {path!r}: expected {field}, received {received}{remedy(same_kind, field, received)}")
    if not field.is_text:
        return np.asarray(array, dtype=field.dtype)
    if isinstance(array, str | bytes):
        return array
    return array.astype(object)


def lists_as_arrays(structure: Any) -> Any:
    """Return the nesting with arrays for lists of numbers or text."""
    leaves, treespec = flatten(structure)
    if not any(type(leaf) is list for leaf in leaves):
        return structure
    paths = field_paths(treespec)
    pairs = zip(leaves, paths, strict=True)
    return treespec.unflatten(as_array(leaf, path) if type(leaf) is list else leaf for leaf, path in pairs)


def start_of(value: Any) -> str:
    """Return `repr(value)`, shortened to at most 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
