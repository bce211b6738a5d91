"""Which pool suits a runner.

Invariant: what "auto" begins with is decided here alone, whatever is measured then. Where processes cannot be had, one
thread does all, unless the user has said that several may.
"""

import dataclasses
import sys

from kerasfeed.pool.base import Pool, PoolOptions, Runner
from kerasfeed.pool.environment import DirectoryGoneError
from kerasfeed.pool.local import InlinePool
from kerasfeed.pool.processes.pool import ProcessPool
from kerasfeed.pool.threads import ThreadPool
from kerasfeed.sequences.turn import Turn
from kerasfeed.util.deferred_warnings import warn_caller
from kerasfeed.util.error_text import message_of

POOLS: dict[str, type[Pool]] = {"inline": InlinePool, "thread": ThreadPool, "process": ProcessPool}


def make_pool(runner: Runner, options: PoolOptions, worker_type: str) -> Pool:
    """The pool for `worker_type` "inline", "thread", "process" or "auto", its workers started without waiting for them.

    Raises:
        TypeError, OSError: Worker processes were asked for and cannot be started, or the runner cannot be pickled.
    """
    if worker_type in ("inline", "auto") and not options.thread_safe:
        options = dataclasses.replace(options, turn=Turn() if runner.target is None else Turn(runner.target))
    if worker_type != "auto":
        return POOLS[worker_type](runner, options)
    if sys.platform != "win32":  # there threads are no surprise
        try:
            return ProcessPool(runner, options)
        except DirectoryGoneError:
            raise
        except (TypeError, OSError) as error:
            taken, more = "worker threads", ""
            if not options.thread_safe:
                taken = "one worker thread"
                more = ". What only the thread that made it may use, such as a connection of sqlite3, needs workers=0"
            warn_caller(f"worker_type='auto' takes {taken}: {message_of(error)}{more}", UserWarning)
    return ThreadPool(runner, options if options.thread_safe else dataclasses.replace(options, workers=1))
