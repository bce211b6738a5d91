"""Which loader suits a job.

Invariant: what "auto" means is decided here alone; where processes cannot be had, threads load the same bits.
"""

from collections.abc import Callable
from typing import Any

from kerasfeed.loaders.base import Job, Loader
from kerasfeed.loaders.environment import DirectoryGoneError
from kerasfeed.loaders.inline import InlineLoader
from kerasfeed.loaders.processes.loader import ProcessLoader, processes_supported
from kerasfeed.loaders.threads.loader import ThreadLoader
from kerasfeed.util.deferred_warnings import warn_caller
from kerasfeed.util.error_text import cause_of, message_of
from kerasfeed.util.frames import is_in_memory


def worker_type_for(sequence: Any, worker_type: str) -> str:
    """`worker_type`, which is "thread" instead of "auto" for a sequence whose scenes are there already."""
    return "thread" if worker_type == "auto" and is_in_memory(sequence) else worker_type


def make_loader(
    job: Job, worker_type: str, reword_unpicklable: Callable[[TypeError], TypeError] | None = None
) -> Loader:
    """The loader for `worker_type` "thread", "process" or "auto"; without workers, the inline one.

    Args:
        job: What to load.
        worker_type: As in `Feed`.
        reword_unpicklable: Says in other words that the sequence cannot be pickled.

    Raises:
        TypeError, OSError: Worker processes were asked for and cannot be started, or the sequence cannot be pickled.
    """
    if job.workers == 0:
        return InlineLoader(job)
    worker_type = worker_type_for(job.sequence, worker_type)
    if worker_type == "thread" or (worker_type == "auto" and not processes_supported()):
        return ThreadLoader(job)
    loader = ProcessLoader(job)
    try:
        loader.start()  # workers come up while the caller builds a model
    except (TypeError, OSError) as error:
        loader.close()
        told = reword_unpicklable(error) if reword_unpicklable and isinstance(error, TypeError) else error
        if worker_type == "process" or isinstance(error, DirectoryGoneError):
            if told is error:
                raise
            raise told from cause_of(error)
        warn_caller(f"worker_type='auto' falls back to threads: {message_of(told)}", UserWarning)
        return ThreadLoader(job)
    return loader
