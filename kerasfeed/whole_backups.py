"""Keras's `BackupAndRestore`, made to replace its files as a whole.

Invariant: a process that is killed while it saves leaves the files of the save before, or none if there was none. By
itself Keras writes over them: killed within its first save, or while it writes its metadata, it cannot begin again,
whatever `double_checkpoint` is.
"""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any


def save_whole(backup: Any, save: Callable[[], None]) -> None:
    """Have `save`, the `_save_model` of `backup`, write beside its files, and put these in their place.

    Args:
        backup: A `keras.callbacks.BackupAndRestore`; one that keeps its files elsewhere than on a disk saves as ever.
        save: Writes its weights, then its metadata.
    """
    names = ("_weights_path", "_training_metadata_path")
    final = [getattr(backup, name, "://") for name in names]
    if any("://" in str(path) for path in final):
        save()
        return
    paths = [Path(path) for path in final]
    beside = [path.with_name(f"next.{path.name}") for path in paths]
    if backup.double_checkpoint:
        for path in paths:
            if path.exists():
                shutil.copyfile(path, f"{path}.bkp")
    try:
        for name, path in zip(names, beside, strict=True):
            path.unlink(missing_ok=True)  # of a process that was killed
            setattr(backup, name, str(path))
        save()
    finally:
        for name, given in zip(names, final, strict=True):
            setattr(backup, name, given)
    for path, written in zip(paths, beside, strict=True):
        if written.exists():
            written.replace(path)
