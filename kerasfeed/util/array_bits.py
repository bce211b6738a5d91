"""Values whose bits are not what NumPy takes them for: numbers of other libraries, bytes that mean nothing, text.

Invariant: values are kept; what has no such bits comes back as it is.
"""

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray


def is_masked_array(value: Any) -> bool:
    """Whether it is one of `numpy.ma`, which is not imported to tell: that takes each worker 10 ms."""
    return isinstance(value, getattr(sys.modules.get("numpy.ma"), "MaskedArray", ()))


def widened(array: NDArray[Any]) -> NDArray[Any]:
    """An array of bfloat16, float8, int4 and their like as float32; any other, records among them, as it is."""
    if array.dtype.kind != "V" or array.dtype.names is not None:
        return array
    try:
        return array.astype(np.float32)
    except (TypeError, ValueError):  # bytes
        return array


def is_padded(dtype: np.dtype[Any]) -> bool:
    """Whether items hold bytes that mean nothing: between the members of aligned records, and in a long double."""
    if dtype.subdtype is not None:
        return is_padded(dtype.subdtype[0])
    if dtype.names is None:
        return dtype.kind in "fc" and dtype.itemsize // (1 + (dtype.kind == "c")) > 8  # 10 bytes of 16
    members = [dtype[name] for name in dtype.names]
    return sum(member.itemsize for member in members) != dtype.itemsize or any(map(is_padded, members))


def comparable(array: Any) -> Any:
    """`array`, of native byte order, with zeros for the bytes that mean nothing, so that its bytes may be compared.

    Text is as it is.
    """
    if not isinstance(array, np.ndarray) or array.dtype.kind not in "Vfc" or not is_padded(array.dtype):
        return array
    made = np.zeros(array.shape, array.dtype)
    _copy_members(array, made)
    return made


def _copy_members(array: NDArray[Any], made: NDArray[Any]) -> None:
    dtype = array.dtype
    if dtype.names is not None:
        for name in dtype.names:
            _copy_members(array[name], made[name])
        return
    if dtype.kind in "fc" and is_padded(dtype) and np.finfo(np.longdouble).nmant == 63:
        parts = range(0, dtype.itemsize, dtype.itemsize if dtype.kind == "f" else dtype.itemsize // 2)
        meant = np.dtype({
            "names": [str(part) for part in parts], "formats": ["V10"] * len(parts), "offsets": list(parts),
            "itemsize": dtype.itemsize,
        })  # fmt: skip
        _copy_members(array.view(meant), made.view(meant))
    else:
        made[...] = array


def exact_text(value: Any) -> Any:
    """A `str` or `bytes` of a subclass as plain one, with the NUL characters at its end that NumPy would cut off."""
    kind = type(value)
    if kind is str or kind is bytes:
        return value
    return str.__str__(value) if isinstance(value, str) else bytes.__bytes__(value)
