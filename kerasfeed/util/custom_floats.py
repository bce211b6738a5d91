"""Numbers of dtypes that NumPy does not know itself, such as bfloat16, as ones that it does.

Invariant: values are kept; other arrays come back as they are.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray


def widened(array: NDArray[Any]) -> NDArray[Any]:
    """An array of bfloat16, float8, int4 and their like as float32; any other, records among them, as it is."""
    if array.dtype.kind != "V" or array.dtype.names is not None:
        return array
    try:
        return array.astype(np.float32)
    except (TypeError, ValueError):  # bytes
        return array
