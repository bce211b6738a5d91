"""`kf.describe`: statistics of a sequence, in one pass.

Invariant: except for times, the result has the same bits for any number and kind of workers. It is frozen and consists
of numbers, text and small arrays. Its report can be made whatever the scenes hold.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kerasfeed.explore.describe.field_statistics import FieldStatistics
from kerasfeed.explore.describe.scene_statistics import SceneStatistics, collect
from kerasfeed.loaders.arguments import check_workers
from kerasfeed.loaders.auto_workers import duration
from kerasfeed.loaders.sequence_argument import check_sequence
from kerasfeed.sequences.frames import as_sequence
from kerasfeed.sequences.indexing import chosen_indices
from kerasfeed.util.error_text import class_name, pluralize
from kerasfeed.util.report import Graphic, Report, Reported, Table, bytes_text, histogram

_BINS = 24
_SLOWEST = 5
_COLUMNS = ("field", "dtype", "shape", "min", "max", "mean", "std", "histogram")
_NUMBERS = ("min", "max", "mean", "std")
_MOST_BARS = 40
_SHOWN_FEATURES = 3
_SHOWN_CLASSES = 6
_SHOWN_INDICES = 5
_SHOWN_GROUPS = 3


@dataclass(frozen=True, eq=False)
class FieldDescription:
    """Statistics of one field over all scenes that were read.

    The statistics describe the finite values; for complex numbers, they describe the magnitudes. For text, `min`, `max`
    and `mean` describe the lengths, in characters or bytes, and `zeros` counts empty texts. If a field is text in
    some scenes and numbers in others, `min` and `max` are None, and `mean` is NaN.

    Attributes:
        path: Name of the field, such as `1.points`.
        scenes: Number of scenes that have it.
        dtypes: Number of scenes by dtype; `str` and `bytes` for text.
        shapes: Number of scenes by shape, most frequent first; empty if there are more than 16 shapes.
        shape: Size of each axis, None for an axis whose size differs; None if the number of axes differs.
        sizes: Smallest and largest size of each axis; empty if the number of axes differs.
        values: Number of values, in all scenes.
        nan: Number of NaN.
        infinite: Number of infinities.
        zeros: Number of zeros.
        min: Smallest value; None without values.
        max: Largest value.
        mean: Mean, as `keras.layers.Normalization` takes it: float64[features] if `axis` is -1, else one number. NaN
            without values, or if they are so far apart (1e154) that their squares exceed float64.
        variance: Mean squared difference from the mean, with the same shape.
        axis: -1 if each entry of the last axis has its own mean and variance. That axis must have one size in all
            scenes: up to 1,024 entries in a field with one axis (a table row), up to 16 in a field with more axes
            (coordinates, channels). Otherwise None, and there is one mean and one variance of all values.
        classes: How often each value occurs, for short texts, and for integers and booleans with few distinct values;
            empty for others, or if there are more than 1,000 distinct values.
        edges: Edges of the bins of the histogram, one more than there are bins; empty without one.
        shares: Share of values in each bin, 0 to 1, in a sample of up to 16,384 values: up to 64 of each scene, spread
            over the scene.
        constant: Whether there are several scenes and all have the same bits.
        min_scene: Index of the first scene with the smallest value; None for text, and without values.
        max_scene: Index of the first scene with the largest value; None in the same cases.
        nan_scenes: Indices of scenes with NaN, int64[n], ascending.
        infinite_scenes: Indices of scenes with infinities, int64[n], ascending.
        uniform_scenes: Indices of scenes with several values that are all equal (an empty mask, for example), int64[n],
            ascending.
    """

    path: str
    scenes: int
    dtypes: Mapping[str, int]
    shapes: Mapping[tuple[int, ...], int]
    shape: tuple[int | None, ...] | None
    sizes: tuple[tuple[int, int], ...]
    values: int
    nan: int
    infinite: int
    zeros: int
    min: int | float | None
    max: int | float | None
    mean: NDArray[np.float64] | float
    variance: NDArray[np.float64] | float
    axis: int | None
    classes: Mapping[Any, int]
    edges: tuple[float, ...] = field(repr=False)
    shares: tuple[float, ...] = field(repr=False)
    constant: bool
    min_scene: int | None
    max_scene: int | None
    nan_scenes: NDArray[np.int64]
    infinite_scenes: NDArray[np.int64]
    uniform_scenes: NDArray[np.int64]

    @property
    def is_text(self) -> bool:
        """Whether the field holds text."""
        return any(name in ("str", "bytes") for name in self.dtypes)

    @property
    def std(self) -> NDArray[np.float64] | float:
        """Standard deviation: the square root of `variance`."""
        return np.sqrt(self.variance) if isinstance(self.variance, np.ndarray) else math.sqrt(self.variance)

    def to_dict(self) -> dict[str, Any]:
        """Return all attributes for JSON.

        NaN is None; shapes and classes are lists of pairs.
        """
        values = {name: value for name, value in vars(self).items() if name not in ("shapes", "classes")}
        values["std"] = self.std
        values["shapes"] = [[list(shape), count] for shape, count in self.shapes.items()]
        values["classes"] = [[_plain(value), count] for value, count in self.classes.items()]
        return {name: _plain(value) for name, value in values.items()}


@dataclass(frozen=True)
class Timing:
    """Time to read a scene.

    Attributes:
        seconds: Median time of `__getitem__`, s; NaN without scenes.
        seconds_95: 95 % of scenes take at most this time, s.
        slowest: Index and time, s, of the slowest scenes, slowest first.
    """

    seconds: float
    seconds_95: float
    slowest: tuple[tuple[int, float], ...]


@dataclass(frozen=True, eq=False, repr=False)
class Description(Reported, Mapping[str, FieldDescription]):
    """Statistics of a sequence: a mapping from field names to `FieldDescription`.

    The key is the path of a field; if the path is a number, the number works too. A notebook shows a table with
    histograms, a terminal shows text.

    Attributes:
        name: Class of the sequence.
        length: Number of scenes in the sequence.
        scenes: Number of scenes that were read.
        failed: Number of scenes that failed.
        failures: Index and error of failed scenes, at most 1,000.
        duplicates: Groups of indices whose scenes have the same bits in all fields, ascending.
        nbytes: Median size of a scene, bytes.
        nbytes_95: 95 % of scenes have at most this size, bytes.
        timing: Times to read a scene.
        fields: The fields.

    Examples:
        >>> found = kf.describe(kf.Zip(np.arange(12.0).reshape(4, 3), [0, 1, 1, 0]), workers=0, progress=False)
        >>> found["0"].mean, found[1].classes
        (array([4.5, 5.5, 6.5]), {0: 2, 1: 2})
    """

    name: str
    length: int
    scenes: int
    failed: int
    failures: tuple[tuple[int, str], ...]
    duplicates: tuple[tuple[int, ...], ...]
    nbytes: float
    nbytes_95: float
    timing: Timing
    fields: Mapping[str, FieldDescription]

    def __getitem__(self, path: str | int) -> FieldDescription:
        """Return the statistics of one field.

        Raises:
            KeyError: There is no such field; the message names the fields.
        """
        field = self.fields.get(str(path))
        if field is None:
            raise KeyError(f"no scene has a field {str(path)!r}: there are {', '.join(map(repr, self.fields))}")
        return field

    def __iter__(self) -> Iterator[str]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    def to_dict(self) -> dict[str, Any]:
        """Return everything for JSON.

        Values are plain numbers, text, lists and dicts; NaN is None.

        Examples:
            >>> values = kf.describe([1.0, 3.0], workers=0, progress=False).to_dict()
            >>> values["scenes"], values["fields"]["scene"]["mean"]
            (2, 2.0)
        """
        own = {name: _plain(value) for name, value in vars(self).items() if name not in ("fields", "timing")}
        own["timing"] = {name: _plain(value) for name, value in vars(self.timing).items()}
        return {**own, "fields": {path: field.to_dict() for path, field in self.fields.items()}}

    def to_text(self) -> str:
        """Return the text that a terminal shows."""
        return self._report().text

    def _report(self) -> Report:
        rows = [_row(field) for field in self.values()]
        remarks = [(path, "; ".join([*_classes_text(field), *_remarks(field, self)])) for path, field in self.items()]
        remarks = [*(each for each in remarks if each[1]), *_scenes_report(self)]
        timing, some = self.timing, f"{self.scenes:,} of " if self.scenes != self.length else ""
        facts = [
            ("", f"{some}{pluralize(self.length, 'scene')}"),
            ("each", f"{bytes_text(self.nbytes)} (95 %: {bytes_text(self.nbytes_95)})"),
            ("read in", f"{duration(timing.seconds)} (95 %: {duration(timing.seconds_95)})"),
        ]
        return Report(
            self.name, facts if self.scenes > self.failed else facts[:1],
            [Table(_COLUMNS, rows, _NUMBERS), Table((), remarks)],
        )  # fmt: skip


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value


# ---- the report


def _row(field: FieldDescription) -> tuple[str | Graphic, ...]:
    unit = " chars" if "str" in field.dtypes else " bytes" if field.is_text else ""
    numbers = _number_text(field.min), _number_text(field.max), _numbers_text(field.mean), _numbers_text(field.std)
    shape = _shape_text(field)
    return field.path, " or ".join(field.dtypes), shape, *(f"{text}{unit}" for text in numbers), _histogram(field)


def _histogram(field: FieldDescription) -> Graphic:
    if 1 < len(field.classes) <= _MOST_BARS:
        total = sum(field.classes.values())
        return histogram([count / total for count in field.classes.values()], field.shares)
    return histogram(field.shares, field.shares)


def _number_text(value: Any) -> str:
    """A number in few characters: four digits, or thousands separators."""
    if value is None or math.isnan(value):
        return "-"
    if isinstance(value, int):
        return f"{int(value):,}"
    whole = abs(value) < 1e6 and (abs(value) >= 1e4 or value == round(value))
    return f"{value:,.0f}" if whole else f"{value:,.4g}"


def _numbers_text(values: Any) -> str:
    """A number, a few numbers, or the range of many."""
    if not isinstance(values, np.ndarray):
        return _number_text(values)
    if len(values) <= _SHOWN_FEATURES:
        return ", ".join(_number_text(value) for value in values.tolist())
    if np.isnan(values).all():
        return "-"
    return f"{_number_text(float(np.nanmin(values)))} to {_number_text(float(np.nanmax(values)))}"


def _shape_text(field: FieldDescription) -> str:
    """The shape of a field, such as `[2048, 3]` or `[12-900, 3]`."""
    if field.shape is None:
        return " or ".join(str(list(shape)) for shape in list(field.shapes)[:3]) or "of different numbers of axes"
    sizes = [str(low) if low == high else f"{low:,}-{high:,}" for low, high in field.sizes]
    return f"[{', '.join(sizes)}]"


def _classes_text(field: FieldDescription) -> list[str]:
    """The most frequent values with their share."""
    if not _is_class(field):
        return []
    total = sum(field.classes.values())
    frequent = sorted(field.classes.items(), key=lambda pair: -pair[1])
    shown = [f"{_class_name(value)}: {_share_text(count / total)}" for value, count in frequent[:_SHOWN_CLASSES]]
    more = len(frequent) - _SHOWN_CLASSES
    return [", ".join([*shown, *([f"{more} more"] if more > 0 else [])])]


def _class_name(value: Any) -> str:
    text = repr(value) if isinstance(value, str | bytes) else str(value)
    return text if len(text) <= 20 else text[:19] + "…"


def _share_text(share: float) -> str:
    """A share as percent."""
    if 0 < share < 1e-3:
        return "< 0.1 %"
    if 0.999 < share < 1:
        return "> 99.9 %"
    return f"{100 * share:.3g} %"


def _remarks(field: FieldDescription, description: Description) -> list[str]:
    """Describe unusual values, dtypes and shapes."""
    remarks, scenes = [], description.scenes - description.failed
    if field.scenes < scenes:
        remarks.append(f"only in {field.scenes:,} of {scenes:,} scenes")
    if field.nan:
        remarks.append(f"{field.nan:,} NaN in {_scenes_text(field.nan_scenes)}")
    if field.infinite:
        remarks.append(f"{field.infinite:,} infinite in {_scenes_text(field.infinite_scenes)}")
    if len(field.uniform_scenes) and not field.constant and field.min != field.max:
        remarks.append(f"one value in {_scenes_text(field.uniform_scenes)}")
    if field.min_scene is not None and field.min != field.max and not _is_class(field):
        remarks.append(f"min in scene {field.min_scene}, max in scene {field.max_scene}")
    if field.zeros and not _is_class(field):
        what = "empty" if field.is_text else "zeros"
        remarks.append(f"{_share_text(field.zeros / max(1, field.values))} {what}")
    if field.constant:
        remarks.append("the same in all scenes")
    elif field.min is not None and field.min == field.max and not field.is_text:
        remarks.append(f"all values are {_number_text(field.min)}")
    if len(field.dtypes) > 1:
        remarks.append("of different dtypes")
    if len(field.shapes) > 1:
        remarks.append(f"{len(field.shapes)} shapes")
    return remarks


def _scenes_text(scenes: Any) -> str:
    """The number of scenes, and the first indices."""
    shown = ", ".join(map(str, scenes[:_SHOWN_INDICES].tolist()))
    return f"{pluralize(len(scenes), 'scene')}: {shown}{', …' if len(scenes) > _SHOWN_INDICES else ''}"


def _is_class(field: FieldDescription) -> bool:
    return 0 < len(field.classes) <= 100


def _scenes_report(description: Description) -> list[tuple[str, str]]:
    """Report single scenes: failed, duplicate and slow ones."""
    rows = []
    if description.failed:
        by_text: dict[str, list[int]] = {}
        for index, text in description.failures:
            by_text.setdefault(text, []).append(index)
        lost = description.failed - len(description.failures)  # failures without a kept text
        failures = [f"{_indices_text(indices, ', ', is_whole=not lost)} ({text})" for text, indices in by_text.items()]
        text = _first_text(description.failed, failures, "other errors, at least" if lost else "more errors")
        rows.append(("failed", f"{text}; the errors of {pluralize(lost, 'scene')} were not kept" if lost else text))
    if description.duplicates:
        count = sum(len(group) - 1 for group in description.duplicates)
        groups = [_indices_text(group, " = ") for group in description.duplicates]
        rows.append(("duplicates", _first_text(count, groups, "more groups")))
    if description.timing.slowest:
        slow = [f"{index} ({duration(seconds)})" for index, seconds in description.timing.slowest]
        rows.append(("slowest", ", ".join(slow)))
    return rows


def _first_text(count: int, groups: list[str], what: str) -> str:
    more = len(groups) - _SHOWN_GROUPS
    return f"{count:,}: " + "; ".join([*groups[:_SHOWN_GROUPS], *([f"{more:,} {what}"] if more > 0 else [])])


def _indices_text(indices: Sequence[int], between: str, *, is_whole: bool = True) -> str:
    """The first indices, and their number if `is_whole`."""
    shown = between.join(map(str, indices[:_SHOWN_INDICES]))
    if len(indices) <= _SHOWN_INDICES:
        return shown
    return f"{shown}{between}… ({len(indices):,})" if is_whole else f"{shown}{between}…"


# ---- the pass


def describe(
    sequence: Any,
    scenes: Any = None,
    *,
    workers: int | Literal["auto"] = "auto",
    worker_type: Literal["auto", "process", "thread"] = "auto",
    progress: bool = True,
) -> Description:
    """Describe every field, and find scenes that fail, repeat or are slow.

    One pass reads each scene once and shows a progress bar on stderr. By default, the calling thread reads for 0.4 s;
    if the rest takes more than a second, worker processes read it. No scene is kept: memory grows by about 150 bytes
    per scene. The result does not depend on the workers. A scene that fails, or kills its worker process, is recorded
    and the pass continues. Scenes are read with the random numbers of epoch 0 and seed 0.

    Args:
        sequence: A sequence as for `Feed`: any object with `__len__` and `__getitem__(index)`.
        scenes: The scenes to read: None for all; a number for that many, spread over the sequence; or a list, an array
            or a slice of indices, or a mask.
        workers: Number of workers; 0 reads in the calling thread. "auto" is the number of cores.
        worker_type: "process" or "thread". "auto" uses threads for a list, tuple, array or data frame, and otherwise
            processes, or one thread if they cannot start.
        progress: Whether to show the progress bar.

    Returns:
        A mapping from the path of a field to a
        [FieldDescription][kerasfeed.explore.describe.describe.FieldDescription], with attributes for the scenes: a
        [Description][kerasfeed.explore.describe.describe.Description]. It prints as a table; a notebook shows
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
    chosen = np.asarray(indices)
    paths = sorted(statistics.fields, key=lambda path: statistics.fields[path].first)
    return Description(
        name, length, len(indices), statistics.failed,
        tuple((int(indices[position]), text) for position, text in statistics.failures),
        _duplicates(table["bits"], numbers), _quantile(nbytes, 0.5), _quantile(nbytes, 0.95), timing,
        {path: _field(path, statistics.fields[path], chosen) for path in paths},
    )  # fmt: skip


def _quantile(values: NDArray[Any], share: float) -> float:
    return float(np.quantile(values, share)) if len(values) else float("nan")


def _duplicates(bits: NDArray[np.uint64], indices: NDArray[np.int64]) -> tuple[tuple[int, ...], ...]:
    """Return groups of different indices with equal bits."""
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
    if kinds != {""}:  # the extreme lengths of text are not reported by scene
        low_at = high_at = None
    if "" in kinds and len(kinds) > 1:  # lengths and numbers do not mix
        low = high = None
        mean, variance, axis, edges, shares = math.nan, math.nan, None, [], []
    one_rank = next(iter(field.sizes.values())) if len(field.sizes) == 1 else None
    sizes = () if one_rank is None else tuple(zip(*one_rank, strict=True))
    shape = None if one_rank is None else tuple(size if size == most else None for size, most in sizes)
    low_scene, high_scene = (None if position is None else int(indices[position]) for position in (low_at, high_at))
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
    """Return mean, variance and axis."""
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
