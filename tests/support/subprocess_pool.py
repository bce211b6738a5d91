"""A pool whose workers share no memory with this process: it stands for workers on other hosts.

Messages are pickles behind their length, over the standard streams of the workers. A worker has one task at a time, so
what is lost with it is known.
"""

import itertools
import os
import pickle
import selectors
import signal
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from dataclasses import dataclass, field

import cloudpickle

from kerasfeed.errors import FeedClosedError, FeedWarning, WorkerDiedError, WorkerStartError
from kerasfeed.pool import watchdog
from kerasfeed.pool.base import CLOSED_BEFORE_DONE, Pool
from kerasfeed.pool.exception_pickle import arrived, pack
from kerasfeed.pool.processes.crash_policy import CrashPolicy, respawn_text, start_text
from kerasfeed.pool.task import NOWHERE, CancelledTaskError, Crash, FailedTaskError, Place
from kerasfeed.pool.worker_hooks import begin_worker, defer_failed_end, end_worker
from kerasfeed.sequences.context import Worker
from kerasfeed.util.error_text import full_text, summary

_COMMAND = "import sys; sys.path[:] = {!r}; import subprocess_pool; subprocess_pool.serve()"
_LENGTH = struct.Struct("=q")
_GRACE = 5.0


def _frame(message):
    data = cloudpickle.dumps(message)
    return _LENGTH.pack(len(data)) + data


# ---- the worker


class _Note(list):
    """Tells the pool of each place."""

    def __init__(self, tell):
        super().__init__([0, 0])
        self._tell = tell

    def __setitem__(self, position, value):
        super().__setitem__(position, value)
        self._tell("note", value)


class _Context:
    used_random = 0

    def __init__(self, tell, worker):
        self.worker = worker
        self.note_random = lambda used: tell("random", used)
        self.value = None

    def posted(self):
        return self.value


def serve():
    """Body of a worker."""
    tasks, results = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what scenes print is no message

    def tell(*message):
        results.write(_frame(message))

    number, count, name = _read(tasks)
    context = _Context(tell, Worker(number, count, "process"))
    note = _Note(tell)
    runner = None
    trouble = None
    while (message := _read(tasks)) is not None:
        kind, value = message
        if kind == "posted":
            context.value = pickle.loads(value)
        elif kind == "task":
            tell(*_outcome(runner, trouble, value, note, context))
        else:
            previous = runner
            if runner is not None and trouble is None:
                tell("ended", end_worker(runner.target, name))
            try:
                runner = pickle.loads(value)
                if previous is not None:
                    runner.follow(previous)
                trouble = begin_worker(runner.target, context.worker, name)
            except Exception as error:
                trouble = error
            tell("started", "" if trouble is None else full_text(trouble))
    if runner is not None and trouble is None:
        tell("ended", end_worker(runner.target, name))


def _read(stream):
    head = stream.read(_LENGTH.size)
    return pickle.loads(stream.read(_LENGTH.unpack(head)[0])) if head else None


def _outcome(runner, trouble, record, note, context):
    started = time.perf_counter()
    try:
        if trouble is not None:
            raise FailedTaskError(Place(method="on_worker_begin")) from trouble
        return "done", runner.run(record, note, context), time.perf_counter() - started
    except CancelledTaskError:
        return "cancelled", None
    except FailedTaskError as carrier:
        error = carrier.error
        return "failed", (carrier.place, pack(error), summary(error), full_text(error))


# ---- the pool


@dataclass(eq=False)
class _Handle:
    """One worker, and the task that it is at."""

    number: int
    process: subprocess.Popen
    inbox: bytearray = field(default_factory=bytearray)
    task: object = None
    serial: int = 0
    note: int = NOWHERE
    sees: tuple = (0, 0)
    started: bool = False
    alive: bool = True
    hung: bool = False

    def __str__(self):
        return f"worker process {self.number} (pid {self.process.pid})"


class SubprocessPool(Pool):
    """See the module. Workers are watched, and replaced, by one thread."""

    worker_type = "process"

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
        process = subprocess.Popen(
            [sys.executable, "-c", _COMMAND.format(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            cwd=self.options.environment.directory,
            env=self.options.environment.variables(self.options.seed, 1),
        )
        handle = _Handle(number, process)
        self._workers[number : number + 1] = [handle]
        self._selector.register(process.stdout, selectors.EVENT_READ, handle)
        self._tell(handle, (number, self.options.workers, str(handle)))
        self._bring_up_to_date(handle)

    def _tell(self, handle, message):
        try:
            handle.process.stdin.write(_frame(message))
        except BrokenPipeError:
            pass  # it has ended, as the watching thread will see

    def _bring_up_to_date(self, handle):
        version, posted = handle.sees
        if posted < self._posted_version:
            self._tell(handle, ("posted", self._posted))
        if version < self._version:
            self._tell(handle, ("runner", self._pickled))
        handle.sees = self._version, self._posted_version

    # ---- what whoever has tasks calls

    def submit(self, tasks, receipt=None):
        with self.lock:
            self.refuse_if_ended()
            if receipt is not None:
                receipt.sent = True
            self._in_flight.update(tasks)
            for task in tasks:
                self._waiting[task.worker or 0 if self.options.addressed else 0].append(task)
            self._hand_out()

    def _hand_out(self):
        """Give each free worker a task. The caller holds `lock`."""
        for handle in self._workers:
            waiting = self._waiting[handle.number % len(self._waiting)]
            if handle.alive and handle.started and handle.task is None and waiting:
                handle.task, handle.serial, handle.note = waiting.popleft(), next(self._serials), NOWHERE
                self._bring_up_to_date(handle)
                self._tell(handle, ("task", handle.task.record()))

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
        """Deal with what has come; False at the end of the stream."""
        data = os.read(handle.process.stdout.fileno(), 1 << 20)
        handle.inbox += data
        while len(handle.inbox) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(handle.inbox)[0]
            if len(handle.inbox) < end:
                break
            message = pickle.loads(handle.inbox[_LENGTH.size : end])
            del handle.inbox[:end]
            self._handle(handle, *message)
        return bool(data)

    def _handle(self, handle, kind, value, seconds=0.0):
        if kind == "note":
            handle.note = value
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
            return  # it has begun anew; if it could not, its tasks fail
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
            place, packed, text, traceback = value
            followers = task.failed(place, arrived(packed, text), str(handle), traceback)
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
            seconds = self._stall_timer.look(handle.number, None if task is None else (handle.serial, handle.note))
            timeout = self.options.timeout
            if timeout is not None and task is not None and seconds >= timeout * task.items_at(handle.note):
                handle.hung = True
                handle.process.kill()

    def _handle_death(self, handle):
        with self.lock:  # nobody gives it a task from now on
            handle.alive, task = False, handle.task
        self._selector.unregister(handle.process.stdout)
        code = handle.process.wait()
        handle.process.stdout.close()
        handle.process.stdin.close()
        if self.ending() is not None:
            self._workers.remove(handle)
            return
        crash = Crash(
            str(handle),
            f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}",
            task.text(handle.note) if task else "",
            hung=handle.hung,
            started=handle.started,
            timeout=self.options.timeout,
        )
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
            self._settle(handle, task, self._judge(task, handle.note, crash), first=True)
        elif handle.started and self._deaths.between(crash):
            self._fail(WorkerDiedError(f"worker processes end one after the other: the last, {crash}"))

    def _judge(self, task, note, crash):
        culprit = task.culprit(note)
        if culprit is None:
            parts = task.parts(note)
            if not parts and self._deaths.between(crash):
                self._fail(WorkerDiedError(f"worker processes end one after the other: the last, {crash}"))
            return parts or [task]
        count = self._deaths.at_place(culprit, crash)
        if count < self._deaths.enough(crash, self.options.tries_in_time if crash.hung else self.options.tries):
            return [task]
        self._deaths.judged(culprit)
        return task.crashed(note, crash, count)
