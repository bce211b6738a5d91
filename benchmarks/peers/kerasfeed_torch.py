"""kerasfeed: the same feed with each kind of worker, as tensors of PyTorch."""

from typing import Any

import kerasfeed as kf
import kerasfeed.adapters.torch.conversion  # not under the clock
from benchmarks.peers.job import Job
from benchmarks.peers.kerasfeed_feed import opened


def threads(job: Job) -> Any:
    """Batches made by worker threads."""
    return opened(job, job.workers, "thread", kf.Feed.to_torch)


def processes(job: Job) -> Any:
    """Batches made by worker processes."""
    return opened(job, job.workers, "process", kf.Feed.to_torch)
