"""Batches as a `tf.data.Dataset` that reports errors and progress.

Invariant: the graph holds integers up to the map. The number of an iteration goes into one `tf.numpy_function`; a whole
batch comes out, which aliases the memory that it was loaded into. That call waits only briefly. If the batch is not
ready, its result is filtered out and the call is repeated; in between, TensorFlow checks whether the iterator is still
needed. One batch is requested at a time: the loader itself is concurrent.

A feed lives as long as the dataset, or as the graph of the dataset. TensorFlow's iterator is never part of a reference
cycle of the user. Otherwise the garbage collector, which runs in any thread, might delete it inside a call that the
iterator waits for: a deadlock. Measured with an ordinary dataset (`from_generator`, `prefetch`): 418 of 426 iterations
whose iterator was in a cycle never ended.

Not public in TensorFlow: `tf.data.Dataset` requires `_inputs` of subclasses, and functions of TensorFlow that take an
iterator read attributes of TensorFlow's own class. `FeedIterator` derives from that class, obtained from
`tf.data.IteratorSpec`, and forwards missing attributes. If a later TensorFlow reads others, loops still work and such
functions fail.
"""

import _thread
import contextvars
import functools
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import optree

from kerasfeed.adapters.tensorflow import iteration as tf_iteration
from kerasfeed.adapters.tensorflow.dtypes import is_common, tf, tf_dtype
from kerasfeed.adapters.tensorflow.iteration import BatchSource
from kerasfeed.errors import FeedWarning
from kerasfeed.feeds.cursor import Begin, run_in_background
from kerasfeed.feeds.feed_cursor import FeedLoop
from kerasfeed.spec.field_forms import RaggedArray
from kerasfeed.spec.nesting import field_paths, lists_as_tuples
from kerasfeed.util.deferred_warnings import warn_caller
from kerasfeed.util.polling import POLL_SECONDS

_REMEDY = ". Convert it in __getitem__, or loop over the feed"
_sources: "weakref.WeakKeyDictionary[Any, list[BatchSource]]" = weakref.WeakKeyDictionary()  # of graphs

_TensorFlowIterator: Any = tf.data.IteratorSpec(tf.TensorSpec(())).value_type


BeginLoop = Callable[[], FeedLoop]


class FeedDataset(tf.data.Dataset):  # type: ignore[misc]
    """The batches of a feed.

    Args:
        dataset: TensorFlow's dataset of the batches, which does not hold the feed.
        source: Source of the batches.
        count: Number of batches; None if unknown. A copy to a device does not know it.
        begin_loop: Makes the object that follows a loop, when the loop begins.
    """

    def __init__(self, dataset: Any, source: BatchSource, count: int | None, begin_loop: BeginLoop | None) -> None:
        self._tensors = dataset
        self._source = source
        self._count = count
        self._begin_loop = begin_loop
        super().__init__(tf.data.experimental.to_variant(dataset))

    def _inputs(self) -> list[Any]:
        return [self._tensors]

    @property
    def element_spec(self) -> Any:
        """See `tf.data.Dataset.element_spec`."""
        return self._tensors.element_spec

    def __iter__(self) -> Any:
        if not tf.executing_eagerly():
            return super().__iter__()
        self._source.context = contextvars.copy_context()
        return FeedIterator(self, None if self._begin_loop is None else self._begin_loop())

    def cardinality(self) -> Any:
        """See `tf.data.Dataset.cardinality`."""
        return super().cardinality() if self._count is None else tf.constant(self._count, tf.int64)


class FeedIterator(_TensorFlowIterator):  # type: ignore[misc]
    """An eager iterator of a `FeedDataset`."""

    def __init__(self, dataset: FeedDataset, loop: FeedLoop | None) -> None:
        # Do not call the base class: it would make TensorFlow's iterator part of this object.
        self._dataset = dataset
        self._loop = loop
        self._held = [iter(dataset._tensors)]
        weakref.finalize(self, _let_go, self._held)

    def __getattr__(self, name: str) -> Any:
        if name == "_held":
            raise AttributeError(name)  # during __init__
        return getattr(self._held[0], name)

    def __next__(self) -> Any:
        if not tf.executing_eagerly():
            return super().__next__()
        if self._loop is not None and not self._loop.goes_on():
            raise StopIteration
        try:
            batch = next(self._held[0])
        except tf.errors.OpError as error:
            original = self._dataset._source.original(error)
            if original is None:
                raise
        else:
            if self._loop is not None:
                self._loop.got()
            return batch
        raise original


def _let_go(held: list[Any]) -> None:
    """Drop the only reference to an iterator in another thread.

    Wait for it as long as is safe. This thread may be in a call of TensorFlow that the drop waits for, or hold a lock
    that such a call waits for.
    """
    dropped = _thread.allocate_lock()
    dropped.acquire()
    run_in_background(_drop, held, dropped)
    dropped.acquire(timeout=POLL_SECONDS)


def _drop(held: list[Any], dropped: Any) -> None:
    held.clear()
    dropped.release()


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
    """Make a dataset of batches from cursors, one per iteration.

    Args:
        begin: See `kerasfeed.adapters.tensorflow.iteration.BatchSource`; the dataset holds it.
        structure: Nesting of a batch with an `ArraySpec` for each of its arrays, batch axis first; None for an axis
            that varies. A ragged field is a `RaggedArray` of two.
        count: Batches in an iteration, which every cursor must have; None to stop at `EndOfData`.
        device: Device to prefetch batches to. None is the first GPU, if there is one, or the host.
        begin_loop: Makes the object that follows a loop over the dataset, when the loop begins.
        ragged_tensors: Whether a `RaggedArray` becomes a `tf.RaggedTensor`.
        make: Makes the dataset, with the arguments of the class.

    Raises:
        TypeError: A field has a dtype that TensorFlow lacks.
    """
    source = BatchSource(begin)
    dataset = _batches(source, structure, count, ragged_tensors)
    prefetched = _prefetched(_untuned(dataset, undivided=True), device, structure)
    return _known(make(prefetched, source, count, begin_loop), source)


def scenes_dataset(begin: Begin, structure: Any, *, count: int) -> FeedDataset:
    """Make a dataset of the scenes in cursors' batches, not prefetched.

    Args:
        begin: See `batches_dataset`.
        structure: See `batches_dataset`; no field is ragged.
        count: Scenes in an iteration.

    Raises:
        TypeError: A field has a dtype that TensorFlow lacks.
    """
    source = BatchSource(begin)
    scenes = _without_end(_taken_apart(_batches(source, structure, None), structure))
    # Zip requests one more scene than the range has, and drops it.
    places = tf.data.Dataset.zip((tf.data.Dataset.range(count), scenes))
    dataset = _mapped(places, lambda place, scene: scene)
    return _known(FeedDataset(_untuned(dataset), source, count, None), source)


def _taken_apart(batches: Any, structure: Any) -> Any:
    """Split `batches` into scenes; `unbatch` fails for some dtypes and shapes."""
    fields = optree.tree_leaves(structure)
    if all(all(field.shape[1:]) and is_common(field) for field in fields):  # no axis is None or 0
        return batches.unbatch()
    is_tuple = isinstance(batches.element_spec, tuple)  # functions get its items as separate arguments
    return batches.flat_map(
        _as_written(lambda *batch: tf.data.Dataset.from_tensor_slices(batch if is_tuple else batch[0]))
    )


def _batches(source: BatchSource, structure: Any, count: int | None, ragged_tensors: bool = True) -> Any:
    """Make a dataset of `count` or all batches of `source`."""
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
    numbers = _numbers(begin, tf_iteration.end)
    answers = _mapped(numbers, asked)
    # tf.data does not run functions that only return some of their arguments; one operation costs 25 us a batch.
    come = _selected(tf.raw_ops.FilterDataset, answers, lambda come, *others: come)
    if count is None:
        batches = _selected(tf.raw_ops.TakeWhileDataset, come, lambda come, more, *tensors: more)
        return _mapped(batches, lambda come, more, *tensors: batch_of(*tensors))
    # After `count` batches the source reports the end forever; zip requests it once, and drops it. A range knows its
    # cardinality. (assert_cardinality would fail forever, not once, after `ignore_errors`.)
    places = tf.data.Dataset.zip((tf.data.Dataset.range(count), _without_end(come)))
    return _mapped(places, lambda place, asked: batch_of(*asked[2:]))


def _known(dataset: FeedDataset, source: BatchSource) -> FeedDataset:
    """Keep `source` alive with `dataset`, or with its graph."""
    if not tf.executing_eagerly():
        _sources.setdefault(tf.compat.v1.get_default_graph(), []).append(source)
    return dataset


def _without_end(dataset: Any) -> Any:
    """Hide the cardinality, so that `zip` stops at the other input."""
    return dataset.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))


def _untuned(dataset: Any, *, undivided: bool = False) -> Any:
    """Disable autotuning.

    Deleting an iterator waits for the autotune thread while holding the GIL. Seen with TensorFlow 2.21: 0.2 s at the
    end of every other epoch, rarely 2 to 9 s. Python threads, and so the loading of the next batches, stop for that
    time. If users later map with AUTOTUNE, TensorFlow uses its default parallelism.

    `undivided`: distribution strategies do not shard the dataset either, because feeds have their own shards.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    if undivided:
        options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return dataset.with_options(options)


def _ragged(batch: Any) -> Any:
    """Replace every `RaggedArray` in a batch by a `tf.RaggedTensor`."""
    return optree.tree_map(
        lambda leaf: tf.RaggedTensor.from_row_splits(*leaf, validate=False) if isinstance(leaf, RaggedArray) else leaf,
        batch,
        is_leaf=lambda leaf: isinstance(leaf, RaggedArray),
    )


def _prefetched(dataset: Any, device: str | None, structure: Any) -> Any:
    """Prefetch batches to `device`, or to the first GPU if any."""
    if device is None:
        gpus = tf.config.list_logical_devices("GPU")
        placed_elsewhere = tf.distribute.has_strategy() or _has_no_place_on_a_device(structure)
        if gpus and not placed_elsewhere and tf.executing_eagerly():
            device = gpus[0].name
    if device is None or _is_host(device):
        return dataset.prefetch(2)
    # Not prefetch_to_device, which must come last: users map, take and zip this dataset.
    return dataset.apply(tf.data.experimental.copy_to_device(device)).prefetch(2)


def _has_no_place_on_a_device(structure: Any) -> bool:
    leaves = optree.tree_leaves(structure, is_leaf=lambda leaf: isinstance(leaf, RaggedArray))
    return any(isinstance(leaf, RaggedArray) or leaf.is_text for leaf in leaves)


def _is_host(device: str) -> bool:
    spec = tf.DeviceSpec.from_string(device if device.startswith("/") else f"/{device}")
    return spec.device_type == "CPU" and not spec.device_index


# ---- transformations whose functions TensorFlow prepares quickly
#
# Every iterator prepares the functions of its dataset again. For functions of `Dataset.map`, `filter` and
# `from_generator`, TensorFlow optimizes the graph and places each operation on a device, 2 to 5 ms a function. With the
# attribute `experimental_ints_on_device`, a function runs unchanged on the device of its caller, the host: 0.2 ms. So
# an iteration over a feed begins 25 ms earlier.
#
# Seen in TensorFlow 2.18 to 2.21. The operations and the argument `experimental_attributes` of `tf.function` are
# public; the effect of the attribute is not documented. If a later TensorFlow refuses it, functions do without it, and
# a warning says so. If a later TensorFlow ignores it, iterations only begin later.

# For functions that are graph code already: AutoGraph would cost time, and warns on Python 3.13.
_as_written: Any = tf.autograph.experimental.do_not_convert
_AS_IT_STANDS = {"experimental_ints_on_device": True}


def _mapped(dataset: Any, function: Callable[..., Any]) -> Any:
    """Map `dataset`, like `Dataset.map`.

    `Dataset.map` is still used if `function` returns ragged tensors. The thread that requests an element calls
    `function` itself. `Dataset.map` lets a thread of a pool call it and waits, which costs 0.1 ms of processor time a
    batch.
    """
    ready = _ready(function, dataset)
    given = ready.structured_outputs
    if not all(isinstance(tensor, tf.Tensor) for tensor in tf.nest.flatten(given)):  # such as a RaggedTensor
        return dataset.map(_as_written(function))
    specs = tf.nest.map_structure(lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), given)
    return _step(
        tf.raw_ops.MapDataset, dataset, specs, f=ready, use_inter_op_parallelism=False, preserve_cardinality=True
    )


def _selected(operation: Callable[..., Any], dataset: Any, predicate: Callable[..., Any]) -> Any:
    """Filter a dataset of tuples, or take while `predicate` holds."""
    return _step(operation, dataset, dataset.element_spec, predicate=_ready(predicate, dataset))


def _numbers(begin: Callable[[Any], Any], end: Callable[[Any], Any]) -> Any:
    """Make an infinite dataset of one number, different in each iteration.

    Args:
        begin: Returns the number of a new iteration, np.int64; called when its first element is requested. Must not
            raise, because `end` would not be called.
        end: Called with the number when TensorFlow deletes the iterator, which nothing else in tf.data reports;
            returns any np.int64. Must be a function of a module: TensorFlow keeps others only as long as their graph,
            which `keras.utils.clear_session` drops while iterators live.
    """
    number = tf.TensorSpec((), tf.int64)
    one = tf.data.Dataset.from_tensors(tf.constant(0, tf.int64))
    called = [_ready(lambda given, call=call: tf.numpy_function(call, [given], tf.int64), one) for call in (begin, end)]
    same = _ready(lambda given: given, one)  # tf.data does not run a function that returns its argument

    def generated(given: Any) -> Any:
        return tf.raw_ops.GeneratorDataset(
            init_func_other_args=[given], next_func_other_args=[], finalize_func_other_args=[], init_func=called[0],
            next_func=same, finalize_func=called[1], output_types=[number.dtype], output_shapes=[number.shape],
        )  # fmt: skip

    return _step(tf.raw_ops.FlatMapDataset, one, number, f=_ready(generated, one))


def _step(operation: Callable[..., Any], dataset: Any, specs: Any, **arguments: Any) -> Any:
    flat = tf.nest.flatten(specs)
    variant = operation(
        input_dataset=tf.data.experimental.to_variant(dataset), other_arguments=[],
        output_types=[spec.dtype for spec in flat], output_shapes=[spec.shape for spec in flat], **arguments,
    )  # fmt: skip
    return tf.data.experimental.from_variant(variant, specs)


def _ready(function: Callable[..., Any], dataset: Any) -> Any:
    """Trace `function` of the elements of `dataset` into a graph function."""
    specs = dataset.element_spec
    given = specs if isinstance(specs, tuple) else (specs,)
    try:
        made = tf.function(function, autograph=False, experimental_attributes=_AS_IT_STANDS)
    except ValueError:  # the attribute is unknown; nothing is traced yet
        warn_caller(
            f"TensorFlow {tf.__version__} refuses an attribute of functions that kerasfeed uses: each iteration over a "
            "dataset begins up to 25 ms later. Its batches are the same",
            FeedWarning,
        )
        made = tf.function(function, autograph=False)
    return made.get_concrete_function(*given)
