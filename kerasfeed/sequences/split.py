"""`split` and `folds`: divide a sequence at random into disjoint subsets.

Invariant: the subsets are a function of (length, fractions, seed, labels, groups). Every scene is in exactly one. Their
sizes are the fractions of the length, rounded by largest remainder. With groups, the sizes are as near to these as
assigning the largest groups first allows.
"""

import math
from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.orders.groups import Portable
from kerasfeed.orders.permutation import generator, stream_keys
from kerasfeed.sequences.base import SceneSequence, Subset
from kerasfeed.sequences.frames import as_sequence
from kerasfeed.sequences.indexing import Permuted
from kerasfeed.sequences.optional_methods import check_part, note_once
from kerasfeed.sequences.view_base import SceneByScene
from kerasfeed.spec.nesting import field_paths, flatten
from kerasfeed.util.error_text import class_name, message_of, pluralize
from kerasfeed.util.known_words import with_known_words
from kerasfeed.util.seed_streams import SeedStream
from kerasfeed.util.validate import check_integer

_TOLERANCE = 1e-9
_COMPUTED_FROM = 1 << 24  # scenes; below this, sorted indices take up to 128 MB


class FieldOf(SceneByScene, SceneSequence):
    """One field of each scene of another sequence, as a sequence.

    Args:
        sequence: The other sequence.
        length: Number of scenes in it.
        field: Dotted path of the field, or a function from a scene to a value.
    """

    _passed_on = frozenset({"on_worker_begin", "on_worker_end"})  # reading labels does not begin an epoch

    def __init__(self, sequence: Any, length: int, field: str | Portable) -> None:
        self._hold(sequence)
        self._lengths = (length,)
        self.field = field

    def _functions(self) -> tuple[Any, ...]:
        return (self.field.function,) if isinstance(self.field, Portable) else ()

    def __getitem__(self, index: int) -> Any:
        scene = self.sequence[index]
        if isinstance(self.field, Portable):
            value = self.field.function(scene)
        else:
            leaves, treespec = flatten(scene)
            paths = field_paths(treespec)
            if self.field not in paths:
                raise ValueError(
                    f"a scene has no field {self.field!r}: it has {', '.join(map(repr, paths))}. Name one of these, or "
                    "pass a function of the scene"
                )
            value = leaves[paths.index(self.field)]
        array = np.asarray(value)
        if array.size != 1:
            raise ValueError(
                f"field {self.field!s} of a scene must be a single value, received shape {array.shape}: pass a "
                "function that returns one, for example lambda scene: scene[1].max()"
            )
        return value if isinstance(value, str | bytes) else array.reshape(())[()]


@with_known_words("kf.split", "kf.split(sequence, (0.8, 0.2), seed=0)")
def split(sequence: Any, fractions: Any, seed: int, stratify: Any = None, *, groups: Any = None) -> tuple[Subset, ...]:
    """Divide a sequence at random into disjoint parts, such as for validation.

    Args:
        sequence: Any object with `__len__` and `__getitem__(index)`.
        fractions: Share of each part: positive numbers that sum to 1.
        seed: Integer >= 0; the same seed gives the same parts.
        stratify: The class of each scene, so that each part gets the same share of every class (to within one scene).
            One label for each scene, [number of scenes]; the name of a field (1, `"1.label"`); or a function from a
            scene to its class. For a field or function, the calling thread reads every scene once. To read scenes with
            workers and keep their classes, use `kerasfeed.labels_of`.
        groups: The group of each scene (patient, volume, recording), in the same forms as `stratify`; no group is in
            two parts. Groups are assigned from the largest to the smallest. Each goes to the part that lacks most
            scenes, and, with `stratify`, most scenes of the classes in the group. So the sizes of parts, and their
            shares of classes, come near to the fractions.

    Returns:
        One `Subset` for each fraction, with its indices in ascending order. Together they hold every scene exactly
        once. From 2**24 scenes on, without `stratify` and `groups`, the indices are in random order, are computed when
        a scene is read, and take no memory.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: The fractions do not sum to 1, a part would be empty, there are fewer groups than parts, or labels
            or groups do not fit.

    Examples:
        >>> train, valid = kf.split(np.arange(10), (0.8, 0.2), seed=0)
        >>> len(train), len(valid)
        (8, 2)
        >>> labels = [0] * 5 + [1] * 5
        >>> train, valid = kf.split(np.arange(10), (0.8, 0.2), seed=0, stratify=labels)
        >>> [labels[index] for index in valid.indices]
        [0, 1]
        >>> train, valid = kf.split(np.arange(6), (0.5, 0.5), seed=0, groups=["a", "a", "a", "b", "b", "c"])
        >>> train.indices, valid.indices
        (array([0, 1, 2]), array([3, 4, 5]))
    """
    sequence = as_sequence(sequence)
    parts = _split("kf.split", sequence, _shares(fractions), seed, stratify, groups)
    return tuple(Subset(sequence, part) for part in parts)


class Folds(Sequence[tuple[Subset, Subset]]):
    """Pairs of training and validation scenes, each made on access.

    Args:
        sequence: The sequence to divide.
        length: Number of its scenes.
        parts: The indices of the validation parts, in `sequence`.
    """

    def __init__(self, sequence: Any, length: int, parts: Sequence[Any]) -> None:
        self._sequence, self._length, self._parts = sequence, length, parts

    def __len__(self) -> int:
        return len(self._parts)

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return Folds(self._sequence, self._length, self._parts[number])
        part = self._parts[number]
        return Subset(self._sequence, np.delete(np.arange(self._length), part)), Subset(self._sequence, part)


@with_known_words("kf.folds", "kf.folds(sequence, 5, seed=0)")
def folds(
    sequence: Any, count: int, *, seed: int, groups: Any = None, stratify: Any = None
) -> Sequence[tuple[Subset, Subset]]:
    """Make pairs of training and validation scenes for cross-validation.

    Each scene is in one validation part.

    Args:
        sequence: Any object with `__len__` and `__getitem__(index)`.
        count: Number of folds, at least 2.
        seed: Integer >= 0; the same seed gives the same folds.
        groups: See `kerasfeed.split`: no group is in both parts of a pair.
        stratify: See `kerasfeed.split`.

    Returns:
        `count` pairs (training, validation) of `Subset`, with indices in ascending order, as a sequence that makes a
        pair on access. Below 2**24 scenes, the validation parts are the parts of `split(sequence, [1 / count] * count,
        seed, stratify, groups=groups)`.

    Raises:
        TypeError: An argument has the wrong type.
        ValueError: There are fewer scenes or groups than folds, or labels or groups do not fit.

    Examples:
        >>> for train, valid in kf.folds(np.arange(6), 3, seed=0, groups=["a", "a", "b", "b", "c", "c"]):
        ...     print(len(train), len(valid), set(train.indices) & set(valid.indices))
        4 2 set()
        4 2 set()
        4 2 set()
    """
    sequence = as_sequence(sequence)
    length, count = check_part("kf.folds", sequence), check_integer("count", count, 2)
    if count > length:
        raise ValueError(f"{class_name(sequence)} has {pluralize(length, 'scene')}, too few for {count} folds")
    shares = [Fraction(1, count)] * count
    return Folds(sequence, length, _split("kf.folds", sequence, shares, seed, stratify, groups, computed=False))


def _split(
    caller: str,
    sequence: Any,
    shares: list[Fraction],
    seed: int,
    stratify: Any,
    groups: Any,
    *,
    computed: bool = True,
) -> Sequence[Any]:
    """Return the indices of each part: an ascending array, or a `Permuted`."""
    length = check_part(caller, sequence)
    seed = check_integer("seed", seed, 0)
    sizes = _sizes(length, shares)
    if 0 in sizes:
        raise ValueError(
            f"{class_name(sequence)} has {pluralize(length, 'scene')}, too few for fractions {[*map(float, shares)]}: "
            f"part {sizes.index(0)} would be empty. Use fewer or larger parts"
        )
    if computed and length >= _COMPUTED_FROM and stratify is None and groups is None:
        keys, stops = tuple(stream_keys(seed, (SeedStream.SPLIT,)).tolist()), [0, *accumulate(sizes)]
        return [Permuted(length, keys, range(*ends)) for ends in pairwise(stops)]
    rng = generator(seed, (SeedStream.SPLIT,))
    labels = None if stratify is None else _labels(caller, sequence, length, "stratify", stratify)
    if groups is not None:
        parts = _grouped(_labels(caller, sequence, length, "groups", groups), labels, shares, rng)
    elif labels is not None:
        parts = _divided(labels, shares, sizes, rng)
    else:
        parts = np.split(rng.permutation(length), np.cumsum(sizes)[:-1])
    return [np.sort(part) for part in parts]


def _shares(fractions: Any) -> list[Fraction]:
    """Return the shares of the parts, which sum to 1.

    A float means the decimal that it prints as.
    """
    try:
        shares = [float(fraction) for fraction in fractions]
    except (TypeError, ValueError, OverflowError):
        raise TypeError(
            f"fractions must be numbers, one per part, for example (0.8, 0.2), received {fractions!r:.60}"
        ) from None
    for number, share in enumerate(shares):
        if not 0 < share <= 1:
            hint = "; for a count, pass count / len(sequence)" if share > 1 else ""
            raise ValueError(f"fractions[{number}] is {share}, but must be in (0, 1]{hint}")
    total = math.fsum(shares)
    if abs(total - 1) > _TOLERANCE:
        rest = f"leave {1 - total:.6g} over: add a part for it" if total < 1 else f"are {total - 1:.6g} too much"
        raise ValueError(f"fractions must sum to 1, but {shares} {rest}")
    exact = [Fraction(str(share)) for share in shares]
    return [share / sum(exact) for share in exact]


def _sizes(length: int, shares: list[Fraction]) -> list[int]:
    """Return sizes that sum to `length`, by largest remainder.

    The first of equal remainders wins.
    """
    exact = [length * share for share in shares]
    sizes = [math.floor(size) for size in exact]
    by_remainder = sorted(range(len(shares)), key=lambda part: sizes[part] - exact[part])
    for part in by_remainder[: length - sum(sizes)]:
        sizes[part] += 1
    return sizes


def _divided(
    labels: NDArray[np.int64], shares: list[Fraction], sizes: list[int], rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Return each part's indices, classes divided to within one scene.

    Every class gives each part its share rounded down. The remaining scenes go to the parts that still lack most, at
    most one scene per class; this always works out (Gale and Ryser, 1957).
    """
    classes = _members(labels, int(labels.max()) + 1)
    rows = [[math.floor(len(members) * share) for share in shares] for members in classes]
    lacking = [size - sum(column) for size, column in zip(sizes, zip(*rows, strict=True), strict=True)]
    parts: list[list[NDArray[np.int64]]] = [[] for _ in shares]
    for members, counts in zip(classes, rows, strict=True):
        left = len(members) - sum(counts)
        for part in sorted(range(len(shares)), key=lambda part: -lacking[part])[:left]:
            counts[part] += 1
            lacking[part] -= 1
        mixed = rng.permutation(members)
        for part, chosen in enumerate(np.split(mixed, np.cumsum(counts)[:-1])):
            parts[part].append(chosen)
    return [np.concatenate(chosen) for chosen in parts]


def _grouped(
    groups: NDArray[np.int64], labels: NDArray[np.int64] | None, shares: list[Fraction], rng: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Return each part's indices, with every group in one part.

    Groups are assigned in order of size, the largest first. Each goes to the part that most reduces the sum of squared
    deviations from the shares, of scenes and of classes. The last groups go to parts that have none.
    """
    count = int(groups.max()) + 1
    if count < len(shares):
        raise ValueError(
            f"groups= contains {pluralize(count, 'group')}, too few for {len(shares)} parts, because no group is in "
            "two of them. Use fewer parts or smaller groups"
        )
    # Number of scenes in each pair (group, class); class 0 counts all scenes, and labels begin at class 1.
    width = 1 if labels is None else int(labels.max()) + 2
    pairs = groups * width
    pairs = pairs if labels is None else np.concatenate([pairs, pairs + 1 + labels])
    pairs, scenes = np.unique(pairs, return_counts=True)
    owners, classes = np.divmod(pairs, width)
    starts = np.searchsorted(owners, np.arange(count + 1)).tolist()
    taken = scenes / np.bincount(classes, scenes)[classes]
    lacking = np.tile([float(share) for share in shares], (width, 1))
    part_of = np.full(count, -1)
    empty = np.ones(len(shares), bool)
    mixed = rng.permutation(count)
    for done, group in enumerate(mixed[np.argsort(-scenes[classes == 0][mixed], kind="stable")].tolist()):
        own = slice(starts[group], starts[group + 1])
        own_classes = classes[own]
        gain = np.add.reduce(scenes[own, None] * lacking.take(own_classes, 0))
        if count - done == np.count_nonzero(empty):
            gain[~empty] = -np.inf
        part = part_of[group] = gain.argmax()
        lacking[:, part][own_classes] -= taken[own]
        empty[part] = False
    return _members(part_of[groups], len(shares))


def _members(numbers: NDArray[np.int64], count: int) -> list[NDArray[np.int64]]:
    """Return the indices for each number in [0, count), in ascending order."""
    return np.split(np.argsort(numbers, kind="stable"), np.cumsum(np.bincount(numbers, minlength=count))[:-1])


def _labels(caller: str, sequence: Any, length: int, name: str, given: Any) -> NDArray[np.int64]:
    """Return class or group of every scene, int64[length], numbered from 0.

    `given` is the value of the argument `name`.
    """
    labels = np.asarray(values_of(caller, "label", sequence, length, given))
    if labels.ndim != 1 or len(labels) != length:
        remedy = ". For one-hot labels use labels.argmax(axis=1), or a function of a scene"
        raise ValueError(
            f"{name} needs one label per scene: {class_name(sequence)} has {pluralize(length, 'scene')}, received "
            f"labels of shape {labels.shape}{remedy if labels.ndim == 2 else ''}"
        )
    try:
        missing = np.flatnonzero(labels != labels)  # NaN is unequal to itself
        numbers: NDArray[np.int64] = np.unique(labels, return_inverse=True)[1].astype(np.int64)
    except TypeError as error:
        raise TypeError(
            f"{name} must be all numbers, or all text, so that they can be sorted: {message_of(error)}"
        ) from None
    if missing.size:
        raise ValueError(
            f"{name} has no value for scene {missing[0]}, {labels[missing[0]]}: give every scene a value, or leave "
            "these scenes out with a kf.Subset"
        )
    return numbers


def values_of(caller: str, what: str, sequence: Any, length: int, given: Any) -> Any:
    """Return one value per scene.

    A field or function needs all scenes to be read.

    Args:
        caller: The caller's name, for notes.
        what: The kind of values, for notes.
        sequence: The sequence whose scenes are read.
        length: Number of scenes in it.
        given: The values; a path of a field; or a function from a scene to a value.

    Raises:
        Exception: The sequence raised it; a note has the index.
    """
    is_field = isinstance(given, int | np.integer | str) and not isinstance(given, bool)
    if not is_field and not callable(given):
        return as_sequence(given)
    fields, values = FieldOf(sequence, length, str(given) if is_field else Portable(given)), []
    for index in range(length):
        try:
            values.append(fields[index])
        except Exception as error:
            note_once(error, f"while reading the {what} of scene {index} of {class_name(sequence)} for {caller}")
            raise
    return values
