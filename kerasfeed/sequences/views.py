"""`Concat`, `Zip` and `Map`: sequences joined, zipped, or mapped.

Invariant: see `kerasfeed.sequences.view_base`.
"""

import functools
from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.sequences.base import SceneSequence
from kerasfeed.sequences.context import current_context, current_rng
from kerasfeed.sequences.indexing import position_in
from kerasfeed.sequences.optional_methods import has_parameter, note_once
from kerasfeed.sequences.routed import Routed, read_many, write_scene
from kerasfeed.sequences.view_base import OfSeveral, SceneByScene, blocks_in
from kerasfeed.util.error_text import class_name, pluralize


class Concat(Routed, OfSeveral, SceneSequence):
    """The scenes of several sequences, one sequence after another.

    Args:
        *sequences: Sequences whose scenes have the same structure, or one list of such sequences. The constructor reads
            their lengths once.

    Raises:
        TypeError: A sequence cannot be indexed.
        ValueError: There is no sequence, or they have more than 2**63 - 1 scenes.

    Examples:
        >>> list(kf.Concat([1, 2], [3, 4, 5]))
        [1, 2, 3, 4, 5]
    """

    def __init__(self, *sequences: Any) -> None:
        self._hold(*listed_parts("Concat", sequences))
        self._stops = list(accumulate(self._lengths))
        if self._stops[-1] >= 1 << 63:
            raise ValueError(f"kf.Concat would have {self._stops[-1]:,} scenes, but a sequence has at most 2**63 - 1")
        self._ends = np.array([0, *self._stops], np.int64)

    def __len__(self) -> int:
        return self._stops[-1]

    def _route(self, position: int) -> tuple[int, int]:
        part = bisect_right(self._stops, position)
        return part, position - self._stops[part] + self._lengths[part]

    def _routes(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        which = np.searchsorted(self._ends, positions, side="right") - 1
        return which, positions - self._ends[which]

    def _blocks(self) -> int | NDArray[Any] | None:
        numbers_of_parts, stop = [], 0
        for part in self._parts:
            blocks = blocks_in(part)
            if blocks is None:
                return None
            of_each = np.arange(len(part)) // blocks if isinstance(blocks, int) else blocks
            names, numbers = np.unique(of_each, return_inverse=True)
            numbers_of_parts.append(numbers + stop)
            stop += len(names)
        return np.concatenate(numbers_of_parts)


class Zip(OfSeveral, SceneSequence):
    """The scenes of several sequences side by side: one of each.

    All sequences draw the same random numbers, because each starts with a new generator of the scene. So an image and
    its mask, both flipped if `self.rng.random() < 0.5`, are flipped together.

    Args:
        *sequences: Sequences of one length. A scene is then a tuple.
        **named: Sequences of one length. A scene is then a dict. Pass either `sequences` or `named`.

    Raises:
        TypeError: A sequence cannot be indexed; both positional and named sequences are passed; or the only argument is
            a list of sequences.
        ValueError: There is no sequence, or the lengths differ; the message has them.

    Examples:
        >>> list(kf.Zip([1, 2], ["a", "b"]))
        [(1, 'a'), (2, 'b')]
        >>> kf.Zip(number=[1, 2], letter=["a", "b"])[1]
        {'number': 2, 'letter': 'b'}
    """

    def __init__(self, *sequences: Any, **named: Any) -> None:
        if sequences and named:
            raise TypeError("kf.Zip(a, b) makes tuples and kf.Zip(x=a, y=b) makes dicts: name all sequences or none")
        listed = sequences[0] if len(sequences) == 1 and isinstance(sequences[0], list | tuple) else ()
        if listed and all(isinstance(part, SceneSequence) for part in listed):
            raise TypeError(
                f"kf.Zip received one {class_name(listed)} of sequences, so its scenes would be these sequences: "
                "write kf.Zip(*sequences)"
            )
        self._keys: tuple[Any, ...] = tuple(named) if named else tuple(range(len(sequences)))
        self._hold(*(named.values() if named else sequences))
        if not self._parts:
            raise ValueError("kf.Zip needs at least one sequence")
        if len(set(self._lengths)) > 1:
            lengths = ", ".join(
                f"{key}: {class_name(part)} has {length}"
                for key, part, length in zip(self._keys, self._parts, self._lengths, strict=True)
            )
            raise ValueError(
                f"kf.Zip needs sequences of one length, received {lengths} scenes. Cut them, for example sequence[:"
                f"{min(self._lengths)}], if they match from the first scene on"
            )

    def __len__(self) -> int:
        return self._lengths[0]

    def __getitem__(self, index: int | slice) -> Any:
        """Return scene `index`, a tuple or a dict.

        Negative indices count from the end.

        Raises:
            IndexError: `index` is out of range.
            Exception: A sequence inside raised it; a note names the sequence.
        """
        position = position_in(index, self)
        return self._joined(self._each([position], lambda part: self._parts[part][position]))

    def _joined(self, values: list[Any]) -> Any:
        return tuple(values) if self._keys[0] == 0 else dict(zip(self._keys, values, strict=True))

    def _each(self, positions: Any, read: Callable[[int], Any]) -> list[Any]:
        """Call `read(part)` for each part, restarting the scene's random numbers."""
        context = current_context()
        latest = None if context is None else context.restart_rng()
        values = []
        for part in range(len(self._parts)):
            with self._reading(part, positions, positions):
                values.append(read(part))
            if context is not None:
                latest = context.restart_rng() or latest
        if context is not None:
            context.restart_rng(latest)  # later draws continue, and do not repeat these numbers
        return values

    def read_into(self, index: int, out: Any) -> None:
        """Write the scene at `index` into `out`; see `SceneSequence`."""
        position = position_in(index, self)
        self._each([position], lambda part: write_scene(self._parts[part], position, out[self._keys[part]]))

    def get_batch(self, indices: NDArray[np.int64], out: Any = None) -> Any:
        """Return the scenes at `indices`, int64[B] in [0, len(self)); see `SceneSequence`."""
        positions = np.asarray(indices, np.int64)

        def read(part: int) -> Any:
            target = None if out is None else out[self._keys[part]]
            batch = read_many(self._parts[part], positions, target)
            return target if batch is None else batch

        return self._joined(self._each(positions, read))

    def _choice(self) -> str:
        return "" if self._keys[0] == 0 else ", ".join(self._keys)

    def _blocks(self) -> int | NDArray[Any] | None:
        found = [blocks for part in self._parts if (blocks := blocks_in(part)) is not None]
        alike = len(found) == 1 or (all(isinstance(blocks, int) for blocks in found) and len(set(found)) == 1)
        return found[0] if alike else None


class Map(SceneByScene, SceneSequence):
    """The scenes of a sequence, each changed by a function.

    A map of a map becomes one map with both functions.

    Args:
        sequence: Any object with `__len__` and `__getitem__(index)`.
        function: `function(scene)` returns the new scene. A scene that is a tuple is also passed as one argument:
            `lambda scene: (scene[0] / 255, scene[1])`. If the function has a parameter named `rng`, it gets the random
            generator of the scene, which, like `self.rng`, depends only on (seed, epoch, index). Worker processes need
            a function that can be pickled; lambdas and functions defined in a notebook can be.

    Raises:
        TypeError: `sequence` cannot be indexed, or `function` cannot be called.

    Examples:
        >>> list(kf.Map([1, 2, 3], lambda scene: 10 * scene))
        [10, 20, 30]

        With random numbers:

        >>> def jitter(scene, rng):
        ...     return scene + rng.normal(0, 0.01, scene.shape)
        >>> clouds = kf.Map(np.zeros((10, 1024, 3)), jitter)
        >>> clouds[0].shape
        (1024, 3)
    """

    def __init__(self, sequence: Any, function: Callable[..., Any]) -> None:
        if not callable(function):
            raise TypeError(f"kf.Map needs a function of one scene, received {function!r:.60}: write Map(sequence, f)")
        calls = ((function, has_parameter(function, "rng")),)
        if type(sequence) is Map:  # one view, because each level would add 1 us per scene and a recursive call
            sequence, calls = sequence.sequence, sequence._calls + calls
        self._hold(sequence)
        self._calls = calls

    def _functions(self) -> tuple[Any, ...]:
        return tuple(function for function, _ in self._calls)

    def __getitem__(self, index: int | slice) -> Any:
        """Return the result of the function for scene `index`.

        Negative indices count from the end.

        Raises:
            IndexError: `index` is out of range.
            Exception: The sequence or the function raised it; a note says which.
        """
        position = position_in(index, self)
        try:
            scene = self._parts[0][position]
        except Exception as error:
            self._add_note(error, 0, [position], [position])
            raise
        for number, (function, draws) in enumerate(self._calls):
            try:
                scene = function(scene, rng=current_rng()) if draws else function(scene)
            except Exception as error:
                source = class_name(self if number else self.sequence)
                nesting = f", one tuple of {len(scene)} fields" if isinstance(scene, tuple) else ""
                note_once(error, f"in {_function_name(function)}, given scene {position} of {source}{nesting}")
                raise
        return scene

    def _choice(self) -> str:
        return ", ".join(map(_function_name, self._functions()))

    def __repr__(self) -> str:
        return f"Map of {self._choice()} over {class_name(self.sequence)}, {pluralize(len(self), 'scene')}"


def listed_parts(view: str, sequences: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the sequences passed one by one, or in one list.

    Raises:
        ValueError: There is none.
    """
    if len(sequences) == 1 and isinstance(sequences[0], list | tuple):
        sequences = tuple(sequences[0])
    if not sequences:
        raise ValueError(f"kf.{view} needs at least one sequence")
    return sequences


def _function_name(function: Callable[..., Any]) -> str:
    if isinstance(function, functools.partial):
        return _function_name(function.func)
    return getattr(function, "__name__", type(function).__name__)
