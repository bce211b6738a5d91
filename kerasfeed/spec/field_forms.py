"""The form of each field in a batch: stacked, padded or ragged.

Invariant: pure functions of shapes and values; the form of a stacked field is `None`.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np
import optree
from numpy.typing import NDArray

from kerasfeed.errors import SpecError
from kerasfeed.spec.scene_spec import ArraySpec, SceneSpec

SPLITS = np.dtype(np.int64)
MASK = np.dtype(np.bool_)
Shape = tuple[int, ...]
_NOT_STACKED = (
    "Use collate='pad' (pads to the longest of the batch) or collate='ragged' (keeps lengths), or return one shape for "
    "every index"
)
_TEXT_NOT_STACKED = (
    "Text is always stacked, whatever `collate` is: return one shape for every index, join the words into one str, or "
    "pass a function as collate"
)


class RaggedArray(NamedTuple):
    """Rows of different lengths, joined along their first axis.

    Row `k` of a batch is `values[row_splits[k] : row_splits[k + 1]]`.

    Attributes:
        values: dtype[total, ...], all rows.
        row_splits: int64[B + 1], ascending, from 0 to `total`: the offsets at which rows begin and end.

    Examples:
        >>> with kf.Feed([np.arange(2), np.arange(3)], batch_size=2, collate="ragged", workers=0) as feed:
        ...     batch = feed[0]
        >>> batch.values, batch.row_splits
        (array([0, 1, 0, 1, 2]), array([0, 2, 5]))
    """

    values: Any
    row_splits: Any


@dataclass(frozen=True)
class PaddedAxis:
    """One padded axis.

    Attributes:
        axis: Its number in a scene's field, from 0.
        multiple: The padded size is a multiple of it, at least 1.
        length: The fixed padded size, at least 1; None for the size of the batch's longest row.
    """

    axis: int
    multiple: int = 1
    length: int | None = None


@dataclass(frozen=True)
class Padded:
    """A field whose rows are padded at the ends of their axes.

    Attributes:
        axes: The padded axes, ascending.
        value: The padding value, a scalar of the field's dtype.
        masked: Whether the batch holds a mask of the field.
    """

    axes: tuple[PaddedAxis, ...]
    value: Any
    masked: bool = False

    @property
    def is_static(self) -> bool:
        """Whether the padded shape, and so each offset, is fixed."""
        return all(axis.length is not None for axis in self.axes)

    @property
    def is_prefix(self) -> bool:
        """Whether a row is the beginning of its padded row in memory."""
        return len(self.axes) == 1 and self.axes[0].axis == 0

    def padded(self, shape: Sequence[int | None]) -> tuple[int | None, ...]:
        """Return the shape of a padded row; None for unknown sizes."""
        sizes = list(shape)
        for axis in self.axes:
            sizes[axis.axis] = axis.length
        return tuple(sizes)

    def target(self, shapes: NDArray[np.int64]) -> Shape:
        """Return the padded shape of rows whose shapes are `shapes`, int64[B, axes]."""
        sizes: list[int] = shapes.max(axis=0).tolist()
        for axis in self.axes:
            longest = sizes[axis.axis]
            sizes[axis.axis] = -(-longest // axis.multiple) * axis.multiple if axis.length is None else axis.length
        return tuple(sizes)

    def smallest(self, shape: Sequence[int | None]) -> Shape:
        """Return a padded shape for a batch without scenes.

        No padded size is 0, because few models accept that.
        """
        least = {axis.axis: axis.length or axis.multiple for axis in self.axes}
        return tuple(least.get(number, size or 0) for number, size in enumerate(shape))

    def too_long(self, shape: Shape) -> PaddedAxis | None:
        """Return the first axis longer than its fixed length, or None."""
        return next((axis for axis in self.axes if axis.length is not None and shape[axis.axis] > axis.length), None)

    def mask_shape(self, target: Sequence[int | None]) -> tuple[int | None, ...]:
        """Return the shape of the mask of one row padded to `target`."""
        return tuple(target[axis.axis] for axis in self.axes)

    def fill_mask(self, mask: NDArray[np.bool_], shapes: NDArray[np.int64]) -> None:
        """Set `mask` to True for values, and False for padding.

        Args:
            mask: bool[B, ...], one axis for each padded axis.
            shapes: int64[B, axes], the shape of every row.
        """
        mask[...] = True
        for mask_axis, axis in enumerate(self.axes, 1):
            shape = [1] * mask.ndim
            shape[mask_axis] = mask.shape[mask_axis]
            position = np.arange(mask.shape[mask_axis]).reshape(shape)
            lengths = shapes[:, axis.axis].reshape([-1] + [1] * (mask.ndim - 1))
            np.logical_and(mask, position < lengths, out=mask)


@dataclass(frozen=True)
class RaggedRows:
    """A field whose rows are joined along their first axis."""


Form = Padded | RaggedRows


class Masked:
    """A padded field and its mask, until `nest` places them."""

    __slots__ = ("array", "mask")

    def __init__(self, array: Any, mask: Any) -> None:
        self.array = array
        self.mask = mask


def nest(spec: SceneSpec, leaves: Sequence[Any]) -> Any:
    """Nest `leaves` like the scene, each mask next to its field."""
    structure = spec.unflatten(leaves)
    return _with_masks(structure) if Masked in map(type, leaves) else structure


def mask_key(key: Any) -> str:
    """Return the key of the mask of field `key` in a dict."""
    return f"{key}_mask"


def _with_masks(structure: Any) -> Any:
    """Replace masked fields by `(array, mask)`, or in dicts by two keys."""
    return optree.tree_map(_with_mask, structure, is_leaf=lambda node: isinstance(node, Masked | dict))


def _with_mask(node: Any) -> Any:
    if isinstance(node, Masked):
        return (node.array, node.mask)
    if not isinstance(node, dict):
        return node
    result = copy.copy(node)
    for key, value in node.items():
        if isinstance(value, Masked):
            result[key], result[mask_key(key)] = value.array, value.mask
        else:
            result[key] = _with_masks(value)
    return result


def batch_structure(spec: SceneSpec, forms: Sequence[Form | None], rows: int | None) -> Any:
    """Return the nesting of a batch, with `ArraySpec`s for its arrays.

    Args:
        spec: Spec of a scene.
        forms: Forms of its fields; fields beyond the last form are stacked.
        rows: Rows of every batch; None if they vary.
    """
    leaves: list[Any] = []
    for number, field in enumerate(spec.fields):
        form = forms[number] if number < len(forms) else None
        if isinstance(form, Padded):
            shape = form.padded(field.shape)
            array = ArraySpec((rows, *shape), field.dtype)
            mask = ArraySpec((rows, *form.mask_shape(shape)), MASK)
            leaves.append(Masked(array, mask) if form.masked else array)
        elif form is not None:
            splits = ArraySpec((None if rows is None else rows + 1,), SPLITS)
            leaves.append(RaggedArray(ArraySpec((None, *field.shape[1:]), field.dtype), splits))
        else:
            leaves.append(ArraySpec((rows, *field.shape), field.dtype))
    return nest(spec, leaves)


def row_bytes(form: Form, field: ArraySpec, shapes: Sequence[Shape]) -> int:
    """Return the bytes of the largest of some rows in a batch."""
    if isinstance(form, Padded):
        return prod(form.target(np.array(shapes, np.int64))) * field.dtype.itemsize
    return max(map(prod, shapes)) * field.dtype.itemsize


def common_shape(
    path: str, shapes: NDArray[np.int64], indices: NDArray[np.int64], remedy: str = _NOT_STACKED
) -> tuple[int, ...]:
    """Return the one shape that all rows of a field have.

    Args:
        path: Name of the field.
        shapes: int64[B, axes], the shape of every row.
        indices: int64[B], the index of every row.
        remedy: End of the message if they differ.

    Raises:
        SpecError: Two rows differ; the message names the field, both indices and both shapes.
    """
    different = np.flatnonzero((shapes != shapes[0]).any(axis=1))
    if different.size:
        row = int(different[0])
        one, other = tuple(shapes[0].tolist()), tuple(shapes[row].tolist())
        raise SpecError(f"{_unequal_text(path, (indices[0], one), (indices[row], other))}. {remedy}")
    return tuple(shapes[0].tolist())


def rare_shape_text(path: str, one: tuple[int, Any], other: tuple[int, Any]) -> str:
    """Return the message for two scenes that cannot be stacked.

    `one` and `other` are pairs of scene index and shape of the field.
    """
    message = f"{_unequal_text(path, one, other)}, unlike the few scenes that were read first"
    if one[1][1:] != other[1][1:]:
        return f"{message}. Return one shape for every index (crop, pad or resample in __getitem__)"
    return (
        f"{message}. Name the field: collate=kf.Pad(fields={path!r}) (pads to the longest of the batch) or "
        f"collate=kf.Ragged({path!r}) (keeps lengths); or return one shape for every index"
    )


def _unequal_text(path: str, one: tuple[int, Any], other: tuple[int, Any]) -> str:
    return (
        f"field {path!r} cannot be stacked: scene {one[0]} has shape {one[1]} and scene {other[0]} has shape {other[1]}"
    )


def stack_text(path: str, values: Sequence[Any], indices: NDArray[np.int64]) -> NDArray[Any]:
    """Stack rows of `str` or `bytes` into object[B, ...].

    Raises:
        SpecError: Arrays of two rows differ in shape.
    """
    shapes = np.array([np.shape(value) for value in values], np.int64).reshape(len(values), -1)
    shape = common_shape(path, shapes, indices, _TEXT_NOT_STACKED)
    stacked = np.empty((len(values), *shape), object)
    for row, value in enumerate(values):
        stacked[row] = value
    return stacked
