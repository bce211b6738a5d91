"""kerasfeed asked to replace scenes that fail or hang, with each kind of worker."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

import kerasfeed as kf
from benchmarks.peers.job import Job

TIMEOUT = 2.0
"""Seconds that a scene may take."""

kf.Feed  # noqa: B018 (the lazy import happens here, before the clock starts)


@contextmanager
def _feed(job: Job, worker_type: Literal["thread", "process"]) -> Iterator[Any]:
    feed = kf.Feed(
        job.sequence,
        job.batch_size,
        workers=job.workers,
        worker_type=worker_type,
        on_error="replace",
        timeout=TIMEOUT,
    )
    with feed:
        yield feed


def threads(job: Job) -> Any:
    """Batches made by worker threads."""
    return _feed(job, "thread")


def processes(job: Job) -> Any:
    """Batches made by worker processes."""
    return _feed(job, "process")
