"""Batches as an ordinary `tf.data.Dataset`, made with public operations of TensorFlow alone.

Invariant: the graph asks one Python iterator for batches, which `Dataset.from_generator` makes for each iteration and
drops with TensorFlow's iterator. A batch aliases the memory that it was loaded into. A call by TensorFlow waits only
briefly and runs no code of the user. If the batch is not ready, the answer of the call is filtered out and the call is
repeated; in between, TensorFlow checks whether its iterator is still needed.

TensorFlow keeps each function that it calls until the process ends, or as long as the graph. So these functions hold
the source of batches weakly. The dataset keeps it alive, or the graph if the dataset is made in one.
"""

import atexit
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Self

import numpy as np
import optree

from kerasfeed.adapters.tensorflow.dtypes import arrays_of, can_be_unbatched, tf, tf_dtype
from kerasfeed.errors import SceneError, SpecError
from kerasfeed.feeds.cursor import Begin, Cursor, EndOfData, check_alive
from kerasfeed.spec.field_forms import RaggedArray
from kerasfeed.spec.nesting import field_paths, lists_as_tuples
from kerasfeed.util.error_text import text_of
from kerasfeed.util.polling import POLL_SECONDS, NotYet

_REMEDY = ". Convert it in __getitem__, or loop over the feed"
# For functions that are graph code already: AutoGraph would cost time, and warns on Python 3.13.
_graph_code: Any = tf.autograph.experimental.do_not_convert


def batches_dataset(
    begin: Begin, structure: Any, *, count: int | None, device: str | None = None, ragged_tensors: bool = True
) -> Any:
    """Make a dataset of batches from cursors, one per iteration.

    Args:
        begin: Makes the cursor of an iteration when its first batch is requested. TensorFlow calls it, so it must not
            wait long; if it raises `NotYet`, it is called again. Its argument adds the conversion of batches for
            TensorFlow to a cursor. The dataset holds this function.
        structure: Nesting of a batch with an `ArraySpec` for each of its arrays, batch axis first; None for an axis
            that varies. A ragged field is a `RaggedArray` of two.
        count: Batches in an iteration, which every cursor must have; None to stop at `EndOfData`.
        device: Device to prefetch batches to. None is the first GPU, if there is one, no distribution strategy places
            the batches itself, and no field is text or ragged; else the host.
        ragged_tensors: Whether a `RaggedArray` becomes a `tf.RaggedTensor`.

    Raises:
        TypeError: A field has a dtype that TensorFlow lacks.
    """
    dataset = _batches(begin, structure, count, ragged_tensors)
    return _prefetched(_untuned(dataset, undivided=True), device, structure)


def scenes_dataset(begin: Begin, structure: Any, *, count: int) -> Any:
    """Make a dataset of the scenes in cursors' batches, not prefetched.

    Args:
        begin: See `batches_dataset`.
        structure: See `batches_dataset`; no field is ragged.
        count: Scenes in an iteration.

    Raises:
        TypeError: A field has a dtype that TensorFlow lacks.
    """
    scenes = _split_into_scenes(_batches(begin, structure, None), structure)
    return _untuned(_numbered(scenes, count).map(_graph_code(lambda row, scene: scene)))


def _split_into_scenes(batches: Any, structure: Any) -> Any:
    """Split `batches` into scenes; `unbatch` fails for some dtypes and shapes."""
    fields = optree.tree_leaves(structure)
    if all(all(field.shape[1:]) and can_be_unbatched(field) for field in fields):  # no axis is None or 0
        return batches.unbatch()
    is_tuple = isinstance(batches.element_spec, tuple)  # functions get its items as separate arguments
    return batches.flat_map(
        _graph_code(lambda *batch: tf.data.Dataset.from_tensor_slices(batch if is_tuple else batch[0]))
    )


def _batches(begin: Begin, structure: Any, count: int | None, ragged_tensors: bool = True) -> Any:
    """Make a dataset of batches from the cursors that `begin` makes.

    `count` is the number of batches, or None for all.
    """
    fields, treespec = optree.tree_flatten(structure)
    paths = field_paths(treespec)
    dtypes = [tf_dtype(field, path, _REMEDY) for field, path in zip(fields, paths, strict=True)]
    placeholders = [np.zeros(0, "S1" if dtype == tf.string else dtype.as_numpy_dtype) for dtype in dtypes]
    eager = tf.executing_eagerly()

    # The dataset holds this function, and so `begin`, if the graph does not.
    def batch_of(*tensors: Any, held: Any = begin if eager else None) -> Any:
        for tensor, field in zip(tensors, fields, strict=True):
            tensor.set_shape(field.shape)
        batch = lists_as_tuples(optree.tree_unflatten(treespec, tensors))
        return _ragged(batch) if ragged_tensors else batch

    source = weakref.ref(begin)
    convert = partial(_ArraysCursor, paths, [tuple(field.shape) for field in fields])
    answers = tf.data.Dataset.from_generator(
        lambda: _Iteration(source, convert, placeholders),
        output_signature=(tf.TensorSpec((), tf.bool), *(tf.TensorSpec(None, dtype) for dtype in dtypes)),
    )
    if not eager:
        weakref.finalize(tf.compat.v1.get_default_graph(), _release, begin).atexit = False
    ready = answers.filter(_graph_code(lambda is_ready, *tensors: is_ready))
    if count is None:
        return ready.map(_graph_code(lambda is_ready, *tensors: batch_of(*tensors)))
    return _numbered(ready, count).map(_graph_code(lambda step, answer: batch_of(*answer[1:])))


def _release(begin: Begin) -> None:
    """Do nothing: the last reference to `begin` ends here."""


def _numbered(dataset: Any, count: int) -> Any:
    """Number the `count` elements of `dataset`.

    A range knows its cardinality, and `zip` requests one element more, which it drops. `assert_cardinality(count)`
    would fail forever after `ignore_errors`; an infinite cardinality only makes `zip` stop with the range.
    """
    endless = dataset.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
    return tf.data.Dataset.zip((tf.data.Dataset.range(count), endless))


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
    """Prefetch batches to `device` (default: the first GPU, if there is one).

    On the host nothing is prefetched: a prefetching thread of TensorFlow may collect its own iterator, and would then
    wait for itself.
    """
    if device is None:
        gpus = tf.config.list_logical_devices("GPU")
        placed_elsewhere = tf.distribute.has_strategy() or _has_no_place_on_a_device(structure)
        if gpus and not placed_elsewhere and tf.executing_eagerly():
            device = gpus[0].name
    if device is None or _is_host(device):
        return dataset
    # Not prefetch_to_device, which must come last: users map, take and zip this dataset. The copy has an unknown
    # cardinality; assert_cardinality would not help, because it has no GPU kernel and would bring the batches back.
    return dataset.apply(tf.data.experimental.copy_to_device(device)).prefetch(2)


def _has_no_place_on_a_device(structure: Any) -> bool:
    leaves = optree.tree_leaves(structure, is_leaf=lambda leaf: isinstance(leaf, RaggedArray))
    return any(isinstance(leaf, RaggedArray) or leaf.is_text for leaf in leaves)


def _is_host(device: str) -> bool:
    spec = tf.DeviceSpec.from_string(device if device.startswith("/") else f"/{device}")
    return spec.device_type == "CPU" and not spec.device_index


# ---- the Python iterator of an iteration


class _Iteration:
    """The answers to the requests of one iterator of TensorFlow.

    An answer says whether there is a batch (otherwise TensorFlow calls again), and has its arrays, or `placeholders`.
    TensorFlow drops this object with its iterator.

    Args:
        source: A weak reference to the function that makes the cursor.
        convert: See `_ArraysCursor`.
        placeholders: An array for each field.
    """

    def __init__(self, source: Any, convert: Callable[[Cursor], Cursor], placeholders: Sequence[Any]) -> None:
        self._source = source
        self._convert = convert
        self._not_yet = (False, *placeholders)
        self._cursors: list[Cursor] = []  # the cursor, once it is made
        _iterations.add(self)
        weakref.finalize(self, _close, self._cursors).atexit = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> tuple[Any, ...]:
        """Request the next batch; an exception does not end the iteration.

        Raises:
            StopIteration: There is none, or the program ends.
            Exception: The batch failed.
        """
        _calls.append(None)
        try:
            if _exits:
                raise EndOfData
            if not self._cursors:
                begin: Begin = check_alive(self._source())
                self._cursors.append(begin(self._convert))
                del begin  # do not hold the feed while waiting
            _, arrays = self._cursors[0].take(POLL_SECONDS)
            return (True, *arrays)
        except NotYet:
            return self._not_yet
        except EndOfData:
            raise StopIteration from None
        finally:
            _calls.pop()


def _close(cursors: list[Cursor]) -> None:
    """Close the cursor, which neither waits nor takes a lock."""
    for cursor in cursors:
        cursor.close()


class _ArraysCursor:
    """A cursor whose batches are lists of arrays as TensorFlow takes them.

    See `kerasfeed.feeds.cursor.Cursor`.

    Args:
        paths: Names of the fields.
        shapes: Their shapes in the graph; None for an axis that varies.
        cursor: The cursor of the batches.
    """

    def __init__(self, paths: Sequence[str], shapes: Sequence[Any], cursor: Cursor) -> None:
        self._paths = paths
        self._shapes = shapes
        self._cursor = cursor

    def take(self, timeout: float | None) -> tuple[Any, Any]:
        """See `Cursor.take`.

        Raises:
            SceneError: The batch failed. TensorFlow keeps only the message of an exception, so the message also has the
                notes and the traceback.
        """
        try:
            position, batch = self._cursor.take(timeout)
            arrays = arrays_of(batch, self._paths)
            _check_shapes(arrays, self._paths, self._shapes)
        except (NotYet, EndOfData):
            raise
        except BaseException as error:  # noqa: BLE001 - for TensorFlow, StopIteration would end the data
            text = text_of(error)
        else:
            return position, arrays
        raise SceneError(text)

    def close(self) -> None:
        """See `Cursor.close`."""
        self._cursor.close()


def _check_shapes(arrays: Sequence[Any], paths: Sequence[str], shapes: Sequence[Any]) -> None:
    """Refuse batches whose shapes the graph does not expect.

    Raises:
        SpecError: The size of a field does not fit the graph.
    """
    for array, path, shape in zip(arrays, paths, shapes, strict=True):
        actual = getattr(array, "shape", shape)
        if actual != shape and any(size not in (None, now) for size, now in zip(shape, actual, strict=False)):
            wanted = tuple(size if size == now else None for size, now in zip(shape, actual, strict=True))
            raise SpecError(
                f"field {path!r} has shape {tuple(actual)} in a batch, but the graph expects {tuple(shape)}, the shape "
                "of the first batches. Pass the spec of a batch to the feed, output_signature=..., with a "
                f"kf.ArraySpec of shape {wanted} for this field"
            )


# ---- the end of the program
#
# At exit, iterators may still be alive, for example in the frames of an uncaught exception. The interpreter drops them
# when no other thread can run Python. A call in progress then never returns, and TensorFlow waits for it forever.

_iterations: "weakref.WeakSet[_Iteration]" = weakref.WeakSet()
_calls: list[None] = []  # one for each running call
_exits = False  # whether the program is exiting
_EXIT_SECONDS, _QUIET_SECONDS = 2.0, 0.05  # longest wait; time without calls


@atexit.register
def _end_calls() -> None:
    """Refuse new calls, and wait at exit until TensorFlow makes none."""
    global _exits
    _exits = True
    quiet = now = time.monotonic()
    deadline = now + _EXIT_SECONDS
    while _iterations and now < min(deadline, quiet + _QUIET_SECONDS):
        time.sleep(0.005)
        now = time.monotonic()
        if _calls:
            quiet = now
