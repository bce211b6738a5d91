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
    """The dataset that the Keras adapter of a feed makes: of whatever batches the feed may have, and not tuned."""
    patient = functools.partial(adapter._get_iterator, patience=PATIENCE)
    return untuned(patient_generator(patient, _signature(adapter)).prefetch(tf.data.AUTOTUNE))


def keras_stream_dataset(adapter: Any) -> Any:
    """The dataset that the Keras adapter of a stream makes: of whatever batches the stream may have, and not tuned."""
    dataset = patient_generator(functools.partial(adapter._get_iterator, patience=PATIENCE), _signature(adapter))
    return untuned(dataset).prefetch(1)


def _signature(adapter: Any) -> Any:
    """Specs of the batches that a Keras adapter gives to TensorFlow, of any number of rows.

    By itself Keras takes the shapes of the first two batches for those of all, and knows no text.
    """
    structure = adapter.py_dataset.element_spec
    is_spec: Any = lambda leaf: isinstance(leaf, ArraySpec)  # noqa: E731
    paths = optree.tree_paths(structure, is_leaf=is_spec)
    fields, treespec = optree.tree_flatten(structure, is_leaf=is_spec)
    specs = [
        tf.TensorSpec([None, *field.shape[1:]] if field.shape else [], tf_dtype(field, path))
        for field, path in zip(fields, paths, strict=True)
    ]
    signature = lists_as_tuples(optree.tree_unflatten(treespec, specs))
    if not isinstance(signature, tuple | dict):
        signature = (signature,)
    if adapter.class_weight is not None and isinstance(signature, tuple) and len(signature) == 2:
        signature = (*signature, tf.TensorSpec([None], sys.modules["keras"].config.floatx()))
    return signature


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
