"""`KerasAdapter`: a feed as Keras's trainers take it, by the interface that Keras has for that.

Invariant: nothing of Keras is written to. A feed is a `PyDataset` and its own `DataAdapter`, which trainers take as it
is; where the installed Keras has no such interface, the `PyDataset` is left, and users are told what is lost. Where
Keras itself cannot be imported, as it has no backend, a feed is neither, and feeds loops.
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

from kerasfeed.adapters.keras.run import Handover, KerasRun
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
from kerasfeed.feeds.cursor import Begin, EndOfData, check_alive, next_of
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
_OVER = "the fit, or other run, that this iterator was for is over, or its feed is gone"


class TrainerData(_DataAdapter):  # type: ignore[misc]
    """What Keras's trainers call of the data that they are given; users call none of it."""

    def _init_keras(self) -> None:
        self._runs: weakref.WeakKeyDictionary[Any, KerasRun] = weakref.WeakKeyDictionary()
        self._fit_run: Callable[[], Any] = lambda: None  # of a feed
        self._warned = False

    # ---- what feeds, and datasets of them, say in their own ways

    @property
    @abstractmethod
    def _keras_feed(self) -> Any:
        """The feed."""

    @abstractmethod
    def _keras_dataset(self, begin: Begin, class_weight: Any) -> Any:
        """The `tf.data.Dataset` for Keras, whose batches the cursors give that `begin` makes."""

    @abstractmethod
    def _keras_run(self, iterator: Any, request: TrainerRequest) -> KerasRun:
        """What `iterator`, a new one of Keras's, takes."""

    def _keras_hook(self, *, begins: bool) -> None:
        """Somebody calls `on_epoch_begin` or `on_epoch_end` who is not one of Keras's iterators: a feed alone minds."""

    # ---- the interface of Keras

    @property
    def num_batches(self) -> Any:
        """Number of batches in an epoch; None where it is not known. Called by Keras; your code calls `len(feed)`."""
        call = keras_call(self)
        if call is None:
            return len(self._keras_feed) if self._keras_feed.plan.length else None
        if call.request is not None:
            refuse_division(getattr(getattr(self._keras_feed, "shard", None), "count", 1))
            made = self._runs[call.iterator] = self._keras_run(call.iterator, call.request)
            made.convert = partial(_converted, made.feed, call.request.class_weight)
        run = self._runs[call.iterator]
        if call.method == "reset":
            run.reset()
        return run.steps

    @property
    def batch_size(self) -> int | None:
        """Always None, which tells Keras that the feed makes the batches. The argument is `feed.plan.batch_size`."""
        return None

    # What tells Keras that it is not known whether a batch is a short one.
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
        """The batches as NumPy arrays. Called by Keras."""
        return _batches_of(weakref.ref(self._asked_run()))

    def get_jax_iterator(self, super_batch: int | None = None) -> Iterator[Any]:
        """The batches as NumPy arrays, which JAX accepts; those of an execution stacked. Called by Keras."""
        call, run = keras_call(self), self._asked_run()
        if call is not None and call.method == BUILDER:
            run.on_epoch_begin()  # the trainer resets its iterator then
        self._check_scenes(run, "JAX")
        batches = _batches_of(weakref.ref(run))
        return batches if super_batch is None else super_batches(batches, super_batch)

    def get_torch_dataloader(self) -> Iterator[Any]:
        """The batches as tensors. Called by Keras, which iterates over them."""
        run = self._asked_run()
        self._check_scenes(run, "PyTorch")
        return (optree.tree_map(keras.ops.convert_to_tensor, batch) for batch in _batches_of(weakref.ref(run)))

    def get_tf_dataset(self) -> Any:
        """The batches as a `tf.data.Dataset`. Called by Keras; your code calls `to_tf_dataset`."""
        run = self._asked_run()
        self._check_scenes(run)
        run.in_other_threads = True
        return self._keras_dataset(partial(_begun_cursor, weakref.ref(run)), run.request.class_weight)

    # ---- how it is done

    def _warn_of_unsupported_keras(self) -> None:
        """Warn, once, where the installed Keras takes no adapter of others."""
        if not self._warned and not isinstance(self, data_adapter_class()):
            self._warned = True
            warn_caller(
                f"Keras {keras_version()} takes no data adapters of others, so it reads this feed as any PyDataset: "
                "each epoch is a whole one of the feed, nothing can be resumed in mid-epoch, and the state of the feed "
                "is not known while it trains. Use Keras 3.10 to 3.16",
                FeedWarning,
            )

    def _run_of_caller(self) -> KerasRun | None:
        call = keras_call(self)
        return None if call is None else self._runs.get(call.iterator)

    def _asked_run(self) -> KerasRun:
        """The run of the Keras iterator that calls.

        Raises:
            RuntimeError: The caller is none of Keras's iterators.
        """
        run = self._run_of_caller()
        if run is None:
            raise RuntimeError(
                "this is for the iterators of Keras's trainers alone: loop over the feed, or over its to_tf_dataset(), "
                "to_jax() or to_torch()"
            )
        return run

    def _check_scenes(self, run: KerasRun, textless: str = "") -> None:
        """Look at the spec of scenes, the first of which may be read for it.

        Args:
            run: What takes them.
            textless: The backend, where it takes no text.

        Raises:
            TypeError: A field is text.
            Exception: What the first scenes raised.
        """
        try:
            spec = self._keras_feed.scene_spec
        except Exception as error:
            note_causes(error)
            raise
        for name, field in zip(spec.paths, spec.fields, strict=True):
            if textless and field.is_text:
                raise TypeError(
                    f"field {name!r} is text, and {textless} has no text. Turn it into numbers where scenes are made "
                    "(in __getitem__, or with map), or have Keras run on TensorFlow: KERAS_BACKEND=tensorflow"
                )
        scene = spec.unflatten(spec.fields)
        has_targets = isinstance(scene, tuple | list) and len(scene) > 1 and scene[1] is not None
        if run.request.needs_targets and not has_targets:
            what, tuple_text = "fit takes all that a scene holds for inputs", "from __getitem__: (inputs, targets)"
            if isinstance(scene, dict):
                what = f"scenes are dicts with the keys {', '.join(map(str, scene))}, all of which fit takes for inputs"
                if {"x", "y"} <= scene.keys() <= {"x", "y", "sample_weight"}:
                    pair = [f'scene["{name}"]' for name in ("x", "y", "sample_weight") if name in scene]
                    tuple_text = f"in place of the dict: ({', '.join(pair)})"
            warn_caller(
                f"{what}, and the model has a loss, which needs targets. Return a tuple {tuple_text}", FeedWarning
            )


class KerasAdapter(TrainerData, _PyDataset):  # type: ignore[misc]
    """A feed: a `PyDataset`, and its own `DataAdapter`."""

    def __init__(self, ahead: int) -> None:
        if not NO_KERAS:
            _PyDataset.__init__(self, workers=1, use_multiprocessing=False, max_queue_size=ahead)
        self._init_keras()

    @property
    def _keras_feed(self) -> Any:
        return self

    @property
    def fit_run(self) -> Any:
        """What the last `fit` takes of the feed, or of a dataset of it; None where that is over."""
        return self._fit_run()

    def begin_fit(self, run: KerasRun) -> None:
        """A `fit` is about to begin, or, having built its model, to begin anew; no other goes on."""
        if self._fit_run() is not run:
            self.end_fit()
        self._fit_run = weakref.ref(run)

    def end_fit(self) -> None:
        """Something else begins to take batches: no fit can still do so."""
        run = self._fit_run()
        if run is not None:
            run.supersede()

    def _keras_dataset(self, begin: Begin, class_weight: Any) -> Any:
        from kerasfeed.adapters.tensorflow.dataset import batches_dataset  # Keras asks on TensorFlow alone

        fields, treespec = optree.tree_flatten(self.element_spec)
        loose = [ArraySpec((None, *field.shape[1:]), field.dtype) if field.shape else field for field in fields]
        structure = standardized_spec(optree.tree_unflatten(treespec, loose), class_weight)
        return batches_dataset(begin, structure, count=None, device="/cpu:0", ragged_tensors=False)


def _converted(feed: Any, class_weight: Any, batch: Any) -> Any:
    """A batch of `feed`, a weak proxy, as Keras's trainers take it."""
    return standardized(feed.without_lists(batch), class_weight)


def _begun_cursor(run: Callable[[], KerasRun | None], _: Any) -> Handover:
    """What an iterator of TensorFlow takes from: the cursor of the epoch in which it asks for its first batch.

    Args:
        run: A weak reference to the run. Who ends first closes the cursor: the run, or TensorFlow's iterator, which is
            the only one of its epoch.

    Raises:
        NotYet: Keras has not begun the epoch; TensorFlow prefetches from an iterator that is for the one to come.
        EndOfData: Nothing is to be taken.
        FeedClosedError: The run is over.
    """
    known = check_alive(run(), _OVER)
    if not known.is_running:
        del known
        time.sleep(POLL_SECONDS)
        raise NotYet
    if known.cursor is None:
        raise EndOfData
    return known.cursor


def _batches_of(run: Callable[[], KerasRun | None]) -> Iterator[Any]:
    cursor = check_alive(run(), _OVER).cursor
    try:
        while cursor is not None and (taken := next_of(cursor)):
            yield taken.pop()
    except Exception as error:
        note_causes(error)
        raise


def standardized(batch: Any, class_weight: Any) -> Any:
    """A batch as Keras's trainers take it, with the weights of its classes.

    Raises:
        ValueError: It is nothing that Keras takes, or has weights already.
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
            f"targets, sample_weights), and scenes of this feed are a {type(batch).__name__}"
            f"{f' of {len(batch)}' if isinstance(batch, tuple) else ''}. kf.Map(sequence, function) changes them, for "
            f"example with lambda scene: {pair}"
        )
    if class_weight is None or type(batch) is not tuple or len(batch) < 2:
        return batch
    if len(batch) > 2:
        raise ValueError("You cannot specify `class_weight` and `sample_weight` at the same time.")
    return (*batch, class_weights_of(batch[1], class_weight))


def standardized_spec(structure: Any, class_weight: Any) -> Any:
    """The specs of what `standardized` makes of a batch whose specs are `structure`."""
    structure = lists_as_tuples(structure)
    structure = structure if isinstance(structure, tuple | dict) else (structure,)
    if class_weight is None or type(structure) is not tuple or len(structure) != 2:
        return structure
    return (*structure, ArraySpec((None,), np.dtype(keras.config.floatx())))


def class_weights_of(targets: Any, class_weight: Any) -> Any:
    """The weight of each row, floatx[B], by its class: the target, or the place of the largest of several.

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
    """A deep copy of a callback, as KerasTuner makes for each trial. Both refer to the same objects in `kept`."""
    memo.update({id(each): each for each in kept})
    kind: Any = type(callback)
    made = memo[id(callback)] = kind.__new__(kind)
    vars(made).update(copy.deepcopy(vars(callback), memo))
    return made
