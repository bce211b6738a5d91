"""TensorFlow, or what to install where it is missing."""

__all__ = ["tf"]

try:
    import tensorflow as tf
except ModuleNotFoundError as missing:
    if missing.name != "tensorflow":
        raise
    raise ImportError(
        "datasets of tf.data and parsing in a graph need TensorFlow, which is not installed: "
        'pip install tensorflow (the extra "kerasfeed[tensorflow]")'
    ) from missing
