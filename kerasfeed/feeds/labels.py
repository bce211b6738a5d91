"""`kf.labels_of`: reads one field of every scene into an array."""

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kerasfeed.feeds.base import BaseFeed
from kerasfeed.loaders.hosts.ray_hosts import RayHosts
from kerasfeed.loaders.loader import worker_type_for
from kerasfeed.loaders.sequence_argument import check_sequence
from kerasfeed.orders.groups import Portable
from kerasfeed.sequences.frames import as_sequence
from kerasfeed.sequences.split import FieldOf
from kerasfeed.util.progress import progress_bar

_BATCH = 64


def labels_of(
    sequence: Any,
    field: int | str | Callable[[Any], Any],
    *,
    workers: int | Literal["auto"] = "auto",
    worker_type: Literal["auto", "process", "thread"] = "auto",
    progress: bool = True,
    hosts: RayHosts | None = None,
) -> NDArray[Any]:
    """Read one field of every scene.

    Typical fields are labels for `Balanced`, lengths for `Bucketed`, and classes for `split`.

    The workers load every scene; a progress bar on stderr shows the progress. If the labels are already an array
    (`file["label"][:]`), use that, because it is faster. To keep the labels for later runs, use `np.save`.

    Args:
        sequence: A sequence, as for `Feed`.
        field: Path of the field in a scene, 1 or "1.label"; or a function from a scene to the value, such as
            `lambda scene: len(scene[0])`.
        workers: See `Feed`.
        worker_type: See `Feed`.
        progress: Whether to show the progress bar.
        hosts: See `Feed`.

    Returns:
        One value for each scene, by index: [len(sequence)], of the field's dtype; text as `str` or `bytes`.

    Raises:
        TypeError: `sequence` cannot be indexed; or `field` is neither an integer, a string nor a function.
        ValueError: A scene has no such field, or the field is not a single value.
        Exception: An exception of the sequence, with the index as a note.

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
    field_name = Portable(field) if callable(field) else str(field)
    kind = worker_type if hosts is not None else worker_type_for(sequence, worker_type)
    return _read(FieldOf(sequence, length, field_name), workers, kind, progress, hosts)


def _read(fields: FieldOf, workers: Any, worker_type: Any, progress: bool, hosts: RayHosts | None) -> NDArray[Any]:
    parts = []
    feed = BaseFeed(fields, _BATCH, workers=workers, worker_type=worker_type, seed=0, hosts=hosts)
    with feed, progress_bar("reading labels", len(fields), progress) as advance:
        for batch in feed:
            parts.append(np.array(batch))
            advance(len(batch))
    values = np.concatenate(parts)
    return values if values.dtype.kind != "O" else np.array(values.tolist())
