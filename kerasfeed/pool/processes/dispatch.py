"""The tasks that worker processes have in hand, and what they are sent by: pipes, and objects that all share.

Invariant: after `send` has written tasks, nothing in this process need run for the workers to carry on: the kernel
hands the next task to whichever worker is free, or to the one that it names. Tasks are written whole, in groups of at
most PIPE_BUF bytes, and never block the writer: what the kernel does not take yet waits here until `flush`. Whoever
holds `lock` never calls the user's code.
"""

import os
import sys
from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from kerasfeed.pool.base import PoolOptions, Receipt, Runner
from kerasfeed.pool.environment import search_path
from kerasfeed.pool.memory import PoolMemory
from kerasfeed.pool.processes.protocol import (
    PIPE_BUF,
    RESULT_BYTES,
    STOP,
    TASK_BYTES,
    Result,
    WorkerStart,
    decode_results,
    encode_task,
)
from kerasfeed.pool.processes.shared_objects import SharedObjects, Topic
from kerasfeed.pool.processes.stack_dumps import StackDumps
from kerasfeed.pool.processes.worker_process import WorkerHandle, start_worker
from kerasfeed.pool.resource_errors import descriptors_of, is_of_memory, naming_descriptors
from kerasfeed.pool.task import Task
from kerasfeed.util.user_modules import module_texts

_GROUP = PIPE_BUF // TASK_BYTES
_PIPE_BYTES = 1 << 20


class Pipes:
    """Pipes of tasks, one of results, and one to wake the supervisor.

    Attributes:
        tasks_out: Descriptors from which workers read tasks: one of all, or one of each.
        tasks_in: Descriptors to which tasks are written, non-blocking.
        result_out: Descriptor from which results are read.
        result_in: Descriptor to which workers write results.
        wake_out: Descriptor that becomes readable after `wake`.
    """

    def __init__(self, tasks: int = 1) -> None:
        """Make so many pipes of tasks.

        Raises:
            OSError: There are no descriptors left.
        """
        made: list[int] = []
        try:
            for _ in range(2 + tasks):
                made += os.pipe()
        except OSError:  # too many open files
            for fd in made:
                os.close(fd)
            raise
        self.result_out, self.result_in, self.wake_out, self._wake_in = made[:4]
        self.tasks_out, self.tasks_in = made[4::2], made[5::2]
        self._waiting: list[deque[bytes]] = [deque() for _ in range(tasks)]
        for fd in (*self.tasks_in, self._wake_in, self.wake_out):
            os.set_blocking(fd, False)
        if sys.platform == "linux":
            import fcntl

            for fd in (*self.tasks_in, self.result_in):
                try:
                    fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
                except OSError:  # over the user's quota of pipe memory: 64 KiB serve too, with more system calls
                    break

    def write(self, pipe: int = 0, tasks: Sequence[bytes] = ()) -> bool:
        """Write `tasks` behind those that wait; returns False when some must wait for `flush`."""
        waiting = self._waiting[pipe]
        waiting.extend(b"".join(tasks[first : first + _GROUP]) for first in range(0, len(tasks), _GROUP))
        while waiting:
            group = waiting.popleft()  # first: Ctrl-C may lose it here, and must not have it written twice
            try:
                os.write(self.tasks_in[pipe], group)  # at most PIPE_BUF: all or nothing
            except BlockingIOError:
                waiting.appendleft(group)
                return False
        return True

    def flush(self) -> list[int]:
        """Write what waits; returns the descriptors that take no more."""
        return [fd for pipe, fd in enumerate(self.tasks_in) if not self.write(pipe)]

    def forget(self, pipe: int | None = None) -> None:
        """Drop the tasks that wait, for one pipe or for all."""
        for waiting in self._waiting if pipe is None else (self._waiting[pipe],):
            waiting.clear()

    def results(self) -> list[Result]:
        """Results that have come; waits for one."""
        return decode_results(os.read(self.result_out, RESULT_BYTES * 512))

    def wake(self) -> None:
        """Make `wake_out` readable."""
        try:
            os.write(self._wake_in, b"\0")
        except BlockingIOError:
            pass  # it is readable already

    def calm(self) -> None:
        """Undo `wake`."""
        os.read(self.wake_out, 4096)

    def close_tasks(self) -> None:
        """End of file for the workers."""
        for fd in (*self.tasks_in, *self.tasks_out):
            os.close(fd)

    def close(self) -> None:
        """Close the rest."""
        for fd in (self.result_out, self.result_in, self.wake_out, self._wake_in):
            os.close(fd)


class Dispatch:
    """Sends tasks to worker processes, and keeps account of those that were sent.

    Attributes:
        options: The pool's.
        lock: The pool's.
        tasks: Tasks that were sent and not yet accounted for, by number.
        workers: The present worker of each number.
        doubtful: Whether some of the tasks may not have been sent.
        ending: Tells why the pool takes no more tasks; None as long as it does.
        memory: The pool's.
    """

    def __init__(
        self, runner: Runner, options: PoolOptions, who: str, lock: Any, ending: Callable[[], BaseException | None]
    ) -> None:
        """Get ready to start workers.

        Raises:
            TypeError: The runner cannot be pickled.
            OSError: There are no descriptors, or no memory, left.
        """
        self.options = options
        self._who = who
        self.lock = lock
        self.ending = ending
        self.tasks: dict[int, Task] = {}
        self.workers: list[WorkerHandle] = []
        self.doubtful = False
        self._last_number = STOP
        self._withheld: set[int] = set()  # workers to which nothing is written until what they have lost is sent anew
        self._runner = runner
        with self.naming_descriptors(), ExitStack() as undo:  # each takes a descriptor, and there may be none left
            self.shared_objects = SharedObjects.create(options.workers)
            undo.callback(self.shared_objects.close)
            self.memory = PoolMemory(shared=True, who=who)
            undo.callback(self.memory.close)
            self.stacks = StackDumps()
            undo.callback(self.stacks.close)
            first, count = options.place.first, max(options.place.count, options.place.first + options.workers)
            self._start = WorkerStart(search_path(), first, count, module_texts(), options.first_opened.copy())
            self.shared_objects.post(Topic.START, self._start)
            self.post_runner()
            self.pipes = Pipes(options.workers if options.addressed else 1)
            undo.pop_all()

    def naming_descriptors(self) -> Any:
        """See `kerasfeed.pool.resource_errors.naming_descriptors`."""
        return naming_descriptors(self._who, descriptors_of(self.options.workers))

    def post_runner(self) -> None:
        """Post the present state of the runner; tasks sent from now on see it.

        Raises:
            TypeError: It cannot be pickled.
        """
        try:
            self.version = self.shared_objects.post(Topic.RUNNER, self._runner)
        except Exception as error:
            if is_of_memory(error):
                raise
            raise self._runner.unpicklable(error) from error

    def start_worker(self, number: int) -> WorkerHandle:
        """Start worker `number`, in place of the one that had the number.

        Raises:
            OSError: No process can be started.
        """
        assert self.memory.fd is not None
        if len(self._start.first_opened) != len(self.options.first_opened):
            self._start = replace(self._start, first_opened=self.options.first_opened.copy())
            self.shared_objects.post(Topic.START, self._start)
        tasks_out = self.pipes.tasks_out[number if self.options.addressed else 0]
        handle = start_worker(
            number,
            self.options.workers,
            (tasks_out, self.pipes.result_in, self.memory.fd, self.shared_objects.fd, self.stacks.fd),
            inherit=self.options.inherit,
            environment=self.options.environment,
            seed=self.options.seed,
            where=self.options.place.text,
        )
        self.workers[number : number + 1] = [handle]
        return handle

    def send(self, tasks: Sequence[Task], receipt: Receipt | None = None) -> None:
        """Send tasks. The caller holds `lock`."""
        first = self._last_number + 1
        self._last_number += len(tasks)
        sent = dict(enumerate(tasks, first))
        try:
            if receipt is not None:
                receipt.sent = True  # and not a call earlier: Ctrl-C comes after calls
            self.tasks.update(sent)
            records: dict[int, list[bytes]] = {}
            for number, task in sent.items():
                if (pipe := self._pipe_of(task)) not in self._withheld:
                    records.setdefault(pipe, []).append(encode_task(number, self.version, task.record()))
            written = [self.pipes.write(pipe, found) for pipe, found in records.items()]
            if not all(written):
                self.pipes.wake()
        except BaseException:  # Ctrl-C: which of them were written is not known
            self.doubtful = True
            self.pipes.wake()
            raise

    def _pipe_of(self, task: Task) -> int:
        return (task.worker or 0) % len(self.pipes.tasks_in)

    def replace(self, number: int, tasks: Sequence[Task]) -> None:
        """Account for task `number`, and send `tasks` in its place."""
        with self.lock:
            ending = self.ending()
            if ending is None:
                del self.tasks[number]
                if tasks:
                    self.send(tasks)
        _give_up(tasks, ending)

    def resend(self, lost: Iterable[int], first: Sequence[Task] = ()) -> None:
        """Send tasks once more, all at once: of many tiny batches in flight there are thousands.

        Args:
            lost: Numbers of the tasks.
            first: What is to be done before them.
        """
        with self.lock:
            ending = self.ending()
            if ending is None:
                # What was submitted meanwhile comes after what was before.
                numbers = sorted({*lost, *self.sent_to(self._withheld)} & self.tasks.keys())
                self._withheld.clear()
                self.send([*first, *(self.tasks.pop(number) for number in numbers)])
        _give_up(first, ending)

    def sent_to(self, workers: Container[int]) -> set[int]:
        """Numbers of the tasks in flight that name one of these workers. The caller holds `lock`."""
        return {number for number, task in self.tasks.items() if self._pipe_of(task) in workers}

    def invalidate_sent_tasks(self, dead: int | None) -> None:
        """Have workers refuse every task sent so far that they have not begun. The caller holds `lock`.

        Args:
            dead: The worker that is dead; where tasks name their workers, those of others stay valid.
        """
        alone = dead if self.options.addressed else None
        for number in range(self.options.workers) if alone is None else (alone,):
            self.shared_objects.worker_line(number)[2] = self._last_number + 1
        self.pipes.forget(alone)
        if alone is not None:
            self._withheld.add(alone)

    def stop_workers(self) -> None:
        """Have workers end between two tasks."""
        # End of file alone would not do: a fork of this process holds the pipes open too.
        stop = encode_task(STOP, 0, ())
        for pipe in range(len(self.pipes.tasks_in)):
            self.pipes.write(pipe, [stop] * (1 if self.options.addressed else len(self.workers)))
        self.pipes.close_tasks()

    def close(self) -> None:
        """Free everything; the workers have ended."""
        self.pipes.close()
        self.shared_objects.close()
        self.memory.close()
        self.stacks.close()


def _give_up(tasks: Sequence[Task], error: BaseException | None) -> None:
    """Tell tasks that will not be sent, if there is an error why."""
    if error is not None:
        for task in tasks:
            task.give_up(error)
