"""Choose the pool for a runner.

Invariant: only this module decides which pool "auto" starts with. If no process can start, or the runner cannot be
pickled, one thread does all tasks, unless the user has allowed several.
"""

import dataclasses
import sys

from kerasfeed.pool.base import Pool, PoolOptions, Runner
from kerasfeed.pool.local import InlinePool
from kerasfeed.pool.processes.pool import ProcessPool
from kerasfeed.pool.threads import ThreadPool
from kerasfeed.sequences.turn import Turn
from kerasfeed.util.deferred_warnings import warn_caller
from kerasfeed.util.error_text import message_of

POOLS: dict[str, type[Pool]] = {"inline": InlinePool, "thread": ThreadPool, "process": ProcessPool}


def make_pool(runner: Runner, options: PoolOptions, worker_type: str) -> Pool:
    """Make the pool for `worker_type`; do not wait for its workers.

    Args:
        runner: The runner that each worker holds.
        options: The options of the pool.
        worker_type: "inline", "thread", "process" or "auto".

    Raises:
        TypeError, OSError: The user asked for processes, and they cannot start or the runner cannot be pickled.
        FileNotFoundError: The directory of the feed is gone, and the program is in another one.
    """
    if worker_type in ("inline", "auto") and not options.thread_safe:
        options = dataclasses.replace(options, turn=Turn() if runner.target is None else Turn(runner.target))
    if worker_type != "auto":
        return POOLS[worker_type](runner, options)
    if sys.platform != "win32":  # on Windows, threads are expected
        try:
            return ProcessPool(runner, options)
        except (TypeError, OSError) as error:
            if isinstance(error, FileNotFoundError) and not options.environment.is_here:
                raise  # a thread would read relative paths in another directory
            used, more = "worker threads", ""
            if not options.thread_safe:
                used = "one worker thread"
                more = ". An object that only its thread may use, such as a connection of sqlite3, needs workers=0"
            warn_caller(f"worker_type='auto' uses {used}: {message_of(error)}{more}", UserWarning)
    return ThreadPool(runner, options if options.thread_safe else dataclasses.replace(options, workers=1))
