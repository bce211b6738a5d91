"""Keras PyDataset: each worker stacks whole batches.

A PyDataset has no public way to iterate with its workers. In a loop, the batches come from the
dataset that `fit` itself reads on TensorFlow (`PyDatasetAdapter.get_tf_dataset`). The `enqueued_*` peers
take the NumPy arrays of Keras's `OrderedEnqueuer` instead, which users do not see but which is the most
favourable to Keras.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
from keras.src.trainers.data_adapters.py_dataset_adapter import OrderedEnqueuer, PyDatasetAdapter

from benchmarks.peers.job import Job


class Batches(keras.utils.PyDataset):
    """The batches of a job.

    Args:
        job: The job.
        use_multiprocessing: Processes instead of threads.
    """

    def __init__(self, job: Job, use_multiprocessing: bool) -> None:
        super().__init__(workers=job.workers, use_multiprocessing=use_multiprocessing, max_queue_size=10)
        self.job = job

    def __len__(self) -> int:
        return self.job.steps

    def __getitem__(self, step: int) -> Any:
        return self.job.batch_of(step)


@contextmanager
def _batches(job: Job, use_multiprocessing: bool) -> Iterator[Any]:
    dataset = Batches(job, use_multiprocessing)
    if job.for_fit:
        yield dataset
        return
    adapter = PyDatasetAdapter(dataset)
    yield adapter.get_tf_dataset()
    adapter.enqueuer.stop(drain_queue_and_join=False)


@contextmanager
def _enqueued(job: Job, use_multiprocessing: bool) -> Iterator[Any]:
    dataset = Batches(job, use_multiprocessing)
    enqueuer = OrderedEnqueuer(
        dataset,
        workers=dataset.workers,
        use_multiprocessing=dataset.use_multiprocessing,
        max_queue_size=dataset.max_queue_size,
    )
    enqueuer.start()
    yield enqueuer.get()
    enqueuer.stop(drain_queue_and_join=False)


@contextmanager
def windows(job: Job) -> Iterator[Any]:
    """`timeseries_dataset_from_array` over the rows of a sequence of windows; a window's target is its index."""
    dataset = keras.utils.timeseries_dataset_from_array(
        job.sequence.rows,
        np.arange(len(job.sequence)),
        len(job.scene[0]),
        batch_size=job.batch_size,
        shuffle=job.shuffle,
        seed=0,
    )
    yield job.repeated(dataset)


def threads(job: Job) -> Any:
    """Batches made by Keras's worker threads."""
    return _batches(job, use_multiprocessing=False)


def processes(job: Job) -> Any:
    """Batches made by Keras's worker processes, pickled back."""
    return _batches(job, use_multiprocessing=True)


def enqueued_threads(job: Job) -> Any:
    """NumPy batches made by Keras's worker threads."""
    return _enqueued(job, use_multiprocessing=False)


def enqueued_processes(job: Job) -> Any:
    """NumPy batches made by Keras's worker processes, pickled back."""
    return _enqueued(job, use_multiprocessing=True)
