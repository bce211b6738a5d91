"""Readings: digests of scenes, to compare them across workers and copies.

Invariant: a reading can be pickled, whatever the scene holds. Two readings are equal if the scenes have the same
structure and the same bits. Workers import this module: no framework here.
"""

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from kerasfeed.errors import SpecError
from kerasfeed.explore.check.result import Finding, failed
from kerasfeed.pool.task import TaskProgress
from kerasfeed.sequences.context import SceneContext, Worker
from kerasfeed.spec.field_values import as_array
from kerasfeed.spec.inference import describe
from kerasfeed.spec.nesting import flatten, structure_text
from kerasfeed.spec.scene_spec import SceneSpec
from kerasfeed.util.array_bits import widened
from kerasfeed.util.error_text import exception_text, is_the_programs, message_of
from kerasfeed.util.fingerprint import digest

_SHOWN = 4
_MOST_UNLIKE = 8


@dataclass(frozen=True)
class FieldReading:
    """One field of a scene.

    Attributes:
        path: Dotted name.
        spec: Shape and dtype, as text.
        digest: Digest of the values.
        head: The first values, as text.
        not_finite: Description of NaN and infinite values; empty for none.
    """

    path: str
    spec: str
    digest: str
    head: str
    not_finite: str = ""


@dataclass(frozen=True)
class SceneReading:
    """One reading of a scene.

    Attributes:
        index: Index of the scene.
        structure: Nesting of the scene, as text.
        fields: Its fields.
        error: Type and message, in one line, of the error raised by reading it; empty for none.
        out_of_range: Whether the error was an `IndexError`.
        refusal: Why the scene cannot be part of a batch; empty if it can.
        seconds: Time to read it, s.
        examine_seconds: Time to examine it, s.
        spec: Its spec; not sent between processes.
    """

    index: int
    structure: str = ""
    fields: tuple[FieldReading, ...] = ()
    error: str = ""
    out_of_range: bool = False
    refusal: str = ""
    seconds: float = field(default=0.0, compare=False)
    examine_seconds: float = field(default=0.0, compare=False)
    spec: SceneSpec | None = field(default=None, compare=False, repr=False)

    @property
    def not_finite(self) -> bool:
        """Whether a field holds NaN or infinity."""
        return any(field.not_finite for field in self.fields)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "spec": None}


class Reader:
    """Reads scenes as a worker does in epoch 0.

    Args:
        sequence: The sequence.
        seed: Seed of the feed.
        progress: Item 1 is set to the index of the scene being read.
        worker: The worker that reads.
    """

    def __init__(self, sequence: Any, seed: int, progress: TaskProgress, worker: Worker) -> None:
        self.sequence = sequence
        self.seed = seed
        self.worker = worker
        self._context = SceneContext(seed, 0)
        self._progress = progress

    def scene(self, index: int) -> Any:
        """Return scene `index`."""
        return self.within(index, lambda: self.sequence[index], index)

    def within(self, index: int | None, call: Any, position: int) -> Any:
        """Return `call()`, run with the random numbers of scene `index`.

        `index` is None for a batch. If the call hangs, the error names scene `position`.
        """
        self._progress[1] = position
        self._context.move_to(index)
        with self._context:
            return call()

    def read(self, index: int) -> SceneReading:
        """Return a reading of scene `index`.

        An exception that the scene raises becomes part of the reading.

        Raises:
            BaseException: It came from Ctrl-C or a signal handler of the program.
        """
        begun = time.perf_counter()
        try:
            value = self.scene(index)
        except BaseException as error:
            if is_the_programs(error):
                raise
            return SceneReading(
                index, error=exception_text(error), out_of_range=isinstance(error, IndexError),
                seconds=time.perf_counter() - begun,
            )  # fmt: skip
        reading = reading_of(index, value, time.perf_counter() - begun)
        return replace(reading, examine_seconds=time.perf_counter() - begun - reading.seconds)


def reading_of(index: int, scene: Any, seconds: float = 0.0) -> SceneReading:
    """Return the reading of a scene."""
    try:
        leaves, treespec = flatten(scene)
        spec = describe(scene)
        fields = tuple(map(_field, leaves, spec.paths, map(str, spec.fields)))
        return SceneReading(index, structure_text(treespec), fields, seconds=seconds, spec=spec)
    except SpecError as error:
        return SceneReading(index, refusal=message_of(error), seconds=seconds)


def _field(leaf: Any, path: str, spec: str) -> FieldReading:
    array = as_array(leaf, path)
    if not isinstance(array, np.ndarray):  # text
        return FieldReading(path, spec, digest(array), repr(array)[:60])
    if array.dtype.kind in "UST":  # the same reading for all text dtypes
        array = array.astype(object)
    native = array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
    return FieldReading(path, spec, digest(native), _head(native), _not_finite(native))


def _head(array: Any) -> str:
    if array.ndim == 0:
        return repr(array.item()) if array.dtype.kind != "V" else str(array)
    texts = [str(value) for value in array.ravel()[:_SHOWN]]
    return f"[{', '.join([*texts, '...'] if array.size > _SHOWN else texts)}]"


def _not_finite(array: Any) -> str:
    array = widened(array)
    if array.dtype.kind not in "fc":
        return ""
    finite = np.isfinite(array)
    if finite.all():
        return ""
    nan = int(np.isnan(array).sum())
    infinite = int(array.size - finite.sum()) - nan
    parts = [f"{count:,} {what}" for count, what in ((nan, "NaN"), (infinite, "infinite")) if count]
    first = [int(position) for position in np.argwhere(~finite)[0]]
    return " and ".join(parts) + f" of {array.size:,} values" + (f", the first at {first}" if first else "")


def read_all(reader: Reader, *, plan: Iterable[int]) -> list[SceneReading]:
    """Read the scenes of `plan` in its order."""
    return [reader.read(index) for index in plan]


@dataclass
class Survey:
    """Summary of many scenes, each read once.

    Attributes:
        count: Number of scenes read.
        faults: Number of scenes with each fault: `error`, `refusal`, `not_finite`, as in `SceneReading`.
        first: The first scene with each fault.
        unlike: The first scene of each combination of structure, dtypes and shapes, at most 8.
        slowest: Longest time to read a scene, s.
        ended_early: Whether the time ended before all scenes were read.
    """

    count: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    first: dict[str, SceneReading] = field(default_factory=dict)
    unlike: list[SceneReading] = field(default_factory=list)
    slowest: float = 0.0
    ended_early: bool = False


def survey(reader: Reader, *, plan: Iterable[int], seconds: float) -> Survey:
    """Read each scene of `plan` once, for at most `seconds`."""
    seen, kinds = Survey(), set[Any]()
    end = time.monotonic() + seconds
    for index in plan:
        if time.monotonic() > end:
            seen.ended_early = True
            break
        reading = reader.read(index)
        seen.count += 1
        seen.slowest = max(seen.slowest, reading.seconds)
        for fault in ("error", "refusal", "not_finite"):
            if getattr(reading, fault):
                seen.faults[fault] += 1
                seen.first.setdefault(fault, reading)
        kind = reading.structure, *((field.path, field.spec) for field in reading.fields)
        if reading.fields and kind not in kinds and len(kinds) < _MOST_UNLIKE:
            kinds.add(kind)
            seen.unlike.append(reading)
    return seen


def difference(expected: SceneReading, actual: SceneReading, before: str, now: str) -> Finding | None:
    """Describe how two readings of a scene differ; None if equal.

    Args:
        expected: The first reading, which has no error and no refusal.
        actual: The second reading.
        before: Time or place of the first reading, as in "when it is read first".
        now: Time or place of the second reading.
    """
    if expected == actual:
        return None
    index = expected.index
    if actual.error or actual.refusal:
        return failed(f"scene {index} {now} raises {actual.error or actual.refusal}; {before} it does not", index=index)
    if expected.structure != actual.structure:
        texts = f"{expected.structure} {before}, {actual.structure} {now}"
        return failed(f"scene {index} changes its structure: {texts}", index=index)
    for one, other in zip(expected.fields, actual.fields, strict=True):
        if one == other:
            continue
        if one.spec != other.spec:
            values = f"{one.spec} {before}, {other.spec} {now}"
        elif one.head != other.head:
            values = f"{one.head} {before}, {other.head} {now}"
        else:
            values = f"values {before} and {now} differ, beyond the first ones, {one.head}"
        return failed(f"scene {index}, field {one.path!r}: {values}", index=index, field=one.path)
    return None


def first_difference(
    expected: Sequence[SceneReading], readings: Sequence[SceneReading], before: str, now: str
) -> Finding | None:
    """Return the first difference between two lists of readings, or None.

    `readings` may be in any order, and repeat scenes; `expected` has each of their scenes. See `difference` for
    `before` and `now`.
    """
    by_index = {reading.index: reading for reading in expected}
    found = (difference(by_index[reading.index], reading, before, now) for reading in readings)
    return next(filter(None, found), None)


def compare(expected: Sequence[SceneReading], readings: Sequence[SceneReading], before: str, now: str) -> None:
    """Refuse lists of readings that differ; see `first_difference`.

    Raises:
        Finding: The first difference.
    """
    found = first_difference(expected, readings, before, now)
    if found is not None:
        raise found
