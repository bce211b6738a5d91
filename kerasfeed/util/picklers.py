"""Picklers that keep what others change: text of NumPy that ends in NUL characters, and the file that code is from.

Invariant: text arrives as it was returned, by every worker, and a traceback of a worker names the lines of the user's
file.
"""

import copyreg
import io
import pickle
from collections import ChainMap
from types import CodeType
from typing import Any

import cloudpickle
import numpy as np

from kerasfeed.util.exact_text import exact_text


def _reduced_text(text: Any) -> tuple[Any, tuple[Any]]:
    return type(text), (exact_text(text),)


def _reduced_code(code: CodeType) -> tuple[Any, tuple[Any, ...]]:
    # cloudpickle 3.1.3 gives all code one file name, so that no traceback could show a line of it.
    make, values = cloudpickle.Pickler.dispatch_table[CodeType](code)
    place = next(place for place, value in enumerate(values) if isinstance(value, str))  # its first text
    return make, (*values[:place], code.co_filename, *values[place + 1 :])


_TEXT: dict[Any, Any] = {np.str_: _reduced_text, np.bytes_: _reduced_text}


class TextPickler(pickle.Pickler):
    """Pickles what holds `np.str_` and `np.bytes_` without cutting them."""

    dispatch_table = ChainMap[Any, Any](_TEXT, copyreg.dispatch_table)


class CloudPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """The same, for what holds functions and classes that cannot be imported, too; they keep the names of files."""

    dispatch_table = cloudpickle.Pickler.dispatch_table.new_child({**_TEXT, CodeType: _reduced_code})


def cloud_pickled(value: Any) -> bytes:
    """`value` as a `CloudPickler` pickles it; `pickle.loads` makes it anew.

    Raises:
        Exception: What pickling raised.
    """
    stream = io.BytesIO()
    CloudPickler(stream, protocol=5).dump(value)
    return stream.getvalue()
