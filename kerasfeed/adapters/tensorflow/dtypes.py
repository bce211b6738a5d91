"""TensorFlow, or what to install where it is missing; fields as TensorFlow takes them: their dtypes, and their text.

Invariant: what TensorFlow cannot take is refused here by the field's name, where it would say nothing of it.
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

__all__ = ["arrays_of", "is_common", "tf", "tf_dtype"]


def tf_dtype(field: ArraySpec, path: str, remedy: str) -> Any:
    """TensorFlow's dtype of the field at `path`.

    Raises:
        TypeError: It lacks the dtype; the message ends with the `remedy`.
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


def is_common(field: ArraySpec) -> bool:
    """Whether tf.data cuts arrays of the field's dtype into rows; it does not for floats and integers of few bits."""
    return field.dtype.kind != "V" or field.dtype.name == "bfloat16"


def arrays_of(batch: Any, paths: Sequence[str]) -> list[Any]:
    """The arrays of a batch, which has the fields `paths`, as TensorFlow takes them.

    Raises:
        SpecError: It holds text that UTF-8 cannot encode.
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
                    f"field {paths[number]!r} holds the text {start_of(text)}, which UTF-8 cannot encode, as "
                    "TensorFlow wants it. Return bytes: text.encode(errors='surrogateescape')"
                ) from None
    return arrays
