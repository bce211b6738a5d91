"""What is known of a dataset's storage, as values.

Invariant: plain facts; made by `kerasfeed.readers.hdf5.inspection`, read by the readers, and neither HDF5 nor a lock is
needed to use them.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.readers.hdf5.chunks import ChunkIndex, Grid
from kerasfeed.readers.hdf5.codecs import Pipeline


@dataclass(frozen=True)
class ReaderChoice:
    """Who reads a dataset.

    Attributes:
        kind: "direct" (past HDF5, in parallel) or "h5py" (under HDF5's lock).
        reason: Why not directly; empty for "direct".
    """

    kind: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.reason}" if self.reason else self.kind


@dataclass(frozen=True, eq=False)
class Contiguous:
    """A dataset stored in one piece.

    Attributes:
        shape: Sizes of the axes.
        dtype: As stored; structures as opaque bytes, which NumPy moves up to 50 times faster.
        address: Byte offset in the file.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    address: int


@dataclass(frozen=True, eq=False)
class Chunked:
    """A dataset stored in chunks.

    Attributes:
        grid: Its shape and chunks.
        dtype: As that of `Contiguous`.
        index: Where each chunk is.
        pipeline: What undoes the filters.
        fill: 0-d array: what missing chunks hold.
    """

    grid: Grid
    dtype: np.dtype[Any]
    index: ChunkIndex
    pipeline: Pipeline
    fill: NDArray[Any]


Layout = Contiguous | Chunked


def plain_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype to move items with: structures as opaque bytes."""
    return np.dtype((np.void, dtype.itemsize)) if dtype.names is not None else dtype


class Declined(Exception):
    """A dataset is left to h5py; the message is the reason."""
