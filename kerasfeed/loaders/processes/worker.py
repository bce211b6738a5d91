"""The worker process: a clean interpreter that reads tasks, fills slots and reports.

Invariant: it lives exactly as long as its parent wants it. End of file on the task pipe ends it between tasks; a
watching thread ends it inside one when the parent is gone. It imports neither keras nor tensorflow unless the user's
own code does, and never the user's main module.
"""

import faulthandler
import mmap
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import cloudpickle

from kerasfeed.loaders.batches.filler import NOWHERE, Cancelled, FailedSceneError, Filler, probe
from kerasfeed.loaders.batches.layout import Layout, SlotView
from kerasfeed.loaders.failures.exceptions import to_failure
from kerasfeed.loaders.processes.protocol import (
    STACK_SIGNAL,
    TASK_BYTES,
    Kind,
    Result,
    Start,
    Status,
    Task,
    Wasteful,
)
from kerasfeed.loaders.processes.shared_objects import SharedObjects, Topic
from kerasfeed.loaders.worker_hooks import end_worker
from kerasfeed.sequences.base import SceneContext, Worker, optional_method
from kerasfeed.sequences.global_random import GlobalRandomWatch, SeedingContext
from kerasfeed.spec.scene_spec import SceneSpec
from kerasfeed.util import opened_files
from kerasfeed.util.error_text import full_text

_WATCHED = 4  # tasks of each worker, beside the scenes that are read to infer the spec


class WorkerProcess:
    """State of this process."""

    def __init__(self, number: int, task_fd: int, result_fd: int, slots_fd: int, shared_objects: SharedObjects) -> None:
        self._number = number
        self._task_fd = task_fd
        self._result_fd = result_fd
        self._slots_fd = slots_fd
        self._shared_objects = shared_objects
        self._line = shared_objects.worker_line(number)
        self._sequence: Any = None
        self._maker: Any = None
        self._version = 0
        self._begun = False
        self._layout: Layout | None = None
        self._filler: Filler | None = None
        self._segments: dict[int, mmap.mmap] = {}
        self._views: dict[tuple[int, int], SlotView] = {}
        self._told_of_waste = False
        self._to_watch = 0  # tasks that are still to be watched for the use of global random generators

    def run(self, link: socket.socket) -> None:
        """Serve tasks until the parent closes the pipe; payloads go over `link`."""
        try:
            self._begin()
        except BaseException as error:  # noqa: BLE001 - the parent raises it where the user sees it
            self._report(link, Status.NOT_STARTED, -1, 0.0, full_text(error))
            return
        self._report(link, Status.STARTED, -1, 0.0)
        while record := os.read(self._task_fd, TASK_BYTES):
            task = Task.decode(record)
            if task.kind == Kind.STOP:
                break
            self._line[1] = NOWHERE
            # Noted first: a session that has not seen this note sends the task anew, and has made it invalid before.
            self._line[0] = task.number + 1
            if task.number < self._shared_objects.lowest_valid:
                self._report(link, Status.RETURNED, task.number, 0.0)
            else:
                self._serve(task, link)
            self._line[0] = 0
        self._end_worker(link)

    def _begin(self) -> None:
        _, start = self._shared_objects.read(Topic.START)
        assert isinstance(start, Start)
        sys.path[:] = start.sys_path
        if start.opened_fd >= 0:
            opened_files.install(opened_files.Table(start.opened_fd))
        self._start = start
        if start.has_maker:
            _, self._maker = self._shared_objects.read(Topic.MAKER)
        self._version, self._sequence = self._shared_objects.read(Topic.SEQUENCE)
        self._to_watch = _WATCHED if start.watches_random else 0
        self._begin_worker()

    def _begin_worker(self) -> None:
        begin = optional_method(self._sequence, "on_worker_begin")
        if begin is not None:
            begin(Worker(self._number, self._start.count, "process"))
        self._begun = True

    def _end_worker(self, link: socket.socket) -> None:
        begun, self._begun = self._begun, False
        if begun and (told := end_worker(self._sequence, f"worker process {self._number} (pid {os.getpid()})")):
            self._report(link, Status.END_FAILED, -1, 0.0, told)

    def _serve(self, task: Task, link: socket.socket) -> None:
        started = time.perf_counter()
        try:
            if self._version < task.version:
                self._renew(task, link)
            if task.kind == Kind.PROBE:
                self._line[1] = task.start
                payload: Any = self._probe(task)
            else:
                payload = self._with_waste(self._load(task) or None)
            self._report(link, Status.DONE, task.number, time.perf_counter() - started, payload)
        except Cancelled:
            self._report(link, Status.CANCELLED, task.number, 0.0)
        except FailedSceneError as carrier:
            self._report(link, Status.FAILED, task.number, 0.0, to_failure(carrier))

    def _renew(self, task: Task, link: socket.socket) -> None:
        self._end_worker(link)
        try:
            version, self._sequence = self._shared_objects.read(Topic.SEQUENCE)
            self._filler = None
            self._begin_worker()
            self._version = version  # not before: a sequence that could not begin begins again with the next task
        except BaseException as error:
            raise FailedSceneError(None, None, "on_worker_begin") from error

    def _probe(self, task: Task) -> SceneSpec:
        watch = GlobalRandomWatch() if self._to_watch else None
        try:
            return probe(self._sequence, task.start, self._start.seed, self._maker)
        finally:
            if watch is not None:
                self._shared_objects.note_random(watch.used())

    def _load(self, task: Task) -> Any:
        if self._layout is None:
            _, self._layout = self._shared_objects.read(Topic.LAYOUT)
            assert isinstance(self._layout, Layout)
        if self._filler is None:
            self._filler = Filler(self._sequence, self._layout, self._start.length, self._maker)
        view = self._views.get((task.segment_offset, task.slot_offset))
        if view is None:
            memory = self._segments.get(task.segment_offset)
            if memory is None:
                memory = mmap.mmap(self._slots_fd, task.segment_bytes, offset=task.segment_offset)
                self._segments[task.segment_offset] = memory
            view = SlotView(self._layout, memory, task.slot_offset)
            self._views[(task.segment_offset, task.slot_offset)] = view
        if task.stop - task.start > 1:  # not the whole batch: other workers, with caches of their own, load the rest
            self._filler.read_ahead(view.indices[task.start : task.stop])
        load = partial(self._filler.fill, view, task.start, task.stop, task.serial, note=self._line)
        if self._shared_objects.used_random:
            return load(SeedingContext(self._start.seed, task.epoch))
        context = SceneContext(self._start.seed, task.epoch)
        return self._load_watched(load, context) if self._to_watch else load(context)

    def _load_watched(self, load: Callable[[SceneContext], Any], context: SceneContext) -> Any:
        """Load, and once more where scenes have used the global random generators, which were not seeded for them."""
        self._to_watch -= 1
        watch = GlobalRandomWatch()
        try:
            payload = load(context)
        except FailedSceneError:
            if not watch.used():
                raise
        else:
            if not watch.used():
                return payload
        self._shared_objects.note_random(watch.used())
        return load(SeedingContext(context.seed, context.epoch))

    def _with_waste(self, payload: Any) -> Any:
        waste = self._filler.meter.waste() if self._filler and not self._told_of_waste else None
        if waste is None:
            return payload
        self._told_of_waste = True
        return Wasteful(payload, waste)

    def _report(self, link: socket.socket, status: Status, number: int, seconds: float, payload: Any = None) -> None:
        nbytes = 0
        if payload is not None:
            pickled = cloudpickle.dumps(payload)
            nbytes = len(pickled)
            link.sendall(pickled)  # before the record, so that the parent finds it when it reads the record
        os.write(self._result_fd, Result(status, number, self._number, nbytes, seconds).encode())


def watch_parent(link_fd: int) -> None:
    """End this process, in the middle of whatever it does, as soon as the parent is gone."""
    parent = os.getppid()
    poll = select.poll()
    poll.register(link_fd, 0)  # hang-ups are always reported
    while True:
        # A process that the parent forked keeps the link open, so the parent itself is looked for too.
        hung_up = any(event & (select.POLLHUP | select.POLLERR) for _, event in poll.poll(1000))
        if hung_up or os.getppid() != parent:
            os._exit(0)


def main(
    number: int,
    count: int,
    task_fd: int,
    result_fd: int,
    link_fd: int,
    slots_fd: int,
    shared_objects_fd: int,
    stacks_fd: int,
) -> None:
    """Entry point of the process: its number, the number of workers, and inherited descriptors."""
    faulthandler.enable(stacks_fd)
    faulthandler.register(STACK_SIGNAL, stacks_fd)
    # Ctrl-C and the end of a terminal reach the whole group: the parent decides what they mean, and we end with it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # Blocked since before this interpreter started.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, signal.SIGHUP, STACK_SIGNAL})
    link = socket.socket(fileno=link_fd)
    threading.Thread(target=watch_parent, args=(link_fd,), name="kerasfeed-watch-parent", daemon=True).start()
    try:
        WorkerProcess(number, task_fd, result_fd, slots_fd, SharedObjects(shared_objects_fd, count)).run(link)
    except (BrokenPipeError, ConnectionResetError):
        pass  # the parent is gone
