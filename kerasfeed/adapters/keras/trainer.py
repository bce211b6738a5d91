"""What is read of Keras beyond its interface for data, all of it here.

| what | where it is read | seen in Keras |
|---|---|---|
| `DataAdapter`, the interface | `keras.src.trainers.data_adapters.data_adapter` | 3.10 to 3.16 |
| batches of an execution on JAX | `super_batch_iterator` of `data_adapter_utils` beside it | 3.16 |
| which of Keras's iterators calls | `self` of the frame that calls, whose `data_adapter` the feed is | 3.10 to 3.16 |
| | variable `iterator` of the trainer's `_maybe_symbolic_build`, on JAX | 3.16 |
| `y`, `sample_weight`, `class_weight`, `shuffle` | variables of the `__init__` of that iterator | 3.10 to 3.16 |
| `steps_per_epoch`, `steps_per_execution` | attributes of that iterator | 3.10 to 3.16 |
| `epoch`, `epochs`, `initial_epoch`, `epoch_iterator` | variables of the trainer's `fit` | 3.10 to 3.16 |
| the callbacks, and which of their hooks runs | frames of Keras's `CallbackList` | 3.10 to 3.16 |
| whether Keras's loop over an epoch asks for `num_batches` | `_enumerate_iterator` of its iterator | 3.10 to 3.16 |
| whether Keras reads the number of workers | module of the frame that reads it | 3.10 to 3.16 |
| the epoch that a restored model goes on with | `_initial_epoch` of the model | 3.10 to 3.16 |
| whether training runs in several processes | `_is_multi_process` of `keras.distribution`'s | 3.10 to 3.16 |
| batches of an epoch of other data | `_num_batches` of Keras's iterator | 3.10 to 3.16 |

Invariant: nothing is read twice or elsewhere. Where something is missing, users are told what cannot be kept; where
batches would be wrong, it is an error.
"""

import importlib
import inspect
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

from kerasfeed.errors import FeedWarning
from kerasfeed.util.deferred_warnings import warn_caller

_METHODS = ("fit", "evaluate", "predict")
LOOP = "_enumerate_iterator"
BUILDER = "_maybe_symbolic_build"  # of the trainer: takes a batch to build the model, in Keras 3.16 on JAX
_ITERATOR_VARIABLES = {"y", "sample_weight", "class_weight", "shuffle", "steps_per_epoch", "steps_per_execution"}
_FIT_VARIABLES = ("epoch", "epochs", "initial_epoch", "epoch_iterator")  # in Keras 3.10 to 3.16


@dataclass(frozen=True)
class TrainerPosition:
    """Where Keras's trainer stands in the calling thread.

    Attributes:
        method: "fit", "evaluate" or "predict".
        model: Whose method it is.
        epoch: The epoch `fit` is in; None before its first.
        initial_epoch: The epoch `fit` begins with.
        epochs: The epoch `fit` ends before; 0 where it is not known.
        iterator: Keras's iterator of the data; None while it is being made.
        hook: Name of the hook of callbacks that is being called; None outside callbacks.
        callbacks: The callbacks of which one is being called, in their order; None outside.
    """

    method: str
    model: Any
    epoch: int | None
    initial_epoch: int
    epochs: int
    iterator: Any
    hook: str | None
    callbacks: Sequence[Any] | None

    @property
    def is_before_execution(self) -> bool:
        """Whether the execution that Keras has begun is not trained on yet."""
        return self.hook in (None, "on_train_batch_begin", "on_batch_begin")


_NO_TRAINER = TrainerPosition("", None, None, 0, 0, None, None, None)


def trainer_position(method: str | None = None) -> TrainerPosition | None:
    """Position of the innermost Keras trainer method that is running in this thread; None outside Keras.

    Read from the method's own local variables, because no hook and no attribute of the model tells it to a
    `PyDataset`: on TensorFlow the hooks come as end, begin, ..., end; on JAX as begin, end, begin, ..., end.

    Args:
        method: Only a method of this name.
    """
    frame = inspect.currentframe()
    hook = callbacks = None
    while frame is not None:
        name, module = frame.f_code.co_name, str(frame.f_globals.get("__name__", ""))
        if name in _METHODS and module.startswith("keras."):
            if _is_trainer(frame) and method in (None, name):
                found = _variables(frame, _FIT_VARIABLES)
                return TrainerPosition(
                    name, self_of(frame), found.get("epoch"), found.get("initial_epoch") or 0, found.get("epochs") or 0,
                    found.get("epoch_iterator"), hook, callbacks,
                )  # fmt: skip
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
        f"fit has no variable {', '.join(sorted(missing))}. Use Keras 3.10 to 3.16, or train_on_batch in a loop over "
        "the feed"
    )


def restored_epoch(model: Any) -> int:
    """The epoch with which the next `fit` of a model begins, where a callback has restored the model; else 0."""
    return getattr(model, "_initial_epoch", None) or 0


def batches_of(iterator: Any) -> int | None:
    """Batches in which the data of one of Keras's iterators end; None where they do not, or nobody knows."""
    return getattr(iterator, "_num_batches", None)


def execution_of(iterator: Any) -> int:
    """Batches of an execution of the training function, of one of Keras's iterators."""
    return int(iterator.steps_per_execution)


def keras_version() -> str:
    """Version of the Keras that runs."""
    return str(getattr(sys.modules.get("keras"), "__version__", "of an unknown version"))


def data_adapter_class() -> Any:
    """Keras's interface for data that trainers take as they are; a class of nothing where this Keras has none.

    Nor is it of use where Keras's iterator does not tell what `fit` was given beside the data, or does not ask, before
    each execution, whether the epoch is over.
    """
    try:
        adapter = importlib.import_module("keras.src.trainers.data_adapters.data_adapter").DataAdapter
        iterator = importlib.import_module("keras.src.trainers.epoch_iterator").EpochIterator
        told = {*iterator.__init__.__code__.co_varnames} >= _ITERATOR_VARIABLES and hasattr(iterator, LOOP)
    except (ImportError, AttributeError):
        told = False
    return adapter if told else type("DataAdapter", (), {})


def super_batches(batches: Iterator[Any], count: int) -> Iterator[Any]:
    """The batches of each execution of `count` steps stacked, or in a list where they cannot be.

    Keras's trainer asks for them on JAX, in Keras 3.16, and tells that list by a class of Keras's own.
    """
    utilities = importlib.import_module("keras.src.trainers.data_adapters.data_adapter_utils")
    stacked: Iterator[Any] = utilities.super_batch_iterator(batches, count)
    return stacked


@dataclass(frozen=True)
class TrainerRequest:
    """What a user has asked a trainer for, beside the data.

    Attributes:
        method: "fit", "evaluate", "predict"; "" where something else has made Keras's iterator.
        trains: Whether it is the `fit` itself, and not its validation.
        initial_epoch: Argument of `fit`.
        class_weight: Weight by class.
        shuffle: Whether `fit` is to shuffle the batches.
        needs_targets: Whether it is a `fit` of Keras's own, of a model that was compiled with a loss.
    """

    method: str
    trains: bool
    initial_epoch: int
    class_weight: Any
    shuffle: bool
    needs_targets: bool


@dataclass(frozen=True)
class KerasCall:
    """A call of a feed by one of Keras's iterators, or for it.

    Attributes:
        iterator: It, an `EpochIterator`.
        method: The method that calls.
        request: What it is made for, where that method is its `__init__`.
    """

    iterator: Any
    method: str
    request: TrainerRequest | None


def keras_call(data: Any) -> KerasCall | None:
    """The call of `data` that this runs in; None where no iterator of Keras's of it calls, nor its trainer.

    Args:
        data: A feed, or a dataset of one, a method of which calls this; also through one of a subclass.

    Raises:
        ValueError: Targets or weights were given beside the feed.
    """
    caller = inspect.currentframe()
    assert caller is not None
    caller = caller.f_back
    while caller is not None and self_of(caller) is data:
        caller = caller.f_back
    if caller is None:
        return None
    iterator, method = self_of(caller), caller.f_code.co_name
    if _is_keras(caller) and method == BUILDER:
        iterator = _variables(caller, ("iterator",)).get("iterator")
    is_of_keras = any(each.__name__ == "EpochIterator" for each in type(iterator).__mro__)
    if not is_of_keras or adapter_of(iterator) is not data:
        return None
    return KerasCall(iterator, method, _request(caller) if method == "__init__" else None)


def _request(frame: FrameType) -> TrainerRequest:
    """What Keras's iterator is made for, whose `__init__` runs in `frame`.

    Raises:
        ValueError: Targets or weights were given beside the feed.
    """
    found = _variables(frame, ("y", "sample_weight", "class_weight", "shuffle"))
    for name, what in (("y", "the targets"), ("sample_weight", "the sample weights")):
        if found.get(name) is not None:
            raise ValueError(
                f"When providing `x` as a PyDataset, `{name}` should not be passed. Instead, {what} should be included "
                "as part of the PyDataset."
            )
    position = trainer_position() or _NO_TRAINER
    trains = position.method == "fit" and position.iterator is None
    return TrainerRequest(
        position.method, trains, position.initial_epoch, found.get("class_weight"), bool(found.get("shuffle")),
        trains and _needs_targets(position.model),
    )  # fmt: skip


def asked_by_the_loop() -> bool:
    """Whether Keras's loop over the batches of an epoch calls the method that calls this."""
    caller = inspect.currentframe()
    for _ in range(2):  # in one variable: a frame that held itself would keep the feed
        assert caller is not None
        caller = caller.f_back
    return caller is not None and caller.f_code.co_name == LOOP


def read_by_keras() -> bool:
    """Whether code of Keras reads the property of a feed that calls this."""
    return _is_keras(sys._getframe(2))


def adapter_of(iterator: Any) -> Any:
    """The data of one of Keras's iterators."""
    return getattr(iterator, "data_adapter", None)


def asked_steps(iterator: Any) -> int | None:
    """Batches of an epoch that a user, or Keras's debugging switch, has asked one of its iterators for."""
    return iterator.steps_per_epoch  # type: ignore[no-any-return]


def _needs_targets(model: Any) -> bool:
    steps = [getattr(type(model), name, None) for name in ("train_step", "compute_loss")]
    of_keras = all(str(getattr(step, "__module__", "")).startswith("keras.") for step in steps)
    return of_keras and getattr(model, "loss", None) is not None


def _variables(frame: FrameType, names: Sequence[str]) -> dict[str, Any]:
    """The local variables of a frame that have these names, and a value."""
    variables = frame.f_locals
    found = {name: variables[name] for name in names if name in variables}
    _forget(frame, variables)
    return found


def _forget(frame: FrameType, variables: Any) -> None:
    """Empty a copy of a function's variables, which before Python 3.13 its frame keeps.

    It would keep the last epoch's iterator. Dropped only at the next look, holding the GIL, a TensorFlow iterator stops
    training for 1 s. Those of a module, or of a class body, are no copy.
    """
    if isinstance(variables, dict) and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        variables.clear()


def _is_keras(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith("keras.")


def refuse_division(shard_count: int) -> None:
    """Refuse a feed of all scenes where Keras runs in several processes, each of which would train on all.

    Raises:
        ValueError: It is one.
    """
    library: Any = getattr(sys.modules.get("keras"), "distribution", None)
    distribution = library.distribution() if hasattr(library, "distribution") else None
    if distribution is None or shard_count > 1 or not getattr(distribution, "auto_shard_dataset", True):
        return
    several = getattr(distribution, "_is_multi_process", None)
    if several is None:
        warn_caller(
            f"Keras {keras_version()} does not tell whether {type(distribution).__name__} runs in several processes. "
            "If so, each trains on all scenes: use kf.Feed(..., shard='auto'), which gives each process its own",
            FeedWarning,
        )
    elif several:
        raise ValueError(
            "keras.distribution runs in several processes with auto_shard_dataset=True, and Keras divides no feed: "
            "each would train on all scenes. Use kf.Feed(..., shard='auto'), which gives each process its own"
        )


def self_of(frame: FrameType | None) -> Any:
    """The object whose method runs in `frame`; None where there is none."""
    if frame is None or not {"self"} & {*frame.f_code.co_varnames, *frame.f_code.co_cellvars}:
        return None
    return _variables(frame, ("self",)).get("self")
