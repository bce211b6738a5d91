"""The thread that a pool of processes may begin with.

It reads tasks from the pipe of the worker processes until these have started.

Invariant: the thread works on its own copy of the runner, never on the user's object. It records its present task in a
line of the shared file, as worker processes do.
"""

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from kerasfeed.errors import FeedClosedError
from kerasfeed.pool.base import CLOSED_BEFORE_DONE, Runner
from kerasfeed.pool.local import LocalWorker
from kerasfeed.pool.processes.crash_policy import start_error
from kerasfeed.pool.processes.dispatch import Dispatch
from kerasfeed.pool.processes.protocol import STOP, TASK_BYTES, decode_task
from kerasfeed.pool.processes.shared_objects import Topic
from kerasfeed.pool.resource_errors import start_thread
from kerasfeed.pool.task import NOWHERE, FailedTaskError, FailurePosition, Task, UnseededTaskError
from kerasfeed.pool.worker_hooks import defer_failed_end, end_worker
from kerasfeed.sequences.context import Worker
from kerasfeed.sequences.global_random import NUMPY, PYTHON, TENSORFLOW, TORCH
from kerasfeed.sequences.optional_methods import optional_method
from kerasfeed.util.error_text import full_text

_T = TypeVar("_T")
_JOIN_SECONDS = 5.0


@dataclass(eq=False, kw_only=True)
class FirstWorker(LocalWorker):
    """The thread; see `LocalWorker`.

    Attributes:
        pool: The worker's pool.
        line: Number of its line in the shared file.
        over: Whether it must take no further task.
    """

    has_copy: bool = True
    pool: Dispatch
    line: int
    over: bool = False
    _copy: Runner | None = None
    _version: int = 0

    @classmethod
    def start(cls, pool: Dispatch, line: int) -> "FirstWorker":
        """Start the thread."""
        first = cls(worker=Worker(0, 1, "thread"), name="worker thread 0", pool=pool, line=line, busy=False)
        first.thread = threading.Thread(
            target=first._run, args=(os.dup(pool.pipes.tasks_out[0]),), name="kerasfeed-worker-0", daemon=True
        )
        start_thread(first.thread, pool.owner, 1)
        return first

    def end(self) -> None:
        """Wait up to 5 s for the thread, which ends at STOP."""
        self.over = True
        if self.thread is not threading.current_thread():
            self.thread.join(_JOIN_SECONDS)

    # ---- WorkerContext and LocalWorker

    @property
    def runner(self) -> Runner:
        """See `LocalWorker.runner`: the copy."""
        assert self._copy is not None
        return self._copy

    def posted(self) -> Any:
        """See `WorkerContext.posted`."""
        return self.pool.shared_objects.read(Topic.POSTED)[1]

    @property
    def watches_globals(self) -> bool:
        """See `WorkerContext.watches_globals`; True once worker processes replace it."""
        return self.pool.worker_type == "process"

    def record_random(self, used: int) -> None:
        """See `WorkerContext.record_random`; ignores the global generators.

        Other threads of the program may have used the global generators.
        """
        self.pool.record_random(used & ~(PYTHON | NUMPY | TORCH | TENSORFLOW))

    def in_turn(self, call: Callable[[], _T]) -> _T:
        """Call at once: the copy belongs to this thread."""
        return call()

    # ---- the thread

    def _run(self, tasks_out: int) -> None:
        line = self.pool.shared_objects.worker_line(self.line)
        while data := os.read(tasks_out, TASK_BYTES):
            number, version, _ = decode_task(data)
            if number == STOP:
                break
            self.progress[1] = NOWHERE
            line[0] = number + 1  # first; see `WorkerProcess`
            task = self.pool.tasks.get(number)
            if task is not None:
                self.busy, self.task = True, task
                # Worker processes have seen that scenes use random generators. Only processes seed these.
                self.over |= self.pool.worker_type == "process" and self.pool.used_random > 0
                # Another worker was lost, or a process must do the task.
                is_returned = self.over or number < line[2]
                self.pool.settle(number, [task] if is_returned else self._followers(task, version))
                self.busy, self.task = False, None
            del task, data  # a waiting thread must not keep a batch alive
            line[0] = 0
            if self.over:
                break
        line.release()
        os.close(tasks_out)
        self._end()

    def _followers(self, task: Task, version: int) -> Sequence[Task]:
        """Do a task; return the tasks that replace it."""
        try:
            if self._version < version:
                self._renew()
            return self.do(task)
        except FailedTaskError as carrier:
            if self._copy is None:
                self.pool.fail(start_error(self.name, full_text(carrier.error)))
                return ()
            return task.failed(carrier.position, carrier.error, self.name, "")
        except UnseededTaskError:
            if self.pool.worker_type != "process":
                self.pool.take_processes(self.pool.options.workers, at_once=True)
            self.over = True
            return [task]
        except BaseException as error:  # noqa: BLE001 - the consumer waits for the task
            task.give_up(FeedClosedError(CLOSED_BEFORE_DONE) if self.pool.closed else error)
            task.cancelled()
            return ()

    def _renew(self) -> None:
        self._end()
        try:
            version, copy = self.pool.shared_objects.read(Topic.RUNNER)
            if self._copy is not None:
                copy.follow(self._copy)
            begin = optional_method(copy.target, "on_worker_begin")
            if begin is not None:
                begin(self.worker)
            self._copy, self._version = copy, version
        except BaseException as error:
            raise FailedTaskError(FailurePosition(method="on_worker_begin")) from error

    def _end(self) -> None:
        if self._version and self._copy is not None:
            self._version = 0
            defer_failed_end(self.pool.options.deferred_warnings, end_worker(self._copy.target, self.name))
