"""Rows of a batch that hold no scene: masked, or left out.

Invariant: a masked batch has the shape and structure of every other batch, and weight 0 in its blank rows. Everything
here happens in memory that the batch owns.
"""

from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.errors import SpecError
from kerasfeed.loaders.fill import Beside
from kerasfeed.loaders.layout import Layout, SlotView, aligned_empty
from kerasfeed.spec import ArraySpec, SceneSpec, describe, flatten, structure_text

WEIGHT = np.dtype(np.float32)


def check_maskable(spec: SceneSpec) -> None:
    """Refuse scenes that have no place for a weight.

    Raises:
        SpecError: A scene is not `(x, y)` or `(x, y, sample_weight)`.
    """
    scene = spec.unflatten(spec.fields)
    if type(scene) is not tuple or len(scene) not in (2, 3):
        raise SpecError(
            "on_error='mask' gives failed scenes sample_weight 0, so a scene must be (x, y) or (x, y, sample_weight); "
            f"received the structure {structure_text(spec.treespec)}. Return such a tuple, or use on_error='replace'"
        )
    for field in flatten(scene[2])[0] if len(scene) == 3 else ():
        if field.is_text or field.dtype.kind not in "biuf":
            raise SpecError(f"on_error='mask' needs a numeric sample_weight, received {field}")


def weighted(spec: SceneSpec) -> SceneSpec:
    """The spec of a masked feed's scenes: with a weight, float32[], where they bring none."""
    scene = spec.unflatten(spec.fields)
    if len(scene) == 3:
        return spec
    treespec = describe((*spec.unflatten([0] * len(spec.fields)), 0)).treespec
    return SceneSpec(treespec, (*spec.fields, ArraySpec((), WEIGHT)))


def with_weights(batch: Any, rows: int, blank: Collection[int]) -> Any:
    """A batch `(x, y)` with float32[rows] of weights, 0 in `blank`; with three parts, as it is."""
    if len(batch) == 3:
        return batch
    weights = aligned_empty((rows,), WEIGHT)
    weights[:] = 1
    weights[list(blank)] = 0
    return (*batch, weights)


def fill_blank(view: SlotView, layout: Layout, beside: Beside, rows: int, blank: Collection[int]) -> None:
    """Fill the blank rows of a slot with zeros and empty text, in the shape of the other rows."""
    whole = next((row for row in range(rows) if row not in blank), None)
    for number, field in enumerate(layout.spec.fields):
        if field.is_text:
            values = beside.setdefault(number, {})
            like = _empty_text(field, None if whole is None else values[whole])
            values.update(dict.fromkeys(blank, like))
        elif field.is_fixed:
            view.fields[number][list(blank)] = np.zeros((), field.dtype)
        else:
            _fill_sized(view, number, field, beside, whole, blank)


def _empty_text(field: ArraySpec, like: Any) -> Any:
    empty: Any = b"" if field.dtype.kind == "S" else ""
    shape = tuple(size or 0 for size in field.shape) if like is None else np.shape(like)
    return np.full(shape, empty, object) if field.shape else empty


def _fill_sized(
    view: SlotView, number: int, field: ArraySpec, beside: Beside, whole: int | None, blank: Collection[int]
) -> None:
    shapes = view.shapes[number]
    assert shapes is not None
    shape = tuple(size or 0 for size in field.shape) if whole is None else tuple(shapes[whole].tolist())
    zeros = np.zeros(shape, field.dtype)
    for row in blank:
        shapes[row] = shape
        if beside.get(number):  # the other rows are too large for their places, and stand beside too
            beside[number][row] = zeros
            continue
        np.ndarray(shape, field.dtype, buffer=view.fields[number].data, offset=row * zeros.nbytes)[...] = 0


def kept_rows(array: NDArray[Any], rows: int, blank: Collection[int]) -> NDArray[Any]:
    """The rows of an array [rows, ...] that are not blank, copied to aligned memory of its own."""
    kept = [row for row in range(rows) if row not in blank]
    if array.dtype == object:
        return array[kept]
    target = aligned_empty((len(kept), *array.shape[1:]), array.dtype)
    return np.take(array, kept, axis=0, out=target)
