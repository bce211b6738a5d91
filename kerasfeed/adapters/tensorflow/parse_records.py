"""What TensorFlow needs to read records without kerasfeed's readers.

Invariant: `parse_record` gives the scene that was written, bit for bit, in a graph as outside; the features are those
of `kerasfeed.readers.tfrecord.fields`.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
import optree
import tensorflow as tf

from kerasfeed.adapters.tensorflow.dtypes import tf_dtype
from kerasfeed.readers.tfrecord.example import BYTES, FLOAT, INT64
from kerasfeed.readers.tfrecord.fields import RAW, SHAPE, kind_of
from kerasfeed.readers.tfrecord.sequence import TFRecordSequence
from kerasfeed.readers.tfrecord.spec_file import read_sidecar
from kerasfeed.spec.scene_spec import ArraySpec, SceneSpec, describe, lists_as_tuples, merge, probe_indices
from kerasfeed.spec.spec_json import as_scene_spec
from kerasfeed.util.frames import as_sequence

_STORED = {BYTES: tf.string, FLOAT: tf.float32, INT64: tf.int64, RAW: tf.string}
# What decode_raw lacks, and the dtype of the same size that it decodes instead.
_DECODED_AS = {np.dtype(np.uint32): tf.int32, np.dtype(np.uint64): tf.int64}
_REMEDY = (
    ": read it with kf.TFRecordSequence, or take it from tf.io.parse_single_example(record, "
    "kf.feature_description(spec)) as bytes"
)


def feature_description(spec: Any) -> dict[str, Any]:
    """The features of a scene's record, for `tf.io.parse_single_example` and `tf.io.parse_example`.

    float32 fields come as float32 of their shape, integers as int64, text as strings. Fields of other dtypes come as
    one string each, for `tf.io.decode_raw`; fields whose size varies as one axis, or as rows where only the first axis
    varies, beside a feature `<name>/shape`. `kf.parse_record` does all of that.

    Args:
        spec: What a scene is: a nesting of `kf.ArraySpec`s; a `TFRecordSequence`; any other sequence, a few scenes of
            which are then read, or a feed of it; the `.spec.json` that `kf.write_tfrecords` wrote; or paths of records.

    Returns:
        A dict of `FixedLenFeature` and `FixedLenSequenceFeature` by the names of the features.

    Raises:
        TypeError: `spec` is nothing of these.
        FileNotFoundError: There is no such file.
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
    """The scene of one record, as tensors: `tf.data.TFRecordDataset(paths).map(lambda r: kf.parse_record(r, spec))`.

    Args:
        serialized: Scalar string, a serialized `tf.train.Example`.
        spec: See `kf.feature_description`; read it once, outside of the map.

    Returns:
        The nesting of the scene (lists become tuples), each field a tensor with the dtype and shape that was written.

    Raises:
        TypeError: A field has a dtype that TensorFlow lacks.
        tf.errors.InvalidArgumentError: The record is not what the spec says.
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
