"""`Packed`: several short scenes joined into one of fixed length.

Invariant: the scenes of a packed scene are a function of (lengths, length, overflow, seed), computed when the view is
made. No scene is in two packed scenes. Only `overflow="cut"` truncates scenes.
"""

from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kerasfeed.errors import SpecError
from kerasfeed.orders.groups import Groups, check_length, check_numbers
from kerasfeed.sequences.base import SceneSequence
from kerasfeed.sequences.indexing import position_in
from kerasfeed.sequences.split import values_of
from kerasfeed.sequences.view_base import OfOne
from kerasfeed.spec.field_values import as_array
from kerasfeed.util.error_text import class_name, pluralize
from kerasfeed.util.seed_streams import SeedStream
from kerasfeed.util.validate import check_integer

_WINDOW = 1024  # packed scenes planned together: about one of them is half empty, and long and short scenes mix
_ADDED = ("segment_ids", "positions")


class Packed(OfOne, SceneSequence):
    """Pack short scenes into scenes of one length, with little padding.

    A scene of `sequence` is a dict of arrays with one shared first axis (tokens, events, points). A packed scene is a
    dict of the same fields, each `dtype[length, ...]`: several scenes one after the other, then zeros. It also has two
    more fields. `segment_ids`, int32[length], is 1 for the first scene, 2 for the second, and so on, and 0 for padding.
    `positions`, int32[length], is 0, 1, 2, ... from the beginning of each scene, and 0 for padding.

    When the view is made, it decides from the lengths alone which scenes are packed together: first fit, the longest
    first, within windows of a random order of the scenes. So the view can be shuffled, sharded and resumed like any
    sequence; an index selects the same scenes in every epoch.

    Args:
        sequence: Any object with `__len__` and `__getitem__(index)`. A scene must have the same length each time.
        length: Length of a packed scene, in [1, 2**31).
        lengths: Length of each scene, int[number of scenes], or a function from a scene to its length. None uses the
            length of the shared axis. For None or a function, the calling thread reads every scene once, when the view
            is made. To read scenes with workers and keep their lengths, use `kerasfeed.labels_of`. A scene of length 0
            is left out.
        overflow: The treatment of a scene that is longer than `length`: "raise" refuses it, "cut" keeps its beginning,
            "drop" leaves it out.
        seed: Integer >= 0 that decides which scenes are packed together.

    Attributes:
        length: The length of a packed scene.
        fill: Share of the packed scenes that is not padding, in (0, 1].

    Raises:
        TypeError: `sequence` cannot be indexed, or an argument has the wrong type.
        ValueError: A scene is longer than `length`, `lengths` does not fit, or nothing is left to pack.
        SpecError: A scene is not a dict of arrays with one shared first axis.

    Examples:
        >>> scenes = [{"tokens": np.arange(1, 1 + n)} for n in (3, 5, 2, 4)]
        >>> packed = kf.Packed(scenes, 8)
        >>> len(packed), packed.fill
        (2, 0.875)
        >>> for scene in packed:
        ...     print(scene["tokens"], scene["segment_ids"], scene["positions"])
        [1 2 3 1 2 3 4 5] [1 1 1 2 2 2 2 2] [0 1 2 0 1 2 3 4]
        [1 2 1 2 3 4 0 0] [1 1 2 2 2 2 0 0] [0 1 0 1 2 3 0 0]
    """

    def __init__(
        self,
        sequence: Any,
        length: int,
        *,
        lengths: Any = None,
        overflow: Literal["raise", "cut", "drop"] = "raise",
        seed: int = 0,
    ) -> None:
        self._hold(sequence)
        self.length = check_integer("length", length, 1, most=2**31 - 1)
        seed = check_integer("seed", seed, 0)
        if overflow not in ("raise", "cut", "drop"):
            raise ValueError(f"overflow must be 'raise', 'cut' or 'drop', received {overflow!r:.60}")
        if lengths is None or callable(lengths):
            lengths = values_of("kf.Packed", "length", self.sequence, self._lengths[0], lengths or _length)
        scene_lengths = check_numbers("lengths", lengths, whole=True) if self._lengths[0] else np.empty(0, np.int64)
        check_length("lengths", len(scene_lengths), self._lengths[0])
        long = np.flatnonzero(scene_lengths > self.length)
        if overflow == "raise" and len(long):
            more = f", and {len(long) - 1:,} more are" if len(long) > 1 else ""
            raise ValueError(
                f"scene {long[0]} of {class_name(self.sequence)} has length {scene_lengths[long[0]]:,}, more than "
                f"length={self.length:,}{more}: pass a larger length, or overflow='cut' to keep their beginning, "
                "or 'drop'"
            )
        is_packed = (scene_lengths > 0) & (scene_lengths <= self.length) if overflow == "drop" else scene_lengths > 0
        if not is_packed.any():
            raise ValueError(f"{class_name(self.sequence)} has no scene to pack: all are left out, or have length 0")
        rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(SeedStream.PACKED,))))
        packed = np.minimum(scene_lengths[is_packed], self.length)
        together = _first_fit(packed, self.length, rng)
        self._count = int(together.max()) + 1
        numbers = np.full(len(scene_lengths), self._count)  # the scenes left out are one more group
        numbers[is_packed] = together
        self._groups = Groups.of(numbers, self._count + 1)
        self._scene_lengths = scene_lengths
        self.fill = float(packed.sum() / (self._count * self.length))

    def __len__(self) -> int:
        return self._count

    def scenes_of(self, index: int) -> NDArray[np.int64]:
        """Return the indices of the scenes in packed scene `index`.

        The result is int64[segments]; entry k has segment id k + 1.

        Raises:
            IndexError: `index` is out of range.

        Examples:
            >>> kf.Packed([{"x": np.zeros(n)} for n in (3, 5, 2, 4)], 8).scenes_of(0)
            array([0, 1])
        """
        return self._inside_of(position_in(index, self))

    def _inside_of(self, position: int) -> NDArray[np.int64]:
        return self._groups.members[slice(*self._groups.offsets[position : position + 2])].astype(np.int64)

    def __getitem__(self, index: int | slice) -> Any:
        """Return packed scene `index`; negative indices count from the end.

        Raises:
            IndexError: `index` is out of range.
            SpecError: A scene is not a dict of arrays with one shared first axis, or its fields differ from the others.
            ValueError: A scene has another length than it had when it was packed.
            Exception: The sequence raised it; a note has the index there.
        """
        position = position_in(index, self)
        segment_ids, positions = np.zeros(self.length, np.int32), np.zeros(self.length, np.int32)
        first: dict[str, NDArray[Any]] = {}
        out: dict[str, NDArray[Any]] = {}
        start = 0
        for segment, inner in enumerate(self._inside_of(position).tolist(), 1):
            with self._reading(0, [inner], [position]):
                fields = _fields(self._parts[0][inner])
                if segment == 1:
                    first = fields
                    out = {name: np.zeros((self.length, *f.shape[1:]), f.dtype) for name, f in fields.items()}
                _check_alike(fields, first)
                count = _length(fields)
                if count != self._scene_lengths[inner]:
                    raise ValueError(
                        f"a scene of length {count:,} had length {self._scene_lengths[inner]:,} when it was packed: "
                        "scenes must have the same length each time. Apply random changes after Packed"
                    )
            stop = min(start + count, self.length)
            for name, field in fields.items():
                out[name][start:stop] = field[: stop - start]
            segment_ids[start:stop] = segment
            positions[start:stop] = np.arange(stop - start)
            start = stop
        return {**out, "segment_ids": segment_ids, "positions": positions}

    def _scenes_inside(self, positions: NDArray[np.int64]) -> Iterator[tuple[Any, NDArray[np.int64]]]:
        inside = [self._inside_of(position) for position in positions.tolist()]
        yield self.sequence, np.concatenate([np.empty(0, np.int64), *inside])  # `inside` may be empty

    def _choice(self) -> str:
        return f"to {self.length} {self._groups.digest()}"

    def __repr__(self) -> str:
        return (
            f"Packed of {class_name(self.sequence)}, {pluralize(len(self), 'scene')} of length {self.length:,}, "
            f"{self.fill:.1%} full"
        )


def _first_fit(lengths: NDArray[np.int64], length: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the number of each scene's packed scene, int64[scenes].

    A random order is divided into windows that fill `_WINDOW` packed scenes. In each window, scenes are placed from the
    longest to the shortest, each into the first packed scene that has room. Scenes of one length are placed together.
    """
    order = rng.permutation(len(lengths))
    window = (np.cumsum(lengths[order]) - 1) // (_WINDOW * length)
    numbers, begun = np.empty(len(lengths), np.int64), 0
    for members in np.split(order, np.flatnonzero(np.diff(window)) + 1):
        members = members[np.argsort(-lengths[members], kind="stable")]
        sizes, firsts = np.unique(-lengths[members], return_index=True)
        room = np.full(2 * int(lengths[members].sum()) // length + 2, length)  # two neighbours hold more than `length`
        for size, same in zip((-sizes).tolist(), np.split(members, firsts[1:]), strict=True):
            chosen = np.searchsorted(np.cumsum(room // size), np.arange(len(same)), side="right")
            numbers[same] = begun + chosen
            np.subtract.at(room, chosen, size)
        begun += int((room < length).sum())
    return numbers


def _length(scene: Any) -> int:
    return len(next(iter(_fields(scene).values())))


def _fields(scene: Any) -> dict[str, NDArray[Any]]:
    """Return the fields of a scene, by name.

    Raises:
        SpecError: They cannot be packed.
    """
    if not isinstance(scene, dict) or not scene:
        raise SpecError(
            f"kf.Packed needs scenes that are dicts of arrays, received a {type(scene).__name__}"
            f"{' without any' if isinstance(scene, dict) else ''}. "
            "Convert them by kf.Map(sequence, function), for example with lambda scene: {'tokens': scene[0]}"
        )
    fields: dict[str, NDArray[Any]] = {}
    for name, leaf in scene.items():
        if name in _ADDED:
            raise SpecError(f"field {name!r} has the name of a field that kf.Packed adds: rename it")
        is_nested = isinstance(leaf, dict | tuple)
        field = leaf if type(leaf) is np.ndarray or is_nested else as_array(leaf, str(name))
        if is_nested or np.ndim(field) == 0 or field.dtype.kind in "OSUT":
            raise SpecError(
                f"field {name!r} is nested, text or a single value, but kf.Packed joins arrays: leave it out, or give "
                "it the axis of the others, for example np.full(len(tokens), label)"
            )
        fields[name] = field
    if len({len(field) for field in fields.values()}) > 1:
        shapes = ", ".join(f"{name!r} {field.shape}" for name, field in fields.items())
        raise SpecError(f"kf.Packed needs fields that share their first axis, received {shapes}")
    return fields


def _check_alike(fields: dict[str, NDArray[Any]], first: dict[str, NDArray[Any]]) -> None:
    """Refuse a scene whose fields differ from the first scene's."""
    one, other = ({name: (f.dtype, f.shape[1:]) for name, f in each.items()} for each in (fields, first))
    if one != other:
        name = next(name for name in {**one, **other} if one.get(name) != other.get(name))
        here, there = (_kind(each.get(name)) for each in (fields, first))
        raise SpecError(
            f"field {name!r} is {here}, but {there} in the scene before it: all scenes need the same fields, each with "
            "one dtype and one shape, except for the first axis"
        )


def _kind(field: NDArray[Any] | None) -> str:
    return "absent" if field is None else f"{field.dtype}[{', '.join(['*', *map(str, field.shape[1:])])}]"
