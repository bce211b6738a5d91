"""Files of records, as TensorFlow writes them. Imports TensorFlow."""

import numpy as np
import tensorflow as tf

from kerasfeed.readers.tfrecord.example import BYTES, INT64, Values, encode_pieces
from kerasfeed.readers.tfrecord.record_file import framed

COMPRESSIONS = ["", "GZIP", "ZLIB"]


def encoded(features):
    """The serialized Example of features."""
    return b"".join(encode_pieces(features))


def frame(data):
    """A record as stored in a file."""
    return b"".join(framed([data]))


def records_of(count, size=50):
    """Records of growing, incompressible size."""
    rng = np.random.default_rng(0)
    return [
        encoded({"i": Values(INT64, np.array([index])), "b": Values(BYTES, [rng.bytes(index * size // count)])})
        for index in range(count)
    ]


def by_tensorflow(path, records, compression=""):
    with tf.io.TFRecordWriter(str(path), compression) as writer:
        for record in records:
            writer.write(record)
    return path
