"""A pool of worker processes.

It serves scenes that hold the GIL, and isolates crashes. One thread of the pool, the supervisor, starts, ends and
replaces workers and reads their results. It is never the user's thread, so Ctrl-C in the main thread cannot leave
half-changed state.

Invariant: no task is lost with a worker, and no two workers write one slot at once. Each worker records the task that
it begins in its line of the shared file. It is unknown which tasks a dead worker had read from the pipe but not yet
recorded. The supervisor therefore raises the lowest valid number. It sends again, with a higher number, every task that
no living worker has recorded. Workers refuse tasks with lower numbers: a worker that records a task and then reads the
raised number returns the task. If it recorded the task earlier, the supervisor sees that.
"""

import select
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from kerasfeed.errors import FeedClosedError, FeedWarning, KerasfeedError, WorkerDiedError, WorkerStartError
from kerasfeed.pool import watchdog
from kerasfeed.pool.base import CLOSED_BEFORE_DONE, LOGGER, PoolOptions, Runner
from kerasfeed.pool.processes.crash_policy import CrashPolicy, respawn_text, start_error, start_text
from kerasfeed.pool.processes.dispatch import Dispatch
from kerasfeed.pool.processes.first_worker import FirstWorker
from kerasfeed.pool.processes.protocol import Failure, Result, Status
from kerasfeed.pool.processes.shared_objects import Topic
from kerasfeed.pool.processes.worker_process import WorkerHandle, end_workers, start_worker, why_no_processes
from kerasfeed.pool.resource_errors import start_thread
from kerasfeed.pool.task import Crash, Task
from kerasfeed.pool.worker_hooks import defer_failed_end
from kerasfeed.util.error_text import message_of, wrapped
from kerasfeed.util.picklers import unpickled
from kerasfeed.util.resources import cores

# Statuses of workers, not of tasks.
_NEWS = (Status.STARTED, Status.NOT_STARTED, Status.END_FAILED)
_DYING_SECONDS = 2.0
_GRACE, _SHORT_GRACE = 2.0, 0.2  # time for workers to end by themselves, s; the short one after a failure
# A worker records a task and then reads the lowest valid number. This process sees the record at most this much later.
_VISIBLE_SECONDS = 0.001


def processes_supported() -> bool:
    """Whether this program can start worker processes; see `why_no_processes`."""
    return why_no_processes() is None


class ProcessPool(Dispatch):
    """A pool of worker processes on this machine."""

    worker_type = "process"

    def __init__(self, runner: Runner, options: PoolOptions) -> None:
        """Start the workers without waiting for them.

        Raises:
            TypeError: The runner cannot be pickled.
            OSError: No process can be started, or the system has no descriptors or memory left.
        """
        why = why_no_processes()
        if why is not None:
            raise OSError(why)
        super().__init__(runner, options)
        self._over = self._workers_ended = self._begins_processes = False
        self._tick = watchdog.tick_seconds(options.timeout)
        self._stall_timer = watchdog.StallTimer(self._tick)
        self._next_look = 0.0
        self._first_worker: FirstWorker | None = None
        self._deaths = CrashPolicy()
        self._vacant: set[int] = set()
        self._next_start = 0.0  # earliest time to fill a vacancy
        self._numbers = 0  # workers that were started or are vacant
        self._poll = select.poll()
        self._links: dict[int, WorkerHandle] = {}
        self._started: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="kerasfeed-supervisor", daemon=True)
        try:
            start_thread(self._thread, options.owner)
            self._started.result()
            if options.most_workers:
                self.worker_type = "thread"
                self._first_worker = FirstWorker.start(self, options.most_workers)
        except BaseException:
            self.close()
            raise

    def _end(self) -> None:
        self.fail(FeedClosedError(CLOSED_BEFORE_DONE))
        self._over = True
        self.pipes.wake()
        try:
            self._join()
        finally:
            self._join()  # again after Ctrl-C: the supervisor uses the objects that are freed below
            self._end_workers()  # if this thread is the supervisor, or there is none
            super()._end()

    def _join(self) -> None:
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def take_processes(self, workers: int, *, at_once: bool) -> None:
        """See `Pool.take_processes`; at most `most_workers`."""
        with self.lock:
            self.worker_type = "process"
            self.options = replace(self.options, workers=workers)
            self._start = replace(self._start, count=max(workers, self.options.host_numbers.count))
            self.shared_objects.post(Topic.START, self._start)
            if at_once:
                self._end_first_worker()
            self._begins_processes = True
        self.pipes.wake()

    def _end_first_worker(self) -> None:
        """Leave the tasks that the thread has not begun to the processes."""
        if self._first_worker is not None:
            self._first_worker.over = True

    # ---- the supervisor

    def _run(self) -> None:
        try:
            if not self.options.most_workers:
                self._start_workers()
        except BaseException as error:  # noqa: BLE001 - raised by the constructor
            self._started.set_exception(error)
        else:
            self._started.set_result(None)
            try:
                self._serve()
            except BaseException as error:  # noqa: BLE001 - consumers must not wait for a dead supervisor
                self.fail(wrapped(error, "the supervisor of the workers failed: ", KerasfeedError))
        self._end_workers()

    def _start_workers(self) -> None:
        """Start the first few; `_handle_news` adds one whenever a worker has started.

        Interpreters that start together share the cores, so the first batch would wait for the last of them. The first
        thread keeps a core for itself.
        """
        most = 2 * cores() if self._first_worker is None else max(1, cores() - 1)
        with self._naming_descriptors():
            self._numbers = min(self.options.workers, most)
            for number in range(self._numbers):
                self._start_worker(number)

    def _end_workers(self) -> None:
        """End the workers, once.

        The supervisor calls this before it ends, because its end would kill them.
        """
        if self._workers_ended:
            return
        self._workers_ended = True
        self._stop_workers()
        if self._first_worker is not None:
            self._first_worker.end()
        end_workers(self.workers, grace=_GRACE if isinstance(self.ending(), FeedClosedError) else _SHORT_GRACE)
        self._read_final_reports()

    def _serve(self) -> None:
        pipes, poll = self.pipes, self._poll
        poll.register(pipes.result_out, select.POLLIN)
        poll.register(pipes.wake_out, select.POLLIN)
        while not self._over:
            pause = self._next_start - time.monotonic() if self._vacant else self._tick
            ready = {fd for fd, _ in poll.poll(1000 * min(self._tick, max(0.0, pause)))}
            if pipes.wake_out in ready:
                pipes.drain()
            if self._begins_processes:
                self._begin_processes()
            gone = [self._links[fd] for fd in ready & self._links.keys() if not self._links[fd].receive()]
            if pipes.result_out in ready:
                for result in pipes.results():
                    self._handle(result)
            if time.monotonic() >= self._next_look:
                gone += [handle for handle in self._look() if handle not in gone]
            for handle in gone:
                self._handle_crash(handle)
            self._fill_vacancies()
            with self.lock:
                if not self.tasks:
                    self._idle.notify_all()
                if not self._over:
                    self.pipes.flush()

    def _begin_processes(self) -> None:
        """Start worker processes besides the first thread.

        If that fails, the thread continues alone, and a warning reports it.
        """
        self._begins_processes = False
        try:
            self._start_workers()
        except OSError as error:
            why = f"no worker process can be started: {message_of(error)}"
            if self._first_worker is None or self._first_worker.over:
                self.fail(WorkerStartError(why))
            else:
                text = f"worker_type='auto' keeps one worker thread: {why}"
                self.options.deferred_warnings.defer("no process", text, FeedWarning)

    def _start_worker(self, number: int) -> None:
        """Start worker `number`; it replaces the present one.

        Raises:
            OSError: No process can be started.
        """
        assert self.memory.fd is not None
        tasks_out = self.pipes.tasks_out[number if self.options.addressed else 0]
        fds = tasks_out, self.pipes.result_in, self.memory.fd, self.shared_objects.fd, self.stacks.fd
        handle = start_worker(number, self.options, fds)
        self.workers[number : number + 1] = [handle]
        self._links[handle.link.fileno()] = handle
        self._poll.register(handle.link.fileno(), select.POLLIN)

    # ---- results

    def _read_final_reports(self) -> None:
        """Defer the warnings that workers sent as they ended."""
        with suppress(OSError, ValueError):  # a worker was killed while it reported
            for result in self._last_results():
                payload = self.workers[result.worker].take(result.payload_bytes)
                if result.status == Status.END_FAILED:
                    defer_failed_end(self.options.deferred_warnings, unpickled(payload))

    def _last_results(self) -> Iterator[Result]:
        """Results left in the pipe, of dead workers too."""
        poll = select.poll()
        poll.register(self.pipes.result_out, select.POLLIN)
        while poll.poll(0):
            yield from self.pipes.results()

    def _handle(self, result: Result) -> None:
        status, number, worker, payload_bytes, seconds = result
        if not 0 <= worker < len(self.workers):
            raise ValueError(f"{result} is of a worker that does not exist")
        handle = self.workers[worker]
        payload = unpickled(handle.take(payload_bytes)) if payload_bytes else None
        if status in _NEWS:
            self._handle_news(Status(status), handle, payload)
            return
        task = self.tasks.get(number)
        if task is None:  # sent again, or failed, before this result came
            return
        if isinstance(payload, Failure) != (status == Status.FAILED):
            raise ValueError(f"{result} has a payload of type {type(payload).__name__}")
        followers: Sequence[Task] = ()
        if status == Status.DONE:
            self._deaths.progress(task)  # before `done`, which may free the batch of the task
            followers = task.done(payload, seconds, handle.name)
        elif status == Status.FAILED:
            assert isinstance(payload, Failure)
            followers = task.failed(payload.position, payload.error.as_exception(), handle.name, payload.traceback)
        elif status == Status.CANCELLED:
            task.cancelled()
        elif status == Status.RETURNED:
            followers = [task]
        else:
            raise ValueError(f"{result} has an unknown status")
        self._replace(number, followers)

    def _handle_news(self, status: Status, handle: WorkerHandle, payload: Any) -> None:
        """Handle a worker's message about itself."""
        if status == Status.STARTED:
            handle.started = True
            if payload is not None:
                self.options.deferred_warnings.defer("modules", str(payload), FeedWarning)
            handle.look()
            self._deaths.started()
            if sum(handle.started for handle in self.workers) >= min(self.options.workers, cores()):
                self._end_first_worker()
            if self._numbers < self.options.workers:
                self._vacant.add(self._numbers)
                self._numbers += 1
        elif status == Status.END_FAILED:
            defer_failed_end(self.options.deferred_warnings, str(payload))
        else:
            self.fail(start_error(handle.name, payload))

    # ---- workers that hang

    def _look(self) -> list[WorkerHandle]:
        """Check the workers once a tick.

        Return the workers that have ended or were killed here.
        """
        now = time.monotonic()
        self._next_look = now + self._tick
        self._stall_timer.begin(now)
        first = self._first_worker
        if first is not None:
            seconds = self._stall_timer.look(first.line, first.token())
            if seconds >= watchdog.STALL_SECONDS:
                first.warn_of_stall(seconds)
        handles = [handle for handle in self.workers if handle.link.fileno() in self._links]
        if self.tasks:
            return [handle for handle in handles if handle.has_ended() or self._is_hung(handle)]
        for handle in handles:
            self._stall_timer.look(handle.number, None)
        return [handle for handle in handles if handle.has_ended()]

    def _is_hung(self, handle: WorkerHandle) -> bool:
        handle.look()
        number, position = self.shared_objects.worker_line(handle.number)[:2].tolist()
        task = self.tasks.get(number - 1)
        token = (number, position) if task is not None else None if handle.started else handle.process.pid
        seconds = self._stall_timer.look(handle.number, token)
        timeout = self.options.timeout
        if timeout is not None and task is not None and seconds >= timeout * task.items_at(position):
            handle.hung = self.stacks.ask(handle.process.pid)
            handle.process.kill()
            return True
        if seconds >= watchdog.STALL_SECONDS:
            scene = None if task is None else task.text(position) or "the changed sequence"
            stack = partial(self.stacks.ask, handle.process.pid)
            watchdog.warn_of_stall(self.options, "process", handle.name, scene, seconds, stack)
        return False

    # ---- workers that die

    def _handle_crash(self, handle: WorkerHandle) -> None:
        """Replace a worker that has ended, and give its tasks to others."""
        self._poll.unregister(handle.link.fileno())
        del self._links[handle.link.fileno()]
        handle.receive()
        handle.end(_DYING_SECONDS)
        lost = self._not_begun(handle)
        handle.link.close()
        if self.ending() is not None:
            return
        line = self.shared_objects.worker_line(handle.number)
        number, position = line[:2].tolist()
        line[0] = 0
        suspect = self.tasks.get(number - 1) if number - 1 in lost else None
        crash = Crash(
            handle.name, handle.ending(), suspect.text(position) if suspect else "", handle.peak,
            handle.hung or self.stacks.take(), handle.hung is not None, handle.started, self.options.timeout,
        )  # fmt: skip
        self._replace_worker(handle, crash)
        instead: Sequence[Task] = ()
        if suspect is not None:
            instead = self._after_crash(suspect, position, crash)
            with self.lock:
                self.tasks.pop(number - 1, None)
        elif handle.started and self._deaths.between(crash):
            self.fail(
                WorkerDiedError(f"worker processes end repeatedly while they load no scene. The last one: {crash}")
            )
        self._resend(lost, instead)

    def _not_begun(self, dead: WorkerHandle) -> set[int]:
        """Numbers of the tasks that no living worker will run."""
        with self.lock:
            if self.ending() is not None:
                return set()
            self._invalidate_sent_tasks(dead.number)
            if self.options.addressed:
                lost = self._sent_to((dead.number,))
            else:
                time.sleep(_VISIBLE_SECONDS)
                living = [handle for handle in self.workers if handle is not dead]
                numbers = [handle.number for handle in living]
                if self._first_worker is not None:
                    numbers.append(self._first_worker.line)
                lines = [self.shared_objects.worker_line(number) for number in numbers]
                lost = self.tasks.keys() - {line[0] - 1 for line in lines}
        for result in self._last_results():  # after the lines: a worker reports a task before it clears its line
            self._handle(result)
        return lost & self.tasks.keys()

    def _replace_worker(self, handle: WorkerHandle, crash: Crash) -> None:
        if not handle.started and self._deaths.at_start(crash):
            self.fail(WorkerStartError(start_text(crash)))
            return
        self.respawns += 1
        LOGGER.warning("%s: a new process replaces a worker: %s", self.options.owner, crash)
        self.options.deferred_warnings.defer("respawn", respawn_text(crash), FeedWarning)
        self._vacant.add(handle.number)
        self._next_start = time.monotonic() + self._deaths.pause

    def _fill_vacancies(self) -> None:
        while self._vacant and self.ending() is None and time.monotonic() >= self._next_start:
            number = min(self._vacant)
            try:
                self._start_worker(number)
            except OSError as error:  # no memory, or the limit of processes: other programs may free some
                # If tasks name their workers, no other worker may do them.
                if not self._links or self.options.addressed:
                    self.fail(
                        WorkerStartError(
                            f"no worker process could be started to replace a dead one: {message_of(error)}"
                        )
                    )
                self._next_start = time.monotonic() + self._tick
            else:
                self._vacant.remove(number)

    def _after_crash(self, task: Task, position: int, crash: Crash) -> Sequence[Task]:
        """Return the tasks to do after a worker died in `task`."""
        culprit = task.culprit(position)
        if culprit is None:
            parts = task.parts(position)
            if parts:  # tried one by one to find the part that ends workers
                return parts
            if self._deaths.between(crash):
                self.fail(WorkerDiedError(f"worker processes end repeatedly. The last one: {crash}"))
            return [task]
        count = self._deaths.at_position(culprit, crash)
        if count < self._deaths.enough(crash, self.options.tries):
            return [task]
        self._deaths.forget(culprit)
        return task.crashed(position, crash, count)
