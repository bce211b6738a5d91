"""Checks of the optional methods, each against `__getitem__`, of views, and of hooks.

Invariant: methods are called as feeds call them, and hooks as pools and feeds do.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from kerasfeed.explore.checks.case import Case, length_of
from kerasfeed.explore.checks.growth import descriptors_open
from kerasfeed.explore.checks.reading import Reader, SceneReading, compare, reading_of
from kerasfeed.explore.checks.result import Finding, failed, skipped, warned
from kerasfeed.sequences.base import SceneSequence, Subset
from kerasfeed.sequences.context import Worker
from kerasfeed.sequences.optional_methods import ahead_reader, batch_reader, optional_method, scene_writer, takes_out
from kerasfeed.sequences.view_base import apart
from kerasfeed.spec.nesting import flatten, structure_text
from kerasfeed.spec.scene_spec import SceneSpec
from kerasfeed.util.error_text import exception_text, is_the_programs

_UNWRITTEN = 0xA5
_AHEAD_SECONDS = 0.05
_MOST_SHOWN = 16
_HOOKS = ("on_worker_begin", "on_worker_end", "on_epoch_begin", "on_epoch_end")
_ROUNDS = 3


def get_batch(case: Case) -> str:
    """`get_batch` gives the rows that `__getitem__` gives, for indices in any order, also several times."""
    if batch_reader(case.sequence) is None:
        raise _absent(case.sequence, "get_batch")
    good = case.good
    stackable = all(None not in field.shape for field in case.spec.fields)
    shuffled = np.random.default_rng(case.seed).permutation(good).tolist()
    batches = [good, good[::-1], [*shuffled, shuffled[0]]] if stackable else [[index] for index in good]
    case.call(_batches, batches=batches, expected=case.readings, spec=case.spec)
    return f"{len(batches)} batches, in ascending, descending and random order"


def _batches(reader: Reader, *, batches: list[list[int]], expected: list[SceneReading], spec: SceneSpec) -> None:
    method = batch_reader(reader.sequence)
    assert method is not None
    by_index = {reading.index: reading for reading in expected}
    ways = [False, True] if takes_out(method) and _is_fixed(spec) else [False]
    for chosen in batches:
        indices = np.array(chosen, np.int64)
        for with_out in ways:
            name = f"get_batch({_shown(chosen)}{', out=...' if with_out else ''})"
            out = spec.unflatten(_unwritten(spec, (len(chosen),))) if with_out else None
            keywords = {"out": out} if with_out else {}
            with _raises_nothing(name, chosen[0], "; sequence[index] does not"):
                batch = reader.within(None, partial(method, indices.copy(), **keywords), chosen[0])
                rows = _rows(name, chosen[0], out if batch is None else batch, spec, len(chosen))
            for index, scene in zip(chosen, rows, strict=True):
                _compare(by_index[index], scene, spec, f"as sequence[{index}]", f"from {name}")


@contextmanager
def _raises_nothing(name: str, index: int | None = None, more: str = "") -> Iterator[None]:
    """Around a call of the user's method `name`, which fails the check where it raises."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, Finding) or is_the_programs(error):
            raise
        raise failed(f"{name} raises {exception_text(error)}{more}", index=index) from error


def _rows(name: str, first: int, batch: Any, spec: SceneSpec, count: int) -> list[Any]:
    """The scenes that a batch is made of, which `name` has returned, or written."""
    if batch is None:
        raise failed(f"{name} returns None", index=first)
    leaves, treespec = flatten(batch)
    if treespec != spec.treespec:
        texts = f"returns {structure_text(treespec)}, and a scene is {structure_text(spec.treespec)}"
        raise failed(f"{name} {texts}", index=first)
    for path, leaf in zip(spec.paths, leaves, strict=True):
        size = len(leaf) if hasattr(type(leaf), "__len__") and np.ndim(leaf) else None
        if size != count:
            rows = "no axis" if size is None else f"{size} rows"
            raise failed(f"{name} returns {rows} in field {path!r} for {count} scenes", index=first)
    return [spec.unflatten([leaf[row] for leaf in leaves]) for row in range(count)]


def _compare(expected: SceneReading, scene: Any, spec: SceneSpec, before: str, now: str) -> None:
    """Compare a scene with how it was read; Python numbers may come back as any dtype that holds them."""
    assert expected.spec is not None
    leaves = [
        _as_number(leaf, field.dtype) if field.weak else leaf
        for leaf, field in zip(flatten(scene)[0], expected.spec.fields, strict=True)
    ]
    compare([expected], [reading_of(expected.index, spec.unflatten(leaves))], before, now)


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


def read_into(case: Case) -> str:
    """`read_into` writes every element of the scene."""
    if scene_writer(case.sequence) is None:
        raise _absent(case.sequence, "read_into")
    if not _is_fixed(case.spec):
        raise skipped("it is not used, for a field differs in shape or is text")
    case.call(_written, expected=case.readings, spec=case.spec)
    return f"{len(case.readings)} scenes, written as __getitem__ returns them"


def _written(reader: Reader, *, expected: list[SceneReading], spec: SceneSpec) -> None:
    method = scene_writer(reader.sequence)
    assert method is not None
    for one in expected:
        out = _unwritten(spec)
        with _raises_nothing(f"read_into({one.index}, out)", one.index):
            reader.within(one.index, partial(method, one.index, spec.unflatten(out)), one.index)
        scene = spec.unflatten([array[()] if array.ndim == 0 else array for array in out])
        _compare(one, scene, spec, "from __getitem__", "written by read_into")


def read_ahead(case: Case) -> str:
    """`read_ahead` returns at once, and changes no scene."""
    if ahead_reader(case.sequence) is None:
        raise _absent(case.sequence, "read_ahead")
    return case.call(_announced, expected=case.readings)  # type: ignore[no-any-return]


def _announced(reader: Reader, *, expected: list[SceneReading]) -> str:
    method = ahead_reader(reader.sequence)
    assert method is not None
    indices = np.array([one.index for one in expected], np.int64)
    first, name = expected[0].index, f"read_ahead({_shown(indices.tolist())})"
    begun = time.perf_counter()
    with _raises_nothing(name, first):
        reader.within(None, partial(method, indices.copy()), first)
    seconds = time.perf_counter() - begun
    compare(expected, [reader.read(one.index) for one in expected], "before read_ahead", "after read_ahead")
    reading = sum(one.seconds for one in expected)
    text = f"{1e3 * seconds:,.3g} ms for {len(expected)} scenes that take {1e3 * reading:,.3g} ms to read"
    if seconds > max(_AHEAD_SECONDS, 0.5 * reading):
        raise warned(f"{name} takes {text}", index=first)
    return text


def views(case: Case) -> str:
    """Views of the sequence, and a loop over it, have its scenes."""
    if not hasattr(type(case.sequence), "__len__"):
        raise skipped("views need a __len__, and the class says num_batches alone")
    case.call(_viewed, plan=[case.good[-1], case.good[0], case.good[-1]], length=case.length)
    return "kf.Subset, which a slice is, has its scenes"


def _viewed(reader: Reader, *, plan: list[int], length: int) -> None:
    sequence = reader.sequence
    of_view = reader.of(Subset(sequence, plan))
    for number, index in enumerate(plan):
        # Its random numbers are those of the place in the view.
        expected, other = reader.read(index, number), replace(of_view.read(number), index=index)
        compare([expected], [other], f"as sequence[{index}]", f"as kf.Subset(sequence, {plan})[{number}]")
    own = getattr(type(sequence), "__iter__", None)
    if own is None or own is SceneSequence.__iter__:
        return
    scenes = reader.within(0, lambda: iter(sequence), 0)
    for index in range(min(2, length)):
        other = reader.taken(index, partial(reader.within, index, partial(next, scenes), index))
        compare([reader.read(index)], [other], f"as sequence[{index}]", "from `for scene in sequence`")


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


def hooks(case: Case) -> str:
    """Hooks take the arguments that they get, may be called again, and free what they have opened."""
    present = [name for name in _HOOKS if optional_method(case.sequence, name) is not None]
    if not present:
        raise skipped("the class defines no hooks")
    try:
        index = case.good[0] if case.good else None
    except Finding:  # of on_worker_begin, perhaps; else another check says so
        index = None
    case.call(_hooked, apart(case.sequence), hooks=False, index=index, length=case.length)
    return ", ".join(present)


def _hooked(reader: Reader, *, index: int | None, length: int) -> None:
    _begin_again(reader, index)
    _share(reader, index)
    _pass_epochs(reader.sequence, length)


def _call(sequence: Any, name: str, *arguments: Any, when: str = "") -> None:
    hook = optional_method(sequence, name)
    if hook is None:
        return
    with _raises_nothing(name, more=when):
        hook(*arguments)


def _begin_again(reader: Reader, index: int | None) -> None:
    """As a worker does that takes the place of another."""
    sequence, before = reader.sequence, descriptors_open()
    for number in range(_ROUNDS):
        when = " when it is called again, after on_worker_end" if number else ""
        _call(sequence, "on_worker_begin", Worker(0, 1, "thread"), when=when)
        if index is not None and (trouble := reader.read(index).error):
            raise failed(
                f"scene {index} raises {trouble} after on_worker_begin{when and ' was called again'}", index=index
            )
        _call(sequence, "on_worker_end", when=when)
    left = descriptors_open() - before
    if left >= _ROUNDS:
        missing = "" if optional_method(sequence, "on_worker_end") else "; the class has no on_worker_end"
        raise failed(
            f"{left} descriptors stay open after {_ROUNDS} calls of on_worker_begin and on_worker_end{missing}",
            remedy="Close in on_worker_end what on_worker_begin opens",
        )


def _share(reader: Reader, index: int | None) -> None:
    """As worker threads do, which share the sequence, and two feeds of it."""
    sequence = reader.sequence
    when = " when two worker threads call it one after the other"
    for number in range(2):
        _call(sequence, "on_worker_begin", Worker(number, 2, "thread"), when=when)
    _call(sequence, "on_worker_end")
    trouble = "" if index is None else reader.read(index).error
    _call(sequence, "on_worker_end", when=when)
    if trouble:
        raise warned(
            f"when one of two worker threads has ended, scene {index} raises {trouble} in the other",
            index=index,
            remedy="Count how often on_worker_begin was called, and free with the last on_worker_end; or keep what is "
            "open for each process, as kerasfeed.HDF5File does; or use worker processes",
        )


def _pass_epochs(sequence: Any, length: int) -> None:
    for number in range(2):
        when = f" in epoch {number}"
        _call(sequence, "on_epoch_begin", when=when)
        _call(sequence, "on_epoch_end", when=when)
    if length_of(sequence) != length:
        raise failed(
            f"len(sequence) was {length:,}, and is {length_of(sequence):,} after on_epoch_begin and on_epoch_end",
            remedy="Keep the length: a feed is as long as its sequence was when it was made",
        )
