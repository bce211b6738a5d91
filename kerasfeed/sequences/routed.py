"""`Routed`: views that take each scene from one of their parts.

Invariant: `get_batch` and `read_into` return the same bits as `__getitem__`, whichever of them a part has. A row of a
batch is copied bit for bit or refused: nothing is rounded and no shape is broadcast.
"""

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.errors import SpecError
from kerasfeed.sequences.context import current_context
from kerasfeed.sequences.indexing import position_in
from kerasfeed.sequences.optional_methods import scene_writer, takes_out
from kerasfeed.sequences.view_base import View, part_reader
from kerasfeed.spec.field_values import as_array
from kerasfeed.spec.nesting import field_paths, flatten, structure_text
from kerasfeed.spec.scene_spec import ArraySpec, SceneSpec
from kerasfeed.spec.spec_json import coerced_leaves
from kerasfeed.util.error_text import class_name

_PYTHON_DTYPES = {np.dtype(kind) for kind in (bool, int, float, complex)}


class Routed(View):
    """A view whose scenes are each one scene of one part."""

    @abstractmethod
    def _route(self, position: int) -> tuple[int, int]:
        """Return part, and index in it, of scene `position` in [0, len(self))."""

    @abstractmethod
    def _routes(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return parts, and indices in them, of many scenes: int64[B] each."""

    def __getitem__(self, index: int | slice) -> Any:
        """Return scene `index`; negative indices count from the end.

        Raises:
            IndexError: `index` is out of range.
            Exception: The sequence inside raised it; a note has its name and the index there.
        """
        position = position_in(index, self)
        part, inner = self._route(position)
        try:
            return self._parts[part][inner]
        except Exception as error:
            self._add_note(error, part, [inner], [position])
            raise

    def read_into(self, index: int, out: Any) -> None:
        """Write the scene at `index` into `out`; see `SceneSequence`."""
        position = position_in(index, self)
        part, inner = self._route(position)
        with self._reading(part, [inner], [position]):
            write_scene(self._parts[part], inner, out)

    def get_batch(self, indices: NDArray[np.int64], out: Any = None) -> Any:
        """Return the scenes at `indices`, int64[B] in [0, len(self)); see `SceneSequence`."""
        positions = np.asarray(indices, np.int64)
        which, inner = self._routes(positions)
        pieces = _pieces_of(which, inner, positions)
        if len(pieces) == 1:  # it has all rows
            return self._read_piece(pieces[0][0], inner, positions, out)
        gatherer = _Gatherer(len(positions), out)
        for part, rows in pieces:
            target = gatherer.target(rows)
            batch = self._read_piece(part, inner[rows], positions[rows], target)
            if batch is not None:
                gatherer.put(rows, batch, class_name(self._parts[part]))
        return gatherer.result() if out is None else None

    def _read_piece(self, part: int, inner: NDArray[np.int64], positions: NDArray[np.int64], out: Any) -> Any:
        context = current_context()
        moved = nullcontext() if context is None else context.inside(positions.tolist(), inner.tolist())
        try:
            with moved:
                return read_many(self._parts[part], inner, out)
        except Exception as error:
            self._add_note(error, part, inner, positions)
            raise

    def _scenes_inside(self, positions: NDArray[np.int64]) -> Iterator[tuple[Any, NDArray[np.int64]]]:
        which, inner = self._routes(positions)
        return ((self._parts[part], np.unique(inner[which == part])) for part in np.unique(which).tolist())


def write_scene(part: Any, index: int, out: Any) -> None:
    """Write scene `index` of a part into `out`, nested like the scene."""
    writer = scene_writer(part)
    if writer is None:
        _put_scene(part[index], out)
    else:
        writer(index, out)


def read_many(part: Any, indices: NDArray[np.int64], out: Any) -> Any:
    """Call the `get_batch` of a part, with `out` if it accepts that.

    Return None if the batch is in `out`.
    """
    reader = part_reader(part)
    assert reader is not None
    return reader(indices, out=out) if out is not None and takes_out(reader) else reader(indices)


class _Gatherer:
    """The rows of one batch, from several parts.

    Args:
        count: Rows of the batch, at least 1.
        out: The batch's memory, nested like a scene, each field with a leading axis of `count`; None makes new arrays.
    """

    def __init__(self, count: int, out: Any) -> None:
        self._count = count
        self._has_out = out is not None
        self._leaves: list[Any] = []
        self._treespec: Any = None
        if out is not None:
            self._leaves, self._treespec = flatten(out)

    def target(self, rows: NDArray[np.int64]) -> Any:
        """Return nested views of rows of `out`.

        None without `out`, or if the rows are not consecutive.
        """
        start, stop = int(rows[0]), int(rows[-1]) + 1  # rows ascend
        if not self._has_out or stop - start > len(rows):
            return None
        return self._treespec.unflatten([leaf[start:stop] for leaf in self._leaves])

    def put(self, rows: NDArray[np.int64], batch: Any, source: str) -> None:
        """Copy a batch from `source`, of `len(rows)` scenes, into these rows.

        Raises:
            SpecError: Its nesting, number of rows, shape or dtype does not match the other rows.
        """
        leaves, treespec = flatten(batch)
        if self._treespec is None:
            self._leaves, self._treespec = [None] * len(leaves), treespec
        if treespec != self._treespec:
            raise SpecError(
                f"get_batch of {source} returned the structure {structure_text(treespec)}, but the other parts have "
                f"{structure_text(self._treespec)}. All parts must return the same nesting"
            )
        for number, (path, leaf) in enumerate(zip(field_paths(treespec), leaves, strict=True)):
            array = as_array(leaf, path)
            if isinstance(array, str | bytes) or not array.ndim or len(array) != len(rows):
                raise SpecError(
                    f"get_batch of {source}, field {path!r}: expected a leading axis of {len(rows)}, one row per "
                    f"index, received shape {getattr(array, 'shape', ())}"
                )
            self._leaves[number] = self._room(self._leaves[number], array, path, source)
            self._leaves[number][rows] = array

    def _room(self, target: Any, array: NDArray[Any], path: str, source: str) -> Any:
        if target is None:
            return np.empty((self._count, *array.shape[1:]), array.dtype.newbyteorder("="))
        if target.shape[1:] != array.shape[1:]:
            raise SpecError(
                f"field {path!r}: the scenes of {source} have the shape {array.shape[1:]}, but the others have "
                f"{target.shape[1:]}. Scenes that are read together must have one shape"
            )
        dtype = array.dtype.newbyteorder("=")
        if target.dtype == dtype or (self._has_out and _fits(dtype, target.dtype)):
            return target
        if self._has_out or not (_fits(dtype, target.dtype) or _fits(target.dtype, dtype)):
            raise SpecError(
                f"field {path!r}: the scenes of {source} have dtype {dtype}, but the others have {target.dtype}. "
                "Return one dtype for every scene"
            )
        return target.astype(np.result_type(target.dtype, dtype))

    def result(self) -> Any:
        """Return the batch."""
        return self._treespec.unflatten(self._leaves)


def _fits(dtype: np.dtype[Any], wanted: np.dtype[Any]) -> bool:
    """Whether values may become `wanted`: only text and Python's numbers may."""
    if dtype.kind == wanted.kind and dtype.kind in "SU":
        return True
    if {dtype.kind, wanted.kind} <= {"U", "O"}:
        return True
    return {dtype, wanted} <= _PYTHON_DTYPES and np.can_cast(dtype, wanted, "safe")


def _put_scene(scene: Any, out: Any) -> None:
    """Write a scene into its memory in a batch.

    Args:
        scene: The scene.
        out: Nested like the scene, a writable array for each field.

    Raises:
        SpecError: Nesting, shape or dtype differ.
    """
    targets, treespec = flatten(out)
    spec = SceneSpec(treespec, tuple(ArraySpec(target.shape, target.dtype) for target in targets))
    for target, value in zip(targets, coerced_leaves(spec, scene), strict=True):
        target[...] = value


def _pieces_of(
    which: NDArray[np.int64], inner: NDArray[np.int64], outer: NDArray[np.int64]
) -> list[tuple[int, NDArray[np.int64]]]:
    """Divide rows into pieces, so that one call can read each piece.

    Args:
        which: int64[B], part of each row.
        inner: int64[B], index in that part.
        outer: int64[B], index in the view.

    Returns:
        Pairs of part and rows, int64[K] in ascending order; every row of [0, B) is in one of them.
    """
    order = np.argsort(which, kind="stable")
    ends = np.flatnonzero(np.diff(which[order], append=-1)) + 1
    pieces, start = [], 0
    for end in ends.tolist():
        rows, start = order[start:end], end
        part = int(which[rows[0]])
        turn = _turns(inner[rows], outer[rows]) if len(rows) > 1 else None
        if turn is None or not turn.any():
            pieces.append((part, rows))
        else:
            pieces += [(part, rows[turn == number]) for number in range(int(turn.max()) + 1)]
    return pieces


def _turns(inner: NDArray[np.int64], outer: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of the call that reads each row, from 0.

    Random numbers depend on the index in the view, so one call reads a scene for only one such index. If a scene occurs
    at several indices, call 0 reads it for the first one, call 1 for the second, and so on.
    """
    turns = np.zeros(len(inner), np.int64)
    if len(np.unique(inner)) == len(inner):
        return turns
    calls: dict[int, dict[int, int]] = {}
    for row, (scene, index) in enumerate(zip(inner.tolist(), outer.tolist(), strict=True)):
        seen = calls.setdefault(scene, {})
        turns[row] = seen.setdefault(index, len(seen))
    return turns
