"""Feeds over an HDF5 file in several orders, epoch after epoch, and beside a busy main loop."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, Literal

import kerasfeed as kf
from benchmarks.peers.hdf5_readers import count_up
from benchmarks.peers.job import Job

AHEAD = 8
"""Batches that a busy main loop requests ahead."""

WorkerType = Literal["thread", "process"]


class Epochs:
    """Endless epochs of a feed.

    Args:
        feed: The feed.
    """

    def __init__(self, feed: kf.Feed) -> None:
        self.feed = feed

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from self.feed


@contextmanager
def _ordered(job: Job, worker_type: WorkerType, order: Any) -> Iterator[Epochs]:
    with kf.Feed(
        job.sequence, job.batch_size, order=order, seed=0, workers=job.workers, worker_type=worker_type
    ) as feed:
        yield Epochs(feed)


@contextmanager
def _busy(job: Job, worker_type: WorkerType) -> Iterator[Iterator[Any]]:
    with kf.Feed(job.sequence, job.batch_size, workers=job.workers, worker_type=worker_type) as feed:
        yield _polled(feed)


def _polled(feed: kf.Feed) -> Iterator[Any]:
    """The batches of a feed, requested ahead; Python runs while they are loaded."""
    futures = [feed.submit(0, step) for step in range(AHEAD)]
    for step in count(AHEAD):
        future = futures.pop(0)
        while not future.done():
            count_up()
        futures.append(feed.submit(0, step))
        yield future.result()


def blocks_threads(job: Job) -> Any:
    """`BlockShuffled` by chunks, threads."""
    return _ordered(job, "thread", kf.BlockShuffled(job.sequence.points))


def blocks_processes(job: Job) -> Any:
    """`BlockShuffled` by chunks, processes."""
    return _ordered(job, "process", kf.BlockShuffled(job.sequence.points))


def shuffled_threads(job: Job) -> Any:
    """A full shuffle, threads."""
    return _ordered(job, "thread", kf.Shuffled())


def sequential_threads(job: Job) -> Any:
    """Scenes in the order of the file, threads."""
    return _ordered(job, "thread", kf.Sequential())


def sequential_processes(job: Job) -> Any:
    """Scenes in the order of the file, processes."""
    return _ordered(job, "process", kf.Sequential())


def busy_threads(job: Job) -> Any:
    """Threads with a busy main loop."""
    return _busy(job, "thread")


def busy_processes(job: Job) -> Any:
    """Processes with a busy main loop."""
    return _busy(job, "process")
