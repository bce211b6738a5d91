"""What `kf.describe` returns: statistics of fields and of scenes, as values.

Invariant: frozen, and made of numbers, text and small arrays alone. What depends on the machine, times of scenes,
stands apart from what depends on the data.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.explore.statistics.description_report import description_report


@dataclass(frozen=True, eq=False)
class FieldDescription:
    """Statistics of one field over all scenes that were read.

    Of numbers they are those of finite values; of complex numbers, those of the magnitude; of text, `min`, `max` and
    `mean` are of lengths, in characters or bytes, and `zeros` counts empty texts.

    Attributes:
        path: Name of the field, such as `1.points`.
        scenes: Number of scenes that have it.
        dtypes: Number of scenes by dtype; `str` and `bytes` for text.
        shapes: Number of scenes by shape, the most frequent first; empty where there are more than 16 shapes.
        shape: Size of each axis, None where it differs; None where the number of axes does.
        sizes: Smallest and largest size of each axis; empty where the number of axes differs.
        values: Number of values, in all scenes.
        nan: Number of NaN.
        infinite: Number of infinities.
        zeros: Number of zeros.
        min: Smallest value; None without values.
        max: Largest value.
        mean: Mean: float64[features] where `axis` is -1, else one number; what `keras.layers.Normalization` takes. NaN
            without values, or where those lie so far apart (1e154) that a float64 does not hold the squares.
        variance: Mean square of the differences from it, shaped alike.
        axis: -1 where mean and variance are by entry of the last axis, which must have one size in all scenes, the
            first that does not fail among them: of up to 1,024 entries in a field with one axis (a row of a table), of
            up to 16 in one with more (coordinates, channels). Else None: they are of all values.
        classes: Number of values by value, of integers and booleans with few different values, and of short texts;
            empty for others, or where more than 1,000 differ.
        edges: Edges of the bins of the histogram, one more than there are bins; empty without one.
        shares: Share of values in each bin, 0 to 1, of up to 256 values of each scene, spread over it.
        constant: Whether it has the same bits in all scenes, of which there are several.
        min_scene: Index of the first scene with the smallest value; None without values, and of text.
        max_scene: The same of the largest value.
        nan_scenes: Indices of the scenes that hold NaN, int64[n], ascending, as are the next two.
        infinite_scenes: Of those that hold infinities.
        uniform_scenes: Of those in which all values, of which there are several, are equal: an empty mask, for example.
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
        """The standard deviation: the square root of `variance`."""
        return np.sqrt(self.variance) if isinstance(self.variance, np.ndarray) else math.sqrt(self.variance)

    def to_dict(self) -> dict[str, Any]:
        """All attributes, for JSON: NaN is None, shapes and classes are lists of pairs."""
        found = {name: value for name, value in vars(self).items() if name not in ("shapes", "classes")}
        found["std"] = self.std
        found["shapes"] = [[list(shape), count] for shape, count in self.shapes.items()]
        found["classes"] = [[_plain(value), count] for value, count in self.classes.items()]
        return {name: _plain(value) for name, value in found.items()}


@dataclass(frozen=True)
class Timing:
    """What scenes cost where they were read.

    Attributes:
        seconds: Median time of `__getitem__`, s; NaN without scenes.
        seconds_95: The time that 95 % of scenes do not exceed, s.
        slowest: Index and time, s, of the slowest scenes, slowest first.
    """

    seconds: float
    seconds_95: float
    slowest: tuple[tuple[int, float], ...]


@dataclass(frozen=True, eq=False, repr=False)
class Description(Mapping[str, FieldDescription]):
    """Statistics of a sequence: a mapping from the name of a field to its `FieldDescription`.

    A field is found by its path or, where that is a number, by the number. In a notebook it shows itself as a table
    with histograms, in a terminal as text.

    Attributes:
        name: Class of the sequence.
        length: Scenes of the sequence.
        scenes: Scenes that were read.
        failed: How many of them failed.
        failures: Index and error of those, at most 1,000.
        duplicates: Groups of indices whose scenes have the same bits in all fields, ascending.
        nbytes: Median size of a scene, bytes.
        nbytes_95: The size that 95 % of scenes do not exceed, bytes.
        timing: What scenes cost.
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
        """The statistics of one field.

        Raises:
            KeyError: There is no such field; the message names those that there are.
        """
        found = self.fields.get(str(path))
        if found is None:
            raise KeyError(f"no scene has a field {str(path)!r}: there are {', '.join(map(repr, self.fields))}")
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)

    def to_dict(self) -> dict[str, Any]:
        """All of it for JSON: plain numbers, text, lists and dicts; NaN is None.

        Examples:
            >>> found = kf.describe([1.0, 3.0], workers=0, progress=False).to_dict()
            >>> found["scenes"], found["fields"]["scene"]["mean"]
            (2, 2.0)
        """
        own = {name: _plain(value) for name, value in vars(self).items() if name not in ("fields", "timing")}
        own["timing"] = {name: _plain(value) for name, value in vars(self.timing).items()}
        return {**own, "fields": {path: each.to_dict() for path, each in self.fields.items()}}

    def to_text(self) -> str:
        """The text that a terminal shows."""
        return description_report(self).text

    def __repr__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        return description_report(self).html


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else value
