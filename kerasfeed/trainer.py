"""Keras's trainers, looked at from within, and their adapters, made to serve a feed better.

Invariant: nothing is changed that Keras is not running on this feed, and where the installed Keras lacks what is looked
for here, `feed[step]` still gives the right batches.
"""

import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from types import FrameType
from typing import Any

import optree

from kerasfeed.adapters.raised import Raised, watch_trainer
from kerasfeed.loaders.failure import note_causes
from kerasfeed.patience import NOT_YET, NotYet
from kerasfeed.spec import ArraySpec

# The variable of `fit` that holds the first step of an execution: in Keras 3.11 to 3.15, and in 3.10.
_STEP_VARIABLES = ("begin_step", "step")
# The others that are read, in Keras 3.10 to 3.15.
_FIT_VARIABLES = ("epoch", "epochs", "initial_epoch", "steps_per_epoch", "epoch_iterator")


@dataclass(frozen=True)
class TrainerPosition:
    """Where Keras's trainer stands in the calling thread.

    Attributes:
        method: "fit", "evaluate" or "predict".
        epoch: The epoch `fit` is in; None before its first.
        initial_epoch: The epoch `fit` begins with.
        epochs: The epoch `fit` ends before; 0 where it is not known.
        steps_per_epoch: The argument of `fit`.
        iterator: Keras's iterator of the data; None while it is being made.
        begin_step: First step of the execution that runs, or ran last; None where this Keras does not tell.
        execution: Steps of an execution.
        hook: Name of the hook of callbacks that is being called; None outside callbacks.
        callbacks: The callbacks of which one is being called, in their order; None outside.
    """

    method: str
    epoch: int | None
    initial_epoch: int
    epochs: int
    steps_per_epoch: int | None
    iterator: Any
    begin_step: int | None
    execution: int
    hook: str | None
    callbacks: Sequence[Any] | None

    @property
    def goes_on(self) -> bool:
        """Whether the `fit` that runs plans an epoch after this one."""
        return self.method == "fit" and self.epoch is not None and self.epoch + 1 < self.epochs

    def trained(self, numbers: range) -> int:
        """Number of the batch after the last one that `fit` has trained on, of an epoch's `numbers`.

        Raises:
            RuntimeError: This Keras does not tell.
        """
        step = self.check_step()
        if self.epoch is None or self.hook in ("on_train_begin", "on_epoch_begin"):
            return numbers.start
        within = self.hook in (None, "on_train_batch_begin", "on_batch_begin")
        return min(numbers.start + (step if within else step + self.execution), numbers.stop)

    def check_step(self) -> int:
        """First step of the execution that runs, or ran last.

        Raises:
            RuntimeError: This Keras does not tell.
        """
        if self.begin_step is None:
            raise RuntimeError(
                f"which batch fit trains on cannot be told with Keras {keras_version()}, so nothing could be resumed "
                f"exactly: its loop has no variable {' or '.join(_STEP_VARIABLES)}. Use Keras 3.10 to 3.15, or "
                "feed.get_state(epoch=..., step=...) with the place of the next batch"
            )
        return self.begin_step


def trainer_position(method: str | None = None) -> TrainerPosition | None:
    """Position of the innermost Keras trainer method that is running in this thread; None outside Keras.

    Read from the method's own local variables, because no hook and no attribute of the model tells it to a
    `PyDataset`: on TensorFlow the hooks come as end, begin, ..., end; on JAX as begin, end, begin, ..., end.

    Args:
        method: Only a method of this name.
    """
    frame: FrameType | None = sys._getframe(1)
    hook = callbacks = None
    while frame is not None:
        name, module = frame.f_code.co_name, str(frame.f_globals.get("__name__", ""))
        if name in ("fit", "evaluate", "predict") and module.startswith("keras."):
            if _is_trainer(frame) and method in (None, name):
                return _position(frame, hook, callbacks)
            hook = hook or f"on_{name}"
        elif name.lstrip("_").startswith("on_") and module.endswith(".callback_list"):
            hook, callbacks = name.lstrip("_"), getattr(self_of(frame), "callbacks", None)
        frame = frame.f_back
    return None


def _is_trainer(frame: FrameType) -> bool:
    """Whether a function of Keras, called like a trainer's method, is one.

    Raises:
        RuntimeError: It is a trainer's `fit`, and its variables are not those that are known.
    """
    code = frame.f_code
    missing = {*_FIT_VARIABLES} - {*code.co_varnames, *code.co_cellvars}
    if code.co_name != "fit" or not missing:
        return True
    if not str(frame.f_globals["__name__"]).endswith(".trainer"):
        return False  # that of a scikit-learn wrapper, for example, which calls the trainer's
    raise RuntimeError(
        f"which epoch fit is in cannot be told with Keras {keras_version()}, and it would train on wrong batches: its "
        f"fit has no variable {', '.join(sorted(missing))}. Use Keras 3.10 to 3.15, or train_on_batch in a loop over "
        "the feed"
    )


def _position(frame: FrameType, hook: str | None, callbacks: Sequence[Any] | None) -> TrainerPosition:
    code, variables = frame.f_code, frame.f_locals
    names = {*code.co_varnames, *code.co_cellvars}
    step = next((name for name in _STEP_VARIABLES if name in names), None)
    iterator = variables.get("epoch_iterator")
    position = TrainerPosition(
        code.co_name, variables.get("epoch"), variables.get("initial_epoch") or 0, variables.get("epochs") or 0,
        variables.get("steps_per_epoch"), iterator, None if step is None else variables.get(step) or 0,
        int(getattr(iterator, "steps_per_execution", 1)), hook, callbacks,
    )  # fmt: skip
    if isinstance(variables, dict):
        # Before Python 3.13 the frame keeps this copy, and with it the last epoch's iterator. Dropped only
        # at the next look, holding the GIL, a TensorFlow iterator stops training for 1 s.
        variables.clear()
    return position


def keras_version() -> str:
    """Version of the Keras that runs."""
    return str(getattr(sys.modules.get("keras"), "__version__", "of an unknown version"))


def self_of(frame: FrameType | None) -> Any:
    """The object whose method runs in `frame`; None where there is none."""
    if frame is None:
        return None
    variables = frame.f_locals
    found = variables.get("self")
    if isinstance(variables, dict):
        variables.clear()  # before Python 3.13 the frame keeps this copy
    return found


def cut_iterator(iterator: Any, count: int, *, ends_there: bool) -> None:
    """Have Keras's iterator of a `fit` make a new iterator of the data for the epoch that begins, of `count` batches.

    Args:
        iterator: Keras's.
        count: Batches of the epoch.
        ends_there: Whether the data end after `count` batches by themselves.
    """
    iterator.steps_per_epoch = None
    iterator._num_batches = count
    vars(iterator).pop("_get_iterator", None)
    if not ends_there:
        iterator._get_iterator = partial(_first_of, weakref.ref(iterator), count)


def _first_of(reference: Callable[[], Any], count: int) -> Any:
    iterator = reference()
    assert iterator is not None  # it is the one that asks
    found = type(iterator)._get_iterator(iterator)
    if hasattr(found, "take"):  # a dataset
        return found.take(count)
    return islice(found, count) if isinstance(found, Iterator) else found


def tame(feed: Any, side: Any, caller: FrameType, *, in_fit: bool, ordered: bool) -> None:
    """Make the Keras adapter whose frame `caller` is serve `feed` better than it would by itself.

    It refers to the feed weakly. On TensorFlow an adapter lives until the process ends (`from_generator` registers
    a function that holds it), and every feed that was trained on, with its workers, would live as long. While Keras
    runs, its own argument `x` holds the feed.

    It asks for batches by their numbers in the feed's stream, which look ahead of Keras by themselves.

    What the sequence raises comes out of the trainer as itself, on TensorFlow too, with the text of its causes in a
    note, because Keras raises it `from None`.

    Its `tf.data` pipeline does not tune itself: there is nothing to tune, and at the end of an epoch the thread
    that tunes is waited for with the GIL held, in every other epoch for 0.2 s and now and then for seconds.
    """
    if caller.f_code.co_name != "num_batches":
        return
    adapter = self_of(caller)
    if adapter is None or type(adapter).__name__ != "PyDatasetAdapter":
        return
    if adapter.py_dataset is feed and adapter.enqueuer is None:
        raised = Raised()
        returns = watch_trainer(caller, raised)
        adapter.py_dataset = weakref.proxy(feed)
        adapter.get_tf_dataset = partial(_untuned_dataset, weakref.ref(adapter))
        # Weakly: an adapter may live as long as the process, and an exception holds all that its frames hold.
        known = weakref.ref(raised) if returns else None
        adapter._get_iterator = partial(_batches, weakref.ref(adapter), weakref.ref(side), known, in_fit)
        if ordered:
            adapter.shuffle = False


def refuse_text(feed: Any) -> None:
    """Refuse fields of text where Keras runs on JAX or PyTorch.

    Raises:
        TypeError: The batches of `feed` have one.
    """
    backend = {"jax": "JAX", "torch": "PyTorch"}.get(sys.modules["keras"].backend.backend())
    if backend is None:
        return
    structure = feed.element_spec
    is_spec: Any = lambda leaf: isinstance(leaf, ArraySpec)  # noqa: E731
    paths = optree.tree_paths(structure, is_leaf=is_spec)
    for path, field in zip(paths, optree.tree_leaves(structure, is_leaf=is_spec), strict=True):
        if field.is_text:
            name = ".".join(str(key) for key in path) or "scene"
            raise TypeError(
                f"field {name!r} is text, and {backend} has no text. Turn it into numbers where scenes are made (in "
                "__getitem__, or with map), or have Keras run on TensorFlow: KERAS_BACKEND=tensorflow"
            )


def _untuned_dataset(reference: Callable[[], Any]) -> Any:
    from kerasfeed.adapters.tf_keras import keras_dataset  # Keras asks on TensorFlow alone

    adapter = reference()
    assert adapter is not None  # it is the one that asks
    try:
        return keras_dataset(adapter)
    except Exception as error:
        note_causes(error)  # of a scene of the first batches, which are read here
        raise


def _batches(
    reference: Callable[[], Any],
    side: Callable[[], Any],
    raised: Callable[[], Raised | None] | None,
    in_fit: bool,
    patience: float | None = None,
) -> Iterator[Any]:
    adapter, served = reference(), side()
    assert adapter is not None
    assert served is not None
    refuse_text(adapter.py_dataset)
    numbers = served.numbers(in_fit)
    number, batch = numbers.start, NOT_YET
    try:
        for number in numbers:
            batch, asking = NOT_YET, served.ask(adapter, number, numbers, in_fit)
            while batch is NOT_YET:
                with suppress(NotYet):
                    batch = served.take(adapter, asking, patience)
                del served  # while it waits it holds no feed: TensorFlow may keep it
                yield batch if batch is NOT_YET else adapter._standardize_batch(batch)
                served = side()
                assert served is not None
    except GeneratorExit:  # abandoned, if not at the very end
        served, following = side(), number if batch is NOT_YET else number + 1
        if served is not None and following < numbers.stop:
            served.windows.leave(adapter, following)
        raise
    except BaseException as error:
        note_causes(error)
        known = None if raised is None else raised()
        if known is None:
            raise
        raise known.carrier(error) from None
