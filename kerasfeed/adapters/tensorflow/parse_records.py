"""Parsing of records by TensorFlow, without kerasfeed's readers.

Invariant: `parse_record` returns the scene that was written, bit for bit, in a graph or not;
`kerasfeed.readers.tfrecord.fields` defines the features.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
import optree

from kerasfeed.adapters.tensorflow.dtypes import tf, tf_dtype
from kerasfeed.readers.tfrecord.example import BYTES, FLOAT, INT64
from kerasfeed.readers.tfrecord.fields import RAW, SHAPE, kind_of
from kerasfeed.readers.tfrecord.sequence import TFRecordSequence
from kerasfeed.readers.tfrecord.spec_file import read_sidecar
from kerasfeed.sequences.frames import as_sequence
from kerasfeed.spec.inference import describe, merge, probe_indices
from kerasfeed.spec.nesting import lists_as_tuples
from kerasfeed.spec.scene_spec import ArraySpec, SceneSpec
from kerasfeed.spec.spec_json import as_scene_spec

_STORED = {BYTES: tf.string, FLOAT: tf.float32, INT64: tf.int64, RAW: tf.string}
# Dtypes that decode_raw lacks, and the dtype of the same size to decode instead.
_DECODED_AS = {np.dtype(np.uint32): tf.int32, np.dtype(np.uint64): tf.int64}
_REMEDY = (
    ": read it with kf.TFRecordSequence, or take it from tf.io.parse_single_example(record, "
    "kf.feature_description(spec)) as bytes"
)


def feature_description(spec: Any) -> dict[str, Any]:
    """Describe a record's features, for `tf.io.parse_single_example` and `tf.io.parse_example`.

    float32 fields become float32 of their shape; int32, int64, single integers and booleans become int64; text becomes
    strings. Every other dtype becomes one string, to be decoded by `tf.io.decode_raw`. A field whose shape varies also
    has a feature `<name>/shape`, int64[number of axes]. Its values are in rows if only the first axis varies, and else
    one after another on one axis. `kf.parse_record` parses with this description, and restores dtypes and shapes.

    Args:
        spec: Source of the spec of a scene: a nesting of `kf.ArraySpec`s; a `TFRecordSequence`; any other sequence or
            its feed (a few scenes are read); the `.spec.json` file that `kf.write_tfrecords` wrote; or paths of
            TFRecord files.

    Returns:
        A dict from the name of a feature to a `FixedLenFeature` or `FixedLenSequenceFeature`.

    Raises:
        ImportError: TensorFlow is not installed.
        TypeError: `spec` is none of these.
        FileNotFoundError: There is no such file.
        RecordError: A file is damaged.

    Examples:
        >>> spec = {"points": kf.ArraySpec((8, 3), np.dtype("float32"))}
        >>> kf.feature_description(spec)
        {'points': FixedLenFeature(shape=(8, 3), dtype=tf.float32, default_value=None)}
    """
    scene = _scene_spec(spec)
    features: dict[str, Any] = {}
    for path, field in zip(scene.paths, scene.fields, strict=True):
        features.update(_features(path, field))
    return features


def _features(path: str, field: ArraySpec) -> dict[str, Any]:
    kind = kind_of(field)
    if kind == RAW:
        found = {path: tf.io.FixedLenFeature([], tf.string)}
    elif None not in field.shape:
        found = {path: tf.io.FixedLenFeature(field.shape, _STORED[kind])}
    else:
        rows = field.shape[1:] if None not in field.shape[1:] and 0 not in field.shape[1:] else ()
        found = {path: tf.io.FixedLenSequenceFeature(rows, _STORED[kind], allow_missing=True)}
    if None in field.shape:
        found[path + SHAPE] = tf.io.FixedLenFeature([len(field.shape)], tf.int64)
    return found


def parse_record(serialized: Any, spec: Any) -> Any:
    """Parse a record into tensors, for tf.data without a feed.

    Args:
        serialized: Scalar string tensor, a serialized `tf.train.Example`.
        spec: See `kf.feature_description`. Compute it once, outside of the `map`.

    Returns:
        A scene nested as it was written (lists become tuples), each field a tensor of the dtype and shape written.

    Raises:
        ImportError: TensorFlow is not installed.
        TypeError: A field has a dtype that TensorFlow does not have.
        tf.errors.InvalidArgumentError: The record does not match the spec.

    Examples:
        >>> import tensorflow as tf
        >>> scenes = kf.Zip(np.arange(4.0), np.arange(4))
        >>> paths = kf.write_tfrecords(scenes, "{shard}.tfrecord", num_shards=1, workers=0, progress=False)
        >>> spec = kf.TFRecordSequence(paths).spec
        >>> dataset = tf.data.TFRecordDataset(paths).map(lambda record: kf.parse_record(record, spec))
        >>> for x, y in dataset.take(2):
        ...     print(float(x), int(y))
        0.0 0
        1.0 1
    """
    scene = _scene_spec(spec)
    dtypes = [tf_dtype(field, path, _REMEDY) for path, field in zip(scene.paths, scene.fields, strict=True)]
    parsed = tf.io.parse_single_example(serialized, feature_description(scene))
    leaves = []
    for path, field, dtype in zip(scene.paths, scene.fields, dtypes, strict=True):
        value = parsed[path]
        kind = kind_of(field)
        if kind == RAW:
            value = _decoded(value, field, dtype)
        elif kind == INT64:
            value = tf.cast(value, dtype)
        shape = parsed[path + SHAPE] if None in field.shape else field.shape
        value = tf.reshape(value, shape)
        leaves.append(tf.ensure_shape(value, field.shape))
    return lists_as_tuples(optree.tree_unflatten(scene.treespec, leaves))


def _decoded(value: Any, field: ArraySpec, dtype: Any) -> Any:
    if field.dtype in _DECODED_AS:
        return tf.bitcast(tf.io.decode_raw(value, _DECODED_AS[field.dtype]), dtype)
    return tf.io.decode_raw(value, dtype)


def _scene_spec(spec: Any) -> SceneSpec:
    if isinstance(spec, SceneSpec):
        return spec
    if isinstance(spec, str | os.PathLike):
        sidecar = read_sidecar(Path(spec))
        spec = sidecar.spec if sidecar is not None else TFRecordSequence(spec)
    elif isinstance(spec, list) and spec and all(isinstance(each, str | os.PathLike) for each in spec):
        spec = TFRecordSequence(spec)
    elif hasattr(spec, "plan") and hasattr(spec, "sequence"):  # a feed
        spec = spec.sequence
    if isinstance(spec, TFRecordSequence):
        return as_scene_spec(spec.spec)
    is_sequence = hasattr(type(spec), "__getitem__") and hasattr(type(spec), "__len__")
    if not is_sequence or any(isinstance(leaf, ArraySpec) for leaf in optree.tree_leaves(spec)):
        return as_scene_spec(spec)
    sequence = as_sequence(spec)
    return as_scene_spec(merge([(index, describe(sequence[index])) for index in probe_indices(len(sequence))]))
