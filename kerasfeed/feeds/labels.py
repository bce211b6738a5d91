"""`kf.labels_of`: one field of every scene as an array, read once and kept in a file.

Invariant: a file is used only under the key (`kerasfeed.sequences.cache_key`) with which it was written: length, field,
and code, state and source files of the sequence. And no file is replaced that this module has not written.
"""

import io
import json
import os
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kerasfeed.errors import FeedWarning
from kerasfeed.feeds.base import BaseFeed
from kerasfeed.loaders.hosts.calls import Hosts
from kerasfeed.loaders.loader import worker_type_for
from kerasfeed.loaders.sequence_argument import check_sequence
from kerasfeed.orders.groups import Portable
from kerasfeed.sequences.cache_key import key_of
from kerasfeed.sequences.frames import as_sequence
from kerasfeed.sequences.split import FieldOf
from kerasfeed.util.atomic_write import write_whole
from kerasfeed.util.error_text import class_name, message_of
from kerasfeed.util.progress import progress_bar
from kerasfeed.util.validate import local_path

_BATCH = 64


def labels_of(
    sequence: Any,
    field: int | str | Callable[[Any], Any],
    *,
    cache: str | os.PathLike[str] | None = None,
    workers: int | Literal["auto"] = "auto",
    worker_type: Literal["auto", "process", "thread"] = "auto",
    progress: bool = True,
    hosts: Hosts | None = None,
) -> NDArray[Any]:
    """Read one field of every scene: labels for `Balanced`, lengths for `Bucketed`, classes for `split`.

    Every scene is loaded, by workers, with a progress bar on stderr. If the labels are an array already
    (`file["label"][:]`), use that, which is faster.

    Args:
        sequence: What a `Feed` takes.
        field: Path of the field in a scene, 1 or "1.label"; or a function from a scene to the value, such as
            `lambda scene: len(scene[0])`.
        cache: File that keeps the values. It is read instead of the sequence while the sequence, its length and `field`
            are unchanged; `kerasfeed.Cached` tells what is compared (code, attributes, and the files that they name).
        workers: See `Feed`.
        worker_type: See `Feed`.
        progress: Whether to show the progress bar.
        hosts: See `Feed`.

    Returns:
        One value for each scene, in the order of the indices: [number of scenes], of the field's dtype; text as `str`.

    Raises:
        TypeError: `sequence` cannot be indexed; `field` is neither an integer, a string nor a function; or, with
            `cache`, the state of the sequence cannot be compared, and the message says what to do.
        ValueError: A scene has no such field, or its value is not a single one; or `cache` is a file of another kind,
            or its folder does not exist.
        Exception: What the sequence raises, with the index as a note.

    Examples:
        >>> scenes = kf.Zip(np.zeros((4, 8, 3)), np.array([0, 1, 1, 0]))
        >>> kf.labels_of(scenes, 1, workers=0, progress=False)
        array([0, 1, 1, 0])
        >>> kf.labels_of(["a", "bbb"], len, workers=0, progress=False)
        array([1, 3])
    """
    sequence = as_sequence(sequence)
    length = check_sequence(sequence, "kf.labels_of()")
    if isinstance(field, bool) or not (isinstance(field, int | str | np.integer) or callable(field)):
        raise TypeError(
            f"field must be an integer, a path such as '1.label', or a function of the scene, received {field!r} of "
            f"type {type(field).__name__}"
        )
    place = Portable(field) if callable(field) else str(field)
    key, path = "", None if cache is None else local_path("cache", cache)
    if path is not None:
        keyed = field if callable(field) else place, sequence
        keys = [key_of(value, "kf.labels_of(cache=...)", "leave cache out", path).digest for value in keyed]
        key = json.dumps([length, *keys])
        found = _kept(path, key)
        if found is not None:
            return found
    kind = worker_type if hosts is not None else worker_type_for(sequence, worker_type)
    values = _read(FieldOf(sequence, length, place), workers, kind, progress, hosts)
    if path is not None:
        _keep(path, key, values)
    return values


def _read(fields: FieldOf, workers: Any, worker_type: Any, progress: bool, hosts: Hosts | None) -> NDArray[Any]:
    parts = []
    feed = BaseFeed(fields, _BATCH, workers=workers, worker_type=worker_type, seed=0, hosts=hosts)
    with feed, progress_bar("reading labels", len(fields), progress) as advance:
        for batch in feed:
            parts.append(np.array(batch))
            advance(len(batch))
    values = np.concatenate(parts)
    return values if values.dtype.kind != "O" else np.array(values.tolist())


def _kept(path: Path, key: str) -> NDArray[Any] | None:
    """The values in a file, if it is of this key.

    Raises:
        ValueError: The file was not written here, or is in no folder.
    """
    if not path.exists():
        if not path.parent.is_dir():
            raise ValueError(f"cache={str(path)!r} is in a folder that does not exist: name a file in an existing one")
        return None
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as kept:
            return kept["labels"] if str(kept["kerasfeed_key"]) == key else None
    except (OSError, EOFError, ValueError, LookupError, AttributeError, TypeError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"cache={str(path)!r} exists and was not written by kf.labels_of ({class_name(error)}): name another "
            "file, or remove it"
        ) from error


def _keep(path: Path, key: str, values: NDArray[Any]) -> None:
    content = io.BytesIO()
    np.savez(content, labels=values, kerasfeed_key=np.array(key))
    try:
        write_whole(path, content.getvalue())
    except OSError as error:
        warnings.warn(
            f"kf.labels_of has read all labels and cannot keep them in {str(path)!r} ({message_of(error)}): make room, "
            "or name another file, or they are read again next time",
            FeedWarning,
            stacklevel=3,
        )
