"""Tasks run in this process, by whatever thread: what inline pools and pools of threads have in common.

Invariant: what the user's code raises reaches the task; Ctrl-C, and what a signal's handler raises, the caller.
"""

import itertools
import mmap
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kerasfeed.pool.base import Runner
from kerasfeed.pool.memory import PoolMemory
from kerasfeed.pool.task import CancelledTaskError, FailedTaskError, Task
from kerasfeed.sequences.context import Worker
from kerasfeed.util.error_text import is_the_programs

_serials = itertools.count(1)


@dataclass(eq=False)
class LocalWorker:
    """A worker in this process; see `kerasfeed.pool.base.WorkerContext`.

    Attributes:
        name: As messages name it.
        thread: Its thread.
        task: What it is at; None for nothing.
        serial: Number of that, of all that were begun in this process.
        note: Where in the task it is.
        busy: Whether it is at something; it begins busy, with `on_worker_begin`.
        was_done: Whether the last task was, and has neither failed nor been cancelled.
        given_up: Whether another has taken its place, because it hangs.
    """

    worker: Worker
    name: str
    memory: PoolMemory
    shared: list[Any]
    thread: threading.Thread | None = None
    task: Task | None = None
    serial: int = 0
    note: list[int] = field(default_factory=lambda: [0, 0])
    busy: bool = True
    was_done: bool = False
    given_up: bool = False
    used_random: int = 0  # of this process's only the program itself may dispose

    def posted(self) -> Any:
        """See `WorkerContext.posted`."""
        return self.shared[0]

    def memory_at(self, offset: int, nbytes: int) -> mmap.mmap:
        """See `WorkerContext.memory_at`."""
        return self.memory.at(offset, nbytes)

    def note_random(self, used: int) -> None:
        """See `WorkerContext.note_random`; in this process it is told while the spec is inferred."""

    def token(self) -> Any:
        """Changes from place to place; None between two tasks."""
        return (self.serial, self.note[1]) if self.busy else None


def run_here(task: Task, runner: Runner, worker: LocalWorker) -> Sequence[Task]:
    """Do a task in this thread; returns what is to be done next.

    Raises:
        BaseException: Ctrl-C, or what a signal's handler has raised.
    """
    worker.serial = next(_serials)
    worker.was_done = False
    started = time.perf_counter()
    try:
        payload = runner.run(task.record(), worker.note, worker)
    except CancelledTaskError:
        task.cancelled()
        return ()
    except FailedTaskError as carrier:
        error, place = carrier.error, carrier.place
        if is_the_programs(error):
            raise error from None
    else:
        worker.was_done = True
        return task.done(payload, time.perf_counter() - started, worker.name)
    try:
        return task.failed(place, error, worker.name, "")
    finally:
        del error, task  # the traceback of what was raised ends in this frame: only the collector would free them
