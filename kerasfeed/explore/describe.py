"""`kf.describe`: statistics of all fields and scenes of a sequence, in one pass.

Invariant: but for times, the result is the same bits whatever the number and kind of workers.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kerasfeed.explore.statistics.description import Description, FieldDescription, Timing
from kerasfeed.explore.statistics.field_statistics import FieldStatistics
from kerasfeed.explore.statistics.scene_statistics import SceneStatistics, collect
from kerasfeed.feeds.any_feed import AnyFeed
from kerasfeed.loaders.arguments import check_workers
from kerasfeed.loaders.sequence_argument import check_sequence
from kerasfeed.sequences.indexing import chosen_indices
from kerasfeed.util.error_text import class_name
from kerasfeed.util.frames import as_sequence

_BINS = 24
_SLOWEST = 5


def describe(
    sequence: Any,
    scenes: Any = None,
    *,
    workers: int | Literal["auto"] = "auto",
    worker_type: Literal["auto", "process", "thread"] = "auto",
    progress: bool = True,
) -> Description:
    """Statistics of every field of a sequence's scenes, and which scenes fail, come twice, or are slow.

    One pass reads each scene once, with a progress bar on stderr: the first ones in the calling thread, and the others
    by worker processes, where all of them would take more than about a second. No scene is kept: memory grows by about
    150 bytes a scene. Values are added in an order that the scenes decide, so the result does not depend on the
    workers. A scene that fails is noted, and the pass goes on; so is one that ends its worker process. Scenes are read
    with the random numbers of epoch 0 and seed 0.

    Args:
        sequence: What a `Feed` takes: any object with `__len__` and `__getitem__(index)`.
        scenes: Which scenes are read. None reads all; a number that many, spread over the sequence; a list, an array
            or a slice of indices, or a mask, those.
        workers: Number of workers; 0 reads in the calling thread.
        worker_type: "process" or "thread"; "auto" takes processes, and threads only where the class says
            `thread_safe = True`, or has no code of the user's.
        progress: Whether to show the progress bar.

    Returns:
        A mapping from the path of a field to its statistics, see
        [FieldDescription][kerasfeed.explore.statistics.description.FieldDescription], with attributes for scenes, see
        [Description][kerasfeed.explore.statistics.description.Description]. It prints as a table, and a notebook shows
        histograms. With `field = describe(...)["0"]`, `keras.layers.Normalization(axis=field.axis, mean=field.mean,
        variance=field.variance)` needs no `adapt`.

    Raises:
        TypeError: `sequence` cannot be indexed, or is a feed; `scenes` is of a wrong type.
        ValueError: The sequence is empty, or `scenes` is below 1.
        IndexError: An index is out of range.

    Examples:
        >>> clouds = kf.Zip(np.zeros((6, 100, 3), np.float32), [0, 1, 2, 0, 1, 0])
        >>> statistics = kf.describe(clouds, workers=0, progress=False)
        >>> statistics["0"].mean, statistics["1"].classes
        (array([0., 0., 0.]), {0: 3, 1: 2, 2: 1})
        >>> statistics.duplicates
        ((0, 3, 5), (1, 4))
    """
    if isinstance(sequence, AnyFeed) and hasattr(sequence, "sequence"):  # else `check_sequence` says why
        raise TypeError("kf.describe reads scenes, and a feed gives batches: pass feed.sequence")
    sequence = as_sequence(sequence)
    length = check_sequence(sequence, "kf.describe()")
    indices = range(length) if scenes is None else chosen_indices(scenes, length, class_name(sequence))
    count = check_workers(workers, worker_type)
    here_first = workers == worker_type == "auto"
    count = min(count, len(indices))
    statistics = collect(sequence, indices, count, worker_type, here_first=here_first, progress=progress)
    return _description(class_name(sequence), length, indices, statistics)


def _description(
    name: str, length: int, indices: Sequence[int] | NDArray[np.int64], statistics: SceneStatistics
) -> Description:
    table = statistics.table()
    numbers = np.asarray(indices)[table["position"]] if len(table) else np.empty(0, np.int64)
    slow = np.argsort(-table["seconds"], kind="stable")[:_SLOWEST]
    seconds, nbytes = table["seconds"], table["nbytes"]
    timing = Timing(
        _quantile(seconds, 0.5),
        _quantile(seconds, 0.95),
        tuple((int(numbers[row]), float(seconds[row])) for row in slow),
    )
    given = np.asarray(indices)
    paths = sorted(statistics.fields, key=statistics.first_seen.__getitem__)
    return Description(
        name, length, len(indices), statistics.failed,
        tuple((int(indices[position]), text) for position, text in statistics.failures),
        _duplicates(table["bits"], numbers), _quantile(nbytes, 0.5), _quantile(nbytes, 0.95), timing,
        {path: _field(path, statistics.fields[path], given) for path in paths},
    )  # fmt: skip


def _quantile(values: NDArray[Any], share: float) -> float:
    return float(np.quantile(values, share)) if len(values) else float("nan")


def _duplicates(bits: NDArray[np.uint64], indices: NDArray[np.int64]) -> tuple[tuple[int, ...], ...]:
    """Groups of indices with equal bits; an index that was read twice counts once."""
    _, first = np.unique(indices, return_index=True)
    bits, indices = bits[first], indices[first]
    order = np.argsort(bits, kind="stable")
    begins = np.concatenate([[0], np.flatnonzero(np.diff(bits[order])) + 1, [len(order)]])
    several = np.flatnonzero(np.diff(begins) > 1)
    groups = (indices[order[begins[run] : begins[run + 1]]].tolist() for run in several)
    return tuple(sorted(map(tuple, groups)))


def _field(path: str, field: FieldStatistics, indices: NDArray[np.int64]) -> FieldDescription:
    counts, kinds = field.counts, {name if name in ("str", "bytes") else "" for name in field.dtypes}
    low: Any
    high: Any
    (low, low_at), (high, high_at) = field.low or (None, None), field.high or (None, None)
    mean, variance, axis = _moments(field)
    edges, shares = field.sample.histogram(float(low), float(high), _BINS) if low is not None else ([], [])
    if kinds != {""}:  # of lengths no scene is named
        low_at = high_at = None
    if "" in kinds and len(kinds) > 1:  # lengths and numbers go together no more than they can be batched
        low = high = None
        mean, variance, axis, edges, shares = math.nan, math.nan, None, [], []
    one_rank = next(iter(field.sizes.values())) if len(field.sizes) == 1 else None
    sizes = () if one_rank is None else tuple(zip(*one_rank, strict=True))
    shape = None if one_rank is None else tuple(size if size == most else None for size, most in sizes)
    low_scene, high_scene = (None if place is None else int(indices[place]) for place in (low_at, high_at))
    return FieldDescription(
        path, counts["scenes"], dict(sorted(field.dtypes.items())),
        dict(sorted((field.shapes.counts or {}).items(), key=lambda pair: (-pair[1], pair[0]))), shape, sizes,
        counts["values"], counts["nan"], counts["infinite"], counts["zeros"], low, high, mean, variance, axis,
        _classes(field), tuple(edges), tuple(shares), field.constant and counts["scenes"] > 1, low_scene, high_scene,
        *(_scenes(field.scenes_with[what], indices) for what in ("nan", "infinite", "uniform")),
    )  # fmt: skip


def _scenes(positions: list[NDArray[np.int64]], indices: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.unique(indices[np.concatenate(positions)]) if positions else np.empty(0, np.int64)


@np.errstate(all="ignore")
def _moments(field: FieldStatistics) -> tuple[Any, Any, int | None]:
    """Mean, variance and axis."""
    if field.columns is not None:
        means, variances = field.columns.result()
        if means.ndim and np.isfinite(variances[~np.isnan(means)]).all():
            return means, variances, -1
    mean, variance = map(float, field.whole.result())
    return (mean, variance, None) if math.isfinite(variance) else (math.nan, math.nan, None)


def _classes(field: FieldStatistics) -> dict[Any, int]:
    counts: dict[Any, int] = dict(field.few.counts or {})
    if set(field.dtypes) == {"bool"}:
        counts = {bool(value): count for value, count in counts.items()}
    return dict(sorted(counts.items(), key=lambda each: (str(type(each[0])), each[0])))
