"""Arrays: extension dtypes, padding bytes, text, and read-only arrays.

Invariant: conversions keep every value exactly, and return arrays that need no conversion unchanged.
"""

import sys
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

_Scalar = TypeVar("_Scalar", bound=np.generic)


def is_masked_array(value: Any) -> bool:
    """Whether a value is a NumPy masked array.

    Does not import `numpy.ma`, which takes 10 ms per worker.
    """
    return isinstance(value, getattr(sys.modules.get("numpy.ma"), "MaskedArray", ()))


def widened(array: NDArray[Any]) -> NDArray[Any]:
    """Return bfloat16, float8, int4 and the like as float32.

    Any other array is returned unchanged, including records.
    """
    if array.dtype.kind != "V" or array.dtype.names is not None:
        return array
    try:
        return array.astype(np.float32)
    except (TypeError, ValueError):  # bytes
        return array


def is_padded(dtype: np.dtype[Any]) -> bool:
    """Whether items have padding bytes, as in aligned records and long doubles."""
    if dtype.subdtype is not None:
        return is_padded(dtype.subdtype[0])
    if dtype.names is None:
        return dtype.kind in "fc" and dtype.itemsize // (1 + (dtype.kind == "c")) > 8  # 10 bytes of 16
    members = [dtype[name] for name in dtype.names]
    return sum(member.itemsize for member in members) != dtype.itemsize or any(map(is_padded, members))


def comparable(array: Any) -> Any:
    """Return `array` with zeroed padding bytes, so that bytes can be compared.

    Text is returned unchanged.
    """
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "Vfc" or not is_padded(array.dtype):
        return array
    zeroed = np.zeros(array.shape, array.dtype)
    _copy_members(array, zeroed)
    return zeroed


def _copy_members(array: NDArray[Any], target: NDArray[Any]) -> None:
    dtype = array.dtype
    if dtype.names is not None:
        for name in dtype.names:
            _copy_members(array[name], target[name])
        return
    if dtype.kind in "fc" and is_padded(dtype) and np.finfo(np.longdouble).nmant == 63:
        parts = range(0, dtype.itemsize, dtype.itemsize if dtype.kind == "f" else dtype.itemsize // 2)
        members = np.dtype({
            "names": [str(part) for part in parts], "formats": ["V10"] * len(parts), "offsets": list(parts),
            "itemsize": dtype.itemsize,
        })  # fmt: skip
        _copy_members(array.view(members), target.view(members))
    else:
        target[...] = array


def frozen(array: NDArray[_Scalar]) -> NDArray[_Scalar]:
    """Make an array read-only, and return it."""
    array.setflags(write=False)
    return array


def object_array(values: list[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Return texts as an object array of this shape."""
    array: NDArray[Any] = np.empty(shape, object)
    array.reshape(-1)[:] = values
    return array


def exact_text(value: Any) -> Any:
    """Return plain `str` or `bytes`, with trailing NULs that NumPy would drop."""
    kind = type(value)
    if kind is str or kind is bytes:
        return value
    return str.__str__(value) if isinstance(value, str) else bytes.__bytes__(value)
