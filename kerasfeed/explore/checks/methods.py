"""Checks of the optional methods, each against `__getitem__`, of views, and of hooks.

Invariant: methods are called as feeds call them, and hooks as pools and feeds do.
"""

import time
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from kerasfeed.errors import KerasfeedError
from kerasfeed.explore.checks.case import Case, length_of
from kerasfeed.explore.checks.growth import descriptors_open
from kerasfeed.explore.checks.reading import Reader, SceneReading, difference, first, reading_of
from kerasfeed.explore.checks.result import Finding, failed, passed, skipped, warned
from kerasfeed.sequences.base import SceneSequence, Subset
from kerasfeed.sequences.context import Worker
from kerasfeed.sequences.view_base import apart
from kerasfeed.spec.nesting import flatten, structure_text
from kerasfeed.spec.scene_spec import SceneSpec
from kerasfeed.util.error_text import exception_text, is_the_programs, message_of
from kerasfeed.util.optional_methods import ahead_reader, batch_reader, optional_method, scene_writer, takes_out

_UNWRITTEN = 0xA5
_AHEAD_SECONDS = 0.05
_MOST_SHOWN = 16
_HOOKS = ("on_worker_begin", "on_worker_end", "on_epoch_begin", "on_epoch_end")
_ROUNDS = 3


def get_batch(case: Case) -> Finding:
    """`get_batch` gives the rows that `__getitem__` gives, for indices in any order, also several times."""
    if batch_reader(case.sequence) is None:
        return _absent(case.sequence, "get_batch")
    good = case.good
    stackable = all(None not in field.shape for field in case.spec.fields)
    shuffled = np.random.default_rng(case.seed).permutation(good).tolist()
    batches = [good, good[::-1], [*shuffled, shuffled[0]]] if stackable else [[index] for index in good]
    finding = case.call(_batches, batches=batches, expected=case.readings, spec=case.spec)
    return finding or passed(f"{len(batches)} batches, in ascending, descending and random order")


def _batches(
    reader: Reader, *, batches: list[list[int]], expected: list[SceneReading], spec: SceneSpec
) -> Finding | None:
    method = batch_reader(reader.sequence)
    assert method is not None
    by_index = {reading.index: reading for reading in expected}
    ways = [False, True] if takes_out(method) and _is_fixed(spec) else [False]
    for chosen in batches:
        indices = np.array(chosen, np.int64)
        for with_out in ways:
            called = f"get_batch({_shown(chosen)}{', out=...' if with_out else ''})"
            out = spec.unflatten(_unwritten(spec, (len(chosen),))) if with_out else None
            keywords = {"out": out} if with_out else {}
            try:
                batch = reader.within(None, partial(method, indices.copy(), **keywords), chosen[0])
                rows = _rows(batch, out, spec, len(chosen))
            except BaseException as error:
                if is_the_programs(error):
                    raise
                return failed(f"{called} raises {exception_text(error)}; sequence[index] does not", index=chosen[0])
            if isinstance(rows, str):
                return failed(f"{called} {rows}", index=chosen[0])
            finding = first(
                _compared(by_index[index], scene, spec, f"as sequence[{index}]", f"from {called}")
                for index, scene in zip(chosen, rows, strict=True)
            )
            if finding is not None:
                return finding
    return None


def _rows(batch: Any, out: Any, spec: SceneSpec, count: int) -> list[Any] | str:
    """The scenes that a batch is made of; text, where it is none."""
    targets = None if out is None else flatten(out)[0]
    if batch is None:
        if targets is None:
            return "returns None"
        leaves = targets
    else:
        leaves, treespec = flatten(batch)
        if treespec != spec.treespec:
            return f"returns {structure_text(treespec)}, and a scene is {structure_text(spec.treespec)}"
        for path, leaf in zip(spec.paths, leaves, strict=True):
            size = len(leaf) if hasattr(type(leaf), "__len__") and np.ndim(leaf) else None
            if size != count:
                return f"returns {'no axis' if size is None else f'{size} rows'} in field {path!r} for {count} scenes"
    return [spec.unflatten([leaf[row] for leaf in leaves]) for row in range(count)]


def _compared(expected: SceneReading, scene: Any, spec: SceneSpec, before: str, now: str) -> Finding | None:
    """What tells a scene apart from how it was read; Python numbers may come back as any dtype that holds them."""
    assert expected.spec is not None
    leaves = [
        _as_number(leaf, field.dtype) if field.weak else leaf
        for leaf, field in zip(flatten(scene)[0], expected.spec.fields, strict=True)
    ]
    return difference(expected, reading_of(expected.index, spec.unflatten(leaves)), before, now)


def _as_number(leaf: Any, dtype: np.dtype[Any]) -> Any:
    cast = np.asarray(leaf).astype(dtype)
    return cast if np.array_equal(cast, leaf) else leaf


def _is_fixed(spec: SceneSpec) -> bool:
    return all(field.is_fixed for field in spec.fields)


def _unwritten(spec: SceneSpec, rows: tuple[int, ...] = ()) -> list[Any]:
    arrays = [np.zeros((*rows, *(size or 0 for size in field.shape)), field.dtype) for field in spec.fields]
    for array in arrays:
        array.reshape(-1).view(np.uint8)[...] = _UNWRITTEN
    return arrays


def read_into(case: Case) -> Finding:
    """`read_into` writes every element of the scene."""
    if scene_writer(case.sequence) is None:
        return _absent(case.sequence, "read_into")
    if not _is_fixed(case.spec):
        return skipped("it is not used, for a field differs in shape or is text")
    finding = case.call(_written, expected=case.readings, spec=case.spec)
    return finding or passed(f"{len(case.readings)} scenes, written as __getitem__ returns them")


def _written(reader: Reader, *, expected: list[SceneReading], spec: SceneSpec) -> Finding | None:
    method = scene_writer(reader.sequence)
    assert method is not None
    for one in expected:
        out = _unwritten(spec)
        try:
            reader.within(one.index, partial(method, one.index, spec.unflatten(out)), one.index)
        except BaseException as error:
            if is_the_programs(error):
                raise
            return failed(f"read_into({one.index}, out) raises {exception_text(error)}", index=one.index)
        scene = spec.unflatten([array[()] if array.ndim == 0 else array for array in out])
        finding = _compared(one, scene, spec, "from __getitem__", "written by read_into")
        if finding is not None:
            return finding
    return None


def read_ahead(case: Case) -> Finding:
    """`read_ahead` returns at once, and changes no scene."""
    if ahead_reader(case.sequence) is None:
        return _absent(case.sequence, "read_ahead")
    return case.call(_announced, expected=case.readings)  # type: ignore[no-any-return]


def _announced(reader: Reader, *, expected: list[SceneReading]) -> Finding:
    method = ahead_reader(reader.sequence)
    assert method is not None
    indices = np.array([one.index for one in expected], np.int64)
    begun = time.perf_counter()
    try:
        reader.within(None, partial(method, indices.copy()), int(indices[0]))
    except BaseException as error:
        if is_the_programs(error):
            raise
        return failed(f"read_ahead({_shown(indices.tolist())}) raises {exception_text(error)}", index=int(indices[0]))
    seconds = time.perf_counter() - begun
    now = "before read_ahead", "after read_ahead"
    finding = first(difference(one, reader.read(one.index), *now) for one in expected)
    if finding is not None:
        return finding
    reading = sum(one.seconds for one in expected)
    text = f"{1e3 * seconds:,.3g} ms for {len(expected)} scenes that take {1e3 * reading:,.3g} ms to read"
    if seconds > max(_AHEAD_SECONDS, 0.5 * reading):
        return warned(f"read_ahead({_shown(indices.tolist())}) takes {text}", index=int(indices[0]))
    return passed(text)


def views(case: Case) -> Finding:
    """Views of the sequence, and a loop over it, have its scenes."""
    if not hasattr(type(case.sequence), "__len__"):
        return skipped("views need a __len__, and the class says num_batches alone")
    plan = [case.good[-1], case.good[0], case.good[-1]]
    finding = case.call(_viewed, plan=plan, length=case.length)
    return finding or passed("slices and Subset have its scenes")


def _viewed(reader: Reader, *, plan: list[int], length: int) -> Finding | None:
    sequence, start = reader.sequence, max(0, plan[0] - 1)
    sliced = (
        sequence[start : start + 2]
        if isinstance(sequence, SceneSequence)
        else Subset(sequence, slice(start, start + 2))
    )
    # The view, what messages call it, and from a place in it to the scene that stands there.
    kinds: list[tuple[Any, str, dict[int, int]]] = [
        (Subset(sequence, plan), f"kf.Subset(sequence, {plan})", dict(enumerate(plan))),
        (sliced, f"sequence[{start}:{start + 2}]", {k: start + k for k in range(min(2, length - start))}),
    ]
    for view, called, in_view in kinds:
        if len(view) < len(in_view) or type(view) is tuple:
            return failed(f"{called} has {len(view)} scenes, and should have {len(in_view)}")
        of_view = reader.of(view)
        for number, index in in_view.items():
            # Its random numbers are those of the place in the view.
            expected, other = reader.read(index, number), of_view.read(number)
            finding = difference(
                expected, replace(other, index=index), f"as sequence[{index}]", f"as {called}[{number}]"
            )
            if finding is not None:
                return finding
    return _iterated(reader, length)


def _iterated(reader: Reader, length: int) -> Finding | None:
    """Whether a class's own `__iter__` goes through its scenes."""
    sequence = reader.sequence
    own = getattr(type(sequence), "__iter__", None)
    if own is None or own is SceneSequence.__iter__:
        return None
    scenes = reader.within(0, lambda: iter(sequence), 0)
    for index in range(min(2, length)):
        other = reader.taken(index, partial(reader.within, index, partial(next, scenes), index))
        finding = difference(reader.read(index), other, f"as sequence[{index}]", "from `for scene in sequence`")
        if finding is not None:
            return finding
    return None


def _shown(indices: list[int]) -> str:
    """Indices as text, of many the first."""
    if len(indices) <= _MOST_SHOWN:
        return str(indices)
    return f"[{', '.join(map(str, indices[: _MOST_SHOWN // 2]))}, ... {len(indices)} indices]"


def _absent(sequence: Any, name: str) -> Finding:
    if optional_method(sequence, name) is None:
        return skipped(f"the class does not define {name}")
    if name == "read_into":
        return warned(
            "read_into is never called, for it has no parameter named out", remedy="Write read_into(index, out)"
        )
    return warned(
        f"{name} is never called, for the class is no kerasfeed.SceneSequence",
        remedy="Subclass kerasfeed.SceneSequence",
    )


# ---- hooks


class _HookError(Exception):
    """Internal: a hook has raised; the text says which and what."""


def hooks(case: Case) -> Finding:
    """Hooks take the arguments that they get, may be called again, and free what they have opened."""
    present = [name for name in _HOOKS if optional_method(case.sequence, name) is not None]
    if not present:
        return skipped("the class defines no hooks")
    try:
        index = case.good[0] if case.good else None
    except KerasfeedError:  # of on_worker_begin, perhaps; else another check says so
        index = None
    finding: Finding | None = case.call(_hooked, apart(case.sequence), hooks=False, index=index, length=case.length)
    return finding or passed(", ".join(present))


def _hooked(reader: Reader, *, index: int | None, length: int) -> Finding | None:
    try:
        return _begun_again(reader, index) or _shared(reader, index) or _epochs(reader.sequence, length)
    except _HookError as error:
        return failed(message_of(error))


def _call(sequence: Any, name: str, *arguments: Any, when: str = "") -> None:
    hook = optional_method(sequence, name)
    if hook is None:
        return
    try:
        hook(*arguments)
    except BaseException as error:
        if is_the_programs(error):
            raise
        raise _HookError(f"{name} raises {exception_text(error)}{when}") from error


def _begun_again(reader: Reader, index: int | None) -> Finding | None:
    """As a worker does that takes the place of another."""
    sequence, before = reader.sequence, descriptors_open()
    for number in range(_ROUNDS):
        when = " when it is called again, after on_worker_end" if number else ""
        _call(sequence, "on_worker_begin", Worker(0, 1, "thread"), when=when)
        if index is not None and (trouble := reader.read(index).error):
            return failed(
                f"scene {index} raises {trouble} after on_worker_begin{when and ' was called again'}", index=index
            )
        _call(sequence, "on_worker_end", when=when)
    left = descriptors_open() - before
    if left < _ROUNDS:
        return None
    missing = "" if optional_method(sequence, "on_worker_end") else "; the class has no on_worker_end"
    return failed(
        f"{left} descriptors stay open after {_ROUNDS} calls of on_worker_begin and on_worker_end{missing}",
        remedy="Close in on_worker_end what on_worker_begin opens",
    )


def _shared(reader: Reader, index: int | None) -> Finding | None:
    """As worker threads do, which share the sequence, and two feeds of it."""
    sequence = reader.sequence
    when = " when two worker threads call it one after the other"
    for number in range(2):
        _call(sequence, "on_worker_begin", Worker(number, 2, "thread"), when=when)
    _call(sequence, "on_worker_end")
    trouble = "" if index is None else reader.read(index).error
    _call(sequence, "on_worker_end", when=when)
    if not trouble:
        return None
    return warned(
        f"when one of two worker threads has ended, scene {index} raises {trouble} in the other",
        index=index,
        remedy="Count how often on_worker_begin was called, and free with the last on_worker_end; or keep what is open "
        "for each process, as kerasfeed.HDF5File does; or use worker processes",
    )


def _epochs(sequence: Any, length: int) -> Finding | None:
    for number in range(2):
        when = f" in epoch {number}"
        _call(sequence, "on_epoch_begin", when=when)
        _call(sequence, "on_epoch_end", when=when)
    if length_of(sequence) != length:
        return failed(
            f"len(sequence) was {length:,}, and is {length_of(sequence):,} after on_epoch_begin and on_epoch_end",
            remedy="Keep the length: a feed is as long as its sequence was when it was made",
        )
    return None
