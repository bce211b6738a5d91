"""A pool of threads: for scenes that wait (disks, networks) or leave the interpreter (NumPy, zlib).

Invariant: the threads know the pool, never whoever uses it. A thread that hangs cannot be ended: what it is at is given
up, and another takes its place.
"""

import threading
import time
from collections import deque
from collections.abc import Sequence
from functools import partial

from kerasfeed.errors import FeedClosedError
from kerasfeed.pool import watchdog
from kerasfeed.pool.base import CLOSED_BEFORE_DONE, LOGGER, PoolOptions, Receipt, Runner
from kerasfeed.pool.local import CALLER, LocalPool, LocalWorker, do_all, in_turn, run_here
from kerasfeed.pool.resource_errors import start_thread
from kerasfeed.pool.task import NOWHERE, Crash, Task
from kerasfeed.pool.worker_hooks import begin_worker, defer_failed_end, end_worker
from kerasfeed.sequences.context import Worker

_JOIN_SECONDS = 5.0


class ThreadPool(LocalPool):
    """Worker threads of this process."""

    worker_type = "thread"

    def __init__(self, runner: Runner, options: PoolOptions) -> None:
        super().__init__(runner, options)
        self._waiting: list[deque[Task]] = [deque() for _ in range(options.workers if options.addressed else 1)]
        self._work = [threading.Condition(self.lock) for _ in self._waiting]  # of those who wait for tasks of each
        self._tasks: set[Task] = set()  # in flight
        self.workers: list[LocalWorker] = []
        self._stall_timer = watchdog.StallTimer(watchdog.tick_seconds(options.timeout))
        try:
            for number in range(options.workers):
                self._start_thread(number)
            tick = watchdog.tick_seconds(options.timeout)
            self._watch = watchdog.Watchdog(self.look, tick, self.who, options.deferred_warnings)
        except BaseException:
            self.close()
            raise

    def _start_thread(self, number: int) -> None:
        """Start worker thread `number`, in place of the one that has the number."""
        worker = LocalWorker(
            Worker(number, self.options.workers, "thread"), f"worker thread {number}", self.memory, self._shared,
            turn=self.options.turn,
        )  # fmt: skip
        worker.thread = threading.Thread(
            target=self._run, args=(worker,), name=f"kerasfeed-worker-{number}", daemon=True
        )
        start_thread(worker.thread, self.who, self.options.workers)
        self.workers[number : number + 1] = [worker]

    def submit(self, tasks: Sequence[Task], receipt: Receipt | None = None) -> None:
        """See `Pool.submit`."""
        if self.options.turn.is_mine:  # a scene has asked for another, which nobody else may read meanwhile
            self.refuse_if_ended()
            if receipt is not None:
                receipt.sent = True
            thread, worker = threading.current_thread(), Worker(0, self.options.workers, "thread")
            do_all(tasks, LocalWorker(worker, CALLER, self.memory, self._shared, thread), self.runner)
            return
        by_queue: dict[int, list[Task]] = {}
        for task in tasks:
            by_queue.setdefault((task.worker or 0) % len(self._waiting), []).append(task)
        with self.lock:
            self.refuse_if_ended()
            for number, found in by_queue.items():
                waiting = self._waiting[number]
                try:
                    if receipt is not None:
                        receipt.sent = True  # and not a call earlier: Ctrl-C comes after calls
                    waiting.extend(found)
                finally:
                    self._tasks.update(found)
            # What Ctrl-C leaves out here, the watching thread does.
            for number, found in by_queue.items():
                self._work[number].notify(len(found))

    @property
    def in_flight(self) -> int:
        """See `Pool.in_flight`."""
        return len(self._tasks)

    # ---- the threads

    def _run(self, worker: LocalWorker) -> None:
        """Body of one worker thread."""
        target, number = self.runner.target, worker.worker.index % len(self._waiting)
        waiting, work = self._waiting[number], self._work[number]
        # Handed to everyone who waits for one of this worker's tasks.
        trouble = in_turn(worker, partial(begin_worker, target, worker.worker, worker.name))
        worker.busy = False
        task: Task | None = None
        while True:
            with work:
                if task is not None:
                    self._forget(task)
                    task = None  # while this waits it holds no batch
                work.wait_for(lambda: waiting or self.closed or worker.given_up)
                if self.closed or worker.given_up:
                    break
                task = waiting.popleft()
            if self._do(task, worker, trouble):
                task = None
        if trouble is None:
            defer_failed_end(self.options.deferred_warnings, in_turn(worker, partial(end_worker, target, worker.name)))

    def _do(self, task: Task, worker: LocalWorker, trouble: BaseException | None) -> bool:
        """Do a task; returns whether it is to be done once more."""
        worker.task, worker.note[1], worker.busy = task, NOWHERE, True
        followers: Sequence[Task] = ()
        try:
            if trouble is None:
                followers = run_here(task, self.runner, worker)
            else:
                task.broken(trouble)
        except BaseException as error:  # noqa: BLE001 - whatever it is, somebody waits
            task.broken(error)
        worker.busy, worker.task = False, None
        if followers:
            self._follow(followers)
        return task in followers

    def _follow(self, tasks: Sequence[Task]) -> None:
        try:
            self.submit(tasks)
        except BaseException as error:  # noqa: BLE001 - closed meanwhile, say
            for task in tasks:
                task.give_up(error)
                task.broken(error)
                with self.lock:
                    self._forget(task)

    def _forget(self, task: Task) -> None:
        """There is nothing more to be done about a task. The caller holds `lock`."""
        self._tasks.discard(task)
        if not self._tasks:
            self._idle.notify_all()

    # ---- the watching thread

    def look(self) -> None:
        """Deal with scenes that take too long; called by the watching thread."""
        timeout = self.options.timeout
        self._stall_timer.begin(time.monotonic())
        for worker in list(self.workers):
            if worker.given_up:
                self._replace(worker)
                continue
            task, note = worker.task, worker.note[1]
            seconds = self._stall_timer.look(worker.worker.index, worker.token())
            if not worker.busy or worker.thread is None:
                continue
            if timeout is not None and task is not None and seconds >= timeout * task.items_at(note):
                self._give_up_thread(worker, task, note)
            elif seconds >= watchdog.STALL_SECONDS:
                worker.warn_of_stall(self.options, seconds)
        self._wake_all()  # of tasks of which Ctrl-C in `submit` kept it from telling

    def _wake_all(self) -> None:
        with self.lock:
            for work in self._work:
                work.notify_all()

    def _give_up_thread(self, worker: LocalWorker, task: Task, note: int) -> None:
        """Give up what a hung thread is at, and let another take its number: a thread cannot be ended."""
        assert worker.thread is not None
        with self.lock:
            if self.closed or worker.given_up or worker.task is not task:
                return
            worker.given_up = True
            self.options.turn.abandon()
        crash = Crash(
            worker.name, place=task.text(note), stack=watchdog.stack_of(worker.thread), hung=True,
            timeout=self.options.timeout,
        )  # fmt: skip
        task.stuck(note, crash)  # told of its outcome nevertheless, when the thread is back
        with self.lock:
            self._forget(task)
        LOGGER.warning(
            "%s: another thread takes the place of %s, which hangs at %s", self.who, worker.name, crash.place
        )
        self._replace(worker)

    def _replace(self, worker: LocalWorker) -> None:
        """Let another thread take the number of one that was given up."""
        with self.lock:
            if not self.closed:
                self._start_thread(worker.worker.index)

    def _end(self) -> None:
        with self.lock:
            waiting = [task for each in self._waiting for task in each]
            for each in self._waiting:
                each.clear()
            in_flight = list(self._tasks)
        for task in in_flight:
            task.give_up(FeedClosedError(CLOSED_BEFORE_DONE))
        with self.lock:
            for task in waiting:
                self._forget(task)
        if self._watch is not None:
            self._watch.stop()
        self._wake_all()
        deadline = time.monotonic() + _JOIN_SECONDS
        for worker in self.workers:
            if worker.thread is not None and worker.thread is not threading.current_thread():
                worker.thread.join(max(0.0, deadline - time.monotonic()))
