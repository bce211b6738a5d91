"""pandas: a `Series` or `DataFrame` as a sequence of scenes, by position, whatever its index.

Invariant: pandas is not imported. Columns are NumPy arrays from here on; what these cannot hold is refused, by the name
of its column.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.errors import SpecError
from kerasfeed.util.counted import counted
from kerasfeed.util.optional_methods import views_own


def as_sequence(sequence: Any) -> Any:
    """A pandas `Series` as an array, a `DataFrame` as the sequence of its rows; anything else as it is.

    Raises:
        SpecError: A column holds missing values or dates; two columns have one name, or one has a name that is neither
            `str` nor `int`.
    """
    match _pandas_class(sequence):
        case "Series":
            return _array_of(sequence, f"the Series{'' if sequence.name is None else f' {sequence.name!r}'}", "series")
        case "DataFrame":
            return DataFrameRows(sequence)
    return sequence


def is_in_memory(sequence: Any) -> bool:
    """Whether scenes are there already, and none of the user's code runs where they are read, so any thread may."""
    return type(sequence) in (list, tuple, np.ndarray, np.memmap, DataFrameRows)


class DataFrameRows:
    """The rows of a `DataFrame`: scenes are dicts from column to value.

    Args:
        frame: The frame, of which only its columns are kept.
    """

    _is_scene_sequence = True

    def __init__(self, frame: Any) -> None:
        names = list(frame.columns)
        for name in names:
            if isinstance(name, bool) or not isinstance(name, str | int):
                raise SpecError(
                    f"a column of the DataFrame has the name {name!r} of type {type(name).__name__}, and fields are "
                    "named by str or int: frame.columns = [...]"
                )
            if names.count(name) > 1:
                raise SpecError(f"two columns of the DataFrame have the name {name!r}: rename one of them")
        self._length = len(frame)
        self._columns = {name: _array_of(frame[name], f"column {name!r}", f"frame[{name!r}]") for name in names}

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> dict[Any, Any]:
        """The row at position `index`: a dict from column to value."""
        return {name: column[index] for name, column in self._columns.items()}

    @property
    def columns(self) -> dict[Any, NDArray[Any]]:
        """The columns by name, each of `len(self)` values."""
        return self._columns

    def _offers(self, name: str) -> bool:
        return name == "get_batch" and all(column.dtype != object for column in self._columns.values())

    @views_own
    def get_batch(self, indices: NDArray[np.int64]) -> dict[Any, Any]:
        """The rows at `indices`, int64[B]; see `SceneSequence`."""
        return {name: column[indices] for name, column in self._columns.items()}

    def __repr__(self) -> str:
        return f"DataFrameRows of {counted(len(self._columns), 'column')}, {counted(self._length, 'scene')}"


def _pandas_class(value: Any) -> str:
    for base in type(value).__mro__:
        if base.__module__.partition(".")[0] == "pandas" and base.__name__ in ("Series", "DataFrame"):
            return base.__name__
    return ""


def _array_of(series: Any, what: str, code: str) -> NDArray[Any]:
    """The values of a column: numbers as they are, categories as what they stand for, text as `str`.

    Raises:
        SpecError: It holds dates, or missing values other than NaN in a column of floats; or text in a nullable column.
    """
    dtype = series.dtype
    if not isinstance(dtype, np.dtype) or dtype.kind == "O":
        missing = np.flatnonzero(np.asarray(series.isna()))
        if missing.size:
            more = f", and {missing.size - 1:,} more" if missing.size > 1 else ""
            raise SpecError(
                f"{what} ({dtype}) has no value in row {missing[0]} (by position){more}, and a batch holds no missing "
                f"values. Fill them, {code}.fillna(...), or drop their rows, dropna()"
            )
    wanted = getattr(dtype, "numpy_dtype", None)  # of nullable numbers, and of those kept by pyarrow
    values: NDArray[Any] = series.to_numpy() if wanted is None else series.to_numpy(dtype=wanted)
    if values.dtype.kind in "Mm" or getattr(dtype, "kind", "") in ("M", "m"):
        raise SpecError(
            f"{what} holds dates or times ({dtype}), which no Keras backend can hold. Give numbers, for example "
            f"{code}.astype('int64'), or text, {code}.astype(str)"
        )
    return values
