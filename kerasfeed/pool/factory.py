"""Which pool suits a runner.

Invariant: what "auto" begins with is decided here alone, whatever is measured then; where processes cannot be had,
threads do the same.
"""

from kerasfeed.pool.base import Pool, PoolOptions, Runner
from kerasfeed.pool.environment import DirectoryGoneError
from kerasfeed.pool.hosts.pool import HostPool
from kerasfeed.pool.inline import InlinePool
from kerasfeed.pool.processes.pool import ProcessPool, processes_supported
from kerasfeed.pool.threads import ThreadPool
from kerasfeed.util.deferred_warnings import warn_caller
from kerasfeed.util.error_text import message_of

POOLS: dict[str, type[Pool]] = {"inline": InlinePool, "thread": ThreadPool, "process": ProcessPool}


def make_pool(runner: Runner, options: PoolOptions, worker_type: str) -> Pool:
    """The pool for `worker_type` "inline", "thread", "process" or "auto", its workers started without waiting for them.

    Raises:
        TypeError, OSError: Worker processes were asked for and cannot be started, or the runner cannot be pickled.
    """
    if options.hosts is not None:
        return HostPool(runner, options)
    if worker_type == "auto" and not processes_supported():
        worker_type = "thread"
    if worker_type != "auto":
        return POOLS[worker_type](runner, options)
    try:
        return ProcessPool(runner, options)
    except DirectoryGoneError:
        raise
    except (TypeError, OSError) as error:
        warn_caller(f"worker_type='auto' falls back to threads: {message_of(error)}", UserWarning)
        return ThreadPool(runner, options)
