"""Rows into a batch: what the arrays of a batch are, once its rows have been written.

Invariant: pure functions of shapes and values; whoever calls them owns the memory.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.errors import SpecError


def common_shape(path: str, shapes: NDArray[np.int64], indices: NDArray[np.int64]) -> tuple[int, ...]:
    """The one shape that all rows of a field have.

    Args:
        path: Name of the field.
        shapes: int64[B, axes], the shape of every row.
        indices: int64[B], the index of every row.

    Raises:
        SpecError: Two rows differ; the message names the field, both indices and both shapes.
    """
    different = np.flatnonzero((shapes != shapes[0]).any(axis=1))
    if different.size:
        row = int(different[0])
        one, other = tuple(shapes[0].tolist()), tuple(shapes[row].tolist())
        raise SpecError(
            f"field {path!r} cannot be stacked: scene {indices[0]} has shape {one} and scene {indices[row]} has shape "
            f"{other}. Return one shape for every index (crop, pad or resample in __getitem__), or use batch_size=1"
        )
    return tuple(shapes[0].tolist())


def stack_text(path: str, values: Sequence[Any], indices: NDArray[np.int64]) -> NDArray[Any]:
    """Rows of `str` or `bytes` (or object arrays of them) as one object array with a leading axis.

    Raises:
        SpecError: Arrays of two rows differ in shape.
    """
    shapes = np.array([np.shape(value) for value in values], np.int64).reshape(len(values), -1)
    stacked_shape = (len(values), *common_shape(path, shapes, indices))
    stacked = np.empty(stacked_shape, object)
    for row, value in enumerate(values):
        stacked[row] = value
    return stacked
