"""Checks of single scenes: that they are there, can be batched, are alike, and belong to whoever reads them."""

import time
from dataclasses import replace

import numpy as np

from kerasfeed.errors import SpecError
from kerasfeed.explore.checks.case import Case, length_of
from kerasfeed.explore.checks.reading import Reader, SceneReading, difference, reading_of
from kerasfeed.explore.checks.result import Finding, failed, passed, skipped, warned
from kerasfeed.sequences.global_random import GlobalRandomWatch, globals_put_back, names, seed_globals
from kerasfeed.spec.inference import merge
from kerasfeed.spec.nesting import flatten
from kerasfeed.util.counted import counted
from kerasfeed.util.error_text import exception_text, message_of
from kerasfeed.util.frames import is_in_memory

_IDLE_SECONDS = 0.05  # other threads may draw random numbers, too


def length(case: Case) -> Finding:
    """`len` is a positive integer, the same at every call."""
    try:
        count = case.length
    except Exception as error:  # noqa: BLE001 - the user's
        return failed(f"len(sequence) raises {exception_text(error)}")
    if count < 1:
        return failed("the sequence is empty: len(sequence) is 0", remedy="Check the path or the filter that made it")
    again = length_of(case.sequence)
    if again != count:
        return failed(f"len(sequence) was {count:,}, and is {again:,} when it is asked again")
    return passed(counted(count, "scene"))


def scenes_load(case: Case) -> Finding:
    """Every scene that is tried can be read."""
    errors = [one if one.error else two for one, two in case.twice if one.error or two.error]
    if errors:
        return _unreadable(errors[0], len(errors), len(case.twice), case)
    seen = case.survey
    if seen.error is not None:  # the compared ones can be read: other checks go on with these
        return replace(_unreadable(seen.error, seen.failed, seen.count, case), blocks=False)
    slowest = max(seen.slowest, *(reading.seconds for pair in case.twice for reading in pair))
    stopped = f" ({seen.stopped} allowed no more)" if seen.stopped else ""
    return passed(f"{_read_text(case)} read{stopped}, at most {1e3 * slowest:,.3g} ms each")


def _unreadable(first: SceneReading, count: int, read: int, case: Case) -> Finding:
    more = f" ({count} of the {read} scenes that were read fail)" if count > 1 else ""
    if first.out_of_range:
        return failed(
            f"scene {first.index} raises {first.error}, and len(sequence) is {case.length:,}{more}",
            index=first.index, remedy="Return the number of scenes from __len__",
        )  # fmt: skip
    return failed(f"scene {first.index} raises {first.error}{more}", index=first.index)


def _read_text(case: Case) -> str:
    """How many of how many scenes were read."""
    return f"{case.counts()[1]:,} of {counted(case.length, 'scene')}"


def fields(case: Case) -> Finding:
    """Every field of a scene can be part of a batch."""
    refused = next((one for one, _ in case.twice if one.refusal), None)
    blocks = refused is not None
    refused = refused or case.survey.refusal
    if refused is not None:
        return Finding("failed", f"scene {refused.index}: {refused.refusal}", refused.index, None, "", blocks)
    return passed(", ".join(f"{field.path}: {field.spec}" for field in case.readings[0].fields))


def same_spec(case: Case) -> Finding:
    """All scenes have one structure, one dtype a field, and one shape."""
    compared = case.readings
    unlike = {reading.index: reading for reading in [*compared, *case.survey.unlike]}
    for readings in (compared, [unlike[index] for index in sorted(unlike)]):
        finding = _unlike(readings, case.items_are_batches)
        if finding is not None:
            return replace(finding, blocks=readings is compared)
    rows = " but for the number of rows, for items are batches" if case.items_are_batches else ""
    return passed(f"the same in {_read_text(case)}{rows}")


def _unlike(readings: list[SceneReading], are_batches: bool) -> Finding | None:
    """What tells some scenes apart; of batches the number of rows does not."""
    try:
        spec = merge([(reading.index, reading.spec) for reading in readings if reading.spec is not None])
    except SpecError as error:
        other, field = _other(readings[0], readings)
        return failed(message_of(error), index=other.index, field=field, remedy="")
    for path, merged in zip(spec.paths, spec.fields, strict=True):
        if None in merged.shape[are_batches:]:
            (one, first_spec), (other_index, other_spec) = _unequal(path, readings)
            return warned(
                f"field {path!r} differs in shape: {first_spec} in scene {one}, {other_spec} in scene {other_index}",
                index=other_index, field=path,
            )  # fmt: skip
    return None


def _other(first: SceneReading, readings: list[SceneReading]) -> tuple[SceneReading, str | None]:
    """The first scene that does not go with the first, and the field in which it does not."""
    for reading in readings[1:]:
        if reading.structure != first.structure:
            return reading, None
        for one, other in zip(first.fields, reading.fields, strict=True):
            kinds = [(field.spec.split("[")[0], field.spec.count(",")) for field in (one, other)]
            if kinds[0] != kinds[1]:
                return reading, one.path
    return first, None


def _unequal(path: str, readings: list[SceneReading]) -> tuple[tuple[int, str], tuple[int, str]]:
    specs = [(reading.index, field.spec) for reading in readings for field in reading.fields if field.path == path]
    return specs[0], next(spec for spec in specs if spec[1] != specs[0][1])


def finite(case: Case) -> Finding:
    """No field holds NaN or infinity."""
    seen = case.survey
    first = next(filter(_bad, [*case.readings, *filter(None, [seen.not_finite_in])]), None)
    if first is None:
        return passed(f"none in {_read_text(case)}")
    field = next(field for field in first.fields if field.not_finite)
    more = f" ({seen.not_finite} of the {seen.count} scenes that were read hold some)" if seen.not_finite > 1 else ""
    text = f"scene {first.index}, field {field.path!r}: {field.not_finite}{more}"
    return failed(text, index=first.index, field=field.path)


def _bad(reading: SceneReading) -> bool:
    return any(field.not_finite for field in reading.fields)


def indices(case: Case) -> Finding:
    """Indices outside the sequence raise, and negative ones count from the end or raise."""
    last = case.length - 1
    beyond, negative, expected = case.call(_outside, length=case.length)
    remedy = "Begin __getitem__ with: if not 0 <= index < len(self): raise IndexError(index)"
    if not beyond.error:
        endless = ", so `for scene in sequence` never ends" if not hasattr(type(case.sequence), "__iter__") else ""
        return warned(f"sequence[{last + 1}] returns a scene, though the last one is {last}{endless}", remedy=remedy)
    if not beyond.out_of_range and not hasattr(type(case.sequence), "__iter__"):
        return warned(
            f"sequence[{last + 1}] raises {beyond.error}, so `for scene in sequence` ends with that", remedy=remedy
        )
    unlike = difference(expected, negative, f"as sequence[{last}]", "as sequence[-1]")
    if not negative.error and unlike is not None:
        text = f"sequence[-1] returns a scene that is not the last: {unlike.message}"
        return warned(text, index=-1, remedy=remedy)
    return passed(
        f"sequence[{last + 1}] raises {beyond.error.split(':')[0]}; sequence[-1] "
        + (f"raises {negative.error.split(':')[0]}" if negative.error else "is the last scene")
    )


def _outside(reader: Reader, *, length: int) -> tuple[SceneReading, ...]:
    last = length - 1
    # Of one index, so that they can be compared; and with the random numbers of one place.
    return (
        reader.taken(length, lambda: reader.scene(length)),
        reader.taken(last, lambda: reader.scene(-1, last)),
        reader.read(last),
    )


def own_arrays(case: Case) -> Finding:
    """An array that was returned does not change when another scene is read."""
    return case.call(_reused, plan=case.good)  # type: ignore[no-any-return]


def _reused(reader: Reader, *, plan: list[int]) -> Finding:
    first = plan[0]
    held = reader.scene(first)
    before = reading_of(first, held)
    for index in [*plan[1:4], first]:
        other = reader.scene(index)
        changed = difference(before, reading_of(first, held), "as it was returned", f"once scene {index} was read")
        if changed is not None:
            return changed
    views = [
        path
        for path, one, two in zip(
            (field.path for field in before.fields), flatten(held)[0], flatten(other)[0], strict=True
        )
        if isinstance(one, np.ndarray) and one.flags.writeable and np.may_share_memory(one, two)
    ]
    if views and not is_in_memory(reader.sequence):
        return passed(
            f"returned arrays stay as they are; field {', '.join(map(repr, views))} is a view of what the sequence "
            "keeps, so a function that writes into it would change the data"
        )
    return passed("returned arrays stay as they are")


def global_random(case: Case) -> Finding:
    """No scene draws from, or seeds, the global generators of `random` and `numpy.random`."""
    drawn: tuple[int, int] | None = case.call(_draws, plan=case.good)
    if drawn is None:
        return passed(f"not used by {counted(len(case.good), 'scene')}")
    index, used = drawn
    if not used:
        return skipped("other threads of this program draw from the global generators meanwhile")
    return failed(f"scene {index} draws from, or seeds, the global generators of {names(used)}", index=index)


def _draws(reader: Reader, *, plan: list[int]) -> tuple[int, int] | None:
    # Scenes that all seed them alike leave them alike: they are to stand elsewhere before.
    with globals_put_back():
        seed_globals(np.random.SeedSequence(reader.seed))
        watch = GlobalRandomWatch()
        for index in plan:
            reader.scene(index)
            used = watch.used()
            if used:
                idle = GlobalRandomWatch()
                time.sleep(_IDLE_SECONDS)
                return index, used & ~idle.used()
    return None
