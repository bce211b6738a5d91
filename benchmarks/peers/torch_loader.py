"""PyTorch's DataLoader with persistent worker processes and its default collation."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch.utils.data import DataLoader

from benchmarks.peers.job import Job


@contextmanager
def loader(job: Job) -> Iterator[Iterable[Any]]:
    """Batches of tensors, handed over through shared memory."""
    yield DataLoader(
        job.sequence,
        batch_size=job.batch_size,
        num_workers=job.workers,
        persistent_workers=True,
        prefetch_factor=4,
        drop_last=True,
    )
