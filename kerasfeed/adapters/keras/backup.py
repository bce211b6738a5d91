"""`BackupAndRestore`: saves and restores a model and the position of its feed.

Invariant: each save is replaced atomically. The position file is written before the model, and holds the positions of
the previous and the new save. So the position and the model agree, whenever the process is killed. Saving and restoring
happen in the same callback hook before a batch: effects of callbacks earlier in the list are saved, and effects of
later ones are repeated. After the last batch there is no such hook, so callbacks whose state is saved must come earlier
in the list.
"""

import itertools
import os
import shutil
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import keras
import numpy as np

from kerasfeed.adapters.keras.checkpoint import FeedCheckpoint
from kerasfeed.adapters.keras.saved_files import ArrayFile, DamagedFileError, write_arrays
from kerasfeed.adapters.keras.trained_model import (
    arrays_of,
    as_array,
    begin_with,
    optimized_by,
    set_arrays,
    unbuilt_layers,
)
from kerasfeed.adapters.keras.trainer import trainer_position
from kerasfeed.errors import FeedWarning
from kerasfeed.util.atomic_write import sync_folder
from kerasfeed.util.deferred_warnings import warn_caller
from kerasfeed.util.error_text import message_of
from kerasfeed.util.validate import local_path

if TYPE_CHECKING:
    from kerasfeed.adapters.keras.feed import Feed

# Attributes of Keras's callbacks that influence training or the files written.
_ATTRIBUTES = {
    "EarlyStopping": ("wait", "best", "best_epoch", "best_weights", "stopped_epoch"),
    "ReduceLROnPlateau": ("wait", "best", "cooldown_counter"),
    "ModelCheckpoint": ("best",),
    "OrbaxCheckpoint": ("best",),
}
_UNBUILT = "BackupAndRestore needs a model that is built before fit: call it on a batch"
_CONTAINERS = (list, tuple, dict, set, frozenset)
# Attributes that Keras sets in every callback.
_SET_BY_KERAS = {"params", "model", "_model"}


class CallbackStates:
    """The callbacks of one `fit`.

    Args:
        callbacks: All callbacks, in order.
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
        self._others = [each for each in self._callbacks.values() if _is_of_users(each) and not _has_state(each)]
        self._marks = [_marks(each) for each in self._others]

    def get(self, arrays: dict[str, np.ndarray]) -> dict[str, Any]:
        """Return the state of the callbacks for JSON; arrays go to `arrays`.

        Raises:
            TypeError: The result of a callback's `get_state` cannot be saved.
        """
        found = {}
        for name, each in self._callbacks.items():
            state = {key: getattr(each, key) for key in _attributes(each) if hasattr(each, key)}
            if _has_state(each):
                state["get_state()"] = each.get_state()
            if state:
                found[name] = _encoded(state, f"callbacks/{name}", arrays)
        return found

    def set(self, states: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
        """Restore the state of the callbacks; states without a callback are ignored."""
        for name, each in self._callbacks.items():
            state = _decoded(states.get(name, {}), arrays)
            if "get_state()" in state and _has_state(each):
                each.set_state(state.pop("get_state()"))
            for key in _attributes(each):
                if key in state:
                    setattr(each, key, state[key])

    def stopped(self) -> bool:
        """Whether an `EarlyStopping` ended the training."""
        stops = (each for each in self._callbacks.values() if isinstance(each, keras.callbacks.EarlyStopping))
        return any(each.stopped_epoch for each in stops)

    def warn_of_others(self) -> None:
        """Warn of callbacks of users whose attributes have changed."""
        for each, before in zip(self._others, self._marks, strict=True):
            changed = sorted(name for name, mark in _marks(each).items() if name not in before or before[name] != mark)
            if changed:
                warnings.warn(
                    f"the callback {type(each).__name__} changes its {' and '.join(changed)} in training, which "
                    "BackupAndRestore does not save: after a resume it starts over. To save it, define get_state(), "
                    "which returns a dict of numbers, text, arrays, lists and dicts, and set_state(state)",
                    FeedWarning,
                    stacklevel=2,
                )
        self._others, self._marks = [], []


def _attributes(callback: Any) -> tuple[str, ...]:
    for name, attributes in _ATTRIBUTES.items():
        if isinstance(callback, getattr(keras.callbacks, name, ())):
            return attributes
    return ()


def _has_state(callback: Any) -> bool:
    return callable(getattr(callback, "get_state", None)) and callable(getattr(callback, "set_state", None))


def _is_of_users(callback: Any) -> bool:
    return type(callback).__module__.partition(".")[0] not in ("keras", "kerasfeed")


def _marks(callback: Any) -> dict[str, Any]:
    """Values that differ if an attribute has changed."""
    known = {*_SET_BY_KERAS, *_attributes(callback)}
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
        raise TypeError(f"{name} cannot be saved, because it is a {type(value).__name__}: return numbers, text, arrays")
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


class BackupAndRestore(FeedCheckpoint):
    """Saves model and feed, so that a killed `fit` can resume exactly.

    Use it instead of `keras.callbacks.BackupAndRestore`, as the last callback. If you run the same script again, `fit`
    continues in the epoch of the saved model with the remaining batches, which Keras numbers from 0. The model must be
    built before `fit`.

    It saves all variables of layers, optimizers, metrics and losses. These include the seed generators of layers such
    as Dropout, and the moving averages and loss scales of optimizers. It also saves PyTorch's own generators, and the
    state of `EarlyStopping`, `ReduceLROnPlateau`, `ModelCheckpoint` and `OrbaxCheckpoint` in the same `fit`. For any
    other callback with `get_state()` and `set_state(state)`, it saves the result of `get_state()`, a dict of numbers,
    text, arrays, lists and dicts, and restores it with `set_state`. It does not save the generators of NumPy, Python
    and TensorFlow, the generator of `keras.random` without a seed, or Python attributes of layers.

    Works with `fit(feed)`; for a `kerasfeed.Feed` also with `fit(feed.to_tf_dataset(), shuffle=False)`, also if `map`
    changes each batch of the dataset.

    Args:
        feed: The feed that is passed to `fit`, made with a `seed`.
        backup_dir: A local folder for this training only; one for each process.
        save_freq: "epoch" saves after each epoch. An integer >= 1 also saves after that many batches. Each save happens
            just before the next epoch or batch begins, when all callbacks have run.
        double_checkpoint: Whether to keep the previous save too, and use it if the latest cannot be read.
        delete_checkpoint: Whether to delete the folder when training ends.

    Raises:
        TypeError, ValueError: An argument has the wrong type or is out of range. In `fit`: the model is not built; the
            save belongs to another model or feed, or is damaged; or a callback whose state is saved comes after this
            one.

    Warns:
        FeedWarning: A callback without `get_state` and `set_state` changes its attributes in training.

    Examples:
        >>> import keras
        >>> scenes = kf.Zip(np.zeros((8, 2), np.float32), np.zeros((8, 1), np.float32))
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> with kf.Feed(scenes, batch_size=4, shuffle=True, seed=0, workers=0) as feed:
        ...     backup = kf.BackupAndRestore(feed, "backup", save_freq=100)
        ...     history = model.fit(feed, epochs=2, callbacks=[backup], verbose=0)
        >>> len(history.history["loss"])
        2
    """

    _restores_model = True  # if nothing was saved yet, the training starts over

    def __init__(
        self,
        feed: "Feed",
        backup_dir: str | os.PathLike[str],
        save_freq: int | Literal["epoch"] = "epoch",
        double_checkpoint: bool = False,
        delete_checkpoint: bool = True,
    ) -> None:
        remedy = "elsewhere use keras.callbacks.BackupAndRestore, then kerasfeed.FeedCheckpoint with a local file"
        self.backup_dir = local_path("backup_dir", backup_dir, what="a folder", remedy=remedy)
        if self.backup_dir.exists() and not self.backup_dir.is_dir():
            raise ValueError(f"backup_dir must be a folder, received the file {self.backup_dir}")
        super().__init__(feed, self.backup_dir / "feed.json", save_freq)
        self.double_checkpoint = bool(double_checkpoint)
        self.delete_checkpoint = bool(delete_checkpoint)
        self._latest = self.backup_dir / "latest.npz"
        self._before = self.backup_dir / "previous.npz"
        self._callbacks: CallbackStates | None = None
        self._due = False
        self._unbuilt: set[str] | None = None  # layers without weights when `fit` began, until its first batch
        self._restored_in: str | None = None  # hook that saved the restored state, until it is reached

    # ---- called by Keras

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras; restores the latest save and its position."""
        position = trainer_position("fit")
        listed = () if position is None else position.callbacks or ()
        self._check_order(list(listed))
        self._callbacks = callbacks = CallbackStates(listed, self)
        self._due = False
        if not self.model.built or not self.model.weights:  # Keras's `build` marks a subclass as built
            raise ValueError(_UNBUILT)
        self._unbuilt = unbuilt_layers(self.model)
        self._restored_in = self._restore()
        if self._restored_in is None and self._is_stream:
            # The file belongs to an earlier, unsaved fit of this process, so the batches of that fit are unknown.
            self.path.unlink(missing_ok=True)
        super().on_train_begin(logs)
        if position is not None and self._restored_in and callbacks.stopped():
            begin_with(self.model, position.epochs)
            self._set_epoch = True
            warn_caller(
                f"EarlyStopping ended the training saved in {self.backup_dir}: nothing is trained. Delete the folder "
                "to start over",
                FeedWarning,
            )

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras."""
        super().on_epoch_begin(epoch, logs)
        self._reach("epoch")

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras; `batch` is the first step of an execution."""
        self._reach("batch")

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras, after an execution."""
        unbuilt, self._unbuilt = self._unbuilt, None
        if unbuilt and (built := unbuilt - unbuilt_layers(self.model)):
            raise ValueError(f"{_UNBUILT}. The first batch has built {', '.join(sorted(built))}")
        super().on_train_batch_end(batch, logs)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras."""
        super().on_epoch_end(epoch, logs)
        position = trainer_position("fit")
        if self.model.stop_training or (position is not None and epoch + 1 >= position.epochs):
            self._write("end")

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras."""
        if self._due and not self.delete_checkpoint:  # a later callback ended the training
            self._write("end")
        super().on_train_end(logs)
        self._callbacks = None
        if self.delete_checkpoint and self.backup_dir.exists():
            # Delete the position of the feed last: without it, the model could not be resumed.
            for path in (self._before, self._latest):
                path.unlink(missing_ok=True)
            shutil.rmtree(self.backup_dir)

    # ---- saving and restoring

    def _check_order(self, callbacks: list[Any]) -> None:
        behind = callbacks[callbacks.index(self) + 1 :] if self in callbacks else []
        for each in behind:
            swaps = isinstance(each, keras.callbacks.SwapEMAWeights) and each.swap_on_epoch
            if swaps or _attributes(each) or _has_state(each):
                raise ValueError(
                    f"{type(each).__name__} comes after BackupAndRestore, which would not save its work at the end of "
                    "the last epoch: put BackupAndRestore last in callbacks=[...]"
                )

    def _save(self) -> None:
        """Save in the next hook, when other callbacks have run."""
        self._due = True

    def _reach(self, hook: Literal["epoch", "batch"]) -> None:
        restored_in = self._restored_in
        if restored_in == hook or (restored_in == "end" and hook == "epoch"):
            self._restored_in = None
            # Undo changes by Keras and earlier callbacks since `fit` began.
            self._load(ArrayFile(self._latest), variables=restored_in == hook)
        elif self._due:
            self._write(hook)

    def _restore(self) -> str | None:
        """Restore the latest save; return the hook that saved it."""
        saved = [path for path in (self._latest, self._before) if path.exists()]
        weights = self.backup_dir / "latest.weights.h5"
        if not saved and not weights.exists():
            return None
        if not saved or not self.path.exists():
            raise ValueError(
                f"{self.backup_dir} holds a model, but not the batches it was trained on: it may be a folder of "
                "keras.callbacks.BackupAndRestore, or of an earlier kerasfeed. Use another folder; to continue from "
                "that model, load its weights and pass initial_epoch to fit"
            )
        hook = None
        for path in saved:
            try:
                hook = self._load(ArrayFile(path))
            except (DamagedFileError, OSError):
                if path == saved[-1]:
                    raise
                continue
            if path != self._latest:  # killed between the two renames of a save, or `_latest` cannot be read
                path.replace(self._latest)
            break
        return hook

    def _load(self, file: ArrayFile, *, variables: bool = True) -> str:
        """Restore a file; return the hook that saved it."""
        if variables:
            try:
                set_arrays(self.model, file, self.feed.element_spec)
            except DamagedFileError:
                raise
            except ValueError as error:
                raise ValueError(f"{self._latest} does not fit the model: {message_of(error)}") from None
        if self._callbacks is not None:
            names = (name for name in file.names if name.startswith("callbacks/"))
            self._callbacks.set(file.header["callbacks"], dict(file.read(names)))
        return str(file.header["hook"])

    def _write(self, hook: Literal["epoch", "batch", "end"]) -> None:
        self._due = False
        self._record()
        if self._progress is None or self._callbacks is None:
            return
        self.backup_dir.mkdir(parents=True, exist_ok=True)
        following = self.backup_dir / "next.npz"
        arrays: dict[str, np.ndarray] = {}
        header = {"hook": hook, "callbacks": self._callbacks.get(arrays), "optimizers": optimized_by(self.model)}
        write_arrays(following, header, itertools.chain(arrays_of(self.model), arrays.items()))
        if self.double_checkpoint and self._latest.exists():
            self._latest.replace(self._before)
        following.replace(self._latest)
        sync_folder(self.backup_dir)
        self._callbacks.warn_of_others()
