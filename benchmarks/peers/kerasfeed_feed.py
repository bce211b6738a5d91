"""kerasfeed: the same feed with each kind of worker, as NumPy batches and as a `tf.data.Dataset`."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import kerasfeed as kf
from benchmarks.peers.job import Job

kf.Feed  # noqa: B018 (the lazy import happens here, not under the clock)


@contextmanager
def _feed(job: Job, workers: int, worker_type: Literal["thread", "process"], tf_dataset: bool = False) -> Iterator[Any]:
    with kf.Feed(job.sequence, job.batch_size, drop_remainder=True, workers=workers, worker_type=worker_type) as feed:
        yield feed.to_tf_dataset() if tf_dataset else feed


def inline(job: Job) -> Any:
    """Batches made in the calling thread."""
    return _feed(job, 0, "thread")


def threads(job: Job) -> Any:
    """Batches made by worker threads."""
    return _feed(job, job.workers, "thread")


def processes(job: Job) -> Any:
    """Batches made by worker processes."""
    return _feed(job, job.workers, "process")


def tf_threads(job: Job) -> Any:
    """Batches made by worker threads, as a `tf.data.Dataset`."""
    return _feed(job, job.workers, "thread", tf_dataset=True)


def tf_processes(job: Job) -> Any:
    """Batches made by worker processes, as a `tf.data.Dataset`."""
    return _feed(job, job.workers, "process", tf_dataset=True)
