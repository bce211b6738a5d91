"""Rows of a batch put together from what several calls return.

Invariant: a row is copied bit for bit or refused. Nothing is rounded and no shape is broadcast, so that a batch put
together here is what stacking its scenes would give.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.errors import SpecError
from kerasfeed.spec.field_values import as_array
from kerasfeed.spec.nesting import field_paths, flatten, structure_text
from kerasfeed.spec.scene_spec import ArraySpec, SceneSpec
from kerasfeed.spec.spec_json import coerced_leaves

_PYTHON_DTYPES = {np.dtype(kind) for kind in (bool, int, float, complex)}


class Gatherer:
    """Puts the rows of one batch together.

    Args:
        count: Rows of the batch, at least 1.
        out: Where they go, nested as a scene, each field with a leading axis of `count`; None makes new arrays.
    """

    def __init__(self, count: int, out: Any = None) -> None:
        self._count = count
        self._given = out is not None
        self._leaves: list[Any] = []
        self._treespec: Any = None
        if out is not None:
            self._leaves, self._treespec = flatten(out)

    def target(self, rows: NDArray[np.int64]) -> Any:
        """Views of rows of `out`, nested; None where there is no `out`, or the rows are not neighbours in order."""
        if not self._given or not bool((np.diff(rows) == 1).all()):
            return None
        start, stop = int(rows[0]), int(rows[-1]) + 1
        return self._treespec.unflatten([leaf[start:stop] for leaf in self._leaves])

    def put(self, rows: NDArray[np.int64], batch: Any, source: str) -> None:
        """Copy a batch of `len(rows)` scenes that `source` returned to these rows.

        Raises:
            SpecError: It is nested otherwise, has another number of rows, or a shape or dtype that differs from that
                of the rows before.
        """
        leaves, treespec = flatten(batch)
        if self._treespec is None:
            self._leaves, self._treespec = [None] * len(leaves), treespec
        if treespec != self._treespec:
            raise SpecError(
                f"get_batch of {source} returned the structure {structure_text(treespec)}, the other parts have "
                f"{structure_text(self._treespec)}. All parts must return the same nesting"
            )
        for number, (path, leaf) in enumerate(zip(field_paths(treespec), leaves, strict=True)):
            array = as_array(leaf, path)
            if isinstance(array, str | bytes) or not array.ndim or len(array) != len(rows):
                raise SpecError(
                    f"get_batch of {source}, field {path!r}: expected a leading axis of {len(rows)}, one row an index, "
                    f"received shape {getattr(array, 'shape', ())}"
                )
            self._leaves[number] = self._room(self._leaves[number], array, path, source)
            self._leaves[number][rows] = array

    def _room(self, held: Any, array: NDArray[Any], path: str, source: str) -> Any:
        if held is None:
            return np.empty((self._count, *array.shape[1:]), array.dtype.newbyteorder("="))
        if held.shape[1:] != array.shape[1:]:
            raise SpecError(
                f"field {path!r}: the scenes of {source} have the shape {array.shape[1:]}, the others "
                f"{held.shape[1:]}. Scenes that are read together must have one shape"
            )
        dtype = array.dtype.newbyteorder("=")
        if held.dtype == dtype:
            return held
        return held if self._given and _fits(dtype, held.dtype) else self._promoted(held, dtype, path, source)

    def _promoted(self, held: Any, dtype: np.dtype[Any], path: str, source: str) -> Any:
        if self._given or not (_fits(dtype, held.dtype) or _fits(held.dtype, dtype)):
            raise SpecError(
                f"field {path!r}: the scenes of {source} have dtype {dtype}, the others {held.dtype}. Return one dtype "
                "for every scene"
            )
        return held.astype(np.result_type(held.dtype, dtype))

    def result(self) -> Any:
        """The batch."""
        return self._treespec.unflatten(self._leaves)


def _fits(dtype: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Whether values may become `wanted`: text of any length, and what NumPy makes of Python's own numbers."""
    if dtype.kind == wanted.kind and dtype.kind in "SU":
        return True
    if {dtype.kind, wanted.kind} <= {"U", "O"}:
        return True
    return {dtype, wanted} <= _PYTHON_DTYPES and np.can_cast(dtype, wanted, "safe")


def put_scene(scene: Any, out: Any) -> None:
    """Write a scene into its place in a batch.

    Args:
        scene: The scene.
        out: Nested as the scene, a writable array for each field.

    Raises:
        SpecError: Nesting, shape or dtype differ.
    """
    targets, treespec = flatten(out)
    spec = SceneSpec(treespec, tuple(ArraySpec(target.shape, target.dtype) for target in targets))
    for target, value in zip(targets, coerced_leaves(spec, scene), strict=True):
        target[...] = value


def take_rows(array: NDArray[Any], indices: NDArray[np.int64], out: Any = None) -> Any:
    """Rows of an array; into `out`, where that is given and of the array's dtype."""
    if out is None or out.dtype != array.dtype or not out.flags.c_contiguous:
        return array[indices]
    np.take(array, indices, axis=0, out=out, mode="clip")  # with "raise" NumPy goes through a copy
    return None


def pieces_of(
    which: NDArray[np.int64], inner: NDArray[np.int64], outer: NDArray[np.int64]
) -> list[tuple[int, NDArray[np.int64]]]:
    """Rows that can be read in one call each: of one part, and no scene of it twice for different places.

    Args:
        which: int64[B], part of each row.
        inner: int64[B], index in that part.
        outer: int64[B], index in the view.

    Returns:
        Pairs of part and rows, int64[K] in ascending order; every row of [0, B) in one of them.
    """
    pieces = []
    for part in np.unique(which).tolist():
        rows = np.flatnonzero(which == part)
        turn = _turns(inner[rows], outer[rows])
        pieces += [(part, rows[turn == number]) for number in range(int(turn.max()) + 1)]
    return pieces


def _turns(inner: NDArray[np.int64], outer: NDArray[np.int64]) -> NDArray[np.int64]:
    """For each row in which call it is read: how many other places of its scene come before its own."""
    turns = np.zeros(len(inner), np.int64)
    if len(np.unique(inner)) == len(inner):
        return turns
    places: dict[int, dict[int, int]] = {}
    for row, (scene, place) in enumerate(zip(inner.tolist(), outer.tolist(), strict=True)):
        seen = places.setdefault(scene, {})
        turns[row] = seen.setdefault(place, len(seen))
    return turns
