"""`KerasAdapter`: makes a feed usable by Keras's trainers, through Keras's own interface.

Invariant: nothing of Keras is written to. A feed is a `PyDataset` and its own `DataAdapter`, which trainers use as it
is. If the installed Keras has no such interface, the feed is only a `PyDataset`, and a warning says which features are
lost. If Keras cannot be imported, for example without a backend, the feed is neither and works in plain loops.
"""

import copy
import time
import weakref
from abc import abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import optree

from kerasfeed.adapters.keras.run import KerasRun
from kerasfeed.adapters.keras.trainer import (
    BUILDER,
    TrainerRequest,
    data_adapter_class,
    keras_call,
    keras_version,
    refuse_division,
    super_batches,
)
from kerasfeed.errors import FeedWarning
from kerasfeed.feeds.cursor import Convert, Cursor, EndOfData, check_alive, next_of
from kerasfeed.spec.nesting import lists_as_tuples
from kerasfeed.spec.scene_spec import ArraySpec
from kerasfeed.util.deferred_warnings import warn_caller
from kerasfeed.util.error_text import exception_text, note_causes
from kerasfeed.util.polling import POLL_SECONDS, NotYet

try:
    import keras

    NO_KERAS = ""
except ImportError as missing:
    NO_KERAS = f", for loops only: Keras could not be imported ({exception_text(missing)}; see KERAS_BACKEND)"

_PyDataset: Any = object if NO_KERAS else keras.utils.PyDataset
_DataAdapter: Any = data_adapter_class()
_OVER = "the run of this iterator, such as a fit, is over, or its feed was deleted"


class KerasAdapter(_DataAdapter, _PyDataset):  # type: ignore[misc]
    """A feed as a `PyDataset` and its own `DataAdapter`, for Keras's trainers."""

    def __init__(self, ahead: int) -> None:
        if not NO_KERAS:
            _PyDataset.__init__(self, workers=1, use_multiprocessing=False, max_queue_size=ahead)
        self._runs: weakref.WeakKeyDictionary[Any, KerasRun] = weakref.WeakKeyDictionary()
        self._fit_run: Callable[[], Any] = lambda: None  # returns the run of the last fit
        self._warned = False

    # ---- implemented by feeds

    @abstractmethod
    def _keras_run(self, iterator: Any, request: TrainerRequest) -> KerasRun:
        """Return a new run for `iterator`, a new Keras iterator."""

    def _keras_hook(self, *, begins: bool) -> None:
        """Handle an `on_epoch_begin` or `on_epoch_end` from outside Keras's iterators."""

    # ---- the interface of Keras

    @property
    def num_batches(self) -> Any:
        """Number of batches in an epoch for Keras; None if unknown."""
        call = keras_call(self)
        if call is None:
            return len(self) if self.plan.length else None
        if call.request is not None:
            refuse_division(self.shard.count, has_seed=self._options.given["seed"] is not None)
            new = self._runs[call.iterator] = self._keras_run(call.iterator, call.request)
            new.convert = partial(_converted, new.feed, call.request.class_weight)
        run = self._runs[call.iterator]
        if call.method == "reset":
            run.reset()
        return run.steps

    @property
    def batch_size(self) -> int | None:
        """Always None: the feed makes the batches. See `feed.plan.batch_size`."""
        return None

    # For Keras: whether there is a short batch is unknown.
    has_partial_batch, partial_batch_size = False, None

    def on_epoch_begin(self) -> None:
        """Called by Keras."""
        run = self._run_of_caller()
        if run is None:
            self._warn_of_unsupported_keras()
            self._keras_hook(begins=True)
        else:
            run.on_epoch_begin()

    def on_epoch_end(self) -> None:
        """Called by Keras."""
        run = self._run_of_caller()
        if run is None:
            self._keras_hook(begins=False)
        else:
            run.on_epoch_end()

    def get_numpy_iterator(self) -> Iterator[Any]:
        """Iterate over batches as NumPy arrays. Called by Keras."""
        return _batches_of(weakref.ref(self._required_run()))

    def get_jax_iterator(self, super_batch: int | None = None) -> Iterator[Any]:
        """Iterate over batches as NumPy arrays for JAX. Called by Keras."""
        call, run = keras_call(self), self._required_run()
        if call is not None and call.method == BUILDER:
            run.on_epoch_begin()  # the trainer resets its iterator afterwards
        self._check_scenes(run, "JAX")
        batches = _batches_of(weakref.ref(run))
        return batches if super_batch is None else super_batches(batches, super_batch)

    def get_torch_dataloader(self) -> Iterator[Any]:
        """Iterate over batches as tensors. Called by Keras."""
        run = self._required_run()
        self._check_scenes(run, "PyTorch")
        return (optree.tree_map(keras.ops.convert_to_tensor, batch) for batch in _batches_of(weakref.ref(run)))

    def get_tf_dataset(self) -> Any:
        """Make a `tf.data.Dataset` for Keras; your code calls `to_tf_dataset`."""
        from kerasfeed.adapters.tensorflow.dataset import batches_dataset  # only on TensorFlow

        run = self._required_run()
        self._check_scenes(run)
        run.in_other_threads = True
        fields, treespec = optree.tree_flatten(self.element_spec)
        loose = [ArraySpec((None, *field.shape[1:]), field.dtype) if field.shape else field for field in fields]
        structure = standardized_spec(optree.tree_unflatten(treespec, loose), run.request.class_weight)
        begin = partial(_epoch_cursor, weakref.ref(run))
        return batches_dataset(begin, structure, count=None, device="/cpu:0", ragged_tensors=False)

    # ---- helpers

    def _warn_of_unsupported_keras(self) -> None:
        """Warn, once, if the installed Keras supports no external data adapters."""
        if not self._warned and not isinstance(self, data_adapter_class()):
            self._warned = True
            warn_caller(
                f"Keras {keras_version()} supports no external data adapters, so it reads this feed as a plain "
                "PyDataset: nothing can be resumed within an epoch, and the state of the feed is unknown during "
                "training. Use Keras 3.10 to 3.16",
                FeedWarning,
            )

    def _run_of_caller(self) -> KerasRun | None:
        call = keras_call(self)
        return None if call is None else self._runs.get(call.iterator)

    def _required_run(self) -> KerasRun:
        """Return the run of the Keras iterator that makes this call.

        Raises:
            RuntimeError: The caller is not one of Keras's iterators.
        """
        run = self._run_of_caller()
        if run is None:
            raise RuntimeError(
                "only the iterators of Keras's trainers can use this: loop over the feed, or over its to_tf_dataset(), "
                "to_jax() or to_torch()"
            )
        return run

    def _check_scenes(self, run: KerasRun, textless: str = "") -> None:
        """Check the spec of scenes; this may read the first scenes.

        Args:
            run: The run that takes the scenes.
            textless: Name of the Keras backend if it has no text dtype; else "".

        Raises:
            TypeError: A field is text.
            Exception: The error of the first scenes.
        """
        try:
            spec = self.scene_spec
        except Exception as error:
            note_causes(error)
            raise
        for name, field in zip(spec.paths, spec.fields, strict=True):
            if textless and field.is_text:
                raise TypeError(
                    f"field {name!r} is text, and {textless} has no dtype for text. Turn it into numbers in "
                    "__getitem__ or with map, or run Keras on TensorFlow: KERAS_BACKEND=tensorflow"
                )
        scene = spec.unflatten(spec.fields)
        has_targets = isinstance(scene, tuple | list) and len(scene) > 1 and scene[1] is not None
        if run.request.needs_targets and not has_targets:
            what, tuple_text = "fit uses all fields of a scene as inputs", "from __getitem__: (inputs, targets)"
            if isinstance(scene, dict):
                what = f"scenes are dicts with the keys {', '.join(map(str, scene))}, and fit uses them all as inputs"
                if {"x", "y"} <= scene.keys() <= {"x", "y", "sample_weight"}:
                    pair = [f'scene["{name}"]' for name in ("x", "y", "sample_weight") if name in scene]
                    tuple_text = f"instead of the dict: ({', '.join(pair)})"
            warn_caller(
                f"{what}, but the model has a loss, which needs targets. Return a tuple {tuple_text}", FeedWarning
            )

    # ---- the run of the last fit

    @property
    def fit_run(self) -> Any:
        """The run of the last `fit`; None if it is over."""
        return self._fit_run()

    def begin_fit(self, run: KerasRun) -> None:
        """Begin or restart a `fit`; any other run ends."""
        if self._fit_run() is not run:
            self.end_fit()
        self._fit_run = weakref.ref(run)

    def end_fit(self) -> None:
        """End a running fit, because another consumer begins."""
        run = self._fit_run()
        if run is not None:
            run.supersede()


def _converted(feed: Any, class_weight: Any, batch: Any) -> Any:
    """Convert a batch of `feed`, a weak proxy, for Keras's trainers."""
    return standardized(feed.without_lists(batch), class_weight)


def _epoch_cursor(run: Callable[[], KerasRun | None], convert: Convert) -> Cursor:
    """Return the cursor of the present epoch, for TensorFlow's iterator.

    Args:
        run: A weak reference to the run. An epoch has one TensorFlow iterator. The run or this iterator closes the
            cursor, whichever ends first.
        convert: Adds the conversion of batches to a cursor.

    Raises:
        NotYet: Keras has not begun the epoch. TensorFlow prefetches from the next epoch's iterator before it begins.
        EndOfData: There is nothing to take.
        FeedClosedError: The run is over.
    """
    known = check_alive(run(), _OVER)
    if not known.is_running:
        del known
        time.sleep(POLL_SECONDS)
        raise NotYet
    if known.cursor is None:
        raise EndOfData
    return convert(known.cursor)


def _batches_of(run: Callable[[], KerasRun | None]) -> Iterator[Any]:
    cursor = check_alive(run(), _OVER).cursor
    try:
        while cursor is not None and (taken := next_of(cursor)):
            yield taken.pop()
    except Exception as error:
        note_causes(error)
        raise


def standardized(batch: Any, class_weight: Any) -> Any:
    """Convert a batch for Keras's trainers, and add its class weights.

    Raises:
        ValueError: Keras cannot use the batch, or it has weights already.
    """
    if isinstance(batch, dict):
        return batch
    if isinstance(batch, np.ndarray):
        batch = (batch,)
    if not isinstance(batch, tuple) or len(batch) not in (1, 2, 3):
        names = getattr(batch, "_fields", None)
        pair = f"({{{names[0]!r}: scene.{names[0]}}}, scene.{names[-1]})" if names else "(scene[:-1], scene[-1])"
        raise ValueError(
            "Keras takes batches that are a dict, an array, or a tuple (inputs,), (inputs, targets) or (inputs, "
            f"targets, sample_weights), but scenes of this feed are a {type(batch).__name__}"
            f"{f' of {len(batch)}' if isinstance(batch, tuple) else ''}. Change them with kf.Map(sequence, function), "
            f"for example with lambda scene: {pair}"
        )
    if class_weight is None or type(batch) is not tuple or len(batch) < 2:
        return batch
    if len(batch) > 2:
        raise ValueError("You cannot specify `class_weight` and `sample_weight` at the same time.")
    return (*batch, class_weights_of(batch[1], class_weight))


def standardized_spec(structure: Any, class_weight: Any) -> Any:
    """Return the specs of `standardized(batch)` for a batch with the specs `structure`."""
    structure = lists_as_tuples(structure)
    structure = structure if isinstance(structure, tuple | dict) else (structure,)
    if class_weight is None or type(structure) is not tuple or len(structure) != 2:
        return structure
    return (*structure, ArraySpec((None,), np.dtype(keras.config.floatx())))


def class_weights_of(targets: Any, class_weight: Any) -> Any:
    """Return each row's class weight, floatx[B], by its target or argmax.

    Raises:
        ValueError: There are several targets.
    """
    if isinstance(targets, dict | tuple | list):
        raise ValueError("`class_weight` is only supported for Models with a single output.")
    labels = np.asarray(targets)
    weights = np.ones(labels.shape[0], keras.config.floatx())
    if labels.ndim > 1:
        labels = np.squeeze(labels, axis=-1) if labels.shape[-1] == 1 else np.argmax(labels, axis=-1)
    for row, label in enumerate(np.round(labels).astype(np.int32)):
        weights[row] = class_weight.get(int(label), 1.0)
    return weights


def copied_callback(callback: Any, memo: dict[int, Any], *kept: Any) -> Any:
    """Deep-copy a callback, but share the objects in `kept`."""
    memo.update({id(each): each for each in kept})
    kind: Any = type(callback)
    made = memo[id(callback)] = kind.__new__(kind)
    vars(made).update(copy.deepcopy(vars(callback), memo))
    return made
