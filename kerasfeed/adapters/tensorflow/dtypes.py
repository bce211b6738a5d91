"""Imports TensorFlow for this package; dtypes and text of fields for it.

Invariant: without TensorFlow, importing this module raises an ImportError that says what to install. Data that
TensorFlow cannot take are refused here with the name of the field, which TensorFlow omits.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import optree

from kerasfeed.errors import SpecError
from kerasfeed.spec.field_values import start_of
from kerasfeed.spec.scene_spec import ArraySpec

try:
    import tensorflow as tf
except ModuleNotFoundError as missing:
    if missing.name != "tensorflow":
        raise
    raise ImportError(
        "datasets of tf.data and parsing in a graph need TensorFlow, which is not installed: "
        'pip install tensorflow (the extra "kerasfeed[tensorflow]")'
    ) from missing

__all__ = ["arrays_of", "can_be_unbatched", "tf", "tf_dtype"]


def tf_dtype(field: ArraySpec, path: str, remedy: str) -> Any:
    """Return TensorFlow's dtype of a field.

    Args:
        field: Its spec.
        path: Its dotted name, for messages.
        remedy: The end of messages.

    Raises:
        TypeError: TensorFlow or tf.data cannot hold the dtype.
    """
    if field.is_text:
        return tf.string
    try:
        dtype = tf.as_dtype(field.dtype)
    except TypeError:
        raise TypeError(f"field {path!r} is {field}, a dtype TensorFlow lacks{remedy}") from None
    if dtype.name == "float8_e5m2":  # TensorFlow 2.21; the other small floats pass
        raise TypeError(f"field {path!r} is {field}, a dtype that tf.data cannot hold{remedy}")
    return dtype


def can_be_unbatched(field: ArraySpec) -> bool:
    """Whether `unbatch` of tf.data splits arrays of the field's dtype."""
    return field.dtype.kind != "V" or field.dtype.name == "bfloat16"


def arrays_of(batch: Any, paths: Sequence[str]) -> list[Any]:
    """Return the fields of a batch or a scene for TensorFlow.

    A `str` or `bytes` becomes an object array without axes; arrays stay as they are.

    Args:
        batch: A nesting of arrays, `str` and `bytes`.
        paths: The dotted name of each field, for messages.

    Raises:
        SpecError: The batch holds text that UTF-8 cannot encode.
    """
    arrays = optree.tree_leaves(batch)
    for number, leaf in enumerate(arrays):
        if isinstance(leaf, str | bytes):
            arrays[number] = np.asarray(leaf, dtype=object)
        elif leaf.dtype != object:
            continue
        for text in arrays[number].flat:
            try:
                _ = text.encode() if isinstance(text, str) else text
            except UnicodeEncodeError:
                raise SpecError(
                    f"field {paths[number]!r} holds the text {start_of(text)}, which UTF-8 cannot encode; TensorFlow "
                    "needs UTF-8. Return bytes: text.encode(errors='surrogateescape')"
                ) from None
    return arrays
