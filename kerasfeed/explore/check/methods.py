"""Checks of `get_batch` and `read_into` against `__getitem__`.

Invariant: methods are called as feeds call them.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from kerasfeed.explore.check.case import Case
from kerasfeed.explore.check.reading import Reader, SceneReading, compare, reading_of
from kerasfeed.explore.check.result import Finding, failed, skipped, warned
from kerasfeed.sequences.optional_methods import batch_reader, optional_method, scene_writer, takes_out
from kerasfeed.spec.nesting import flatten, structure_text
from kerasfeed.spec.scene_spec import SceneSpec
from kerasfeed.util.error_text import exception_text, is_the_programs

_UNWRITTEN = 0xA5
_MOST_SHOWN = 16


def get_batch(case: Case) -> str:
    """`get_batch` returns the rows of `__getitem__` for any indices."""
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
def _raises_nothing(name: str, index: int, more: str = "") -> Iterator[None]:
    """Fail the check if the user's method `name` raises."""
    try:
        yield
    except BaseException as error:
        if isinstance(error, Finding) or is_the_programs(error):
            raise
        raise failed(f"{name} raises {exception_text(error)}{more}", index=index) from error


def _rows(name: str, first: int, batch: Any, spec: SceneSpec, count: int) -> list[Any]:
    """Split a batch, returned or written by `name`, into scenes."""
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
    """Compare a scene with its reading; dtypes of Python numbers may differ."""
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
        raise skipped("feeds do not call it, because a field differs in shape or is text")
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


def _shown(indices: list[int]) -> str:
    """Indices as text; only the first if there are many."""
    if len(indices) <= _MOST_SHOWN:
        return str(indices)
    return f"[{', '.join(map(str, indices[: _MOST_SHOWN // 2]))}, ... {len(indices)} indices]"


def _absent(sequence: Any, name: str) -> Finding:
    if optional_method(sequence, name) is None:
        return skipped(f"the class does not define {name}")
    if name == "read_into":
        return warned("read_into is never called: it has no parameter named out", remedy="Write read_into(index, out)")
    return warned(
        f"{name} is never called: the class is not a kerasfeed.SceneSequence",
        remedy="Subclass kerasfeed.SceneSequence",
    )
