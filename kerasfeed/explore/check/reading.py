"""What was seen of a scene, kept as digests, so that readings taken at different times and places can be compared.

Invariant: a reading pickles, whatever the scene was, and two readings are equal if the scenes have the same structure
and the same bits. Loads no framework, for workers load it.
"""

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from kerasfeed.errors import SpecError
from kerasfeed.explore.check.result import Finding, failed
from kerasfeed.pool.task import Note
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
        path: Its dotted name.
        spec: Shape and dtype, as text.
        digest: Of its values.
        head: The first values, as text.
        not_finite: What is not finite in it, in words; empty for nothing.
    """

    path: str
    spec: str
    digest: str
    head: str
    not_finite: str = ""


@dataclass(frozen=True)
class SceneReading:
    """One scene, as it was read once.

    Attributes:
        index: Its index.
        structure: Its nesting, as text.
        fields: Its fields.
        error: What reading it raised, type and message in one line; empty for nothing.
        out_of_range: Whether that was an `IndexError`.
        refusal: Why it cannot be part of a batch; empty where it can.
        seconds: How long it took, s.
        looking: How long it then took to look at it, s.
        spec: Its spec, which is not sent between processes.
    """

    index: int
    structure: str = ""
    fields: tuple[FieldReading, ...] = ()
    error: str = ""
    out_of_range: bool = False
    refusal: str = ""
    seconds: float = field(default=0.0, compare=False)
    looking: float = field(default=0.0, compare=False)
    spec: SceneSpec | None = field(default=None, compare=False, repr=False)

    @property
    def not_finite(self) -> bool:
        """Whether a field holds NaN or infinity."""
        return any(field.not_finite for field in self.fields)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "spec": None}


class Reader:
    """Reads scenes as a feed's worker does, with the random numbers of epoch 0.

    Args:
        sequence: The sequence.
        seed: Seed of the feed.
        note: Item 1 is set to the index of the scene that is being read.
        worker: Which worker reads.
    """

    def __init__(self, sequence: Any, seed: int, note: Note, worker: Worker) -> None:
        self.sequence = sequence
        self.seed = seed
        self.worker = worker
        self._context = SceneContext(seed, 0)
        self._note = note

    def scene(self, index: int) -> Any:
        """Scene `index`."""
        return self.within(index, lambda: self.sequence[index], index)

    def within(self, place: int | None, call: Any, noted: int) -> Any:
        """What `call()` returns, with the random numbers of scene `place`, or of a batch where that is None.

        If it hangs, the scene `noted` is named.
        """
        self._note[1] = noted
        self._context.move_to(place)
        with self._context:
            return call()

    def read(self, index: int) -> SceneReading:
        """A reading of scene `index`; an exception is part of it."""
        begun = time.perf_counter()
        try:
            value = self.scene(index)
        except Finding:
            raise
        except BaseException as error:
            if is_the_programs(error):
                raise
            return SceneReading(
                index, error=exception_text(error), out_of_range=isinstance(error, IndexError),
                seconds=time.perf_counter() - begun,
            )  # fmt: skip
        reading = reading_of(index, value, time.perf_counter() - begun)
        return replace(reading, looking=time.perf_counter() - begun - reading.seconds)


def reading_of(index: int, scene: Any, seconds: float = 0.0) -> SceneReading:
    """The reading of a scene that is there."""
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
    if array.dtype.kind in "UST":  # one text, whichever way NumPy holds it
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
    """Readings of the scenes of `plan`, in its order."""
    return [reader.read(index) for index in plan]


@dataclass
class Survey:
    """What reading many scenes once has shown; of scenes with a fault the first is kept.

    Attributes:
        count: How many were read.
        faults: How many have each fault: `error`, `refusal`, `not_finite`, as `SceneReading` has them.
        first: The first scene that has it.
        unlike: The first of each structure, dtypes and shapes, at most 8.
        slowest: The longest time that one took, s.
        is_cut: Whether the time was over before all of them were read.
    """

    count: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    first: dict[str, SceneReading] = field(default_factory=dict)
    unlike: list[SceneReading] = field(default_factory=list)
    slowest: float = 0.0
    is_cut: bool = False


def survey(reader: Reader, *, plan: Iterable[int], seconds: float) -> Survey:
    """Read each scene of `plan` once, for so many seconds at most."""
    seen, kinds = Survey(), set[Any]()
    end = time.monotonic() + seconds
    for index in plan:
        if time.monotonic() > end:
            seen.is_cut = True
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
    """What tells two readings of one scene apart; None for nothing.

    Args:
        expected: The first.
        actual: The second.
        before: When or where the first was taken, as in "when it is read first".
        now: The same of the second.
    """
    if expected == actual:
        return None
    index = expected.index
    if actual.error or actual.refusal:
        return failed(f"scene {index} {now} raises {actual.error or actual.refusal}; {before} it does not", index=index)
    if expected.structure != actual.structure:
        texts = f"{expected.structure} {before}, {actual.structure} {now}"
        return failed(f"scene {index} has another structure: {texts}", index=index)
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
    """The first difference of readings of the same scenes; the second ones may be in any order."""
    by_index = {reading.index: reading for reading in expected}
    found = (difference(by_index[reading.index], reading, before, now) for reading in readings)
    return next(filter(None, found), None)


def compare(expected: Sequence[SceneReading], readings: Sequence[SceneReading], before: str, now: str) -> None:
    """Raise the first difference, if there is one."""
    found = first_difference(expected, readings, before, now)
    if found is not None:
        raise found
