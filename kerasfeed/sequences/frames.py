"""Tables and arrays of other packages as sequences of scenes, by position.

The tables and columns are `DataFrame` and `Series` of polars and of pandas, whatever their index. The arrays have a
`shape` and no `__len__`, such as zarr's.

Invariant: this module imports none of these packages. It converts columns to NumPy arrays. An error names the column
that an array cannot hold.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.errors import SpecError
from kerasfeed.util.error_text import pluralize

_CLASSES = ("DataFrame", "Series")
# Remedies in error messages: fill missing values, drop them, convert dates to numbers, convert dates to text.
_REMEDIES = {
    "pandas": ("fillna(...)", "dropna()", "astype('int64')", "astype(str)"),
    "polars": ("fill_null(...)", "drop_nulls()", "cast(polars.Int64)", "cast(polars.String)"),
}


def as_sequence(sequence: Any) -> Any:
    """Return a column as an array.

    A table, or an array without `__len__`, becomes a sequence of its rows. Anything else is returned unchanged.

    Raises:
        SpecError: A column holds missing values or dates; two columns have one name, or one has a name that is neither
            `str` nor `int`.
    """
    package, name = _kind_of(sequence)
    if name == "DataFrame":
        return DataFrameRows(sequence)
    if name == "Series":
        called = f" {sequence.name!r}" if sequence.name not in (None, "") else ""
        return _array_of(sequence, f"the Series{called}", "series", package)
    return ArrayRows(sequence) if _is_array_without_length(sequence) else sequence


def is_in_memory(sequence: Any) -> bool:
    """Whether scenes are read without user code, so that any thread may."""
    return type(sequence) in (list, tuple, np.ndarray, np.memmap, DataFrameRows)


class DataFrameRows:
    """The rows of a `DataFrame`: scenes are dicts from column to value.

    Args:
        frame: The table. Only its columns are kept.

    Attributes:
        columns: The columns by name, each of `len(self)` values.
    """

    _is_scene_sequence = True

    def __init__(self, frame: Any) -> None:
        package, names = _kind_of(frame)[0], list(frame.columns)
        for name in names:
            if isinstance(name, bool) or not isinstance(name, str | int):
                raise SpecError(
                    f"a column of the DataFrame has the name {name!r} of type {type(name).__name__}, but fields are "
                    "named by str or int: frame.columns = [...]"
                )
            if names.count(name) > 1:
                raise SpecError(f"two columns of the DataFrame have the name {name!r}: rename one of them")
        self._length = len(frame)
        self.columns: dict[Any, NDArray[Any]] = {
            name: _array_of(frame[name], f"column {name!r}", f"frame[{name!r}]", package) for name in names
        }

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> dict[Any, Any]:
        """Return the row at position `index`: a dict from column to value."""
        return {name: column[index] for name, column in self.columns.items()}

    def _offers(self, name: str) -> bool:
        return name == "get_batch" and all(column.dtype != object for column in self.columns.values())

    def get_batch(self, indices: NDArray[np.int64]) -> dict[Any, Any]:
        """Return the rows at `indices`, int64[B]; see `SceneSequence`."""
        return {name: column[indices] for name, column in self.columns.items()}

    def __repr__(self) -> str:
        return f"DataFrameRows of {pluralize(len(self.columns), 'column')}, {pluralize(self._length, 'scene')}"


class ArrayRows:
    """The rows of an array along its first axis.

    Args:
        array: An object with a `shape`, indexed by position; only these and its class name are used.
    """

    def __init__(self, array: Any) -> None:
        self._array = array

    def __len__(self) -> int:
        return int(self._array.shape[0])

    def __getitem__(self, index: int) -> Any:
        return self._array[index]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self._array[...], dtype)  # always a copy, because it is read each time

    def __repr__(self) -> str:
        return f"ArrayRows of {type(self._array).__name__}, {pluralize(len(self), 'scene')}"


def _is_array_without_length(value: Any) -> bool:
    kind = type(value)
    if hasattr(kind, "__len__") or not hasattr(kind, "__getitem__") or hasattr(kind, "num_batches"):
        return False
    # A class of scenes may have an attribute `shape`; only arrays also have a `dtype`.
    shape = getattr(value, "shape", None) if hasattr(value, "dtype") else None
    return not isinstance(value, type) and isinstance(shape, tuple) and bool(shape)


def _kind_of(value: Any) -> tuple[str, str]:
    """Return package and class of a table or column.

    For any other value, return two empty strings.
    """
    for base in type(value).__mro__:
        package = base.__module__.partition(".")[0]
        if package in _REMEDIES and base.__name__ in _CLASSES:
            return package, base.__name__
    return "", ""


def _array_of(column: Any, what: str, code: str, package: str) -> NDArray[Any]:
    """Return the values of a column: categories as values, text as `str`.

    Raises:
        SpecError: It holds dates, or missing values other than NaN in a column of floats.
    """
    fill, drop, numbers, text = _REMEDIES[package]
    dtype = column.dtype
    if not isinstance(dtype, np.dtype) or dtype.kind == "O":
        missing = np.flatnonzero(np.asarray(column.isna() if package == "pandas" else column.is_null()))
        if missing.size:
            more = f", and {missing.size - 1:,} more" if missing.size > 1 else ""
            raise SpecError(
                f"{what} ({dtype}) has no value in row {missing[0]} (by position){more}, but a batch holds no missing "
                f"values. Fill them, {code}.{fill}, or drop their rows, {drop}"
            )
    wanted = getattr(dtype, "numpy_dtype", None) if package == "pandas" else None  # for nullable numbers
    values: NDArray[Any] = column.to_numpy() if wanted is None else column.to_numpy(dtype=wanted)
    if str(dtype).startswith("Struct("):  # polars would convert them to rows without names
        values = np.empty(len(column), object)
        values[:] = column.to_list()
    if values.dtype.kind in "Mm" or getattr(dtype, "kind", "") in ("M", "m"):
        raise SpecError(
            f"{what} holds dates or times ({dtype}), which no Keras backend can hold. Pass numbers, for example "
            f"{code}.{numbers}, or text, {code}.{text}"
        )
    return values
