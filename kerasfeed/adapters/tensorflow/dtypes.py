"""TensorFlow's dtypes of fields."""

from typing import Any

import tensorflow as tf

from kerasfeed.spec.scene_spec import ArraySpec


def tf_dtype(field: ArraySpec, path: str, remedy: str) -> Any:
    """TensorFlow's dtype of the field at `path`.

    Raises:
        TypeError: It lacks the dtype; the message ends with the `remedy`.
    """
    if field.is_text:
        return tf.string
    try:
        return tf.as_dtype(field.dtype)
    except TypeError:
        raise TypeError(f"field {path!r} is {field}, a dtype TensorFlow lacks{remedy}") from None
