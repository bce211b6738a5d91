"""Opening a file up to its first row."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import h5py

import kerasfeed as kf
from benchmarks.peers.job import Job

kf.HDF5File  # noqa: B018 (the lazy import happens here, not under the clock)


@dataclass(frozen=True)
class Opened:
    """A dataset of a file just opened.

    Attributes:
        dataset: The dataset.
        index_nbytes: Memory of the chunk index that the reader keeps, bytes; None where HDF5 keeps what it likes.
    """

    dataset: Any
    index_nbytes: int | None


@contextmanager
def by_h5py(job: Job) -> Iterator[Opened]:
    """h5py, which reads the chunk index piece by piece as it needs it."""
    with h5py.File(job.sequence.path, "r") as file:
        yield Opened(file["points"], None)


@contextmanager
def by_kerasfeed(job: Job) -> Iterator[Opened]:
    """kerasfeed, which reads all of it."""
    with kf.HDF5File(job.sequence.path) as file:
        dataset = file["points"]
        reader = dataset._open()[1].reader
        yield Opened(dataset, reader.index_nbytes)
