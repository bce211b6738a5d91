"""What a model knows of its training: its optimizers' iterations and loss scales, and the epoch to begin `fit` with.

Invariant: nothing is read but what is saved with the model, and nothing is set but through Keras's own callback.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import keras

from kerasfeed.adapters.keras.trainer import keras_version, restored_epoch


def begin_with(model: Any, epoch: int) -> None:
    """Have the `fit` of a model that runs, or the next one, begin with an epoch.

    Keras's own `BackupAndRestore` does that, and nothing else that is public; it is given a backup of an epoch alone.

    Raises:
        RuntimeError: This Keras does otherwise.
    """
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "training_metadata.json").write_text(json.dumps({"epoch": epoch, "batch": 0}))
        backup = keras.callbacks.BackupAndRestore(folder)
        backup.set_model(model)
        backup.on_train_begin()
    if restored_epoch(model) != epoch:
        raise RuntimeError(
            f"fit could not be told to begin with epoch {epoch} on Keras {keras_version()}. Use Keras 3.10 to 3.15, or "
            f"pass initial_epoch={epoch} to fit, and feed.set_state(...) in place of this callback"
        )


def optimizers_of(model: Any) -> list[Any]:
    """The optimizers of a model: that which it was compiled with, and those among its attributes.

    Raises:
        ValueError: It has none.
    """
    candidates = (getattr(model, "optimizer", None), *vars(model).values())
    found = {id(each): each for each in candidates if isinstance(each, keras.optimizers.Optimizer)}
    if not found:
        raise ValueError("resuming needs a model with an optimizer, which counts the batches it was trained on")
    return list(found.values())


def iterations_of(model: Any) -> int:
    """What all optimizers of a model have counted together."""
    counters = {id(each): each for each in (getattr(each, "inner_optimizer", each) for each in optimizers_of(model))}
    return sum(int(each._iterations.numpy()) for each in counters.values())


def scale_of(model: Any) -> float:
    """The sum of the loss scales of a model's optimizers; 0 where they have none."""
    scaled = [each for each in optimizers_of(model) if hasattr(each, "initial_scale")]
    return float(sum(each.dynamic_scale.numpy() if each.built else each.initial_scale for each in scaled))
