"""The training state of a model: variables, iterations, first epoch of `fit`.

Invariant: this module reads only state that is saved with the model. It sets only the values of variables, and the
epoch through Keras's own callback.
"""

import contextlib
import json
import sys
import tempfile
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np

from kerasfeed.adapters.keras.saved_files import ArrayFile
from kerasfeed.adapters.keras.trainer import keras_version, restored_epoch
from kerasfeed.errors import FeedWarning
from kerasfeed.spec.nesting import lists_as_tuples
from kerasfeed.util.deferred_warnings import warn_caller
from kerasfeed.util.error_text import pluralize

# Classes of Keras that have variables, or attributes that do.
_HOLDERS = (
    keras.layers.Layer, keras.metrics.Metric, keras.losses.Loss, keras.optimizers.Optimizer,
    keras.regularizers.Regularizer, keras.random.SeedGenerator,
)  # fmt: skip


def begin_with(model: Any, epoch: int) -> None:
    """Make the running or next `fit` begin with an epoch.

    Keras's own `BackupAndRestore` is the only public way; it gets a backup that holds only an epoch.

    Raises:
        RuntimeError: The running Keras does not read this backup.
    """
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "training_metadata.json").write_text(json.dumps({"epoch": epoch, "batch": 0}))
        backup = keras.callbacks.BackupAndRestore(folder)
        backup.set_model(model)
        backup.on_train_begin()
    if restored_epoch(model) != epoch:
        raise RuntimeError(
            f"fit cannot be made to begin with epoch {epoch} on Keras {keras_version()}. Use Keras 3.10 to 3.16, or "
            f"pass initial_epoch={epoch} to fit, and call feed.set_state(...) instead of using this callback"
        )


def optimizers_of(model: Any) -> list[Any]:
    """Return the optimizers of a model, also those in its attributes."""
    candidates = [getattr(model, "optimizer", None), *vars(model).values()]
    for each in candidates.copy():
        candidates += each.values() if isinstance(each, dict) else each if isinstance(each, list | tuple) else ()
    return list({id(each): each for each in candidates if isinstance(each, keras.optimizers.Optimizer)}.values())


def iterations_of(model: Any) -> int:
    """Return the sum of the iterations of all optimizers of a model.

    Raises:
        ValueError: The model has no optimizer.
    """
    counters = {id(each): each for each in (getattr(each, "inner_optimizer", each) for each in optimizers_of(model))}
    if not counters:
        raise ValueError("resuming needs a model with an optimizer, which counts the batches it was trained on")
    return sum(int(each._iterations.numpy()) for each in counters.values())


def scale_of(model: Any) -> float:
    """Return the sum of the optimizers' loss scales, or 0 without any."""
    scaled = [each for each in optimizers_of(model) if hasattr(each, "initial_scale")]
    return float(sum(each.dynamic_scale.numpy() if each.built else each.initial_scale for each in scaled))


def variables_of(model: Any) -> dict[str, Any]:
    """Return all variables that training may change, by stable names.

    These are the variables of layers and of their seed generators, of optimizers and of metrics. Variables in
    attributes of the model, its layers, losses, metrics, regularizers and optimizers are included. Keras's own saving
    leaves some of them out: seed generators, variables of losses and compiled metrics, and variables that layers merge
    when they save (LoRA).
    """
    groups = {"model": model.variables}
    groups |= {f"optimizer {number}": each.variables for number, each in enumerate(optimizers_of(model))}
    groups |= {"metrics": model.metrics_variables}
    named = [(f"{group}/{number}", each) for group, all_of in groups.items() for number, each in enumerate(all_of)]
    named += [(f"others/{path}", each) for path, each in _parts(model) if isinstance(each, keras.Variable)]
    first = {id(each): name for name, each in reversed(named)}
    return {name: each for name, each in named if first[id(each)] == name}


def unbuilt_layers(model: Any) -> set[str]:
    """Return the paths of the layers without weights."""
    return {path for path, layer in _layers(model) if not layer.weights}


def optimized_by(model: Any) -> list[list[str]]:
    """Return the names of the variables of each optimizer of a model."""
    names = {id(each): name for name, each in variables_of(model).items()}
    innermost = (getattr(each, "inner_optimizer", each) for each in optimizers_of(model))
    built_for = (getattr(each, "_trainable_variables", None) or () for each in innermost)
    return [[names[id(each)] for each in variables if id(each) in names] for variables in built_for]


def arrays_of(model: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Yield variables, other data of layers, and PyTorch's generators."""
    for name, variable in variables_of(model).items():
        yield name, keras.ops.convert_to_numpy(variable)
    for path, layer in _layers(model):
        for key, value in _saved_by(layer).items():
            if not isinstance(value, keras.Variable):
                yield f"{_LAYERS}{path}/{key}", as_array(value)
    if keras.backend.backend() == "torch":  # Keras uses PyTorch's generator for a Dropout without a seed
        torch: Any = sys.modules["torch"]
        yield f"{_GENERATORS}cpu", torch.get_rng_state().numpy()
        if torch.cuda.is_initialized():
            for number, state in enumerate(torch.cuda.get_rng_state_all()):
                yield f"{_GENERATORS}{number}", state.numpy()


def set_arrays(model: Any, file: ArrayFile, spec: Any) -> None:
    """Restore the values from `arrays_of`; build optimizers and metrics that were built.

    Args:
        model: The model.
        file: The saved values.
        spec: Specs of the batches.

    Raises:
        ValueError: The file belongs to another model.
    """
    known = variables_of(model)
    for optimizer, names in zip(optimizers_of(model), file.header["optimizers"], strict=False):
        if not optimizer.built and names and known.keys() >= {*names}:
            optimizer.build([known[name] for name in names])
    known = variables_of(model)
    if any(_group_of(name) == "metrics" and name not in known for name in file.names):
        _build_metrics(model, spec)
        known = variables_of(model)
    saved = {name for name in file.names if not name.startswith((_LAYERS, _GENERATORS, "callbacks/"))}
    differ = sorted(known.keys() ^ saved)
    groups = {_group_of(name) for name in differ}
    for group in sorted(groups.difference(_MEASURING_GROUPS)):
        here, there = (sum(_group_of(each) == group for each in names) for names in (known, saved))
        raise ValueError(f"its {group} has {pluralize(here, 'variable')}, but had {there:,}")
    if differ:
        what = ", ".join(getattr(known.get(name), "path", name) for name in differ[:4])
        text = f"metrics or losses of the model differ from the saved ones. These variables start over: {what}"
        warn_caller(text, FeedWarning)
    for path, layer in _layers(model):
        prefix = f"{_LAYERS}{path}/"
        names = {name for name in file.names if name.startswith(prefix)}
        if names:
            store = {key: as_array(value) for key, value in _saved_by(layer).items()}
            layer.load_own_variables(store | {name.removeprefix(prefix): array for name, array in file.read(names)})
    same = saved & known.keys()
    if "metrics" in groups:  # skip all metrics: it is unknown which of them are new
        same = {name for name in same if _group_of(name) != "metrics"}
    for name, array in file.read(name for name in file.names if name in same):
        variable = known[name]
        shape, dtype = tuple(variable.shape), np.dtype(variable.dtype)
        if (array.shape, array.dtype) != (shape, dtype):
            raise ValueError(f"{variable.path} is {dtype}{list(shape)}, but was {array.dtype}{list(array.shape)}")
        variable.assign(array)
    if keras.backend.backend() == "torch":
        _set_generators_of_torch(file)


def _set_generators_of_torch(file: ArrayFile) -> None:
    torch: Any = sys.modules["torch"]
    for name, array in file.read(name for name in file.names if name.startswith(_GENERATORS)):
        device, state = name.removeprefix(_GENERATORS), torch.from_numpy(array)
        if device == "cpu":
            torch.set_rng_state(state)
        elif int(device) < torch.cuda.device_count():
            torch.cuda.set_rng_state(state, int(device))


def _build_metrics(model: Any, spec: Any) -> None:
    """Create the variables of compiled metrics.

    On TensorFlow, the first training step would create the variables; on JAX, Keras creates them itself. In a
    `StatelessScope`, no variable is assigned. If this function fails, `set_arrays` warns.
    """

    def zeros(field: Any) -> Any:
        shape = [1 if size is None else size for size in field.shape]
        return keras.ops.zeros(shape, keras.backend.standardize_dtype(field.dtype))

    with contextlib.suppress(Exception), keras.StatelessScope():
        x, y, weights = keras.utils.unpack_x_y_sample_weight(keras.tree.map_structure(zeros, lists_as_tuples(spec)))
        predicted = model(x, training=False)
        model.compute_metrics(x, y, predicted, weights)
        model.compute_loss(x, y, predicted, weights, training=False)


def as_array(value: Any) -> np.ndarray:
    """Convert a tensor, a variable or a number to an array."""
    is_of_keras = keras.ops.is_tensor(value) or isinstance(value, keras.Variable)
    return np.asarray(keras.ops.convert_to_numpy(value) if is_of_keras else value)


_LAYERS, _GENERATORS = "layers/", "generators/"
# Groups of variables that measure training, and that only its first step may create.
_MEASURING_GROUPS = ("metrics", "others")


def _group_of(name: str) -> str:
    return name.partition("/")[0]


def _layers(model: Any) -> Iterator[tuple[str, Any]]:
    return ((path, each) for path, each in _parts(model) if isinstance(each, keras.layers.Layer))


def _saved_by(layer: Any) -> dict[str, Any]:
    store: dict[str, Any] = {}
    layer.save_own_variables(store)
    return store


def _parts(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield all objects in attributes, lists and dicts of a model."""
    waiting, seen = deque([("", model)]), {id(model)}
    while waiting:
        path, each = waiting.popleft()
        yield path, each
        if isinstance(each, keras.Variable):
            continue
        children = dict(enumerate(each)) if isinstance(each, list | tuple) else each
        for name, child in list((children if isinstance(children, dict) else vars(each)).items()):
            if isinstance(child, (*_HOLDERS, keras.Variable, list, tuple, dict)) and id(child) not in seen:
                seen.add(id(child))
                waiting.append((f"{path}.{name}" if path else str(name), child))
