"""The datasets that Keras's adapters make of their generators.

Invariant: generators that yield `NOT_YET` are asked again, so whoever lets go of an iterator of TensorFlow waits for
none of the batches that it has asked for.
"""

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import numpy as np
import optree
import tensorflow as tf

from kerasfeed.adapters.tf_data import _tf_dtype as tf_dtype
from kerasfeed.adapters.tf_data import _undivided as untuned
from kerasfeed.patience import NOT_YET, PATIENCE
from kerasfeed.spec import ArraySpec, lists_as_tuples


def keras_dataset(adapter: Any) -> Any:
    """The dataset that the Keras adapter of a feed makes: of whatever batches the feed may have, and not tuned.

    By itself Keras takes the shapes of the first two batches for those of all, unless they differ.
    """
    type(adapter).get_tf_dataset(adapter)  # finds the signature
    seen = getattr(adapter, "_output_signature", None)
    leaves = tf.nest.flatten(seen)
    known = tf.nest.flatten(lists_as_tuples(adapter.py_dataset.element_spec))
    loose = [_loosened(leaf, field) for leaf, field in zip(leaves, known, strict=False)]
    if any(one is not other for one, other in zip(leaves, loose, strict=False)):
        # Beyond the fields may stand weights that Keras has made of classes.
        adapter._output_signature = tf.nest.pack_sequence_as(seen, [*loose, *leaves[len(loose) :]])
    patient = functools.partial(adapter._get_iterator, patience=PATIENCE)
    return untuned(patient_generator(patient, adapter._output_signature).prefetch(tf.data.AUTOTUNE))


def _loosened(seen: Any, field: Any) -> Any:
    """The `tf.TensorSpec` without the sizes that `field`, an `ArraySpec`, leaves open."""
    if not isinstance(seen, tf.TensorSpec) or not isinstance(field, ArraySpec) or seen.shape.rank != len(field.shape):
        return seen
    shape = [None if wanted is None else size for size, wanted in zip(seen.shape, field.shape, strict=True)]
    return seen if shape == seen.shape.as_list() else tf.TensorSpec(shape, seen.dtype, seen.name)


def keras_stream_dataset(adapter: Any) -> Any:
    """The dataset that the Keras adapter of a stream makes: of whatever batches the stream may have, and not tuned."""
    specs, treespec = _tensor_specs(adapter.py_dataset.element_spec)
    signature = lists_as_tuples(optree.tree_unflatten(treespec, specs))
    if not isinstance(signature, tuple | dict):
        signature = (signature,)
    if adapter.class_weight is not None and isinstance(signature, tuple) and len(signature) == 2:
        signature = (*signature, tf.TensorSpec([None], sys.modules["keras"].config.floatx()))
    dataset = patient_generator(functools.partial(adapter._get_iterator, patience=PATIENCE), signature)
    return untuned(dataset).prefetch(1)


def _tensor_specs(structure: Any) -> tuple[list[Any], Any]:
    is_spec: Any = lambda leaf: isinstance(leaf, ArraySpec)  # noqa: E731
    paths = optree.tree_paths(structure, is_leaf=is_spec)
    fields, treespec = optree.tree_flatten(structure, is_leaf=is_spec)
    found = [tf.TensorSpec(field.shape, tf_dtype(field, path)) for field, path in zip(fields, paths, strict=True)]
    return found, treespec


def patient_generator(make: Callable[[], Iterator[Any]], signature: Any) -> Any:
    """`Dataset.from_generator` for a generator that may yield `NOT_YET` in place of a batch of `signature`."""
    blank = tf.nest.map_structure(_blank, signature)
    flagged = tf.data.Dataset.from_generator(
        _Flagged(make, blank), output_signature=(tf.TensorSpec((), tf.bool), signature)
    )
    return flagged.filter(lambda ready, _: ready).map(lambda _, batch: batch)


class _Flagged:
    """A generator function: whether there is a batch, and the batch."""

    def __init__(self, make: Callable[[], Iterator[Any]], blank: Any) -> None:
        self._make = make
        self._blank = blank

    def __call__(self) -> Iterator[tuple[bool, Any]]:
        with closing(self._make()) as found:  # type: ignore[type-var]
            for batch in found:
                yield (False, self._blank) if batch is NOT_YET else (True, batch)
                del batch


def _blank(spec: Any) -> Any:
    shape = [size or 0 for size in (spec.shape or ())]
    return np.zeros(shape, "S1" if spec.dtype == tf.string else spec.dtype.as_numpy_dtype)
