"""A pool of threads.

It serves scenes that wait (disks, networks) or release the GIL (NumPy, zlib).

Invariant: threads hold the pool, never its user. A thread that hangs cannot be ended: the pool fails its task and
starts another thread in its place.
"""

import threading
import time
from collections.abc import Sequence
from functools import partial
from queue import SimpleQueue

from kerasfeed.errors import FeedClosedError
from kerasfeed.pool import watchdog
from kerasfeed.pool.base import CLOSED_BEFORE_DONE, LOGGER, PoolOptions, Runner
from kerasfeed.pool.local import CALLER, LocalPool, LocalWorker
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
        count = options.workers if options.addressed else 1
        self._waiting: list[SimpleQueue[Task | None]] = [SimpleQueue() for _ in range(count)]  # None ends a thread
        self._tasks: set[Task] = set()  # in flight
        self.workers: list[LocalWorker] = []
        self._stall_timer = watchdog.StallTimer(watchdog.tick_seconds(options.timeout))
        try:
            for number in range(options.workers):
                self._start_thread(number)
            tick = watchdog.tick_seconds(options.timeout)
            self._watch = watchdog.Watchdog(self.look, tick, self.owner, options.deferred_warnings)
        except BaseException:
            self.close()
            raise

    def _start_thread(self, number: int) -> None:
        """Start worker thread `number`; it replaces the present one."""
        worker = LocalWorker(Worker(number, self.options.workers, "thread"), f"worker thread {number}", self)
        worker.thread = threading.Thread(
            target=self._run, args=(worker,), name=f"kerasfeed-worker-{number}", daemon=True
        )
        start_thread(worker.thread, self.owner, self.options.workers)
        self.workers[number : number + 1] = [worker]

    def submit(self, tasks: Sequence[Task]) -> None:
        """See `Pool.submit`."""
        if self.options.turn.is_mine:  # a scene reads another one, and no other thread can have the turn
            self.refuse_if_ended()
            LocalWorker(Worker(0, self.options.workers, "thread"), CALLER, self).do_all(tasks)
            return
        with self.lock:
            self.refuse_if_ended()
            self._tasks.update(tasks)
            for task in tasks:
                self._queue_of(task.worker).put(task)

    def _queue_of(self, number: int | None) -> "SimpleQueue[Task | None]":
        return self._waiting[(number or 0) % len(self._waiting)]

    @property
    def in_flight(self) -> int:
        """See `Pool.in_flight`."""
        return len(self._tasks)

    # ---- the threads

    def _run(self, worker: LocalWorker) -> None:
        """Body of one worker thread."""
        target, queue = self.runner.target, self._queue_of(worker.worker.index)
        # The error of on_worker_begin, which fails each task that this worker gets; else None.
        trouble = worker.in_turn(partial(begin_worker, target, worker.worker, worker.name))
        worker.busy = False
        while not worker.given_up and (task := queue.get()) is not None:
            if closed := self.closed:
                task.give_up(FeedClosedError(CLOSED_BEFORE_DONE))  # `_end` may not have reached it yet
            if closed or not self._do(task, worker, trouble):
                with self.lock:
                    self._forget(task)
            del task  # a waiting thread must not keep a batch alive
        if trouble is None:
            message = worker.in_turn(partial(end_worker, target, worker.name))
            defer_failed_end(self.options.deferred_warnings, message)

    def _do(self, task: Task, worker: LocalWorker, trouble: BaseException | None) -> bool:
        """Do a task; return whether it must be done again."""
        worker.task, worker.progress[1], worker.busy = task, NOWHERE, True
        followers: Sequence[Task] = ()
        try:
            if trouble is None:
                followers = worker.do(task)
            else:
                _give_up(task, trouble)
        except BaseException as error:  # noqa: BLE001 - the consumer waits for an outcome
            _give_up(task, error)
        worker.busy, worker.task = False, None
        try:
            if followers:
                self.submit(followers)
        except BaseException as error:  # noqa: BLE001 - for example, the pool was closed
            for follower in followers:
                _give_up(follower, error)
                with self.lock:
                    self._forget(follower)
        return task in followers

    def _forget(self, task: Task) -> None:
        """Remove a finished task. The caller holds `lock`."""
        self._tasks.discard(task)
        if not self._tasks:
            self._idle.notify_all()

    # ---- the watching thread

    def look(self) -> None:
        """Handle scenes that take too long; the watchdog calls this."""
        timeout = self.options.timeout
        self._stall_timer.begin(time.monotonic())
        for worker in list(self.workers):
            if worker.given_up:
                self._replace(worker)
                continue
            task, position = worker.task, worker.progress[1]
            seconds = self._stall_timer.look(worker.worker.index, worker.token())
            if not worker.busy:
                continue
            if timeout is not None and task is not None and seconds >= timeout * task.items_at(position):
                self._give_up_thread(worker, task, position)
            elif seconds >= watchdog.STALL_SECONDS:
                worker.warn_of_stall(seconds)

    def _give_up_thread(self, worker: LocalWorker, task: Task, position: int) -> None:
        """Fail the task of a hung thread; start another thread."""
        with self.lock:
            if self.closed or worker.given_up or worker.task is not task:
                return
            worker.given_up = True
            self.options.turn.abandon()
        crash = Crash(
            worker.name, position=task.text(position), stack=watchdog.stack_of(worker.thread), hung=True,
            timeout=self.options.timeout,
        )  # fmt: skip
        task.stuck(position, crash)  # the thread still reports the outcome when it returns
        with self.lock:
            self._forget(task)
        LOGGER.warning("%s: another thread replaces %s, which hangs at %s", self.owner, worker.name, crash.position)
        self._replace(worker)

    def _replace(self, worker: LocalWorker) -> None:
        """Start another thread to replace one that hangs."""
        with self.lock:
            if not self.closed:
                self._start_thread(worker.worker.index)

    def _end(self) -> None:
        with self.lock:
            in_flight = list(self._tasks)
        for task in in_flight:
            task.give_up(FeedClosedError(CLOSED_BEFORE_DONE))
        # Before any wait. Counts all workers, because Ctrl-C may keep a started thread out of `self.workers`.
        for number in range(self.options.workers):
            self._queue_of(number).put(None)
        if self._watch is not None:
            self._watch.stop()
        deadline = time.monotonic() + _JOIN_SECONDS
        for worker in self.workers:
            if worker.thread is not threading.current_thread():
                worker.thread.join(max(0.0, deadline - time.monotonic()))
        self.workers.clear()  # breaks the reference cycle with this pool


def _give_up(task: Task, error: BaseException) -> None:
    """Fail a task that no worker runs."""
    task.give_up(error)
    task.cancelled()
