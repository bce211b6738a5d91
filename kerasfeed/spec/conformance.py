"""Check each scene against the spec that a user gives as `output_signature`.

Invariant: an accepted scene matches the spec. `conform` copies its arrays.
"""

from typing import Any

import numpy as np
import optree
from numpy.typing import NDArray

from kerasfeed.errors import SpecError
from kerasfeed.spec.field_values import as_array, coerce
from kerasfeed.spec.lists import is_array
from kerasfeed.spec.nesting import flatten, flatten_as, structure_text
from kerasfeed.spec.scene_spec import ArraySpec, SceneSpec
from kerasfeed.util.array_bits import widened

_IMMUTABLE = (bool, int, float, complex, str, bytes)
_HOLDS = {"b": "b", "i": "biu", "u": "biu", "f": "biuf", "c": "biufc", "V": "biuf"}  # V: bfloat16 and the like


def conform(scene: Any, spec: SceneSpec) -> Any:
    """Return the scene with every field as `spec` describes it.

    Python numbers, and lists of them, are converted to the field's dtype if that dtype can hold them; a float dtype may
    round them. Byte order becomes native. Everything else must match exactly. The call takes about 6 us for two small
    arrays, including the copies.

    Args:
        scene: The scene to check.
        spec: The spec it must match.

    Raises:
        SpecError: The scene does not match; the message names the field, the expected and the received value.
    """
    try:
        leaves: list[Any] = flatten_as(spec.treespec, scene)
    except ValueError:
        nesting = flatten(scene)[1]
        received = f"{type(scene).__name__}" if nesting.num_nodes == 1 else structure_text(nesting)
        raise SpecError(
            f"expected the structure {structure_text(spec.treespec)} with the fields {', '.join(spec.paths)}, received "
            f"{received}. Nest scenes like the spec"
        ) from None
    fields = zip(leaves, spec.fields, spec.paths, strict=True)
    return spec.unflatten([conformed(leaf, field, path, spec, copy=True) for leaf, field, path in fields])


def conformed(leaf: Any, field: ArraySpec, path: str, spec: SceneSpec, *, copy: bool) -> Any:
    """Return one field, checked as in `conform`.

    Without `copy` it may be the scene's own array.

    Raises:
        SpecError: The field does not match.
    """
    if type(leaf) is field.dtype.type and field.dtype.kind in "biufc" and not field.shape:
        return leaf
    if type(leaf) in _IMMUTABLE or (type(leaf) is list and is_array(leaf)):
        numbers = _of_numbers(leaf, field, path)
        if numbers is not None:
            return numbers[()]
    elif not isinstance(leaf, np.ndarray | np.generic) and (nesting := flatten(leaf)[1]).num_nodes > 1:
        raise SpecError(
            f"field {path!r}: expected {field}, received a {type(leaf).__name__} of the structure "
            f"{structure_text(nesting)}. Nest scenes like the spec: {structure_text(spec.treespec)}"
        )
    value = coerce(leaf, field, path, _remedy)
    if not isinstance(value, np.ndarray):
        return value
    value = value.copy() if copy and not field.is_text else value
    return value if value.ndim else value[()]


def _remedy(same_kind: bool, field: ArraySpec, found: ArraySpec | None = None) -> str:
    """Return a remedy as `kerasfeed.spec.field_values.remedy_of` does, for specs that users write."""
    if same_kind:
        return (
            ". Bring it to that shape (crop, pad, reshape), or write None in output_signature for an axis whose size "
            "differs between scenes"
        )
    name = {"U": "str", "S": "bytes"}.get(field.dtype.kind)
    if name:
        return f". Return {name}, or an array of it, or write another dtype in output_signature"
    return f". Convert it (array.astype({field.dtype.name!r})), or write its dtype in output_signature"


def _of_numbers(leaf: Any, field: ArraySpec, path: str) -> NDArray[Any] | None:
    """Return Python numbers as an array of `field`.

    None if the leaf or the field is not numeric.
    """
    try:
        array = np.asarray(leaf)
    except ValueError:
        raise SpecError(f"field {path!r}: expected {field}, received a list of lists of unequal length") from None
    if not array.size and type(leaf) is list:
        return coerce(leaf, field, path, _remedy)  # type: ignore[no-any-return]
    if array.dtype.kind not in "biufcO" or field.is_text or not field.fits(array.shape):
        return None
    if array.dtype == field.dtype:
        return array
    if array.dtype.kind in _HOLDS.get(field.dtype.kind, ""):
        with np.errstate(over="ignore", invalid="ignore"):
            cast = array.astype(field.dtype)
        if _is_kept(array, cast):
            return cast
    elif array.dtype.kind == "O" and not all(isinstance(value, int) for value in array.flat):
        as_array(array, path)  # raises the error for this value
        return None
    raise SpecError(
        f"field {path!r}: expected {field}, received {str(leaf)[:80]}, which that dtype cannot hold"
        f"{_remedy(False, field)}"
    )


def _is_kept(array: NDArray[Any], cast: NDArray[Any]) -> bool:
    if cast.dtype.kind in "iu":
        return bool(np.all((cast.astype(array.dtype) == array) & ((cast < 0) == (array < 0))))
    if cast.dtype.kind in "fcV":
        return bool(np.all(np.isfinite(widened(cast)) == np.isfinite(array)))
    return True


def own_copy(item: Any) -> Any:
    """Return a copy of an item, including its nesting; about 2 us."""
    leaves, treespec = optree.tree_flatten(item)
    # An np.void is a view of the structured array it comes from.
    return treespec.unflatten([leaf.copy() if isinstance(leaf, np.ndarray | np.void) else leaf for leaf in leaves])
