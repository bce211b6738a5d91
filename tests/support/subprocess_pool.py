"""A pool whose workers share no memory with this process, like workers on other hosts.

Messages are pickles after their length, over the standard streams of the workers. A worker has one task at a time, so
the pool knows the lost task of a dead worker.
"""

import itertools
import os
import selectors
import subprocess
import threading
import time
from collections import deque

import cloudpickle
from subprocess_handle import Handle

from kerasfeed.errors import FeedClosedError, FeedWarning, WorkerDiedError, WorkerStartError
from kerasfeed.pool import watchdog
from kerasfeed.pool.base import CLOSED_BEFORE_DONE, Pool
from kerasfeed.pool.processes.crash_policy import CrashPolicy, respawn_text, start_text
from kerasfeed.pool.task import NOWHERE
from kerasfeed.pool.worker_hooks import defer_failed_end

_GRACE = 5.0


class SubprocessPool(Pool):
    """See the module. One thread watches and replaces workers."""

    worker_type = "process"
    has_copies = True

    def __init__(self, runner, options):
        super().__init__(runner, options)
        self._waiting = [deque() for _ in range(options.workers if options.addressed else 1)]
        self._in_flight = set()
        self._serials = itertools.count(1)
        self._workers = []
        self._deaths = CrashPolicy()
        self._used_random = 0
        self._respawns = 0
        self._posted, self._posted_version, self._version = None, 0, 0
        self._tick = watchdog.tick_seconds(options.timeout)
        self._stall_timer = watchdog.StallTimer(self._tick)
        self.renew()
        self._selector = selectors.DefaultSelector()
        self._wake_out, self._wake_in = os.pipe()
        self._selector.register(self._wake_out, selectors.EVENT_READ)
        for number in range(options.workers):
            self._start(number)
        self._thread = threading.Thread(target=self._run, name="kerasfeed-subprocesses", daemon=True)
        self._thread.start()

    def _start(self, number):
        handle = Handle.start(number, self.options)
        self._workers[number : number + 1] = [handle]
        self._selector.register(handle.process.stdout, selectors.EVENT_READ, handle)
        self._bring_up_to_date(handle)

    def _bring_up_to_date(self, handle):
        version, posted = handle.sees
        if posted < self._posted_version:
            handle.tell(("posted", self._posted))
        if version < self._version:
            handle.tell(("runner", self._pickled))
        handle.sees = self._version, self._posted_version

    # ---- for users of the pool

    def submit(self, tasks):
        with self.lock:
            self.refuse_if_ended()
            self._in_flight.update(tasks)
            for task in tasks:
                self._waiting[task.worker or 0 if self.options.addressed else 0].append(task)
            self._hand_out()

    def _hand_out(self):
        """Give each free worker a task. The caller holds `lock`."""
        for handle in self._workers:
            waiting = self._waiting[handle.number % len(self._waiting)]
            if handle.alive and handle.started and handle.task is None and waiting:
                handle.task, handle.serial, handle.position = waiting.popleft(), next(self._serials), NOWHERE
                self._bring_up_to_date(handle)
                handle.tell(("task", handle.task.record()))

    def post(self, value):
        with self.lock:
            self.refuse_if_ended()
            self._posted, self._posted_version = cloudpickle.dumps(value), self._posted_version + 1

    def renew(self):
        try:
            pickled = cloudpickle.dumps(self.runner)
        except Exception as error:
            raise self.runner.unpicklable(error) from error
        with self.lock:
            self._pickled, self._version = pickled, self._version + 1

    @property
    def in_flight(self):
        return len(self._in_flight)

    @property
    def used_random(self):
        return self._used_random

    @property
    def respawns(self):
        return self._respawns

    def pids(self):
        return tuple(handle.process.pid for handle in self._workers if handle.process.returncode is None)

    def _fail(self, error):
        with self.lock:
            if self.failure is None:
                self.failure = error
            tasks = list(self._in_flight)
            self._in_flight.clear()
            for waiting in self._waiting:
                waiting.clear()
            for handle in self._workers:
                handle.task = None
            self._idle.notify_all()
        for task in tasks:
            task.give_up(error)
        if self.on_failure is not None:
            self.on_failure()

    def _end(self):
        self._fail(FeedClosedError(CLOSED_BEFORE_DONE))
        os.write(self._wake_in, b"\0")
        if self._thread is not threading.current_thread():
            self._thread.join()
        for handle in self._workers:
            handle.process.stdin.close()
        deadline = time.monotonic() + _GRACE
        for handle in self._workers:
            try:
                handle.process.wait(0 if handle.hung else max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                handle.process.kill()
                handle.process.wait()
            self._receive(handle)
            handle.process.stdout.close()
        self._selector.close()
        os.close(self._wake_in)
        os.close(self._wake_out)

    # ---- the watching thread

    def _run(self):
        try:
            next_look = 0.0
            while not self.closed:
                for key, _ in self._selector.select(self._tick):
                    if key.data is not None and not self._receive(key.data):
                        self._handle_death(key.data)
                if time.monotonic() >= next_look:
                    next_look = time.monotonic() + self._tick
                    self._look()
        except BaseException as error:
            self._fail(error)

    def _receive(self, handle):
        """Handle received messages; return False at the end of the stream."""
        messages = handle.read()
        for message in messages or ():
            self._handle(handle, *message)
        return messages is not None

    def _handle(self, handle, kind, value, seconds=0.0):
        if kind == "progress":
            handle.position = value
        elif kind == "random":
            self._used_random |= value
        elif kind == "ended":
            defer_failed_end(self.options.deferred_warnings, value)
        elif kind == "started":
            self._handle_start(handle, value)
        else:
            self._handle_outcome(handle, kind, value, seconds)

    def _handle_start(self, handle, trouble):
        if handle.started:
            return  # it has begun again; if it could not, its tasks fail
        if trouble:
            self._fail(WorkerStartError(f"{handle} could not load the sequence: {trouble}"))
            return
        handle.started = True
        self._deaths.started()
        with self.lock:
            self._hand_out()

    def _handle_outcome(self, handle, kind, value, seconds):
        task = handle.task
        if task is None:  # given up
            return
        followers = ()
        if kind == "done":
            self._deaths.progress(task)
            followers = task.done(value, seconds, str(handle))
        elif kind == "failed":
            place, sent, traceback = value
            followers = task.failed(place, sent.as_exception(), str(handle), traceback)
        else:
            task.cancelled()
        self._settle(handle, task, followers)

    def _settle(self, handle, task, followers, *, first=False):
        with self.lock:
            handle.task = None
            self._in_flight.discard(task)
            ending = self.ending()
            if ending is None:
                self._in_flight.update(followers)
                for each in reversed(followers) if first else followers:
                    waiting = self._waiting[each.worker or 0 if self.options.addressed else 0]
                    (waiting.appendleft if first else waiting.append)(each)
                self._hand_out()
            if not self._in_flight:
                self._idle.notify_all()
        if ending is not None:
            for each in followers:
                each.give_up(ending)

    def _look(self):
        self._stall_timer.begin(time.monotonic())
        for handle in self._workers:
            task = handle.task
            seconds = self._stall_timer.look(handle.number, None if task is None else (handle.serial, handle.position))
            timeout = self.options.timeout
            if timeout is not None and task is not None and seconds >= timeout * task.items_at(handle.position):
                handle.hung = True
                handle.process.kill()

    def _handle_death(self, handle):
        with self.lock:  # it gets no tasks from now on
            handle.alive, task = False, handle.task
        self._selector.unregister(handle.process.stdout)
        crash = handle.crash(task, self.options.timeout)
        if self.ending() is not None:
            self._workers.remove(handle)
            return
        if not handle.started and self._deaths.at_start(crash):
            self._workers.remove(handle)
            self._fail(WorkerStartError(start_text(crash)))
            return
        self._respawns += 1
        self.options.deferred_warnings.defer("respawn", respawn_text(crash), FeedWarning)
        with self.lock:
            handle.task = None
            self._start(handle.number)
        if task is not None:
            self._settle(handle, task, self._judge(task, handle.position, crash), first=True)
        elif handle.started and self._deaths.between(crash):
            self._fail(WorkerDiedError(f"worker processes end repeatedly. The last one: {crash}"))

    def _judge(self, task, position, crash):
        culprit = task.culprit(position)
        if culprit is None:
            parts = task.parts(position)
            if not parts and self._deaths.between(crash):
                self._fail(WorkerDiedError(f"worker processes end repeatedly. The last one: {crash}"))
            return parts or [task]
        count = self._deaths.at_position(culprit, crash)
        if count < self._deaths.enough(crash, self.options.tries):
            return [task]
        self._deaths.forget(culprit)
        return task.crashed(position, crash, count)
