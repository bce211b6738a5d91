"""The thread that reads what workers report, and replaces those that die or hang.

Invariant: no work is lost with a worker, and none is written twice at once. What a dead worker had read from the pipe
and not yet noted is not known, so everything that no living worker has noted as its own is sent anew under higher
numbers, after the lowest valid number was raised, below which workers refuse to begin. A worker that notes a task
before it looks at that number returns it; one that noted it before the number was raised is seen to hold it.
"""

import pickle
import select
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from kerasfeed.errors import FeedWarning, KerasfeedError, SceneTimeoutError, WorkerDiedError, WorkerStartError
from kerasfeed.loaders.base import Job
from kerasfeed.loaders.batches.filler import MANY, NOWHERE
from kerasfeed.loaders.batches.pending_batch import BatchInProgress, SceneTiming
from kerasfeed.loaders.batches.spec_inference import Probe
from kerasfeed.loaders.environment import DirectoryGoneError
from kerasfeed.loaders.failures import watchdog
from kerasfeed.loaders.failures.exceptions import Failure, SceneLocation, from_failure
from kerasfeed.loaders.failures.failure_log import FailureLog
from kerasfeed.loaders.failures.recovery import Recovery
from kerasfeed.loaders.processes.crash_policy import (
    Crash,
    CrashPolicy,
    fatal_text,
    function_text,
    respawn_text,
    start_text,
)
from kerasfeed.loaders.processes.pipes import Pipes
from kerasfeed.loaders.processes.protocol import Result, Status, Wasteful
from kerasfeed.loaders.processes.shared_objects import SharedObjects
from kerasfeed.loaders.processes.stack_dumps import StackDumps
from kerasfeed.loaders.processes.worker_process import WorkerHandle
from kerasfeed.loaders.tasks import LoadTask, ProbeTask, Work
from kerasfeed.loaders.worker_hooks import defer_failed_end
from kerasfeed.sequences.global_random import WARNING_KIND, warning_text
from kerasfeed.util.error_notes import wrapped
from kerasfeed.util.error_text import message_of
from kerasfeed.util.read_cost import ReadCost

_DYING_SECONDS = 2.0
# A worker may see the lowest valid number before its own note can be seen here; no note stays unseen for so long.
_VISIBLE_SECONDS = 0.001


class SupervisedSession(Protocol):
    """What the supervisor asks of its `Session`, and does to it."""

    job: Job
    failure_log: FailureLog
    recovery: Recovery
    lock: Any  # a reentrant one
    timing: SceneTiming
    shared_objects: SharedObjects
    stacks: StackDumps
    pipes: Pipes
    workers: list[WorkerHandle]
    work: dict[int, Work]
    waste: ReadCost | None
    closed: bool
    doubtful: bool

    def has_ended(self) -> bool:
        """Whether it is closed or has failed."""

    def start_worker(self, number: int) -> WorkerHandle:
        """Start worker `number`."""

    def finish(self, batch: BatchInProgress) -> None:
        """Deliver a batch of which no row is missing."""

    def replace_task(self, number: int, works: list[Work]) -> None:
        """Take task `number` off the list, and send others."""

    def resend(self, lost: dict[int, Work]) -> None:
        """Send tasks again."""

    def invalidate_sent_tasks(self) -> None:
        """Have workers leave out tasks with the numbers that were given so far."""

    def fail(self, error: BaseException) -> None:
        """Fail all that is waited for."""


class Supervisor:
    """See the module's invariant. All methods but `start` and `join` run on its thread."""

    def __init__(self, session: SupervisedSession) -> None:
        self._session = session
        self._failure_log = session.failure_log
        self._tick = watchdog.tick_seconds(session.job.policy.timeout)
        self._stall_timer = watchdog.StallTimer(self._tick)
        self._next_look = 0.0
        self._deaths = CrashPolicy()
        self._vacant: set[int] = set()
        self._poll = select.poll()
        self._links: dict[int, WorkerHandle] = {}
        self._thread = threading.Thread(target=self._run, name="kerasfeed-supervisor", daemon=True)

    def start(self) -> None:
        """Begin, with the workers that the session has."""
        self._thread.start()

    def join(self) -> None:
        """Wait for the end, which comes when the session is closed and its pipes are woken."""
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:  # noqa: BLE001 - whoever waits must not wait for a thread that is gone
            self._session.fail(wrapped(error, "the supervisor of the workers failed: ", KerasfeedError))

    def _serve(self) -> None:
        session, pipes, poll = self._session, self._session.pipes, self._poll
        poll.register(pipes.result_out, select.POLLIN)
        poll.register(pipes.wake_out, select.POLLIN)
        for handle in session.workers:
            self._watch_worker(handle)
        writing = False
        while not session.closed:
            ready = {fd for fd, _ in poll.poll(1000 * self._tick)}
            if pipes.wake_out in ready:
                pipes.calm()
            gone = [self._links[fd] for fd in ready & self._links.keys() if not self._links[fd].receive()]
            if pipes.result_out in ready:
                self._handle_results()
            if time.monotonic() >= self._next_look:
                gone += [handle for handle in self._look() if handle not in gone]
            for handle in gone:
                self._handle_crash(handle)
            if session.doubtful:
                session.doubtful = False
                session.resend(self._not_begun())
            if writing or gone or pipes.wake_out in ready:
                writing = self._flush(writing)

    def _watch_worker(self, handle: WorkerHandle) -> None:
        self._links[handle.link.fileno()] = handle
        self._poll.register(handle.link.fileno(), select.POLLIN)

    def _flush(self, writing: bool) -> bool:
        """Write the tasks that wait; returns whether some still do, and then has `poll` tell when there is room."""
        session = self._session
        with session.lock:
            blocked = not session.closed and not session.pipes.flush()
        if blocked and not writing:
            self._poll.register(session.pipes.task_in, select.POLLOUT)
        elif writing and not blocked:
            self._poll.unregister(session.pipes.task_in)
        return blocked

    # ---- results

    def _handle_results(self) -> None:
        for result in self._session.pipes.results():
            self._handle(result)
        used = self._session.shared_objects.used_random
        if used and not self._failure_log.deferred_warnings.is_known(WARNING_KIND):
            self._failure_log.deferred_warnings.defer(WARNING_KIND, warning_text(used, seeded=True), FeedWarning)

    def read_final_reports(self) -> None:
        """Post what workers told as they ended; after `join`, on the thread that closes the session."""
        with suppress(OSError, ValueError):  # one was killed as it spoke
            for result in self._last_results():
                payload = self._session.workers[result.worker].take(result.payload_bytes)
                if result.status == Status.END_FAILED:
                    defer_failed_end(self._failure_log.deferred_warnings, pickle.loads(payload))

    def _last_results(self) -> Iterator[Result]:
        """Whatever a dead worker, among others, still reported."""
        poll = select.poll()
        poll.register(self._session.pipes.result_out, select.POLLIN)
        while poll.poll(0):
            yield from self._session.pipes.results()

    def _handle(self, result: Result) -> None:
        session = self._session
        if not 0 <= result.worker < len(session.workers):
            raise ValueError(f"{result} came from a worker that does not exist")
        status, handle = Status(result.status), session.workers[result.worker]
        payload = pickle.loads(handle.take(result.payload_bytes)) if result.payload_bytes else None
        if status == Status.STARTED:
            handle.started = True
            handle.look()
            self._deaths.started()
            if len(session.workers) < session.job.workers:
                self._vacant.add(len(session.workers))
                self._fill_vacancies()
            return
        if status == Status.END_FAILED:
            defer_failed_end(self._failure_log.deferred_warnings, str(payload))
            return
        if status == Status.NOT_STARTED:
            session.fail(_start_error(handle, payload))
            return
        work = session.work.get(result.number)
        if work is None:  # sent anew before this came, or given up
            return
        if isinstance(payload, Failure) != (status == Status.FAILED):
            raise ValueError(f"{result} came with a payload of type {type(payload).__name__}")
        if status == Status.RETURNED:
            session.replace_task(result.number, [work])
        elif isinstance(work, ProbeTask):
            session.replace_task(result.number, [])
            self._finish_probe(work, result, payload, handle)
        else:
            session.replace_task(result.number, self._finish_rows(work, result, payload, handle))

    def _finish_probe(self, work: ProbeTask, result: Result, payload: Any, handle: WorkerHandle) -> None:
        if isinstance(payload, Failure):
            work.give_up(from_failure(payload, SceneLocation((work.index,), None, None, _name(handle))))
        else:
            work.set_result(Probe(work.index, payload, result.seconds))

    def _finish_rows(self, work: LoadTask, result: Result, payload: Any, handle: WorkerHandle) -> list[Work]:
        """Account for loaded rows, and for failed ones; returns what is to be loaded in their place."""
        session, batch = self._session, work.batch
        if isinstance(payload, Wasteful):
            session.waste, payload = payload.cost, payload.payload
        if isinstance(payload, Failure):
            indices = (payload.index,) if payload.index is not None else work.indices()
            error = from_failure(
                payload, SceneLocation(indices, batch.epoch, batch.step, _name(handle), payload.method)
            )
            self._failure_log.note(payload.index, batch.epoch, batch.step, error)
            return self._handle_failure(work, payload.row, error)
        if result.status == Status.CANCELLED and not batch.future.done():
            raise ValueError(f"{result} came for a batch that somebody waits for")
        if result.status == Status.DONE:
            session.timing.note(result.seconds, work.stop - work.start)
            self._deaths.progress(work)  # before the slot, which tells its scenes, is delivered and filled anew
        if batch.add(work.start, work.stop, payload or {}):
            session.finish(batch)
        return []

    def _handle_failure(self, work: LoadTask, row: int | None, error: BaseException) -> list[Work]:
        session, batch = self._session, work.batch
        with session.lock:
            ranges = session.recovery.handle(batch, work.start, work.stop, row, error)
            complete = batch.missing == 0
        if complete:
            session.finish(batch)
        return [LoadTask(batch, start, stop) for start, stop in ranges]

    # ---- workers that hang

    def _look(self) -> list[WorkerHandle]:
        """Look after the workers, once a tick; returns those that have ended, by themselves or by our hand."""
        now = time.monotonic()
        self._next_look = now + self._tick
        self._stall_timer.begin(now)
        self._fill_vacancies()
        handles = [handle for handle in self._session.workers if handle.link.fileno() in self._links]
        if self._session.work:
            return [handle for handle in handles if handle.has_ended() or self._is_hung(handle)]
        for handle in handles:
            self._stall_timer.look(handle.number, None)
        return [handle for handle in handles if handle.has_ended()]

    def _is_hung(self, handle: WorkerHandle) -> bool:
        handle.look()
        number, row = self._session.shared_objects.worker_line(handle.number)[:2].tolist()
        work = self._session.work.get(number - 1)
        token = (number, row) if work is not None else None if handle.started else handle.process.pid
        seconds = self._stall_timer.look(handle.number, token)
        timeout = self._session.job.policy.timeout
        at_once = isinstance(work, LoadTask) and row in (MANY, NOWHERE)  # nowhere: it may be announcing them all
        scenes = work.stop - work.start if isinstance(work, LoadTask) and at_once else 1
        if timeout is not None and work is not None and seconds >= timeout * scenes:
            handle.hung = self._session.stacks.ask(handle.process.pid)
            handle.process.kill()
            return True
        if seconds >= watchdog.STALL_SECONDS:
            scene = None if work is None else work.scene(row) or "the sequence anew"
            stack = partial(self._session.stacks.ask, handle.process.pid)
            watchdog.warn_of_stall(
                self._failure_log.deferred_warnings, "process", timeout, _name(handle), scene, seconds, stack
            )
        return False

    # ---- workers that die

    def _handle_crash(self, handle: WorkerHandle) -> None:
        """Account for a worker that has ended: replace it, and have its work done by others."""
        session = self._session
        self._poll.unregister(handle.link.fileno())
        del self._links[handle.link.fileno()]
        handle.receive()
        handle.end(_DYING_SECONDS)
        lost = self._not_begun(handle)
        handle.close()
        if session.has_ended():
            return
        line = session.shared_objects.worker_line(handle.number)
        number, row = line[:2].tolist()
        line[0] = 0
        culprit = lost.pop(number - 1, None)
        death = Crash(
            _name(handle), handle.ending(), culprit.scene(row) if culprit else "", handle.peak,
            handle.hung or session.stacks.take(), handle.hung is not None, handle.started,
        )  # fmt: skip
        self._replace(handle, death)
        if culprit is not None:
            session.replace_task(number - 1, self._judge(culprit, row, death))
        elif handle.started and self._deaths.between(death):
            session.fail(
                WorkerDiedError(
                    f"worker processes end one after the other, while they load no scene: the last, {death}"
                )
            )
        session.resend(lost)

    def _not_begun(self, dead: WorkerHandle | None = None) -> dict[int, Work]:
        """The work that no living worker has begun, nor will: by number, in the order in which it was sent."""
        session = self._session
        with session.lock:
            if session.has_ended():
                return {}
            session.invalidate_sent_tasks()
            time.sleep(_VISIBLE_SECONDS)
            living = [handle for handle in session.workers if handle is not dead]
            held = {session.shared_objects.worker_line(handle.number)[0] - 1 for handle in living}
            suspects = session.work.keys() - held
        for result in self._last_results():  # after the notes were read: a worker reports before it takes its note back
            self._handle(result)
        return {number: session.work[number] for number in sorted(suspects & session.work.keys())}

    def _replace(self, handle: WorkerHandle, death: Crash) -> None:
        session = self._session
        if not handle.started and self._deaths.at_start(death):
            session.fail(WorkerStartError(start_text(death)))
            return
        self._failure_log.respawns += 1
        told = respawn_text(death, session.job.policy.timeout)
        self._failure_log.deferred_warnings.defer("respawn", told, FeedWarning)
        self._vacant.add(handle.number)
        self._fill_vacancies()

    def _fill_vacancies(self) -> None:
        session = self._session
        while self._vacant and not session.has_ended():
            number = self._vacant.pop()
            try:
                self._watch_worker(session.start_worker(number))
            except OSError as error:  # no memory, or no room for a process: others may make some
                if not self._links or isinstance(error, DirectoryGoneError):
                    session.fail(
                        WorkerStartError(
                            f"no worker process could be started in place of a dead one: {message_of(error)}"
                        )
                    )
                self._vacant.add(number)
                return

    def _judge(self, work: Work, row: int, death: Crash) -> list[Work]:
        """What is to be done about the work that a worker died of."""
        job, index = self._session.job, work.index_at(row)
        if index is not None:
            name = index
        elif not isinstance(work, LoadTask) or row != MANY:
            if self._deaths.between(death):
                self._session.fail(WorkerDiedError(f"worker processes end one after the other: the last, {death}"))
            return [work]
        elif job.maker is None:  # which of them it was is found out one by one
            return [LoadTask(work.batch, each, each + 1) for each in range(work.start, work.stop)]
        else:  # the function that makes batches
            name = -1 - work.batch.serial  # no scene's index
        epoch, step = (work.batch.epoch, work.batch.step) if work.batch else (0, None)
        count = self._deaths.of_scene(name, death)
        if count < self._deaths.enough(death, job.policy.tries_in_time if death.hung else job.policy.tries):
            return [work]
        self._deaths.judged(name)
        kind = SceneTimeoutError if death.hung else WorkerDiedError
        if index is None:
            error = kind(function_text(death, epoch, step or 0))
        else:
            call = "" if step is None or not job.plan.length else f"kf.load(feed, epoch={epoch}, step={step})"
            item = None if job.item_text is None else job.item_text(epoch, index)
            error = kind(fatal_text(death, index, count, job.policy.timeout, call, item))
            self._failure_log.note_fatal(index, epoch, error)
        if isinstance(work, ProbeTask):  # noted where the others are that fail while the spec is inferred
            work.give_up(error)
            return []
        self._failure_log.note(index, epoch, step, error)
        return self._handle_failure(work, None if index is None else work.start if row == MANY else row, error)


def _name(handle: WorkerHandle) -> str:
    return f"worker process {handle.number} (pid {handle.process.pid})"


def _start_error(handle: WorkerHandle, text: Any) -> KerasfeedError:
    last = str(text).strip().splitlines()[-1]
    return WorkerStartError(
        f"{_name(handle)} could not load the sequence: {last}. A module that the sequence needs must be importable in "
        f"a new interpreter (installed, or beside the script); on_worker_begin must not fail. Its traceback:\n{text}"
    )
