"""The pools by name, and a runner and tasks for their tests."""

import enum
import os
import time
from dataclasses import dataclass, field
from pathlib import Path

from subprocess_pool import SubprocessPool

from kerasfeed.pool.base import Runner
from kerasfeed.pool.factory import POOLS
from kerasfeed.pool.task import CancelledTaskError, FailedTaskError, FailurePosition, FutureTask

KINDS = {**POOLS, "subprocess": SubprocessPool}
PARALLEL = [kind for kind in KINDS if kind != "inline"]
SEPARATE = [kind for kind in PARALLEL if kind != "thread"]


class Do(enum.IntEnum):
    """The work of a task; `number` is the task's."""

    GIVE = 1  # return `number`
    TELL_WORKER = 2  # return a description of the worker
    RAISE = 3
    CANCEL = 4
    KILL_WORKER = 5
    KILL_WORKER_ONCE = 6
    HANG = 7  # while a file "hold" exists
    HANG_ONCE = 8
    SEE_OBJECT = 9
    SEE_POSTED = 10


class WrongError(Exception):
    """The exception of tasks."""

    def __init__(self, number, why):
        super().__init__(number, why)
        self.number = number


class Target:
    """An object that logs in a folder which workers began and ended with it."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.state = "first"
        self.fails_to_begin = False

    def on_worker_begin(self, worker):
        if self.fails_to_begin:
            raise OSError("no such disk")
        self._note("begun", f"{worker.index} {worker.count} {worker.worker_type}")

    def on_worker_end(self):
        self._note("ended", self.state)

    def _note(self, name, line):
        with (self.folder / name).open("a") as file:
            file.write(line + "\n")

    def noted(self, name):
        path = self.folder / name
        return sorted(path.read_text().splitlines()) if path.exists() else []

    def is_first(self, name):
        """Whether this is the first call."""
        try:
            (self.folder / name).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def hold(self):
        (self.folder / "hold").touch()

    def release(self):
        (self.folder / "hold").unlink(missing_ok=True)


class TaskRunner(Runner):
    """Does the work of tasks."""

    def __init__(self, target):
        self.target = target

    def run(self, record, progress, context):
        kind, number = Do(record[0]), record[1]
        progress[1] = 0
        target = self.target
        if kind == Do.TELL_WORKER:
            worker = context.worker
            return worker.index, worker.count, worker.worker_type
        if kind == Do.RAISE:
            error = WrongError(number, "too deep")
            error.add_note("on Mars")
            raise FailedTaskError(FailurePosition(number, 1, "get_batch")) from error
        if kind == Do.CANCEL:
            raise CancelledTaskError
        if kind == Do.KILL_WORKER or (kind == Do.KILL_WORKER_ONCE and target.is_first(f"killed by {number}")):
            os._exit(7)
        if kind == Do.HANG or (kind == Do.HANG_ONCE and target.is_first(f"held by {number}")):
            (target.folder / f"begun {number}").touch()
            while (target.folder / "hold").exists():
                time.sleep(0.005)
        if kind == Do.SEE_OBJECT:
            return target.state
        if kind == Do.SEE_POSTED:
            return context.posted()
        return number


@dataclass(frozen=True, eq=False)
class RecordedTask(FutureTask):
    """A task that keeps all its outcomes; its future gives the first one."""

    next: tuple = ()
    outcomes: list = field(default_factory=list)

    def _record(self, *outcome):
        self.outcomes.append(outcome)
        self.set_result(outcome)
        return self.next

    def done(self, payload, seconds, worker):
        return self._record("done", payload)

    def failed(self, place, error, worker, traceback):
        return self._record("failed", place, error, worker)

    def crashed(self, position, crash, count):
        return self._record("crashed", position, crash, count)

    def give_up(self, error):
        self._record("given up", error)

    def stuck(self, position, crash):
        self._record("stuck", position, crash)

    def cancelled(self):
        self._record("cancelled")
