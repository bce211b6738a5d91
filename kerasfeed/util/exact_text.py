"""NumPy's `str_` and `bytes_` with NUL characters at their end, which NumPy cuts off where it pickles them.

Invariant: text arrives as it was returned, by every worker.
"""

import copyreg
import pickle
from collections import ChainMap
from typing import Any

import cloudpickle
import numpy as np


def exact_text(value: Any) -> Any:
    """A `str` or `bytes` of a subclass, such as `np.bytes_`, as plain `str` or `bytes`, with all its characters."""
    kind = type(value)
    if kind is str or kind is bytes:
        return value
    return str.__str__(value) if isinstance(value, str) else bytes.__bytes__(value)


def _reduced(text: Any) -> tuple[Any, tuple[Any]]:
    return type(text), (exact_text(text),)


_WHOLE: dict[Any, Any] = {np.str_: _reduced, np.bytes_: _reduced}


class TextPickler(pickle.Pickler):
    """Pickles what holds `np.str_` and `np.bytes_` without cutting them."""

    dispatch_table = ChainMap[Any, Any](_WHOLE, copyreg.dispatch_table)


class TextCloudPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """The same, for what holds functions and classes that cannot be imported, too."""

    dispatch_table = cloudpickle.Pickler.dispatch_table.new_child(_WHOLE)
