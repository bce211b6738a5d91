"""A pool of worker processes: for scenes that hold the GIL, and for isolation.

Invariant: results are read, and workers that died replaced, by one supervisor thread
(`kerasfeed.pool.processes.supervisor`), never the user's, so that Ctrl-C in the main thread cannot tear the state.
"""

import sys
from collections.abc import Sequence
from typing import Any

from kerasfeed.errors import FeedClosedError
from kerasfeed.pool.base import CLOSED_BEFORE_DONE, Pool, PoolOptions, Receipt, Runner
from kerasfeed.pool.processes.dispatch import Dispatch
from kerasfeed.pool.processes.shared_objects import Topic
from kerasfeed.pool.processes.supervisor import Supervisor
from kerasfeed.pool.processes.worker_process import end_workers
from kerasfeed.pool.task import Task
from kerasfeed.util.resources import cores

_GRACE = 2.0


def processes_supported() -> bool:
    """Whether this system can run worker processes (it needs `pass_fds` and `poll`: any POSIX system)."""
    return sys.platform != "win32"


class ProcessPool(Pool):
    """Worker processes of this machine."""

    worker_type = "process"

    def __init__(self, runner: Runner, options: PoolOptions) -> None:
        """Start the workers, without waiting for them.

        Raises:
            TypeError: The runner cannot be pickled.
            OSError: No process can be started.
        """
        if not processes_supported():
            raise OSError("worker processes need a POSIX system (Linux, macOS); use worker_type='thread'")
        super().__init__(runner, options)
        self._dispatch = Dispatch(runner, options, self.who, self.lock, self.ending)
        self.memory = self._dispatch.memory
        self._supervisor = Supervisor(self._dispatch, self.fail, self._note_idle)
        try:
            # The first few at once, each next one when one is up: interpreters that start together share the cores,
            # and the first batch would wait for the last of them.
            with self._dispatch.naming_descriptors():
                for number in range(min(options.workers, 2 * cores())):
                    self._dispatch.start_worker(number)
            self._supervisor.start()
        except BaseException:
            self.close()
            raise

    def submit(self, tasks: Sequence[Task], receipt: Receipt | None = None) -> None:
        """See `Pool.submit`."""
        with self.lock:
            self.refuse_if_ended()
            self._dispatch.send(tasks, receipt)

    @property
    def in_flight(self) -> int:
        """See `Pool.in_flight`."""
        return len(self._dispatch.tasks)

    def _note_idle(self) -> None:
        with self.lock:
            self._idle.notify_all()

    def post(self, value: Any) -> None:
        """See `Pool.post`."""
        with self.lock:
            self.refuse_if_ended()
            self._dispatch.shared_objects.post(Topic.POSTED, value)

    def renew(self) -> None:
        """See `Pool.renew`."""
        try:
            self._dispatch.post_runner()
        except TypeError:
            if not self.closed:
                raise

    @property
    def used_random(self) -> int:
        """See `Pool.used_random`."""
        return self._dispatch.shared_objects.used_random

    def note_random(self, used: int) -> None:
        """See `Pool.note_random`."""
        self._dispatch.shared_objects.note_random(used)

    @property
    def respawns(self) -> int:
        """See `Pool.respawns`."""
        return self._supervisor.respawns

    def fail(self, error: BaseException) -> None:
        """Give every task in flight this error, and end the pool."""
        with self.lock:
            if self.failure is None:
                self.failure = error
            tasks = list(self._dispatch.tasks.values())
            self._dispatch.tasks.clear()
            self._dispatch.pipes.forget()
            self._idle.notify_all()
        for task in tasks:
            task.give_up(error)
        if self.on_failure is not None:
            self.on_failure()

    def pids(self) -> tuple[int, ...]:
        """See `Pool.pids`."""
        return tuple(handle.process.pid for handle in self._dispatch.workers if handle.process.returncode is None)

    def _end(self) -> None:
        self.fail(FeedClosedError(CLOSED_BEFORE_DONE))
        self._supervisor.join()
        self._dispatch.stop_workers()
        dead = self.failure is not None and not isinstance(self.failure, FeedClosedError)
        end_workers(self._dispatch.workers, grace=0.2 if dead else _GRACE)
        self._supervisor.read_final_reports()
        self._dispatch.close()
        self._supervisor.forget(self.failure)
