"""kerasfeed: the same feed with each kind of worker, as NumPy batches and as a `tf.data.Dataset`."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

import kerasfeed as kf
from benchmarks.peers.job import Job

kf.Feed  # noqa: B018 (the lazy import happens here, not under the clock)


@contextmanager
def opened(
    job: Job, workers: int, worker_type: Literal["thread", "process"], convert: Callable[[kf.Feed], Any] | None = None
) -> Iterator[Any]:
    """A feed, or the result of `convert`."""
    options = {"drop_remainder": True, "workers": workers, "worker_type": worker_type, **job.options}
    with kf.Feed(job.sequence, job.batch_size, **options) as feed:
        yield job.repeated(feed) if convert is None else convert(feed)


@contextmanager
def auto(job: Job) -> Iterator[Any]:
    """Workers chosen by kerasfeed."""
    with kf.Feed(job.sequence, job.batch_size, **job.options) as feed:
        yield job.repeated(feed)


def inline(job: Job) -> Any:
    """Batches made in the calling thread."""
    return opened(job, 0, "thread")


def threads(job: Job) -> Any:
    """Batches made by worker threads."""
    return opened(job, job.workers, "thread")


def processes(job: Job) -> Any:
    """Batches made by worker processes."""
    return opened(job, job.workers, "process")


def tf_threads(job: Job) -> Any:
    """Batches made by worker threads, as a `tf.data.Dataset`."""
    return opened(job, job.workers, "thread", kf.Feed.to_tf_dataset)


def tf_processes(job: Job) -> Any:
    """Batches made by worker processes, as a `tf.data.Dataset`."""
    return opened(job, job.workers, "process", kf.Feed.to_tf_dataset)


@contextmanager
def tf_scenes(job: Job) -> Iterator[Any]:
    """`kf.from_indexable`, batched and prefetched by tf.data."""
    scenes = kf.from_indexable(job.sequence, num_parallel_calls=job.workers)
    yield scenes.batch(job.batch_size, drop_remainder=True).prefetch(2)
