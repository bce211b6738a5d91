"""PyTorch's DataLoader with persistent worker processes, and without workers."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.data import DataLoader

from benchmarks.peers.job import Job, stack

WORKERS = {"persistent_workers": True, "prefetch_factor": 4}


def _loader(job: Job, num_workers: int) -> Iterable[Any]:
    made: DataLoader[Any] = DataLoader(
        job.sequence,
        batch_size=job.batch_size,
        shuffle=job.shuffle,
        num_workers=num_workers,
        collate_fn=None if job.collate is stack else job.collate,
        drop_last=True,
        **(WORKERS if num_workers else {}),
    )
    return job.repeated(made)


@contextmanager
def loader(job: Job) -> Iterator[Iterable[Any]]:
    """Batches of tensors, handed over through shared memory; the default collation, unless the job has its own."""
    yield _loader(job, job.workers)


@contextmanager
def inline(job: Job) -> Iterator[Iterable[Any]]:
    """Batches made in the calling thread."""
    yield _loader(job, 0)
