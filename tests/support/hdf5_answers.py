"""Queries of a dataset, and the comparison of two results.

Invariant: two results are the same only if type, dtype (including its h5py metadata), shape and every byte with a
meaning are. So a scalar instead of an array, another byte order or another text encoding is a difference.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np


@dataclass(frozen=True)
class Refusal:
    """A read that raised.

    Attributes:
        kind: Name of the exception's type.
        text: Its message and notes.
    """

    kind: str
    text: str


def selections(shape: tuple[int, ...]) -> dict[str, Any]:
    """Selections that h5py supports (or refuses) for a dataset of this shape, by a name for messages."""
    found: dict[str, Any] = {"()": (), "...": ...}
    if not shape:
        return found
    rows = shape[0]
    found |= {
        "[:]": np.s_[:],
        "[0]": 0,
        "[-1]": -1,
        "[middle]": np.int64(rows // 2),
        "[rows]": rows,
        "[1:-1]": np.s_[1:-1],
        "[::3]": np.s_[::3],
        "[-3:]": np.s_[-3:],
        "[-3*rows:2]": np.s_[-3 * rows : 2],
        "[rows-1:rows+9]": np.s_[rows - 1 : rows + 9],
        "[empty]": np.s_[rows // 2 : rows // 2],
        "[sorted]": sorted({0, rows // 2, max(rows - 1, 0)}),
        "[mask]": np.arange(rows) % 3 == 0,
        "[no mask]": np.zeros(rows, bool),
    }
    if len(shape) > 1:
        columns = shape[1]
        found |= {
            "[0, 0]": (0, 0),
            "[0, 1:]": np.s_[0, 1:],
            "[..., -1]": np.s_[..., -1],
            "[:, -1]": np.s_[:, -1],
            "[1::2, ::3]": np.s_[1::2, ::3],
            "[sorted, -1]": np.s_[sorted({0, max(rows - 1, 0)}), -1],
            "[-2, mask]": np.s_[-2, np.arange(columns) % 2 == 0],
            "[2:, sorted]": np.s_[2:, sorted({0, columns // 2, max(columns - 1, 0)})],
            "[scalar]": (-1,) * len(shape),
            "[whole mask]": np.arange(int(np.prod(shape))).reshape(shape) % 5 == 1,
        }
    return found


def numpy_selections(shape: tuple[int, ...]) -> dict[str, Any]:
    """Selections that h5py refuses and `HDF5Dataset` supports with NumPy's meaning."""
    if not shape or shape[0] == 0:
        return {}
    rows = shape[0]
    return {
        "[unsorted]": [rows - 1, 0, rows // 2],
        "[repeated]": [rows // 2, rows // 2, 0, 0],
        "[negative list]": [-1, -rows, -(rows // 2) - 1],
        "[array]": np.array([rows - 1, 0], np.uint16),
    }


def answers(dataset: Any, asked: dict[str, Any]) -> dict[str, Any]:
    """`dataset[selection]` for each selection; a `Refusal` if it raises."""
    return {name: answer(dataset, selection) for name, selection in asked.items()}


def answer(dataset: Any, selection: Any) -> Any:
    try:
        return dataset[selection]
    except Exception as error:
        return Refusal(type(error).__name__, "\n".join([str(error), *getattr(error, "__notes__", [])]))


def difference(ours: Any, theirs: Any) -> str | None:
    """How the first result differs from the second; None if it does not."""
    if isinstance(theirs, Refusal):
        return None if isinstance(ours, Refusal) else f"read {_short(ours)} where {theirs} was due"
    if type(ours) is not type(theirs):
        return f"{type(ours).__name__} {_short(ours)} for {type(theirs).__name__} {_short(theirs)}"
    if isinstance(theirs, np.ndarray | np.generic):
        if ours.dtype != theirs.dtype or _metadata(ours.dtype) != _metadata(theirs.dtype):
            return f"dtype {ours.dtype!r} for {theirs.dtype!r}"
        if ours.shape != theirs.shape:
            return f"shape {ours.shape} for {theirs.shape}"
        if theirs.dtype.names is not None:  # field by field, because padding has no meaning
            parts = ((ours[name], theirs[name]) for name in theirs.dtype.names)
            return next((found for one, other in parts if (found := difference(one, other))), None)
        if not theirs.dtype.hasobject:
            padded = theirs.dtype.char in "gG"  # 6 of its 16 bytes have no meaning
            same = np.array_equal(ours, theirs) if padded else ours.tobytes() == theirs.tobytes()
            return None if same else f"{_short(ours)} for {_short(theirs)}"
        parts = zip(_parts(ours), _parts(theirs), strict=True)
        return next((found for one, other in parts if (found := difference(one, other))), None)
    if isinstance(theirs, h5py.Reference):  # also a region reference; they have no comparable value
        return None if bool(ours) == bool(theirs) else f"{_short(ours)} for {_short(theirs)}"
    return None if ours == theirs else f"{_short(ours)} for {_short(theirs)}"


def _parts(value: Any) -> Iterator[Any]:
    """The Python objects in an array or scalar of objects."""
    yield from np.asarray(value, dtype=value.dtype).reshape(-1).tolist()


def _metadata(dtype: np.dtype[Any]) -> Any:
    fields = [(name, _metadata(dtype.fields[name][0])) for name in dtype.names] if dtype.names else []
    return dict(dtype.metadata or {}), fields, _metadata(dtype.subdtype[0]) if dtype.subdtype else None


def _short(value: Any) -> str:
    text = repr(value).replace("\n", " ")
    return text if len(text) < 120 else f"{text[:120]}..."
