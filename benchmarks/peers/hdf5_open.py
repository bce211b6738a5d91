"""Opening a file up to its first row, or to the last row of all its datasets."""

import dataclasses
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import h5py

import kerasfeed as kf
from benchmarks.hdf5.files import group_name
from benchmarks.peers.job import Job

kf.HDF5File  # noqa: B018 (the lazy import happens here, not under the clock)


@dataclass(frozen=True)
class Opened:
    """A dataset of a file just opened.

    Attributes:
        dataset: The dataset.
        index_nbytes: Memory of the reader's chunk index, bytes; None if HDF5 manages it.
        begun: Start of the clock, by `time.perf_counter`, s; None if it starts before the file is opened.
    """

    dataset: Any
    index_nbytes: int | None
    begun: float | None = None


def nbytes_of(index: Any) -> int:
    """Memory of the arrays of a chunk index."""
    return sum(part.nbytes for part in vars(index).values() if part is not None)


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
        yield Opened(dataset, nbytes_of(reader._index))


@dataclass(frozen=True)
class AllGroups:
    """Every scene of a file of groups as one row.

    Attributes:
        file: The open file, of h5py or kerasfeed.
        stored: Scenes in it.
    """

    file: Any
    stored: int

    def __getitem__(self, row: int) -> int:
        return sum(len(self.file[group_name(number)][:]) for number in range(self.stored))


@contextmanager
def pass_by_h5py(job: Job) -> Iterator[Opened]:
    """h5py, reading every dataset once."""
    with h5py.File(job.sequence.path, "r") as file:
        yield Opened(AllGroups(file, job.sequence.stored), None)


@contextmanager
def pass_by_kerasfeed(job: Job) -> Iterator[Opened]:
    """kerasfeed, reading every dataset once."""
    with kf.HDF5File(job.sequence.path) as file:
        yield Opened(AllGroups(file, job.sequence.stored), None)


@contextmanager
def later_pass_by_kerasfeed(job: Job) -> Iterator[Opened]:
    """kerasfeed, reading every dataset a second time."""
    with pass_by_kerasfeed(job) as opened:
        opened.dataset[0]
        yield dataclasses.replace(opened, begun=time.perf_counter())
