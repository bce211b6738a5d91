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
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from kerasfeed.errors import FeedWarning, KerasfeedError, WorkerDiedError, WorkerStartError
from kerasfeed.pool import watchdog
from kerasfeed.pool.base import LOGGER
from kerasfeed.pool.environment import DirectoryGoneError
from kerasfeed.pool.exception_pickle import arrived
from kerasfeed.pool.processes.crash_policy import CrashPolicy, edited_text, respawn_text, start_text
from kerasfeed.pool.processes.dispatch import Dispatch
from kerasfeed.pool.processes.protocol import Failure, Result, Status
from kerasfeed.pool.processes.worker_process import WorkerHandle
from kerasfeed.pool.resource_errors import start_thread
from kerasfeed.pool.task import Crash, Task
from kerasfeed.pool.worker_hooks import defer_failed_end
from kerasfeed.util.error_notes import wrapped
from kerasfeed.util.error_text import message_of
from kerasfeed.util.opened_files import Identity, Opened, WorkersDisagreeError, changed
from kerasfeed.util.user_modules import edited_message

# What workers tell of themselves.
_NEWS = (Status.STARTED, Status.NOT_STARTED, Status.END_FAILED, Status.EDITED, Status.OPENED)
_DYING_SECONDS = 2.0
# A worker may see the lowest valid number before its own note can be seen here; no note stays unseen for so long.
_VISIBLE_SECONDS = 0.001
# Where results come one after the other, several are read at once: each time this thread wakes, it takes the
# interpreter from the consumer, and a core from a worker.
_BURST_SECONDS, _BURST_TASK_SECONDS = 0.0003, 0.001


class Supervisor:
    """Reads results and replaces workers, on a thread of its own but for what whoever closes the pool calls.

    Attributes:
        respawns: Workers that were replaced.
    """

    def __init__(
        self, dispatch: Dispatch, fail: Callable[[BaseException], None], note_idle: Callable[[], None]
    ) -> None:
        """Supervise the workers of `dispatch`.

        Args:
            dispatch: What they have in hand.
            fail: Ends the pool with an error.
            note_idle: Called when there is nothing in flight any more.
        """
        self._dispatch = dispatch
        self._options = dispatch.options
        self._fail, self._note_idle = fail, note_idle
        self.respawns = 0
        self._closed = False
        self._tick = watchdog.tick_seconds(dispatch.options.timeout)
        self._stall_timer = watchdog.StallTimer(self._tick)
        self._next_look = 0.0
        self._deaths = CrashPolicy()
        self._vacant: set[int] = set()
        self._poll = select.poll()
        self._links: dict[int, WorkerHandle] = {}
        self._thread = threading.Thread(target=self._run, name="kerasfeed-supervisor", daemon=True)

    def start(self) -> None:
        """Begin, with the workers that there are."""
        start_thread(self._thread, self._dispatch.options.who)

    def join(self) -> None:
        """End, and wait for that."""
        self._closed = True
        self._dispatch.pipes.wake()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def forget(self, failure: BaseException | None) -> None:
        """Let go of the pool, which has ended with `failure`. Its own thread may be closing it, and go on here."""
        self._dispatch.ending = lambda: failure
        self._fail, self._note_idle = lambda _: None, lambda: None

    def _run(self) -> None:
        try:
            self._serve()
        except BaseException as error:  # noqa: BLE001 - whoever waits must not wait for a thread that is gone
            self._fail(wrapped(error, "the supervisor of the workers failed: ", KerasfeedError))

    def _serve(self) -> None:
        dispatch, pipes, poll = self._dispatch, self._dispatch.pipes, self._poll
        poll.register(pipes.result_out, select.POLLIN)
        poll.register(pipes.wake_out, select.POLLIN)
        for handle in dispatch.workers:
            self._watch_worker(handle)
        blocked: set[int] = set()
        while not self._closed:
            ready = {fd for fd, _ in poll.poll(1000 * self._tick)}
            if pipes.wake_out in ready:
                pipes.calm()
            gone = [self._links[fd] for fd in ready & self._links.keys() if not self._links[fd].receive()]
            if pipes.result_out in ready:
                results = pipes.results()
                for result in results:
                    self._handle(result)
                last = results[-1]
                if dispatch.tasks and last.status == Status.DONE and last.seconds < _BURST_TASK_SECONDS:
                    time.sleep(_BURST_SECONDS)
            if time.monotonic() >= self._next_look:
                gone += [handle for handle in self._look() if handle not in gone]
            for handle in gone:
                self._handle_crash(handle)
            if dispatch.doubtful:
                dispatch.doubtful = False
                dispatch.resend(self._not_begun())
            if not dispatch.tasks:
                self._note_idle()
            if blocked or gone or pipes.wake_out in ready:
                blocked = self._flush(blocked)

    def _watch_worker(self, handle: WorkerHandle) -> None:
        self._links[handle.link.fileno()] = handle
        self._poll.register(handle.link.fileno(), select.POLLIN)

    def _flush(self, before: set[int]) -> set[int]:
        """Write the tasks that wait; returns the pipes that take no more, and has `poll` tell when they do."""
        dispatch = self._dispatch
        with dispatch.lock:
            blocked = set() if self._closed else set(dispatch.pipes.flush())
        for fd in blocked - before:
            self._poll.register(fd, select.POLLOUT)
        for fd in before - blocked:
            self._poll.unregister(fd)
        return blocked

    # ---- results

    def read_final_reports(self) -> None:
        """Post what workers told as they ended; after `join`, on the thread that closes the pool."""
        with suppress(OSError, ValueError):  # one was killed as it spoke
            for result in self._last_results():
                payload = self._dispatch.workers[result.worker].take(result.payload_bytes)
                if result.status == Status.END_FAILED:
                    defer_failed_end(self._options.deferred_warnings, pickle.loads(payload))

    def _last_results(self) -> Iterator[Result]:
        """Whatever a dead worker, among others, still reported."""
        poll = select.poll()
        poll.register(self._dispatch.pipes.result_out, select.POLLIN)
        while poll.poll(0):
            yield from self._dispatch.pipes.results()

    def _handle(self, result: Result) -> None:
        dispatch = self._dispatch
        status, number, worker, payload_bytes, seconds = result
        if not 0 <= worker < len(dispatch.workers):
            raise ValueError(f"{result} came from a worker that does not exist")
        handle = dispatch.workers[worker]
        payload = pickle.loads(handle.take(payload_bytes)) if payload_bytes else None
        if status in _NEWS:
            self._handle_news(Status(status), handle, payload)
            return
        task = dispatch.tasks.get(number)
        if task is None:  # sent anew before this came, or given up
            return
        if isinstance(payload, Failure) != (status == Status.FAILED):
            raise ValueError(f"{result} came with a payload of type {type(payload).__name__}")
        followers: Sequence[Task] = ()
        if status == Status.DONE:
            self._deaths.progress(task)  # before it is told, and what it was about forgotten
            followers = task.done(payload, seconds, handle.name)
        elif status == Status.FAILED:
            assert isinstance(payload, Failure)
            error = arrived(payload.packed, payload.summary)
            followers = task.failed(payload.place, error, handle.name, payload.text)
        elif status == Status.CANCELLED:
            task.cancelled()
        elif status == Status.RETURNED:
            followers = [task]
        else:
            raise ValueError(f"{result} has no such status")
        dispatch.replace(number, followers)

    def _handle_news(self, status: Status, handle: WorkerHandle, payload: Any) -> None:
        """A worker tells of itself."""
        if status == Status.STARTED:
            handle.started = True
            if payload is not None:
                self._options.deferred_warnings.defer("edited", edited_text(str(payload)), FeedWarning)
            handle.look()
            self._deaths.started()
            if len(self._dispatch.workers) < self._options.workers:
                self._vacant.add(len(self._dispatch.workers))
                self._fill_vacancies()
        elif status == Status.END_FAILED:
            defer_failed_end(self._options.deferred_warnings, str(payload))
        elif status == Status.EDITED:
            self._fail(WorkerStartError(f"{handle.name} cannot go on: {payload}"))
        elif status == Status.OPENED:
            self._compare_opened(handle, payload)
        else:
            self._fail(_start_error(handle, payload))

    def _compare_opened(self, handle: WorkerHandle, found: dict[Opened, Identity]) -> None:
        """Refuse files that are not what they were when another worker opened them."""
        for opened, identity in found.items():
            first = self._options.first_opened.setdefault(opened, identity)
            difference = first.difference(identity, may_grow=opened.may_grow)
            if difference and opened.module:
                text = edited_message(opened.module, opened.path)
                self._fail(WorkerStartError(f"{handle.name} cannot go on: {text}"))
            elif difference:
                self._fail(WorkersDisagreeError(*changed(opened.path, difference).args))

    # ---- workers that hang

    def _look(self) -> list[WorkerHandle]:
        """Look after the workers, once a tick; returns those that have ended, by themselves or by our hand."""
        now = time.monotonic()
        self._next_look = now + self._tick
        self._stall_timer.begin(now)
        self._fill_vacancies()
        handles = [handle for handle in self._dispatch.workers if handle.link.fileno() in self._links]
        if self._dispatch.tasks:
            return [handle for handle in handles if handle.has_ended() or self._is_hung(handle)]
        for handle in handles:
            self._stall_timer.look(handle.number, None)
        return [handle for handle in handles if handle.has_ended()]

    def _is_hung(self, handle: WorkerHandle) -> bool:
        handle.look()
        number, note = self._dispatch.shared_objects.worker_line(handle.number)[:2].tolist()
        task = self._dispatch.tasks.get(number - 1)
        token = (number, note) if task is not None else None if handle.started else handle.process.pid
        seconds = self._stall_timer.look(handle.number, token)
        timeout = self._options.timeout
        if timeout is not None and task is not None and seconds >= timeout * task.items_at(note):
            handle.hung = self._dispatch.stacks.ask(handle.process.pid)
            handle.process.kill()
            return True
        if seconds >= watchdog.STALL_SECONDS:
            place = None if task is None else task.text(note) or "the sequence anew"
            stack = partial(self._dispatch.stacks.ask, handle.process.pid)
            watchdog.warn_of_stall(
                self._options.deferred_warnings, "process", timeout, handle.name, place, seconds, stack
            )
        return False

    # ---- workers that die

    def _handle_crash(self, handle: WorkerHandle) -> None:
        """Account for a worker that has ended: replace it, and have its task done by others."""
        dispatch = self._dispatch
        self._poll.unregister(handle.link.fileno())
        del self._links[handle.link.fileno()]
        handle.receive()
        handle.end(_DYING_SECONDS)
        lost = self._not_begun(handle)
        handle.close()
        if dispatch.ending() is not None:
            return
        line = dispatch.shared_objects.worker_line(handle.number)
        number, note = line[:2].tolist()
        line[0] = 0
        suspect = dispatch.tasks.get(number - 1) if number - 1 in lost else None
        crash = Crash(
            handle.name, handle.ending(), suspect.text(note) if suspect else "", handle.peak,
            handle.hung or dispatch.stacks.take(), handle.hung is not None, handle.started, self._options.timeout,
        )  # fmt: skip
        self._replace(handle, crash)
        instead: Sequence[Task] = ()
        if suspect is not None:
            instead = self._judge(suspect, note, crash)
            with dispatch.lock:
                dispatch.tasks.pop(number - 1, None)
        elif handle.started and self._deaths.between(crash):
            self._fail(
                WorkerDiedError(
                    f"worker processes end one after the other, while they load no scene: the last, {crash}"
                )
            )
        dispatch.resend(lost, instead)

    def _not_begun(self, dead: WorkerHandle | None = None) -> set[int]:
        """Numbers of the tasks that no living worker has begun, nor will."""
        dispatch = self._dispatch
        with dispatch.lock:
            if dispatch.ending() is not None:
                return set()
            dispatch.invalidate_sent_tasks(None if dead is None else dead.number)
            if dead is not None and self._options.addressed:
                lost = dispatch.sent_to((dead.number,))
            else:
                time.sleep(_VISIBLE_SECONDS)
                living = [handle for handle in dispatch.workers if handle is not dead]
                lines = [dispatch.shared_objects.worker_line(handle.number) for handle in living]
                lost = dispatch.tasks.keys() - {line[0] - 1 for line in lines}
        for result in self._last_results():  # after the notes were read: a worker reports before it takes its note back
            self._handle(result)
        return lost & dispatch.tasks.keys()

    def _replace(self, handle: WorkerHandle, crash: Crash) -> None:
        if not handle.started and self._deaths.at_start(crash):
            self._fail(WorkerStartError(start_text(crash)))
            return
        self.respawns += 1
        LOGGER.warning("%s: a new process takes the place of a worker: %s", self._options.who, crash)
        self._options.deferred_warnings.defer("respawn", respawn_text(crash), FeedWarning)
        self._vacant.add(handle.number)
        self._fill_vacancies()

    def _fill_vacancies(self) -> None:
        dispatch = self._dispatch
        while self._vacant and dispatch.ending() is None:
            number = self._vacant.pop()
            try:
                self._watch_worker(dispatch.start_worker(number))
            except OSError as error:  # no memory, or no room for a process: others may make some
                # Where tasks name their workers, nobody else may do those of this one.
                if not self._links or self._options.addressed or isinstance(error, DirectoryGoneError):
                    self._fail(
                        WorkerStartError(
                            f"no worker process could be started in place of a dead one: {message_of(error)}"
                        )
                    )
                self._vacant.add(number)
                return

    def _judge(self, task: Task, note: int, crash: Crash) -> Sequence[Task]:
        """What is to be done about the task that a worker died of."""
        culprit = task.culprit(note)
        if culprit is None:
            parts = task.parts(note)
            if parts:  # which of them it was is found out one by one
                return parts
            if self._deaths.between(crash):
                self._fail(WorkerDiedError(f"worker processes end one after the other: the last, {crash}"))
            return [task]
        count = self._deaths.at_place(culprit, crash)
        if count < self._deaths.enough(crash, self._options.tries_in_time if crash.hung else self._options.tries):
            return [task]
        self._deaths.judged(culprit)
        return task.crashed(note, crash, count)


def _start_error(handle: WorkerHandle, text: Any) -> KerasfeedError:
    last = str(text).strip().splitlines()[-1]
    return WorkerStartError(
        f"{handle.name} could not load the sequence: {last}. A module that the sequence needs must be importable in "
        f"a new interpreter (installed, or beside the script); on_worker_begin must not fail. Its traceback:\n{text}"
    )
