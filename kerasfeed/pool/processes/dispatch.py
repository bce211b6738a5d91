"""The tasks in flight, and their pipes and shared objects.

Invariant: after tasks are written, the workers continue without this process. The kernel hands the next task to a free
worker, or to the worker that the task names. The user's code is never called while a thread holds `lock`.
"""

from collections.abc import Container, Iterable, Sequence
from contextlib import ExitStack
from typing import Any

from kerasfeed.errors import FeedWarning
from kerasfeed.pool.base import Pool, PoolOptions, Runner, large_text
from kerasfeed.pool.environment import managers_key, search_path
from kerasfeed.pool.memory import PoolMemory
from kerasfeed.pool.processes.protocol import STOP, Pipes, WorkerStart, encode_task
from kerasfeed.pool.processes.shared_objects import SharedObjects, Topic
from kerasfeed.pool.processes.stack_dumps import StackDumps
from kerasfeed.pool.processes.worker_process import WorkerHandle
from kerasfeed.pool.resource_errors import DESCRIPTORS, is_of_memory, naming_descriptors
from kerasfeed.pool.settings import Settings
from kerasfeed.pool.task import Task
from kerasfeed.util.resources import open_closed
from kerasfeed.util.user_modules import module_values

_LARGE = 100_000_000  # bytes of a sequence that each worker copies: above, a warning names the remedy


class Dispatch(Pool):
    """A pool of worker processes, without the supervisor thread.

    Attributes:
        tasks: Submitted tasks without an outcome yet, by number.
        workers: The present worker of each number.
    """

    worker_type = "process"
    has_copies = True

    def __init__(self, runner: Runner, options: PoolOptions) -> None:
        """Prepare to start workers.

        Raises:
            TypeError: The runner cannot be pickled.
            OSError: The system has no descriptors or no memory left.
        """
        super().__init__(runner, options)
        open_closed()  # the program may have closed standard descriptors since it imported kerasfeed
        self.tasks: dict[int, Task] = {}
        self.workers: list[WorkerHandle] = []
        self._last_number = STOP
        self._withheld: set[int] = set()  # workers that get nothing until their lost tasks are sent again
        with self._naming_descriptors(), ExitStack() as undo:  # each step takes a descriptor and may fail
            self._lines = options.most_workers + 1 if options.most_workers else options.workers
            self.shared_objects = SharedObjects.create(self._lines)
            undo.callback(self.shared_objects.close)
            self.memory = PoolMemory(shared=True, owner=self.owner)
            undo.callback(self.memory.close)
            self.stacks = StackDumps()
            undo.callback(self.stacks.close)
            first = options.host_numbers.first
            count = max(options.host_numbers.count, first + options.workers)
            modules = options.environment.modules
            modules = module_values() if modules is None else modules
            self._start = WorkerStart(search_path(), first, count, modules, managers_key())
            self.shared_objects.post(Topic.START, self._start)
            self._post_runner()
            self.pipes = Pipes(options.workers if options.addressed else 1)
            undo.pop_all()

    def _naming_descriptors(self) -> Any:
        """See `kerasfeed.pool.resource_errors.naming_descriptors`."""
        return naming_descriptors(self.owner, DESCRIPTORS + self.options.workers)

    def submit(self, tasks: Sequence[Task]) -> None:
        """See `Pool.submit`."""
        with self.lock:
            self.refuse_if_ended()
            self._send(tasks)

    @property
    def in_flight(self) -> int:
        """See `Pool.in_flight`."""
        return len(self.tasks)

    def post(self, value: Any) -> None:
        """See `Pool.post`."""
        with self.lock:
            self.refuse_if_ended()
            self.shared_objects.post(Topic.POSTED, value)

    def renew(self) -> None:
        """See `Pool.renew`."""
        try:
            self._post_runner()
        except TypeError:
            if not self.closed:
                raise

    @property
    def used_random(self) -> int:
        """See `Pool.used_random`."""
        return self.shared_objects.used_random

    def record_random(self, used: int) -> None:
        """See `Pool.record_random`."""
        self.shared_objects.record_random(used)

    def fail(self, error: BaseException) -> None:
        """Fail every task in flight with this error, and end the pool."""
        with self.lock:
            if self.failure is None:
                self.failure = error
            tasks = list(self.tasks.values())
            self.tasks.clear()
            self.pipes.forget()
            self._idle.notify_all()
        for task in tasks:
            task.give_up(error)
        if self.on_failure is not None:
            self.on_failure()

    def pids(self) -> tuple[int, ...]:
        """See `Pool.pids`."""
        return tuple(handle.process.pid for handle in self.workers if handle.process.returncode is None)

    def _end(self) -> None:
        self.pipes.close()
        self.shared_objects.close()
        self.memory.close()
        self.stacks.close()

    # ---- for the supervisor thread

    def _post_runner(self) -> None:
        """Publish the runner's present state for the next tasks.

        Raises:
            TypeError: It cannot be pickled.
        """
        try:
            self.version = self.shared_objects.post(Topic.RUNNER, self.runner)
        except Exception as error:
            if is_of_memory(error):
                raise
            raise self.runner.unpicklable(error) from error
        self.settings = Settings(*self.runner.objects)
        if self.shared_objects.copied_bytes > _LARGE:
            text = large_text(self.options.owner, self.runner.target, self.shared_objects.copied_bytes)
            self.options.deferred_warnings.defer("large objects", text, FeedWarning)

    def _send(self, tasks: Sequence[Task]) -> None:
        """Send tasks. The caller holds `lock`."""
        first = self._last_number + 1
        self._last_number += len(tasks)
        sent = dict(enumerate(tasks, first))
        records: dict[int, list[bytes]] = {}
        for number, task in sent.items():
            if (pipe := self._pipe_of(task)) not in self._withheld:
                records.setdefault(pipe, []).append(encode_task(number, self.version, task.record()))
        self.tasks.update(sent)
        for pipe, group in records.items():
            self.pipes.write(pipe, group)

    def _pipe_of(self, task: Task) -> int:
        return (task.worker or 0) % len(self.pipes.tasks_in)

    def _replace(self, number: int, tasks: Sequence[Task]) -> None:
        """Remove task `number`, and send `tasks` in its place."""
        with self.lock:
            ending = self.ending()
            if ending is None and self.tasks.pop(number, None) is not None and tasks:
                self._send(tasks)
        _give_up(tasks, ending)

    def settle(self, number: int, tasks: Sequence[Task]) -> None:
        """Replace task `number`, which the first thread has done, by `tasks`."""
        self._replace(number, tasks)
        with self.lock:
            if not self.tasks:
                self._idle.notify_all()
            if self.ending() is None:
                self.pipes.flush()

    def _resend(self, lost: Iterable[int], first: Sequence[Task] = ()) -> None:
        """Send tasks again.

        All tasks are sent at once, because thousands of tiny batches may be in flight.

        Args:
            lost: Numbers of the tasks.
            first: Tasks to send before them.
        """
        with self.lock:
            ending = self.ending()
            if ending is None:
                # Tasks submitted meanwhile come after older ones.
                numbers = sorted({*lost, *self._sent_to(self._withheld)} & self.tasks.keys())
                self._withheld.clear()
                self._send([*first, *(self.tasks.pop(number) for number in numbers)])
        _give_up(first, ending)

    def _sent_to(self, workers: Container[int]) -> set[int]:
        """Numbers of the tasks in flight that name one of these workers.

        The caller holds `lock`.
        """
        return {number for number, task in self.tasks.items() if self._pipe_of(task) in workers}

    def _invalidate_sent_tasks(self, dead: int) -> None:
        """Make workers refuse tasks sent so far that they have not begun.

        The caller holds `lock`.

        Args:
            dead: The dead worker. If tasks name their workers, those for other workers stay valid.
        """
        alone = dead if self.options.addressed else None
        for number in range(self._lines) if alone is None else (alone,):
            self.shared_objects.worker_line(number)[2] = self._last_number + 1
        self.pipes.forget(alone)
        if alone is not None:
            self._withheld.add(alone)

    def _stop_workers(self) -> None:
        """Send STOP to the workers, which end between two tasks."""
        # Closing the pipes is not enough, because a fork of this process may hold them open.
        stop = encode_task(STOP, 0, ())
        for pipe in range(len(self.pipes.tasks_in)):
            count = len(self.workers) + (self.options.most_workers > 0)  # one for the first thread
            self.pipes.write(pipe, [stop] * (1 if self.options.addressed else count))
        self.pipes.close_tasks()


def _give_up(tasks: Sequence[Task], error: BaseException | None) -> None:
    """Fail tasks that will not be sent, if there is an error."""
    if error is not None:
        for task in tasks:
            task.give_up(error)
