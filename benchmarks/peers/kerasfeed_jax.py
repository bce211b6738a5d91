"""kerasfeed: the same feed with each kind of worker, as `jax.Array`s."""

from typing import Any

import kerasfeed as kf
import kerasfeed.adapters.jax.conversion  # not under the clock
from benchmarks.peers.job import Job
from benchmarks.peers.kerasfeed_feed import opened


def threads(job: Job) -> Any:
    """Batches made by worker threads."""
    return opened(job, job.workers, "thread", kf.Feed.to_jax)


def processes(job: Job) -> Any:
    """Batches made by worker processes."""
    return opened(job, job.workers, "process", kf.Feed.to_jax)
