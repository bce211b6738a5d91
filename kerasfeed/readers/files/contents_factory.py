"""From what `read_file` returned to the scenes of a file.

Invariant: whatever is not one of the forms is refused, and the message says what the forms are.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from kerasfeed.readers.files.contents import FORMS, ColumnContents, Contents, Scenes
from kerasfeed.readers.files.forward_contents import ForwardContents
from kerasfeed.sequences.base import SceneSequence
from kerasfeed.util.frames import DataFrameRows, as_sequence


def contents_of(value: Any, reopen: Callable[[int], Iterator[Any]], lookback: int, most_bytes: int) -> Contents:
    """What `read_file` returned, by row.

    Args:
        value: What it returned.
        reopen: Where `value` is an iterator, gives another one, from the beginning; its argument is how many scenes
            the one before has given.
        lookback: Most scenes that an iterator's contents keep.
        most_bytes: Most bytes of these.

    Raises:
        TypeError, ValueError: It is nothing that holds scenes; the message says what would.
    """
    if isinstance(value, Iterator):
        return ForwardContents(value, reopen, lookback, most_bytes)
    if isinstance(value, np.lib.npyio.NpzFile):  # it reads, and decompresses, an array each time it is asked for it
        with value:
            return ColumnContents({name: value[name] for name in value.files})
    if isinstance(value, np.ndarray | tuple):
        return ColumnContents(value)
    if isinstance(value, Mapping):
        return ColumnContents(dict(value))
    if isinstance(value, Sequence | SceneSequence) and not isinstance(value, str | bytes | bytearray | memoryview):
        return Scenes(value)
    value = as_sequence(value)
    if isinstance(value, DataFrameRows):
        return ColumnContents(value.columns)
    is_table = hasattr(value, "iloc") or hasattr(value, "column_names")
    if hasattr(value, "__array__") and not is_table:  # a tensor, a dataset of an HDF5 file
        return ColumnContents(np.asarray(value))
    remedy = FORMS
    if value is None:
        remedy = f"{FORMS} (is a `return` missing?)"
    elif is_table:
        remedy = "Return its columns as arrays: tuple(table[name].to_numpy() for name in ...)"
    raise TypeError(f"read_file returned a {type(value).__name__}. {remedy}")
