"""Everything that kerasfeed reads from Keras beyond its interface for data.

| what | source | seen in Keras |
|---|---|---|
| `DataAdapter`, the interface | `keras.src.trainers.data_adapters.data_adapter` | 3.10 to 3.16 |
| batches of an execution on JAX | `super_batch_iterator` of `data_adapter_utils` in the same package | 3.16 |
| which of Keras's iterators calls | `self` of the calling frame, whose `data_adapter` is the feed | 3.10 to 3.16 |
| | variable `iterator` of the trainer's `_maybe_symbolic_build`, on JAX | 3.16 |
| `y`, `sample_weight`, `class_weight`, `shuffle` | variables of the `__init__` of that iterator | 3.10 to 3.16 |
| `steps_per_epoch`, `steps_per_execution` | attributes of that iterator | 3.10 to 3.16 |
| `epoch`, `epochs`, `initial_epoch`, `epoch_iterator` | variables of the trainer's `fit` | 3.10 to 3.16 |
| the callbacks, and the running hook | frames of Keras's `CallbackList` | 3.10 to 3.16 |
| whether Keras's loop over an epoch reads `num_batches` | `_enumerate_iterator` of its iterator | 3.10 to 3.16 |
| whether Keras reads the number of workers | module of the frame that reads it | 3.10 to 3.16 |
| the epoch at which a restored model continues | `_initial_epoch` of the model | 3.10 to 3.16 |
| whether training runs in several processes | `_is_multi_process` of the `keras.distribution` in use | 3.10 to 3.16 |
| batches of an epoch of other data | `_num_batches` of Keras's iterator | 3.10 to 3.16 |

Invariant: each of these is read in one place, in this module. If something is missing, a warning says which feature is
lost; if batches would be wrong, an error is raised.
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
BUILDER = "_maybe_symbolic_build"  # method of the trainer: takes a batch to build the model, in Keras 3.16 on JAX
_ITERATOR_VARIABLES = {"y", "sample_weight", "class_weight", "shuffle", "steps_per_epoch", "steps_per_execution"}
_FIT_VARIABLES = ("epoch", "epochs", "initial_epoch", "epoch_iterator")  # in Keras 3.10 to 3.16


@dataclass(frozen=True)
class TrainerPosition:
    """Position of Keras's trainer in the calling thread.

    Attributes:
        method: "fit", "evaluate" or "predict".
        model: The model of the method.
        epoch: The running epoch of `fit`; None before its first.
        initial_epoch: The first epoch of `fit`.
        epochs: `fit` ends before this epoch; 0 if unknown.
        iterator: Keras's iterator of the data; None while it is being made.
        hook: Name of the running callback hook; None outside callbacks.
        callbacks: All callbacks in order, while a hook runs; None outside.
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
        """Whether the model is still to use the batches that Keras requested."""
        return self.hook in (None, "on_train_batch_begin", "on_batch_begin")


_NO_TRAINER = TrainerPosition("", None, None, 0, 0, None, None, None)


def trainer_position(method: str | None = None) -> TrainerPosition | None:
    """Return the position of the running Keras trainer; None outside Keras.

    The position comes from local variables of the method, because neither a hook nor an attribute of the model gives it
    to a `PyDataset`: on TensorFlow hooks are called in the order end, begin, ..., end; on JAX begin, end, begin, ...,
    end.

    Args:
        method: Name of the method; None for any.
    """
    frame = inspect.currentframe()
    hook = callbacks = None
    while frame is not None:
        name, module = frame.f_code.co_name, str(frame.f_globals.get("__name__", ""))
        if name in _METHODS and module.startswith("keras."):
            if _is_trainer(frame) and method in (None, name):
                variables = _variables(frame, _FIT_VARIABLES)
                return TrainerPosition(
                    name, self_of(frame), variables.get("epoch"), variables.get("initial_epoch") or 0,
                    variables.get("epochs") or 0, variables.get("epoch_iterator"), hook, callbacks,
                )  # fmt: skip
            hook = hook or f"on_{name}"
        elif name.lstrip("_").startswith("on_") and module.endswith(".callback_list"):
            hook, callbacks = name.lstrip("_"), getattr(self_of(frame), "callbacks", None)
        frame = frame.f_back
    return None


def _is_trainer(frame: FrameType) -> bool:
    """Whether a Keras function named like a trainer method is that method.

    Raises:
        RuntimeError: The function is a trainer's `fit` with unknown variables.
    """
    code = frame.f_code
    missing = {*_FIT_VARIABLES} - {*code.co_varnames, *code.co_cellvars}
    if code.co_name != "fit" or not missing:
        return True
    if not str(frame.f_globals["__name__"]).endswith(".trainer"):
        return False  # of a scikit-learn wrapper, for example, which calls the trainer's fit
    raise RuntimeError(
        f"kerasfeed cannot find the epoch of fit in Keras {keras_version()}, and would train on wrong batches: "
        f"fit has no variable {', '.join(sorted(missing))}. Use Keras 3.10 to 3.16, or train_on_batch in a loop over "
        "the feed"
    )


def restored_epoch(model: Any) -> int:
    """Return the first epoch of a restored model's next `fit`, or 0."""
    return getattr(model, "_initial_epoch", None) or 0


def batches_of(iterator: Any) -> int | None:
    """Return the number of batches of the data; None if unknown."""
    return getattr(iterator, "_num_batches", None)


def execution_of(iterator: Any) -> int:
    """Return the batches per execution of the training function."""
    return int(iterator.steps_per_execution)


def keras_version() -> str:
    """Return the version of the running Keras."""
    return str(getattr(sys.modules.get("keras"), "__version__", "of an unknown version"))


def data_adapter_class() -> Any:
    """Return Keras's interface for data, or an empty class if unusable.

    It is unusable if Keras's iterator does not hold the other arguments of `fit`, or does not check before each
    execution whether the epoch is over.
    """
    try:
        adapter = importlib.import_module("keras.src.trainers.data_adapters.data_adapter").DataAdapter
        iterator = importlib.import_module("keras.src.trainers.epoch_iterator").EpochIterator
        is_usable = {*iterator.__init__.__code__.co_varnames} >= _ITERATOR_VARIABLES and hasattr(iterator, LOOP)
    except (ImportError, AttributeError):
        is_usable = False
    return adapter if is_usable else type("DataAdapter", (), {})


def super_batches(batches: Iterator[Any], count: int) -> Iterator[Any]:
    """Stack the batches of each execution of `count` steps.

    If shapes differ, the batches are put into a list. Keras's trainer needs this on JAX, in Keras 3.16. The trainer
    recognizes the list by a class of Keras's own.
    """
    utilities = importlib.import_module("keras.src.trainers.data_adapters.data_adapter_utils")
    stacked: Iterator[Any] = utilities.super_batch_iterator(batches, count)
    return stacked


@dataclass(frozen=True)
class TrainerRequest:
    """The arguments of a trainer method, apart from the data.

    Attributes:
        method: "fit", "evaluate", "predict"; "" if Keras's iterator was made elsewhere.
        trains: Whether it is `fit` itself, and not its validation.
        initial_epoch: Argument of `fit`.
        class_weight: Weight by class.
        shuffle: Whether `fit` shuffles the batches.
        needs_targets: Whether it is Keras's own `fit`, of a model that was compiled with a loss.
        builds: Whether Keras takes a batch to build the model, and then resets its iterator.
    """

    method: str
    trains: bool
    initial_epoch: int
    class_weight: Any
    shuffle: bool
    needs_targets: bool
    builds: bool


@dataclass(frozen=True)
class KerasCall:
    """A call of a feed by or for a Keras iterator.

    Attributes:
        iterator: The `EpochIterator`.
        method: Name of the calling method.
        request: Purpose of the iterator, if the method is its `__init__`.
    """

    iterator: Any
    method: str
    request: TrainerRequest | None


def keras_call(data: Any) -> KerasCall | None:
    """Return the call that Keras is making of `data`, or None.

    Args:
        data: A feed, or a dataset of one; its methods, also of a subclass, call this function.

    Raises:
        ValueError: Targets or weights were passed in addition to the feed.
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
    """Return the purpose of the Keras iterator whose `__init__` runs in `frame`.

    Raises:
        ValueError: Targets or weights were passed in addition to the feed.
    """
    variables = _variables(frame, ("y", "sample_weight", "class_weight", "shuffle"))
    for name, what in (("y", "the targets"), ("sample_weight", "the sample weights")):
        if variables.get(name) is not None:
            raise ValueError(
                f"When providing `x` as a PyDataset, `{name}` should not be passed. Instead, {what} should be included "
                "as part of the PyDataset."
            )
    position = trainer_position() or _NO_TRAINER
    trains = position.method == "fit" and position.iterator is None
    return TrainerRequest(
        position.method, trains, position.initial_epoch, variables.get("class_weight"), bool(variables.get("shuffle")),
        trains and _needs_targets(position.model), _builds(position.method, position.model),
    )  # fmt: skip


def is_called_by_loop() -> bool:
    """Whether Keras's loop over an epoch called the calling method."""
    caller = inspect.currentframe()
    for _ in range(2):  # reuse one variable: a frame that held itself would keep the feed alive
        assert caller is not None
        caller = caller.f_back
    return caller is not None and caller.f_code.co_name == LOOP


def read_by_keras() -> bool:
    """Whether code of Keras reads the calling property."""
    return _is_keras(sys._getframe(2))


def adapter_of(iterator: Any) -> Any:
    """Return the data of a Keras iterator."""
    return getattr(iterator, "data_adapter", None)


def steps_per_epoch_of(iterator: Any) -> int | None:
    """Return the batches per epoch set by the user or Keras."""
    return iterator.steps_per_epoch  # type: ignore[no-any-return]


def _builds(method: str, model: Any) -> bool:
    if method != "predict":
        return method in ("fit", "evaluate")
    # `predict` takes a batch to build the model only on JAX, and only if the model or a layer is not built.
    is_built = all(getattr(each, "built", True) for each in (model, *getattr(model, "layers", ())))
    return sys.modules["keras"].backend.backend() == "jax" and not is_built


def _needs_targets(model: Any) -> bool:
    steps = [getattr(type(model), name, None) for name in ("train_step", "compute_loss")]
    of_keras = all(str(getattr(step, "__module__", "")).startswith("keras.") for step in steps)
    return of_keras and getattr(model, "loss", None) is not None


def _variables(frame: FrameType, names: Sequence[str]) -> dict[str, Any]:
    """Return the local variables of a frame with these names."""
    variables = frame.f_locals
    values = {name: variables[name] for name in names if name in variables}
    _forget(frame, variables)
    return values


def _forget(frame: FrameType, variables: Any) -> None:
    """Empty the copy of a function's variables.

    Before Python 3.13, the frame keeps the copy. The copy would keep the last epoch's iterator. If TensorFlow's
    iterator is deleted at the next call, it blocks training for 1 s, because that call holds the GIL. Variables of
    modules and class bodies are not copies.
    """
    if isinstance(variables, dict) and frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        variables.clear()


def _is_keras(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith("keras.")


def refuse_division(shard_count: int, *, has_seed: bool) -> None:
    """Refuse an unsharded feed if every process would train on all scenes.

    Accept the feed if all processes hold one replica of the model, because they must then load the same scenes.

    Raises:
        ValueError: The feed is unsharded, and each of several processes needs its own shard, or all need the same seed.
    """
    library: Any = getattr(sys.modules.get("keras"), "distribution", None)
    distribution = library.distribution() if hasattr(library, "distribution") else None
    if distribution is None or shard_count > 1 or not getattr(distribution, "auto_shard_dataset", True):
        return
    several = getattr(distribution, "_is_multi_process", None)
    if several is None:
        warn_caller(
            f"Keras {keras_version()} does not report whether {type(distribution).__name__} runs in several processes. "
            "If so, each trains on all scenes: use kf.Feed(..., shard='auto'), which gives each process its own scenes",
            FeedWarning,
        )
    elif several and getattr(distribution, "num_model_replicas", 0) != 1:
        raise ValueError(
            "keras.distribution runs in several processes with auto_shard_dataset=True, but Keras does not divide a "
            "feed, so each would train on all scenes. Use kf.Feed(..., shard='auto'), made after set_distribution(), "
            "which gives each process its own scenes"
        )
    elif several and not has_seed:
        raise ValueError(
            "keras.distribution spreads one model over several processes, which must load the same scenes: use "
            "kf.Feed(..., seed=0), for example"
        )


def self_of(frame: FrameType | None) -> Any:
    """Return the object whose method runs in `frame`, or None."""
    if frame is None or not {"self"} & {*frame.f_code.co_varnames, *frame.f_code.co_cellvars}:
        return None
    return _variables(frame, ("self",)).get("self")
