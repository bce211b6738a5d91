"""Set the weight of empty rows and of padding rows to 0.

Invariant: a masked batch has the shape and structure of every other batch. All changes happen in memory that the batch
owns.
"""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import optree

from kerasfeed.errors import SpecError
from kerasfeed.loaders.batches.layout import Layout, SlotView, aligned_empty
from kerasfeed.loaders.batches.scene_writer import Overflow
from kerasfeed.spec.field_forms import Form, Padded
from kerasfeed.spec.nesting import flatten, structure_text
from kerasfeed.spec.scene_spec import ArraySpec, SceneSpec

WEIGHT = np.dtype(np.float32)
_FAILED = ("on_error='mask'", "failed scenes", "on_error='replace'")
_FILLER = ("pad_remainder=True", "the scenes that fill up a short batch", "drop_remainder=True")


def check_maskable(spec: SceneSpec, *, padded: bool) -> None:
    """Refuse scenes that cannot have a weight.

    Args:
        spec: The spec of a scene.
        padded: Whether rows that fill up a batch need weights, and not only failed scenes.

    Raises:
        SpecError: A scene is not `(x, y)` or `(x, y, sample_weight)`.
    """
    argument, gives, remedy = _FILLER if padded else _FAILED
    scene = spec.unflatten(spec.fields)
    weights = optree.tree_leaves(scene[2], none_is_leaf=True) if type(scene) is tuple and len(scene) == 3 else [1]
    if type(scene) is not tuple or len(scene) not in (2, 3) or not weights or None in weights:
        raise SpecError(
            f"{argument} gives {gives} sample_weight 0, so a scene must be (x, y) or (x, y, sample_weight); received "
            f"the structure {structure_text(spec.treespec)}. Return such a tuple, or use {remedy}"
        )
    for path, field in zip(spec.paths, spec.fields, strict=True):
        if path.split(".")[0] == "2" and (field.is_text or field.dtype.kind not in "biuf"):
            raise SpecError(f"{argument} needs a numeric sample_weight, received field {path!r}, {field}")


def check_weight_forms(spec: SceneSpec, forms: Sequence[Form | None]) -> None:
    """Refuse weights that cannot be set to 0 for one row.

    Raises:
        SpecError: A field of the scenes' `sample_weight` is ragged, masked, or padded with another value than 0.
    """
    for path, form in zip(spec.paths, forms, strict=False):
        plain = isinstance(form, Padded) and not form.masked and not form.value
        if path.split(".")[0] == "2" and form is not None and not plain:
            raise SpecError(
                f"field {path!r} is part of sample_weight, which is 0 in rows without a scene: it can be "
                f"stacked, or padded with 0 and without a mask. Use kf.Pad(value={{{path!r}: 0}}, mask=[...])"
            )


def weighted(spec: SceneSpec) -> SceneSpec:
    """Spec of scenes with weights; adds one, float32[], if scenes have none."""
    scene = spec.unflatten(spec.fields)
    if len(scene) == 3:
        return spec
    with_weight: Any = (*scene, 0)
    treespec = optree.tree_structure(with_weight)
    return SceneSpec(treespec, (*spec.fields, ArraySpec((), WEIGHT)))


def with_weights(batch: Any, rows: int, empty_rows: Collection[int], padding_rows: int) -> Any:
    """Return a batch with weight 0 in `empty_rows` and in padding rows.

    `padding_rows` is the number of such rows at the end. A batch `(x, y)` gets weights float32[rows]. In a batch `(x,
    y, sample_weight)`, these rows are zeroed in place.
    """
    zeroed = [*empty_rows, *range(rows - padding_rows, rows)]
    if len(batch) == 3:
        for leaf in flatten(batch[2])[0]:
            leaf[zeroed] = 0
        return batch
    weights = aligned_empty((rows,), WEIGHT)
    weights[:] = 1
    weights[zeroed] = 0
    return (*batch, weights)


def fill_empty_rows(view: SlotView, layout: Layout, overflow: Overflow, rows: int, empty_rows: Collection[int]) -> None:
    """Fill the empty rows of a slot with zeros and empty text."""
    whole = next((row for row in range(rows) if row not in empty_rows), None)
    for number, field in enumerate(layout.spec.fields):
        if layout.form(number) is not None:
            continue  # `FormedField` fills these rows
        if field.is_text:
            values = overflow.setdefault(number, {})
            like = _empty_text(field, None if whole is None else values[whole])
            values.update(dict.fromkeys(empty_rows, like))
        elif field.is_fixed:
            view.fields[number][list(empty_rows)] = np.zeros((), field.dtype)
        else:
            _fill_sized(view, number, field, overflow, whole, empty_rows)


def _empty_text(field: ArraySpec, like: Any) -> Any:
    empty: Any = b"" if field.dtype.kind == "S" else ""
    shape = tuple(size or 0 for size in field.shape) if like is None else np.shape(like)
    return np.full(shape, empty, object) if field.shape else empty


def _fill_sized(
    view: SlotView, number: int, field: ArraySpec, overflow: Overflow, whole: int | None, empty_rows: Collection[int]
) -> None:
    shapes = view.shapes[number]
    assert shapes is not None
    shape = tuple(size or 0 for size in field.shape) if whole is None else tuple(shapes[whole].tolist())
    zeros = np.zeros(shape, field.dtype)
    for row in empty_rows:
        shapes[row] = shape
        if overflow.get(number):  # the other rows are too large, and are outside the slot too
            overflow[number][row] = zeros
            continue
        np.ndarray(shape, field.dtype, buffer=view.fields[number].data, offset=row * zeros.nbytes)[...] = 0
