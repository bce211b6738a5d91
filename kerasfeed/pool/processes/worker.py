"""The worker process: a new interpreter that runs tasks.

Invariant: the worker ends with its parent. End of file on the task pipe ends it between tasks. If the parent ends, a
watching thread ends the worker during a task. The worker imports neither keras nor tensorflow unless the user's
code does, and never the user's main module.
"""

import faulthandler
import mmap
import multiprocessing
import os
import select
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from typing import Any

from kerasfeed.pool.base import Runner
from kerasfeed.pool.exception_pickle import Sent
from kerasfeed.pool.processes.protocol import (
    STACK_SIGNAL,
    STOP,
    TASK_BYTES,
    Failure,
    Result,
    Status,
    WorkerStart,
    decode_task,
)
from kerasfeed.pool.processes.shared_objects import SharedObjects, Topic
from kerasfeed.pool.task import NOWHERE, CancelledTaskError, FailedTaskError, FailurePosition, Record
from kerasfeed.pool.worker_hooks import end_worker
from kerasfeed.sequences.context import Worker, begin_worker_process
from kerasfeed.sequences.optional_methods import optional_method
from kerasfeed.util.error_text import full_text
from kerasfeed.util.picklers import cloud_pickled
from kerasfeed.util.resources import descriptors
from kerasfeed.util.user_modules import differences, differences_text

_RESERVED_DESCRIPTORS = 128


class WorkerProcess:
    """State of this process; runners see it as `kerasfeed.pool.base.WorkerContext`.

    Attributes:
        worker: Number, count and type of the workers.
    """

    has_copy = True
    watches_globals = True

    def __init__(
        self, number: int, task_fd: int, result_fd: int, link: socket.socket, memory_fd: int, shared: SharedObjects
    ) -> None:
        self._number = number
        self._task_fd, self._result_fd, self._memory_fd = task_fd, result_fd, memory_fd
        self._link = link  # carries payloads of results
        self._shared_objects = shared
        self._line = shared.worker_line(number)
        self._version = 0
        self._begun = False
        self._segments: dict[int, mmap.mmap] = {}

    def run(self) -> None:
        """Serve tasks until the parent sends STOP or closes the pipe."""
        try:
            self._report(Status.STARTED, -1, 0.0, self._begin() or None)
            self._serve_all()
        except BaseException as error:
            if self._begun:
                raise
            # The parent raises it in the user's thread.
            self._report(Status.NOT_STARTED, -1, 0.0, full_text(error))

    def _serve_all(self) -> None:
        line = self._line
        while data := os.read(self._task_fd, TASK_BYTES):
            number, version, record = decode_task(data)
            if number == STOP:
                break
            line[1] = NOWHERE
            # First: if the pool does not see this, it has made the task invalid before it sends the task again.
            line[0] = number + 1
            if number < line[2]:  # the lowest valid number
                self._report(Status.RETURNED, number, 0.0)
            else:
                self._serve(number, version, record)
            line[0] = 0
        self._end_worker()

    def _begin(self) -> str:
        """Load the sequence; return a warning or ""."""
        _, start = self._shared_objects.read(Topic.START)
        assert isinstance(start, WorkerStart)
        sys.path[:] = start.sys_path
        if start.managers_key:
            multiprocessing.current_process().authkey = start.managers_key
        begin_worker_process()
        self.worker = Worker(start.first + self._number, start.count, "process")
        self._version, self._runner = self._shared_objects.read(Topic.RUNNER)
        imported = differences(start.modules)
        self._begin_worker()
        if imported:  # on_worker_begin may have set these values
            left = differences(start.modules)
            imported = {name: values for name, values in imported.items() if left.get(name) == values}
        return differences_text(imported) if imported else ""

    def _begin_worker(self) -> None:
        assert isinstance(self._runner, Runner)
        begin = optional_method(self._runner.target, "on_worker_begin")
        if begin is not None:
            begin(self.worker)
        self._begun = True

    def _end_worker(self) -> None:
        begun, self._begun = self._begun, False
        name = f"worker process {self._number} (pid {os.getpid()})"
        if begun and (message := end_worker(self._runner.target, name)):
            self._report(Status.END_FAILED, -1, 0.0, message)

    def _serve(self, number: int, version: int, record: Record) -> None:
        started = time.perf_counter()
        try:
            if self._version < version:
                self._renew()
            payload = self._runner.run(record, self._line, self)
            self._report(Status.DONE, number, time.perf_counter() - started, payload)
        except CancelledTaskError:
            self._report(Status.CANCELLED, number, 0.0)
        except FailedTaskError as carrier:
            error = carrier.error
            failure = Failure(carrier.position, Sent.of(error), full_text(error))
            self._report(Status.FAILED, number, 0.0, failure)

    def _renew(self) -> None:
        self._end_worker()
        try:
            previous = self._runner
            version, self._runner = self._shared_objects.read(Topic.RUNNER)
            self._runner.follow(previous)
            self._begin_worker()
            self._version = version  # last: if on_worker_begin fails, the next task tries it again
        except BaseException as error:
            raise FailedTaskError(FailurePosition(method="on_worker_begin")) from error

    # ---- WorkerContext

    def posted(self) -> Any:
        """See `WorkerContext.posted`."""
        return self._shared_objects.read(Topic.POSTED)[1]

    def memory_at(self, offset: int, nbytes: int) -> mmap.mmap:
        """See `WorkerContext.memory_at`."""
        memory = self._segments.get(offset)
        if memory is None:
            memory = self._segments[offset] = mmap.mmap(self._memory_fd, nbytes, offset=offset)
        return memory

    @property
    def used_random(self) -> int:
        """See `WorkerContext.used_random`."""
        return self._shared_objects.used_random

    def record_random(self, used: int) -> None:
        """See `WorkerContext.record_random`."""
        self._shared_objects.record_random(used)

    def _report(self, status: Status, number: int, seconds: float, payload: Any = None) -> None:
        nbytes = 0
        if payload is not None:
            pickled = cloud_pickled(payload)
            nbytes = len(pickled)
            self._link.sendall(pickled)  # before the record: the parent reads the payload when it has the record
        os.write(self._result_fd, Result(status, number, self._number, nbytes, seconds).encode())


def watch_parent(link_fd: int) -> None:
    """End this process and its group when the parent is gone.

    A running task is ended too.
    """
    parent = os.getppid()
    poll = select.poll()
    poll.register(link_fd, 0)  # hang-ups are always reported
    while True:
        # A fork of the parent keeps the link open, so the parent's pid is checked too.
        hung_up = any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll(1000))
        if hung_up or os.getppid() != parent:
            with suppress(OSError):  # not a group leader
                os.killpg(os.getpid(), signal.SIGKILL)
            os._exit(0)


def _reserve_descriptors() -> None:
    """Open the low free descriptors for writing only.

    The sequence may hold the number of a descriptor of the parent. Reading from it must fail here, and not return bytes
    of the worker's file, or memory, with the same number.
    """
    reserved = os.open(os.devnull, os.O_WRONLY)
    for number in range(3, min(_RESERVED_DESCRIPTORS, descriptors() // 4)):
        try:
            os.fstat(number)
        except OSError:
            os.dup2(reserved, number, inheritable=False)


def main(number: int, count: int, *fds: int) -> None:
    """Entry point of the process.

    Args:
        number: Number of the worker.
        count: Number of workers.
        *fds: Inherited descriptors: tasks, results, link, slots, shared objects, stacks.
    """
    _reserve_descriptors()
    task_fd, result_fd, link_fd, slots_fd, shared_objects_fd, stacks_fd = fds
    faulthandler.enable(stacks_fd)
    faulthandler.register(STACK_SIGNAL, stacks_fd)
    # Ctrl-C and the end of a terminal reach the whole group. The parent reacts to them, and ends this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # Blocked since before this interpreter started.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGHUP, STACK_SIGNAL})
    link = socket.socket(fileno=link_fd)
    threading.Thread(target=watch_parent, args=(link_fd,), name="kerasfeed-watch-parent", daemon=True).start()
    try:
        WorkerProcess(number, task_fd, result_fd, link, slots_fd, SharedObjects(shared_objects_fd, count)).run()
    except (BrokenPipeError, ConnectionResetError):
        pass  # the parent is gone
