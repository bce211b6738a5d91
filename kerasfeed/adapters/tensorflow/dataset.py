"""Batches as a `tf.data.Dataset`.

Invariant: the graph holds integers until the map: the number of an iteration goes in, a whole batch comes out of one
`tf.numpy_function`, which aliases the memory that it was loaded into. That call waits, for a moment; where the batch is
not there yet, what it returns is filtered out and the call is made again. TensorFlow looks in between whether the
iterator is still wanted. One batch is asked for at a time: concurrency is the loader's own.

A feed lives as long as the dataset, or the graph that the dataset was built in, and no longer.
"""

import functools
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import optree

from kerasfeed.adapters.tensorflow import iteration as tf_iteration
from kerasfeed.adapters.tensorflow import raw_datasets
from kerasfeed.adapters.tensorflow.dtypes import is_common, tf_dtype
from kerasfeed.adapters.tensorflow.feed_dataset import BeginLoop, FeedDataset
from kerasfeed.adapters.tensorflow.framework import tf
from kerasfeed.adapters.tensorflow.iteration import BatchSource, ErrorRelay
from kerasfeed.feeds.cursor import Begin
from kerasfeed.spec.field_forms import RaggedArray
from kerasfeed.spec.nesting import field_paths, lists_as_tuples

_REMEDY = ". Convert it in __getitem__, or loop over the feed"
_sources: "weakref.WeakKeyDictionary[Any, list[BatchSource]]" = weakref.WeakKeyDictionary()  # of graphs


def batches_dataset(
    begin: Begin,
    structure: Any,
    *,
    count: int | None,
    device: str | None = None,
    begin_loop: BeginLoop | None = None,
    ragged_tensors: bool = True,
    make: Callable[[Any, BatchSource, int | None, BeginLoop | None], FeedDataset] = FeedDataset,
) -> FeedDataset:
    """The dataset of the batches that cursors give; each iteration of it is one cursor.

    Args:
        begin: See `kerasfeed.adapters.tensorflow.iteration.BatchSource`; the dataset holds it.
        structure: Nesting of a batch with an `ArraySpec` for each of its arrays, batch axis first; None for what
            varies. A ragged field is a `RaggedArray` of two.
        count: Batches in an iteration, all of which a cursor must have; None where they are those before `EndOfData`.
        device: Where batches are prefetched to. None is the first GPU, if there is one, or the host.
        begin_loop: Makes what is told of a loop over the dataset, as that begins.
        ragged_tensors: Whether a `RaggedArray` becomes a `tf.RaggedTensor`.
        make: Makes the dataset, as the class does.

    Raises:
        TypeError: A field has a dtype that TensorFlow lacks.
    """
    source = BatchSource(begin, ErrorRelay())
    dataset = _batches(source, structure, count, ragged_tensors)
    prefetched = _prefetched(_untuned(dataset, undivided=True), device, structure)
    return _known(make(prefetched, source, count, begin_loop), source)


def scenes_dataset(begin: Begin, structure: Any, *, count: int) -> FeedDataset:
    """The dataset of the scenes of the batches that cursors give, whatever the sizes of these; not prefetched.

    Args:
        begin: See `batches_dataset`.
        structure: See `batches_dataset`; no field is ragged.
        count: Scenes in an iteration.

    Raises:
        TypeError: A field has a dtype that TensorFlow lacks.
    """
    source = BatchSource(begin, ErrorRelay())
    scenes = _without_end(_taken_apart(_batches(source, structure, None), structure))
    # Zip asks once more than the range, and drops what comes of it.
    places = tf.data.Dataset.zip((tf.data.Dataset.range(count), scenes))
    dataset = raw_datasets.mapped(places, lambda place, scene: scene)
    return _known(FeedDataset(_untuned(dataset), source, count, None), source)


def _taken_apart(batches: Any, structure: Any) -> Any:
    """The scenes of `batches`; in a slower way where `unbatch` crashes (empty ones) or fails (TensorFlow 2.21)."""
    fields = optree.tree_leaves(structure)
    if all(all(field.shape[1:]) and is_common(field) for field in fields):  # no axis is None or 0
        return batches.unbatch()
    is_tuple = isinstance(batches.element_spec, tuple)  # whose parts functions are given apart
    return batches.flat_map(
        raw_datasets.as_written(lambda *batch: tf.data.Dataset.from_tensor_slices(batch if is_tuple else batch[0]))
    )


def _batches(source: BatchSource, structure: Any, count: int | None, ragged_tensors: bool = True) -> Any:
    """The batches of `source`: `count`, or those before its end."""
    fields, treespec = optree.tree_flatten(structure)
    paths = field_paths(treespec)
    dtypes = [tf_dtype(field, path, _REMEDY) for field, path in zip(fields, paths, strict=True)]

    def batch_of(*tensors: Any) -> Any:
        for tensor, field in zip(tensors, fields, strict=True):
            tensor.set_shape(field.shape)
        batch = lists_as_tuples(optree.tree_unflatten(treespec, tensors))
        return _ragged(batch) if ragged_tensors else batch

    placeholders = [np.zeros(0, "S1" if dtype == tf.string else dtype.as_numpy_dtype) for dtype in dtypes]
    shapes = [tuple(field.shape) for field in fields]
    take = functools.partial(tf_iteration.take, paths, shapes, placeholders)

    def asked(iteration: Any) -> Any:
        come, more, *tensors = tf.numpy_function(take, [iteration], [tf.bool, tf.bool, *dtypes])
        come.set_shape(())
        more.set_shape(())
        return come, more, *tensors

    begin = functools.partial(tf_iteration.begin, source.number, count)
    numbers = raw_datasets.numbers(begin, tf_iteration.end)
    answers = raw_datasets.mapped(numbers, asked)
    # Functions that only pass on what they are given are not run by tf.data; one with an operation costs 25 us a batch.
    come = raw_datasets.filtered(answers, lambda come, *others: come)
    if count is None:
        batches = raw_datasets.taken_while(come, lambda come, more, *tensors: more)
        return raw_datasets.mapped(batches, lambda come, more, *tensors: batch_of(*tensors))
    # Behind `count` places it answers for ever that it is at the end, which zip asks for once, and drops. A range knows
    # its cardinality. (assert_cardinality would fail for ever, not once, after `ignore_errors`.)
    places = tf.data.Dataset.zip((tf.data.Dataset.range(count), _without_end(come)))
    return raw_datasets.mapped(places, lambda place, asked: batch_of(*asked[2:]))


def _known(dataset: FeedDataset, source: BatchSource) -> FeedDataset:
    """`dataset`, whose `source` lives as long as it, or as the graph where the dataset object is a passing thing."""
    if not tf.executing_eagerly():
        _sources.setdefault(tf.compat.v1.get_default_graph(), []).append(source)
    return dataset


def _without_end(dataset: Any) -> Any:
    """`dataset`, of which tf.data does not know that it never ends before whoever takes from it."""
    return dataset.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))


def _untuned(dataset: Any, *, undivided: bool = False) -> Any:
    """`dataset` without the thread that tunes it: whoever drops an iterator waits for that thread, holding the GIL.

    Seen with TensorFlow 2.21: 0.2 s at the end of every other epoch, rarely 2 to 9 s. Python's own threads, and so the
    loading of the next batches, stand still meanwhile. What users map later with AUTOTUNE runs with TensorFlow's
    default parallelism.

    Where it is to be `undivided`, no distribution strategy shards it either: feeds have shards of their own.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    if undivided:
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return dataset.with_options(options)


def _ragged(batch: Any) -> Any:
    """The batch with a `tf.RaggedTensor` for every `RaggedArray`."""
    return optree.tree_map(
        lambda leaf: tf.RaggedTensor.from_row_splits(*leaf, validate=False) if isinstance(leaf, RaggedArray) else leaf,
        batch,
        is_leaf=lambda leaf: isinstance(leaf, RaggedArray),
    )


def _prefetched(dataset: Any, device: str | None, structure: Any) -> Any:
    """`dataset` with its batches prefetched to `device`; None is the first GPU, if there is one, or the host."""
    if device is None:
        gpus = tf.config.list_logical_devices("GPU")
        placed_elsewhere = tf.distribute.has_strategy() or _has_no_place_on_a_device(structure)
        if gpus and not placed_elsewhere and tf.executing_eagerly():
            device = gpus[0].name
    if device is None or _is_host(device):
        return dataset.prefetch(2)
    # Not prefetch_to_device, which nothing may follow: users map, take and zip what they get.
    return dataset.apply(tf.data.experimental.copy_to_device(device)).prefetch(2)


def _has_no_place_on_a_device(structure: Any) -> bool:
    leaves = optree.tree_leaves(structure, is_leaf=lambda leaf: isinstance(leaf, RaggedArray))
    return any(isinstance(leaf, RaggedArray) or leaf.is_text for leaf in leaves)


def _is_host(device: str) -> bool:
    spec = tf.DeviceSpec.from_string(device if device.startswith("/") else f"/{device}")
    return spec.device_type == "CPU" and not spec.device_index
