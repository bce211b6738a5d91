"""Opening a file up to its first row."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import h5py

import kerasfeed as kf
from benchmarks.peers.job import Job

kf.HDF5File  # noqa: B018 (the lazy import happens here, not under the clock)


@contextmanager
def by_h5py(job: Job) -> Iterator[Any]:
    """h5py, which reads the chunk index piece by piece as it needs it."""
    with h5py.File(job.sequence.path, "r") as file:
        yield file["points"]


@contextmanager
def by_kerasfeed(job: Job) -> Iterator[Any]:
    """kerasfeed, which reads all of it."""
    with kf.HDF5File(job.sequence.path) as file:
        yield file["points"]
