"""What callbacks keep of a training, outside the model.

Invariant: of Keras's own callbacks the public attributes are read and set that are listed here, of others what they
give and take themselves; where something else changes in a callback, users are told.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from kerasfeed.adapters.keras.trained_model import as_array
from kerasfeed.errors import FeedWarning

# What changes in Keras's callbacks during a training and has an influence on it, or on which files are written.
_ATTRIBUTES = {
    "EarlyStopping": ("wait", "best", "best_epoch", "best_weights", "stopped_epoch"),
    "ReduceLROnPlateau": ("wait", "best", "cooldown_counter"),
    "ModelCheckpoint": ("best",),
    "OrbaxCheckpoint": ("best",),
}
_CONTAINERS = (list, tuple, dict, set, frozenset)
# What Keras itself keeps in every callback.
_OF_ALL = {"params", "model", "_model"}


class CallbackStates:
    """The callbacks of one `fit`.

    Args:
        callbacks: In their order.
        own: The callback that saves the others.
    """

    def __init__(self, callbacks: Sequence[Any], own: Any) -> None:
        counts: dict[str, int] = {}
        self._callbacks: dict[str, Any] = {}
        for each in callbacks:
            if each is not own:
                name = type(each).__name__
                counts[name] = counts.get(name, 0) + 1
                self._callbacks[name if counts[name] == 1 else f"{name} {counts[name]}"] = each
        self._others = [each for each in self._callbacks.values() if _is_of_users(each) and not _gives(each)]
        self._marks = [_marks(each) for each in self._others]

    def get(self, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
        """What the callbacks keep, for JSON; arrays go to `arrays`, by names that begin with "callbacks/".

        Raises:
            TypeError: What a callback's `get_state` returns cannot be saved.
        """
        found = {}
        for name, each in self._callbacks.items():
            state = {key: getattr(each, key) for key in _attributes(each) if hasattr(each, key)}
            if _gives(each):
                state["get_state()"] = each.get_state()
            if state:
                found[name] = _encoded(state, f"callbacks/{name}", arrays)
        return found

    def set(self, states: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Give the callbacks what they kept; what the `fit` has no callback for is left out."""
        for name, each in self._callbacks.items():
            state = _decoded(states.get(name, {}), arrays)
            if "get_state()" in state and _gives(each):
                each.set_state(state.pop("get_state()"))
            for key in _attributes(each):
                if key in state:
                    setattr(each, key, state[key])

    def stopped(self) -> bool:
        """Whether an `EarlyStopping` among them has ended the training."""
        stops = (each for each in self._callbacks.values() if isinstance(each, keras.callbacks.EarlyStopping))
        return any(each.stopped_epoch for each in stops)

    def warn_of_others(self) -> None:
        """Tell, once, of callbacks of users in which something has changed since this was made."""
        for each, before in zip(self._others, self._marks, strict=True):
            changed = sorted(name for name, mark in _marks(each).items() if before.get(name, _NONE) != mark)
            if changed:
                warnings.warn(
                    f"the callback {type(each).__name__} changes its {' and '.join(changed)} in training, and "
                    "BackupAndRestore does not save that: after a resume it begins anew. If it matters, give the class "
                    "get_state(), which returns a dict of numbers, text, arrays, lists and dicts, and set_state(state)",
                    FeedWarning,
                    stacklevel=2,
                )
        self._others, self._marks = [], []


_NONE = object()


def _attributes(callback: Any) -> tuple[str, ...]:
    for name, attributes in _ATTRIBUTES.items():
        if isinstance(callback, getattr(keras.callbacks, name, ())):
            return attributes
    return ()


def _gives(callback: Any) -> bool:
    return callable(getattr(callback, "get_state", None)) and callable(getattr(callback, "set_state", None))


def _is_of_users(callback: Any) -> bool:
    return type(callback).__module__.partition(".")[0] not in ("keras", "kerasfeed")


def _marks(callback: Any) -> dict[str, Any]:
    """What tells whether an attribute has changed: small values themselves, the length of containers, else identity."""
    known = {*_OF_ALL, *_attributes(callback)}
    return {name: _mark(value) for name, value in vars(callback).items() if name not in known}


def _mark(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str | np.generic):
        return repr(value)  # NaN is the same as NaN
    return (type(value), len(value)) if isinstance(value, _CONTAINERS) else id(value)


def _encoded(value: Any, name: str, arrays: dict[str, np.ndarray]) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, dict):
        return {str(key): _encoded(each, f"{name}/{key}", arrays) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_encoded(each, f"{name}/{number}", arrays) for number, each in enumerate(value)]
    array = as_array(value)
    if array.dtype.hasobject:
        raise TypeError(f"{name} cannot be saved, a {type(value).__name__}: return numbers, text, arrays")
    arrays[name] = array
    return {_ARRAY: name}


_ARRAY = "array of"


def _decoded(value: Any, arrays: Mapping[str, np.ndarray]) -> Any:
    if isinstance(value, dict):
        if value.keys() == {_ARRAY}:
            array = arrays[value[_ARRAY]]
            return array if array.ndim else array[()]
        return {key: _decoded(each, arrays) for key, each in value.items()}
    return [_decoded(each, arrays) for each in value] if isinstance(value, list) else value
