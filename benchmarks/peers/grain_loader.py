"""Grain: a MapDataset read by threads, and the same in worker processes."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import grain
from absl import flags

from benchmarks.peers.job import Job

QUEUED_BATCHES = 10
"""Batches read ahead, the same depth as Keras and kerasfeed."""


@contextmanager
def threads(job: Job) -> Iterator[Iterable[Any]]:
    """As many threads as workers, each reading whole batches."""
    options = grain.ReadOptions(num_threads=job.workers, prefetch_buffer_size=max(QUEUED_BATCHES, job.workers))
    source = grain.MapDataset.source(job.sequence)
    yield source.batch(job.batch_size, drop_remainder=True).to_iter_dataset(options)


@contextmanager
def processes(job: Job) -> Iterator[Iterable[Any]]:
    """As many processes as workers, each reading and batching in one thread and prefetching."""
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()  # Grain's processes read absl flags, parsed or not
    batches = grain.MapDataset.source(job.sequence).batch(job.batch_size, drop_remainder=True)
    dataset = batches.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=2))
    iterator = iter(dataset.mp_prefetch(grain.MultiprocessingOptions(job.workers, per_worker_buffer_size=4)))
    try:
        yield iterator
    finally:
        iterator.close()
