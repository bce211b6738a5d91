"""Steps of a pipeline of tf.data whose functions TensorFlow makes ready in little time.

Every iterator makes the functions of its dataset ready anew. For those of `Dataset.map`, `filter` and `from_generator`
TensorFlow optimizes the graph and places each operation on a device, 2 to 5 ms a function. One that has the attribute
`experimental_ints_on_device` runs on the device of its caller, which is the host, as it stands: 0.2 ms. An iteration
over a feed so begins 25 ms earlier.

Seen in TensorFlow 2.18 to 2.21. The operations and the argument `experimental_attributes` of `tf.function` are public,
what the attribute does is not promised. Where a later TensorFlow refuses it, functions do without; where it means
nothing there, iterations only begin as late as others.
"""

from collections.abc import Callable
from typing import Any

from kerasfeed.adapters.tensorflow.framework import tf

# Of a function that is a graph as it is written: AutoGraph would spend time on it, and warns on Python 3.13.
as_written: Any = tf.autograph.experimental.do_not_convert
_AS_IT_STANDS = {"experimental_ints_on_device": True}


def mapped(dataset: Any, function: Callable[..., Any]) -> Any:
    """`dataset.map(function)`; a `function` that gives other than tensors, nested, is left to `Dataset.map`.

    The thread that asks for an element calls `function` itself. `Dataset.map` has a thread of a pool call it, and
    waits: that costs 0.1 ms of processor time a batch.
    """
    ready = _ready(function, dataset)
    given = ready.structured_outputs
    if not all(isinstance(tensor, tf.Tensor) for tensor in tf.nest.flatten(given)):  # a RaggedTensor, say
        return dataset.map(as_written(function))
    specs = tf.nest.map_structure(lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), given)
    return _step(
        tf.raw_ops.MapDataset, dataset, specs, f=ready, use_inter_op_parallelism=False, preserve_cardinality=True
    )


def filtered(dataset: Any, predicate: Callable[..., Any]) -> Any:
    """`dataset.filter(predicate)` of a dataset of tuples of tensors."""
    return _step(tf.raw_ops.FilterDataset, dataset, dataset.element_spec, predicate=_ready(predicate, dataset))


def taken_while(dataset: Any, predicate: Callable[..., Any]) -> Any:
    """`dataset.take_while(predicate)` of a dataset of tuples of tensors."""
    return _step(tf.raw_ops.TakeWhileDataset, dataset, dataset.element_spec, predicate=_ready(predicate, dataset))


def numbers(begin: Callable[[Any], Any], end: Callable[[Any], Any]) -> Any:
    """A dataset without end of one number, int64[], in each iteration another.

    Args:
        begin: Gives the number of a new iteration, np.int64; called when its first element is asked for. Must not
            raise: `end` would not be called.
        end: Called with the number when TensorFlow's iterator is no more, and nothing else of tf.data tells of that;
            returns an np.int64 that means nothing. A function of a module: TensorFlow keeps any other only as long as
            the graph that it is part of, which `keras.utils.clear_session` drops while iterators live.
    """
    number = tf.TensorSpec((), tf.int64)
    one = tf.data.Dataset.from_tensors(tf.constant(0, tf.int64))
    called = [_ready(lambda given, call=call: tf.numpy_function(call, [given], tf.int64), one) for call in (begin, end)]
    same = _ready(lambda given: given, one)  # tf.data does not run a function that only passes on what it is given

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
    """`function` of the elements of `dataset` as a function of the graph."""
    specs = dataset.element_spec
    given = specs if isinstance(specs, tuple) else (specs,)
    try:
        made = tf.function(function, autograph=False, experimental_attributes=_AS_IT_STANDS)
    except ValueError:  # it does not know the attribute; nothing is traced yet
        made = tf.function(function, autograph=False)
    return made.get_concrete_function(*given)
