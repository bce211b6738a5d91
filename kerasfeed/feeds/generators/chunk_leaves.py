"""The leaves of a scene, in the few forms in which they travel.

Invariant: what cannot be part of a batch is refused here, where its generator runs.
"""

from typing import Any

import numpy as np
import optree

from kerasfeed.errors import SpecError
from kerasfeed.spec.field_values import as_array, describe_leaf
from kerasfeed.spec.inference import no_field_text
from kerasfeed.spec.nesting import field_paths, structure_text

_ITEM = (bool, int, float, complex, str, bytes)  # these travel as they are


def is_packed(leaf: Any) -> bool:
    """Whether a leaf travels as the bytes of its array."""
    return isinstance(leaf, np.ndarray | np.generic) and leaf.dtype.kind not in "OUSTMm"


def is_plain(leaf: Any) -> bool:
    """Whether a leaf can travel as it is: an ordinary array, a number, `str` or `bytes`."""
    kind = type(leaf)
    return kind in _ITEM or ((kind is np.ndarray or isinstance(leaf, np.generic)) and leaf.dtype.kind in "biufc")


def plain(leaves: list[Any], treespec: optree.PyTreeSpec, scene: Any) -> list[Any]:
    """The leaves of a scene as arrays, NumPy scalars, Python numbers, lists of these, `str` and `bytes`.

    Raises:
        SpecError: One of them is something else.
    """
    if not leaves:
        text = repr(scene)
        made = f"the generator yielded {text if len(text) <= 80 else text[:77] + '...'} ({structure_text(treespec)})"
        raise SpecError(no_field_text(scene, made, "Yield an array, or a tuple or dict of arrays"))
    paths = field_paths(treespec)
    return [_plain_leaf(leaf, path) for leaf, path in zip(leaves, paths, strict=True)]


def _plain_leaf(leaf: Any, path: str) -> Any:
    if type(leaf) in _ITEM:
        return leaf
    if isinstance(leaf, list):  # one that may be promoted stays a list
        return leaf if describe_leaf(leaf, path).weak else as_array(leaf, path)
    array = as_array(leaf, path)
    if isinstance(array, str | bytes):
        return array
    return leaf if isinstance(leaf, np.generic) and array.dtype.kind not in "US" else array
