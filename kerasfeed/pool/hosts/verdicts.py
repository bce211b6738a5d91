"""What tasks are told of their outcome on a host, and how often one may end its workers.

Invariant: counted here alone, for all hosts together; hosts tell of each worker process that ends.
"""

from collections.abc import Sequence
from dataclasses import replace

from kerasfeed.errors import FeedWarning, HostLostError
from kerasfeed.pool.base import PoolOptions
from kerasfeed.pool.hosts.messages import Error, Outcome
from kerasfeed.pool.processes.crash_policy import CrashPolicy, respawn_text
from kerasfeed.pool.task import Crash, Task


class Verdicts:
    """Tells tasks what became of them.

    Attributes:
        deaths: What hosts and their workers died of.
    """

    def __init__(self, options: PoolOptions) -> None:
        self._options = options
        self.deaths = CrashPolicy()

    def tell(self, task: Task, outcome: Outcome, host: str) -> Sequence[Task]:
        """Tell a task what became of it on `host`; returns what is to be done in its place."""
        method, arguments = outcome.method, outcome.arguments
        if method == "done":
            payload, seconds, worker = arguments
            self.deaths.progress(task)
            return task.done(payload, seconds, f"{worker} on {host}")
        if method == "failed":
            place, packed, worker, traceback = arguments
            return task.failed(place, packed.arrived(), f"{worker} on {host}", traceback)
        if method == "crashed":
            note, crash, _ = arguments
            return self._judge(task, note, replace(crash, worker=f"{crash.worker} on {host}", place=task.text(note)))
        if method == "broken":
            (error,) = arguments
            assert isinstance(error, Error)
            task.broken(error.arrived())
        else:
            assert method == "cancelled"
            task.cancelled()
        return ()

    def _judge(self, task: Task, note: int, crash: Crash) -> Sequence[Task]:
        """What is to be done about the task that a worker process died of."""
        self._options.deferred_warnings.defer("respawn", respawn_text(crash), FeedWarning)
        culprit = task.culprit(note)
        if culprit is None:
            return task.parts(note) or [task]  # which of them it was is found out one by one
        count = self.deaths.at_place(culprit, crash)
        tries = self._options.tries_in_time if crash.hung else self._options.tries
        if count < self.deaths.enough(crash, tries):
            return [task]
        self.deaths.judged(culprit)
        return task.crashed(note, crash, count)

    def is_lost(self, tasks: Sequence[Task], times: int, last: str) -> bool:
        """Tasks have lost their host so often; whether they were told that this is once too often."""
        if times < self._options.tries:
            return False
        what = tasks[0].text(-1) or "a task"
        error = HostLostError(
            f"{what} lost the host that was to load them {times} times, and are not tried again (max_failures): the "
            f"last, {last}"
        )
        for task in tasks:
            task.broken(error)
        return True
