"""What is known after some scenes, and the runner that finds it out in the workers of a pool.

Invariant: a scene that fails, in `__getitem__` or because it is no scene, is noted and leaves no other trace. What is
kept for each scene is a few numbers.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.explore.statistics.field_statistics import FieldStatistics
from kerasfeed.pool.base import Runner, WorkerContext
from kerasfeed.pool.task import NOWHERE, FailedTaskError, FutureTask, Note, Place, Record
from kerasfeed.sequences.context import SceneContext, enter_context
from kerasfeed.spec.field_values import as_array
from kerasfeed.spec.inference import no_field_text
from kerasfeed.spec.nesting import field_paths, flatten
from kerasfeed.util.array_bits import comparable
from kerasfeed.util.error_text import exception_text, is_the_programs

MOST_FAILURES = 1_000  # that are kept with their text
SCENE = np.dtype([("position", np.int64), ("bits", np.uint64), ("nbytes", np.int64), ("seconds", np.float64)])
Shifts = dict[str, Any]


class SceneStatistics:
    """Statistics of some scenes.

    Attributes:
        fields: By path.
        first_seen: By path, where the field comes first: the position of that scene, and the field's place in it.
        failures: Position and error of scenes that failed, at most 1,000.
        failed: How many have.
    """

    def __init__(self) -> None:
        self.fields: dict[str, FieldStatistics] = {}
        self.first_seen: dict[str, tuple[int, int]] = {}
        self.failures: list[tuple[int, str]] = []
        self.failed = 0
        self._known: tuple[Any, tuple[str, ...]] = None, ()
        self._rows: list[tuple[int, int, int, float]] = []
        self._tables: list[NDArray[Any]] = []

    def add(self, position: int, scene: Any, seconds: float, shifts: Shifts | None) -> None:
        """Add a scene; the first of all, where `shifts` is None, decides from what values are taken as differences.

        Raises:
            SpecError: It holds what no batch can.
        """
        leaves, treespec = flatten(scene)
        if treespec != self._known[0]:
            self._known = treespec, field_paths(treespec)
        paths = self._known[1]
        if not leaves:
            raise TypeError(no_field_text(scene, f"__getitem__ returned {scene!r:.60}", "Return an array"))
        values = [comparable(as_array(leaf, path)) for leaf, path in zip(leaves, paths, strict=True)]
        told, nbytes = [], 0
        for place, (path, value) in enumerate(zip(paths, values, strict=True)):
            field = self.fields.get(path)
            if field is None:
                field = self.fields[path] = FieldStatistics((shifts or {}).get(path), first=shifts is None)
                self.first_seen[path] = position, place
            told += [path.encode(), field.add(value, position)]
            nbytes += _nbytes(value)
        digest = blake2b(b"".join(told), digest_size=8).digest()
        self._rows.append((position, int.from_bytes(digest, "little"), nbytes, seconds))

    def close(self, begin: int, end: int) -> None:
        """Note that no more scenes come of the positions from `begin` to `end`."""
        for field in self.fields.values():
            field.close(begin, end)

    def fail(self, position: int, text: str) -> None:
        """Note that a scene has failed."""
        self.failed += 1
        if len(self.failures) < MOST_FAILURES:
            self.failures.append((position, text))

    def merge(self, other: "SceneStatistics") -> None:
        """Add what `other` knows, of other scenes; it is closed."""
        for path, field in other.fields.items():
            if path in self.fields:
                self.fields[path].merge(field)
            else:
                self.fields[path] = field
            place = other.first_seen[path]
            self.first_seen[path] = min(place, self.first_seen.get(path, place))
        self.failures = sorted([*self.failures, *other.failures])[:MOST_FAILURES]
        self.failed += other.failed
        self._tables.append(other.table())

    def table(self) -> NDArray[Any]:
        """A row for each scene that did not fail: position, digest of its bits, bytes, seconds; by position."""
        if self._rows:
            self._tables.append(np.array(self._rows, SCENE))
            self._rows = []
        if len(self._tables) != 1:
            self._tables = [np.concatenate(self._tables) if self._tables else np.empty(0, SCENE)]
        return np.sort(self._tables[0], order="position")

    def shifts(self) -> Shifts:
        """From what values of each field are taken as differences, for the scenes after the first."""
        found = {path: field.shifts() for path, field in self.fields.items()}
        return {path: shift for path, shift in found.items() if shift is not None}

    def __getstate__(self) -> dict[str, Any]:
        self._tables = [self.table()]
        return {**self.__dict__, "_known": (None, ())}


def _nbytes(value: Any) -> int:
    if isinstance(value, np.ndarray) and value.dtype.kind != "O":
        return int(value.nbytes)
    values = value.reshape(-1).tolist() if isinstance(value, np.ndarray) else [value]
    return sum(len(each if isinstance(each, bytes) else each.encode(errors="surrogatepass")) for each in values)


class StatisticsRunner(Runner):
    """What workers hold: the sequence, of whose scenes they make statistics.

    Args:
        sequence: The sequence.
        indices: The scenes of the pass, by position: a range, or int64[n].
        seed: Behind each scene's `rng`.
    """

    def __init__(self, sequence: Any, indices: Sequence[int] | NDArray[np.int64], seed: int) -> None:
        self.target = sequence
        self._indices = indices
        self._seed = seed

    def run(self, record: Record, note: Note, context: WorkerContext) -> SceneStatistics:
        """See `Runner.run`: the statistics of the positions from `record[1]` on, `record[2]` of them."""
        found, shifts = SceneStatistics(), context.posted()
        place = SceneContext(self._seed, 0)
        previous = enter_context(place)
        try:
            for position in range(record[1], record[1] + record[2]):
                index = note[1] = int(self._indices[position])
                place.move_to(index)
                try:
                    begin = time.perf_counter()
                    scene = self.target[index]
                    seconds = time.perf_counter() - begin
                    found.add(position, scene, seconds, shifts)
                except BaseException as error:
                    if is_the_programs(error):
                        raise FailedTaskError(Place(index)) from error
                    found.fail(position, exception_text(error))
                if shifts is None:
                    shifts = found.shifts() or None
        finally:
            enter_context(previous)
        found.close(record[1], record[1] + record[2])
        return found


@dataclass(frozen=True, eq=False)
class StatisticsTask(FutureTask):
    """The scenes at `number` and behind it, `items` of them.

    Attributes:
        items: How many.
    """

    items: int = 1

    def record(self) -> Record:
        """See `Task.record`."""
        return self.kind, self.number, self.items

    def text(self, note: int) -> str:
        """See `Task.text`."""
        return "" if note == NOWHERE else f"scene {note}"
