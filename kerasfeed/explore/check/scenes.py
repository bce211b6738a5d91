"""Checks of single scenes: loading, batching, specs and ownership of arrays."""

import time

import numpy as np

from kerasfeed.errors import SpecError
from kerasfeed.explore.check.case import Case, length_of
from kerasfeed.explore.check.reading import Reader, SceneReading, compare, reading_of
from kerasfeed.explore.check.result import Finding, failed, skipped, warned
from kerasfeed.sequences.frames import is_in_memory
from kerasfeed.sequences.global_random import RandomWatch, generators_put_back, names, seed_globals
from kerasfeed.spec.inference import merge
from kerasfeed.spec.nesting import flatten
from kerasfeed.spec.scene_spec import SceneSpec
from kerasfeed.util.error_text import exception_text, message_of, pluralize

_IDLE_SECONDS = 0.05  # to see whether other threads draw random numbers


def length(case: Case) -> str:
    """`len` is a positive integer, the same at every call."""
    try:
        count = case.length
    except Exception as error:
        raise failed(f"len(sequence) raises {exception_text(error)}") from error
    if count < 1:
        raise failed("the sequence is empty: len(sequence) is 0", remedy="Check its path or filter")
    again = length_of(case.sequence)
    if again != count:
        raise failed(f"len(sequence) was {count:,} at first and {again:,} when called again")
    return pluralize(count, "scene")


def scenes_load(case: Case) -> str:
    """Every scene tried can be read."""
    errors = [one if one.error else two for one, two in case.twice if one.error or two.error]
    if errors:
        raise _unreadable(errors[0], len(errors), len(case.twice), case)
    seen = case.survey
    if "error" in seen.first:
        raise _unreadable(seen.first["error"], seen.faults["error"], seen.count, case)
    slowest = max(seen.slowest, *(reading.seconds for pair in case.twice for reading in pair))
    stopped = " (then the time was over)" if seen.ended_early else ""
    return f"{_read_text(case)} read{stopped}, at most {1e3 * slowest:,.3g} ms each"


def _unreadable(first: SceneReading, count: int, read: int, case: Case) -> Finding:
    more = f" ({count} of the {read} scenes read fail)" if count > 1 else ""
    # If the last scene can be read, the length is right, and the scene itself raised the IndexError.
    if first.out_of_range and case.read([case.length - 1])[0].out_of_range:
        remedy = "Return the number of scenes from __len__. If that is right, __getitem__ reads another index"
        what = f"scene {first.index} raises {first.error}, but len(sequence) is {case.length:,}{more}"
        return failed(what, index=first.index, remedy=remedy)
    return failed(f"scene {first.index} raises {first.error}{more}", index=first.index)


def _read_text(case: Case) -> str:
    """Text with the number of scenes read, and of all scenes."""
    return f"{case.counts()[1]:,} of {pluralize(case.length, 'scene')}"


def fields(case: Case) -> str:
    """Every field of a scene can be part of a batch."""
    refused = next((one for one, _ in case.twice if one.refusal), None) or case.survey.first.get("refusal")
    if refused is not None:
        raise failed(f"scene {refused.index}: {refused.refusal}", index=refused.index, remedy="")
    return ", ".join(f"{field.path}: {field.spec}" for field in case.readings[0].fields)


def same_spec(case: Case) -> str:
    """All scenes have one structure, and each field one dtype and shape."""
    _check_alike(case.readings, case.items_are_batches)
    unlike = {reading.index: reading for reading in [*case.readings, *case.survey.unlike]}
    _check_alike([unlike[index] for index in sorted(unlike)], case.items_are_batches)
    shapes = ", except for the shapes of batches" if case.items_are_batches else ""
    return f"the same in {_read_text(case)}{shapes}"


def _check_alike(readings: list[SceneReading], are_batches: bool) -> None:
    """Raise the first difference between scenes; batches may differ in shape."""
    specs = [(reading.index, reading.spec) for reading in readings if reading.spec is not None]
    try:
        spec = merge(specs)
    except SpecError as error:
        index, field = _other(specs)
        raise failed(message_of(error), index=index, field=field, remedy="") from error
    for path, merged in zip(spec.paths, spec.fields, strict=True):
        if None in merged.shape and not are_batches:
            (one, first_spec), (other_index, other_spec) = _unequal(path, readings)
            raise warned(
                f"field {path!r} differs in shape: {first_spec} in scene {one}, {other_spec} in scene {other_index}",
                index=other_index, field=path,
            )  # fmt: skip


def _other(specs: list[tuple[int, SceneSpec]]) -> tuple[int, str | None]:
    """Index and field of the first scene that differs from earlier ones."""
    merged = specs[0]
    for index, spec in specs[1:]:
        try:
            merged = index, merge([merged, (index, spec)])
        except SpecError:
            if spec.treespec == merged[1].treespec:
                for path, one, other in zip(spec.paths, merged[1].fields, spec.fields, strict=True):
                    is_promoted = one.weak and other.weak
                    if len(one.shape) != len(other.shape) or (one.dtype != other.dtype and not is_promoted):
                        return index, path
            return index, None
    return specs[0][0], None


def _unequal(path: str, readings: list[SceneReading]) -> tuple[tuple[int, str], tuple[int, str]]:
    specs = [(reading.index, field.spec) for reading in readings for field in reading.fields if field.path == path]
    return specs[0], next(spec for spec in specs if spec[1] != specs[0][1])


def finite(case: Case) -> str:
    """No field holds NaN or infinity."""
    seen = case.survey
    first = next((one for one in (*case.readings, *seen.first.values()) if one.not_finite), None)
    if first is None:
        return f"none in {_read_text(case)}"
    field = next(field for field in first.fields if field.not_finite)
    count = seen.faults["not_finite"]
    more = f" ({count} of the {seen.count} scenes read hold some)" if count > 1 else ""
    text = f"scene {first.index}, field {field.path!r}: {field.not_finite}{more}"
    raise failed(text, index=first.index, field=field.path)


def own_arrays(case: Case) -> str:
    """A returned array does not change when another scene is read."""
    views = case.call(_reused, plan=case.good)
    if views and not is_in_memory(case.sequence):
        return (
            f"returned arrays do not change; field {', '.join(map(repr, views))} is a view of data in the "
            "sequence, so a function that writes into it would change the data"
        )
    return "returned arrays do not change"


def _reused(reader: Reader, *, plan: list[int]) -> list[str]:
    """Return the fields that are views of arrays of the sequence."""
    first = plan[0]
    held = reader.scene(first)
    before = reading_of(first, held)
    for index in [*plan[1:4], first]:
        other = reader.scene(index)
        compare([before], [reading_of(first, held)], "as it was returned", f"once scene {index} was read")
    return [
        field.path
        for field, one, two in zip(before.fields, flatten(held)[0], flatten(other)[0], strict=True)
        if isinstance(one, np.ndarray) and one.flags.writeable and np.may_share_memory(one, two)
    ]


def global_random(case: Case) -> str:
    """No scene uses the global generators of `random` and `numpy.random`."""
    drawn: tuple[int, int] | None = case.call(_draws, plan=case.good)
    if drawn is None:
        return f"not used by {pluralize(len(case.good), 'scene')}"
    index, used = drawn
    if not used:
        raise skipped("other threads of this program draw from the global generators")
    raise failed(f"scene {index} draws from, or seeds, the global generators of {names(used)}", index=index)


def _draws(reader: Reader, *, plan: list[int]) -> tuple[int, int] | None:
    # Use different seeds first, because scenes that all set one seed leave the generators in the same state.
    with generators_put_back():
        seed_globals(np.random.SeedSequence(reader.seed))
        watch = RandomWatch()
        for index in plan:
            reader.scene(index)
            used = watch.used()
            if used:
                idle = RandomWatch()
                time.sleep(_IDLE_SECONDS)
                return index, used & ~idle.used()
    return None
