"""Which loader suits a job.

Invariant: what "auto" means is decided here alone; where processes cannot be had, threads load the same bits.
"""

from kerasfeed.loaders.base import Job, Loader
from kerasfeed.loaders.environment import DirectoryGoneError
from kerasfeed.loaders.inline import InlineLoader
from kerasfeed.loaders.processes.loader import ProcessLoader, processes_supported
from kerasfeed.loaders.threads.loader import ThreadLoader
from kerasfeed.util.deferred_warnings import warn_caller
from kerasfeed.util.error_text import message_of
from kerasfeed.util.frames import is_in_memory


def make_loader(job: Job, worker_type: str) -> Loader:
    """The loader for `worker_type` "thread", "process" or "auto"; without workers, the inline one.

    Raises:
        TypeError, OSError: Worker processes were asked for and cannot be started, or the sequence cannot be pickled.
    """
    if job.workers == 0:
        return InlineLoader(job)
    if worker_type == "thread":
        return ThreadLoader(job)
    if worker_type == "auto" and (is_in_memory(job.sequence) or not processes_supported()):
        return ThreadLoader(job)
    loader = ProcessLoader(job)
    try:
        loader.start()  # workers come up while the caller builds a model
    except (TypeError, OSError) as error:
        loader.close()
        if worker_type == "process" or isinstance(error, DirectoryGoneError):
            raise
        warn_caller(f"worker_type='auto' falls back to threads: {message_of(error)}", UserWarning)
        return ThreadLoader(job)
    return loader
