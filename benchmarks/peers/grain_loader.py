"""Grain: a MapDataset read by threads, and the same in worker processes."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import grain
from absl import flags
from grain.experimental import FirstFitPackIterDataset, WindowShuffleMapDataset

from benchmarks.peers.job import Job, stack

QUEUED_BATCHES = 10
"""Batches read ahead, the same depth as Keras and kerasfeed."""


def _batches(job: Job, scenes: Any) -> Any:
    function = None if job.collate is stack else job.collate
    repeated = scenes.repeat(job.epochs) if job.epochs > 1 else scenes
    return repeated.batch(job.batch_size, drop_remainder=True, batch_fn=function)


def _scenes(job: Job) -> Any:
    scenes = grain.MapDataset.source(job.sequence)
    return scenes.shuffle(seed=0) if job.shuffle else scenes


@contextmanager
def threads(job: Job) -> Iterator[Iterable[Any]]:
    """As many threads as workers, each reading whole batches."""
    options = grain.ReadOptions(num_threads=job.workers, prefetch_buffer_size=max(QUEUED_BATCHES, job.workers))
    yield _batches(job, _scenes(job)).to_iter_dataset(options)


@contextmanager
def _in_processes(job: Job, batches: Any) -> Iterator[Iterable[Any]]:
    if not flags.FLAGS.is_parsed():
        flags.FLAGS.mark_as_parsed()  # Grain's processes read absl flags, parsed or not
    iterator = iter(batches.mp_prefetch(grain.MultiprocessingOptions(job.workers, per_worker_buffer_size=4)))
    try:
        yield iterator
    finally:
        iterator.close()


_READS = grain.ReadOptions(num_threads=1, prefetch_buffer_size=2)


def processes(job: Job) -> Any:
    """As many processes as workers, each reading and batching in one thread and prefetching."""
    return _in_processes(job, _batches(job, _scenes(job)).to_iter_dataset(_READS))


def windows(job: Job) -> Any:
    """The same, shuffled within windows of neighbours, so that the scenes of a chunk are read together."""
    source = grain.MapDataset.source(job.sequence)
    scenes = WindowShuffleMapDataset(source, window_size=job.sequence.window, seed=0)
    return _in_processes(job, _batches(job, scenes).to_iter_dataset(_READS))


def first_fit(job: Job) -> Any:
    """Dicts of tokens packed in as many processes as workers."""
    repeated = _scenes(job).repeat(job.epochs) if job.epochs > 1 else _scenes(job)
    packed = FirstFitPackIterDataset(
        repeated.to_iter_dataset(grain.ReadOptions(num_threads=1, prefetch_buffer_size=500)),
        length_struct={"tokens": job.sequence.packed_length},
        num_packing_bins=job.batch_size,
    )
    return _in_processes(job, packed.batch(job.batch_size))
