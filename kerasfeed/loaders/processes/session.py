"""One run of worker processes: the pipes, the slots, the work in flight.

Invariant: after `submit` has written a batch's tasks, nothing in this process need run for the workers to carry on:
the kernel hands the next task to whichever worker is free. Results are read, and workers that died replaced, by one
supervisor thread (`kerasfeed.loaders.processes.supervisor`), never the user's, so that Ctrl-C in the main thread cannot
tear the state. Whoever holds `lock` never calls user code.
"""

import copy
from contextlib import ExitStack

from kerasfeed.errors import FeedClosedError
from kerasfeed.loaders.base import CLOSED_BEFORE_LOADED, Job
from kerasfeed.loaders.batches.layout import Layout
from kerasfeed.loaders.batches.pending_batch import BatchInProgress
from kerasfeed.loaders.batches.slots import SlotMemory
from kerasfeed.loaders.environment import search_path
from kerasfeed.loaders.failures.failure_log import FailureLog
from kerasfeed.loaders.file_identities import FirstOpened
from kerasfeed.loaders.processes.pipes import Pipes
from kerasfeed.loaders.processes.protocol import Kind, Start, Task
from kerasfeed.loaders.processes.shared_objects import SharedObjects, Topic
from kerasfeed.loaders.processes.spawn import start_worker
from kerasfeed.loaders.processes.stack_dumps import StackDumps
from kerasfeed.loaders.processes.supervisor import Supervisor
from kerasfeed.loaders.processes.worker_process import WorkerHandle, end_workers
from kerasfeed.loaders.resource_errors import descriptors_of, feed_name, is_of_memory, naming_descriptors
from kerasfeed.loaders.session import Session
from kerasfeed.loaders.tasks import ProbeTask, Work
from kerasfeed.util.error_text import class_name, message_of
from kerasfeed.util.read_cost import ReadCost
from kerasfeed.util.resources import cores

_GRACE = 2.0


class ProcessSession(Session):
    """See the module's invariant.

    Attributes:
        doubtful: Whether some of the work may not have been sent.
        work: Tasks that were sent and not yet accounted for, by number.
        workers: The present worker of each number.
    """

    reads_here = False

    def __init__(self, job: Job, failure_log: FailureLog, first_opened: FirstOpened) -> None:
        """Start the workers of `job`, which share with others what files were when first opened.

        Raises:
            TypeError: The sequence cannot be pickled.
            OSError: No process can be started.
        """
        super().__init__(job, failure_log)
        self.doubtful = False
        self.version = 0
        self.waste: ReadCost | None = None
        self.workers: list[WorkerHandle] = []
        self.work: dict[int, Work] = {}
        self._first_opened = first_opened
        self._last_number = 0
        who = feed_name(job.sequence, job.workers, "process")
        naming = naming_descriptors(who, descriptors_of(job.workers))
        with naming, ExitStack() as undo:  # each takes a descriptor, and there may be none left
            self.shared_objects = SharedObjects.create(job.workers)
            undo.callback(self.shared_objects.close)
            self._arena = SlotMemory(shared=True, who=who)
            undo.callback(self._arena.close)
            self.stacks = StackDumps()
            undo.callback(self.stacks.close)
            opened_fd = first_opened.descriptor()
            start = Start(
                search_path(),
                job.workers,
                job.plan.seed,
                job.plan.length,
                job.maker is not None,
                opened_fd,
                job.watches_random,
            )
            self.shared_objects.post(Topic.START, start)
            if job.maker is not None:
                remedy = "Give it no state that does not pickle (open files, locks)"
                self._post(Topic.MAKER, job.maker, "the function given as collate", remedy)
            self._post_sequence()
            self.pipes = Pipes()
            undo.pop_all()
        self._supervisor = Supervisor(self)
        started = False
        try:
            # The first few at once, each next one when one is up: interpreters that start together share the cores,
            # and the first batch would wait for the last of them.
            with naming_descriptors(who, descriptors_of(job.workers)):
                for number in range(min(job.workers, 2 * cores())):
                    self.start_worker(number)
            started = True
        finally:
            self._supervisor.start()
            if not started:
                self.close()

    def start_worker(self, number: int) -> WorkerHandle:
        """Start worker `number`, in place of the one that had the number.

        Raises:
            OSError: No process can be started.
        """
        assert self._arena.fd is not None
        handle = start_worker(
            number,
            self.job.workers,
            (self.pipes.task_out, self.pipes.result_in, self._arena.fd, self.shared_objects.fd, self.stacks.fd),
            inherit=(*self.job.inherit, self._first_opened.descriptor()),
            environment=self.job.environment,
            seed=self.job.plan.seed,
        )
        self.workers[number : number + 1] = [handle]
        return handle

    def _post_layout(self, layout: Layout) -> None:
        self.shared_objects.post(Topic.LAYOUT, layout)

    def give_up(self, batch: BatchInProgress, error: BaseException) -> None:
        """See `Session.give_up`; the supervisor finishes it."""
        batch.give_up(error)

    def replace_task(self, number: int, works: list[Work]) -> None:
        """Account for task `number`, and send `works` in its place."""
        with self.lock:
            if self.work.pop(number, None) is not None and works and not self.has_ended():
                self._send(works)
            if not self.work:
                self.idle.notify_all()

    def resend(self, lost: dict[int, Work]) -> None:
        """Send tasks once more, all at once: of many tiny batches in flight there are thousands."""
        with self.lock:
            works = [work for number, work in lost.items() if self.work.pop(number, None) is not None]
            if works and not self.has_ended():
                self._send(works)

    def invalidate_sent_tasks(self) -> None:
        """Have workers refuse every task sent so far that they have not begun. The caller holds `lock`."""
        self.shared_objects.lowest_valid = self._last_number + 1
        self.pipes.forget()

    def _send(self, works: list[Work], batch: BatchInProgress | None = None) -> None:
        self._refuse_if_ended()
        first = self._last_number + 1
        self._last_number += len(works)
        sent = dict(enumerate(works, first))
        try:
            if batch is not None:
                batch.sent = True  # and not a call earlier: Ctrl-C comes after calls
            self.work.update(sent)
            tasks = [_task(work, number, self.version) for number, work in sent.items()]
            if tasks and not self.pipes.send(tasks):
                self.pipes.wake()
        except BaseException:  # Ctrl-C: which of them were written is not known
            self.doubtful = True
            self.pipes.wake()
            raise

    def _post(self, topic: Topic, value: object, what: str, remedy: str) -> int:
        try:
            return self.shared_objects.post(topic, value)
        except Exception as error:
            if is_of_memory(error):
                raise
            raise TypeError(
                f"{what} cannot be sent to worker processes: {message_of(error)}. {remedy}, or use worker_type='thread'"
            ) from error

    def renew(self) -> None:
        """See `Session.renew`."""
        try:
            self._post_sequence()
        except TypeError:
            if not self.closed:
                raise

    def _post_sequence(self) -> None:
        """Post the present state of the sequence; tasks sent from now on see it.

        Raises:
            TypeError: It cannot be pickled.
        """
        remedy = (
            "Open files and connections in __getitem__ or on_worker_begin (for HDF5, keep a kerasfeed.HDF5File, which "
            "pickles), leave locks out of its state"
        )
        what = f"the sequence ({class_name(self.job.sequence)})"
        self.version = self._post(Topic.SEQUENCE, self.job.sequence, what, remedy)

    def fail(self, error: BaseException) -> None:
        """Give every batch in flight this error, and end the session."""
        with self.lock:
            if self.failure is None:
                self.failure = error
            works = list(self.work.values())
            self.work.clear()
            self.pipes.forget()
            self.idle.notify_all()
        for work in works:
            work.give_up(error)
        if self.pool is not None:
            self.pool.close()

    def pids(self) -> tuple[int, ...]:
        """See `Session.pids`."""
        return tuple(handle.process.pid for handle in self.workers if handle.process.returncode is None)

    def wasted(self) -> ReadCost | None:
        """See `Session.wasted`; the first that a worker reported."""
        return self.waste

    def _end(self) -> None:
        self.fail(FeedClosedError(CLOSED_BEFORE_LOADED))
        self.pipes.wake()
        self._supervisor.join()
        # End of file alone would not do: a fork of this process holds the pipe open too.
        self.pipes.send([Task(Kind.STOP, 0)] * len(self.workers))
        self.pipes.close_tasks()
        dead = self.failure is not None and not isinstance(self.failure, FeedClosedError)
        end_workers(self.workers, grace=0.2 if dead else _GRACE)
        self._supervisor.read_final_reports()
        self.pipes.close()
        self.shared_objects.close()
        if self.pool is not None:
            self.pool.free(flying=False)
        self._arena.close()
        self.stacks.close()
        # Whoever was told of the failure has a traceback of it that refers to this session.
        self.failure = copy.copy(self.failure)
        del self._supervisor  # which refers to this session: the sequence would stay until the collector runs


def _task(work: Work, number: int, version: int) -> Task:
    """The task that asks a worker for `work`."""
    if isinstance(work, ProbeTask):
        return Task(Kind.PROBE, number, start=work.index, version=version)
    batch, slot = work.batch, work.batch.slot
    return Task(
        Kind.LOAD, number, batch.serial, slot.segment_offset, len(slot.memory), slot.offset,
        batch.epoch, batch.step, work.start, work.stop, version,
    )  # fmt: skip
