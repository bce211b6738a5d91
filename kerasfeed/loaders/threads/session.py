"""One run of worker threads: the queue, the slots, the scenes at work.

Invariant: the threads know the job and the queue, never the loader, so a loader that is dropped is collected and its
threads end. A batch is guarded by one lock and finished by whichever thread accounts for its last row. A thread that
hangs cannot be ended: what it is at fails, and another thread takes its place.
"""

import queue
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from kerasfeed.errors import FeedClosedError, SceneTimeoutError
from kerasfeed.loaders.base import CLOSED_BEFORE_LOADED, Job
from kerasfeed.loaders.batches.filler import MANY, Cancelled, FailedSceneError, Filler
from kerasfeed.loaders.batches.layout import Layout
from kerasfeed.loaders.batches.pending_batch import BatchInProgress, scene_text
from kerasfeed.loaders.batches.slots import SlotMemory
from kerasfeed.loaders.batches.spec_inference import read_probe
from kerasfeed.loaders.failures import watchdog
from kerasfeed.loaders.failures.exceptions import failed_here
from kerasfeed.loaders.failures.failure_log import FailureLog
from kerasfeed.loaders.failures.recovery import Range
from kerasfeed.loaders.resource_errors import feed_name
from kerasfeed.loaders.session import Session
from kerasfeed.loaders.tasks import LoadTask, ProbeTask, Work
from kerasfeed.loaders.worker_hooks import begin_worker, defer_failed_end, end_worker
from kerasfeed.sequences.base import SceneContext, Worker
from kerasfeed.util.read_cost import ReadCost

_TURN_SECONDS = 0.005  # how long a thread waits for the turn of another


@dataclass(eq=False)
class _WorkerThread:
    """One worker thread and what it is at: row of a batch, or, while the spec is inferred, an index.

    It begins busy, with `on_worker_begin`.
    """

    number: int
    thread: threading.Thread | None = None
    work: Work | None = None
    note: list[int] = field(default_factory=lambda: [0, 0])
    busy: bool = True
    given_up: bool = False

    @property
    def row(self) -> int:
        """The row, or the index."""
        return self.note[1]

    def token(self) -> Any:
        """Changes from scene to scene; None between two."""
        work = self.work
        return (work.batch.serial if work and work.batch else None, self.row) if self.busy else None

    def __str__(self) -> str:
        return f"worker thread {self.number}"


class ThreadSession(Session):
    """The threads and what they share; see the module's invariant."""

    reads_here = True

    def __init__(self, job: Job, failure_log: FailureLog) -> None:
        super().__init__(job, failure_log)
        self._arena = SlotMemory(shared=False, who=feed_name(job.sequence, job.workers, "thread"))
        # A list is a batch of tasks, queued at once so that Ctrl-C cannot queue a part of it.
        self.tasks: queue.SimpleQueue[list[Work] | None] = queue.SimpleQueue()
        self._turn = threading.Lock()
        self._opened: deque[Work] = deque()  # tasks of lists that were taken from the queue
        self.work: set[BatchInProgress | Work] = set()
        self.workers: list[_WorkerThread] = []
        self._stuck: set[BatchInProgress] = set()  # a thread that was given up may still write to them
        self._stall_timer = watchdog.StallTimer(watchdog.tick_seconds(job.policy.timeout))
        for number in range(job.workers):
            self.start_thread(number)
        self.watch = watchdog.Watchdog(self.look, watchdog.tick_seconds(job.policy.timeout))

    def start_thread(self, number: int) -> None:
        """Start worker thread `number`, in place of the one that has the number."""
        worker = _WorkerThread(number)
        self.workers[number : number + 1] = [worker]
        worker.thread = threading.Thread(
            target=self._run, args=(worker,), name=f"kerasfeed-worker-{number}", daemon=True
        )
        worker.thread.start()

    def _run(self, worker: _WorkerThread) -> None:
        """Body of one worker thread."""
        sequence = self.job.sequence
        name = str(worker)
        # Handed to every consumer of this worker's tasks.
        trouble = begin_worker(sequence, Worker(worker.number, self.job.workers, "thread"), name)
        worker.busy = False
        while not worker.given_up and (work := self._next_work()) is not None:
            worker.work, worker.note[1], worker.busy = (
                work,
                work.index if isinstance(work, ProbeTask) else work.start,
                True,
            )
            if isinstance(work, ProbeTask):
                self._probe(work, name, trouble)
            else:
                self._load(work, worker, trouble)
            worker.busy, worker.work = False, None
            del work  # else an idle thread keeps the last batch's slot
        if trouble is None:
            defer_failed_end(self.failure_log.deferred_warnings, end_worker(sequence, name))
        del trouble  # its cause has a traceback that holds this frame

    def _next_work(self) -> Work | None:
        """What is to be done next, in the order in which it was asked for; waits. None: this thread is to end."""
        found = self.tasks.get()
        if found is None:
            return None
        self._opened.extend(found)
        for _ in found[1:]:  # each list, empty or not, lets one thread take one task
            self.tasks.put([])
        return self._opened.popleft()

    def _probe(self, work: ProbeTask, name: str, trouble: BaseException | None) -> None:
        try:
            if not work.future.done():  # else closed meanwhile
                work.set_result(read_probe(self.job, work.index, name) if trouble is None else trouble)
        except BaseException as error:  # noqa: BLE001 - whatever it is, somebody waits
            work.give_up(error)
        self._forget(work)
        del work  # see `_load`

    def _load(self, work: LoadTask, worker: _WorkerThread, trouble: BaseException | None) -> None:
        batch, start, stop = work.batch, work.start, work.stop
        assert self.filler is not None
        again: list[Range] = []
        try:
            if trouble is not None:
                raise trouble
            context = SceneContext(self.job.plan.seed, batch.epoch)
            # No thread relies on its turn: where another holds it for long, because a scene waits, this one goes on.
            turn = self.timing.take_turns() and self._take_turn()
            started, on_processor = time.perf_counter(), time.thread_time()
            try:
                beside = self.filler.fill(batch.slot.view, start, stop, batch.serial, context, worker.note)
            finally:
                if turn:
                    self.timing.note_turn(time.perf_counter() - started, time.thread_time() - on_processor)
                    self._turn.release()
            self.timing.note(time.perf_counter() - started, stop - start)
            with self.lock:
                complete = batch.add(start, stop, beside)
        except Cancelled:
            with self.lock:
                complete = batch.add(start, stop, {})
        except FailedSceneError as carrier:
            complete, again = self._handle_failure(work, carrier, str(worker))
        except BaseException as error:  # noqa: BLE001 - whatever it is, somebody waits
            with self.lock:
                complete = batch.fail(start, stop, start, error)
        for first, last in again:
            self.tasks.put([LoadTask(batch, first, last)])
        if complete:
            self._deliver(batch)
        # What a scene raised has a traceback that ends in this frame: only the collector would free them.
        del work, batch

    def _take_turn(self) -> bool:
        held = self._turn.acquire(timeout=_TURN_SECONDS)
        if not held:
            self.timing.stop_turns()
        return held

    def _handle_failure(self, work: LoadTask, carrier: FailedSceneError, name: str) -> tuple[bool, list[Range]]:
        """Deal with a failed scene; returns whether its batch is complete, and the ranges to load again."""
        batch, start, stop = work.batch, work.start, work.stop
        try:
            error = failed_here(carrier, work.indices(), batch.epoch, batch.step, name)
            self.failure_log.note(carrier.index, batch.epoch, batch.step, error)
        except BaseException as trouble:  # noqa: BLE001 - whatever it is, somebody waits for the batch
            error = trouble
        with self.lock:
            again = self.recovery.handle(batch, start, stop, carrier.row, error)
            return batch.missing == 0, again

    def _deliver(self, batch: BatchInProgress) -> None:
        if batch in self._stuck:
            self._note_stuck(batch, False)
        self.finish(batch)
        self._forget(batch)

    def _forget(self, item: BatchInProgress | Work) -> None:
        with self.lock:
            self.work.discard(item)
            if not self.work:
                self.idle.notify_all()

    def look(self) -> None:
        """Deal with scenes that take too long; called by the watching thread."""
        timeout = self.job.policy.timeout
        self._stall_timer.begin(time.monotonic())
        for worker in list(self.workers):
            work, row, token = worker.work, worker.row, worker.token()
            seconds = self._stall_timer.look(worker.number, token)
            if token is None or worker.thread is None:
                continue
            scenes = work.stop - work.start if isinstance(work, LoadTask) and row == MANY else 1
            if timeout is not None and work is not None and seconds >= timeout * scenes:
                self._give_up_thread(worker, work, row, timeout)
            elif seconds >= watchdog.STALL_SECONDS:
                scene = None if work is None else scene_text(work.batch, row)
                stack = partial(watchdog.stack_of, worker.thread)
                watchdog.warn_of_stall(
                    self.failure_log.deferred_warnings, "thread", timeout, str(worker), scene, seconds, stack
                )

    def _give_up_thread(self, worker: _WorkerThread, work: Work, row: int, timeout: float) -> None:
        """Fail what a hung thread is at, and let another take its number: a thread cannot be ended."""
        assert worker.thread is not None
        batch = work.batch
        error = SceneTimeoutError(
            f"{scene_text(batch, row)} took longer than timeout={timeout} s in {worker}, which cannot be ended because "
            "it is a thread; it goes on, and another thread has taken its place. Use worker_type='process', where such "
            "a worker is replaced and its scene tried again. The thread is at\n"
            f"{watchdog.stack_of(worker.thread)}"
        )
        if batch is not None:
            index = None if row == MANY else int(batch.slot.view.indices[row])
            self.failure_log.note(index, batch.epoch, batch.step, error)
        with self.lock:
            if self.closed or worker.given_up:
                return
            worker.given_up = True
            if batch is not None and batch.missing:  # else it is being finished just now
                self._note_stuck(batch, True)
            self.start_thread(worker.number)
        self.give_up(batch or work, error)  # its slot stays in flight until the thread is back

    def _note_stuck(self, batch: BatchInProgress, stuck: bool) -> None:
        assert self.pool is not None
        with self.lock:
            (self._stuck.add if stuck else self._stuck.discard)(batch)
            self.pool.stuck = len(self._stuck)

    def give_up(self, item: BatchInProgress | Work, error: BaseException) -> None:
        """See `Session.give_up`; nobody waits for what is left of it."""
        item.give_up(error)  # outside the lock: callbacks of its future are the user's
        self._forget(item)

    def _send(self, works: list[Work], batch: BatchInProgress | None = None) -> None:
        self._refuse_if_ended()
        if batch is None:
            self.work.update(works)
        else:
            self.work.add(batch)
            batch.sent = True  # and not a call earlier: Ctrl-C comes after calls
        self.tasks.put(works)

    def _post_layout(self, layout: Layout) -> None:
        self.filler = Filler(self.job.sequence, layout, self.job.plan.length, self.job.maker)

    def renew(self) -> None:
        """See `Session.renew`; the threads read the sequence itself."""

    def pids(self) -> tuple[int, ...]:
        """See `Session.pids`: none."""
        return ()

    def wasted(self) -> ReadCost | None:
        """See `Session.wasted`."""
        return self.filler.meter.waste() if self.filler else None

    def _end(self) -> None:
        for item in list(self.work):  # none is added any more
            item.give_up(FeedClosedError(CLOSED_BEFORE_LOADED))
        if self.pool is not None:
            self.pool.close()
        self.watch.stop()
        for _ in self.workers:
            self.tasks.put(None)
        deadline = time.monotonic() + 5.0
        for worker in self.workers:
            if worker.thread is not None and worker.thread is not threading.current_thread():
                worker.thread.join(max(0.0, deadline - time.monotonic()))
        if self.pool is not None:
            self.pool.free(flying=False)
