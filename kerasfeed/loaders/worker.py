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
from typing import Any

import cloudpickle

from kerasfeed.loaders.bulletin import Bulletin, Topic
from kerasfeed.loaders.failure import to_failure
from kerasfeed.loaders.fill import Cancelled, FailedSceneError, Filler, probe
from kerasfeed.loaders.layout import Layout, SlotView
from kerasfeed.loaders.messages import NOWHERE, STACK_SIGNAL, TASK_BYTES, Kind, Result, Start, Status, Task, Wasteful
from kerasfeed.loaders.travel import full_text
from kerasfeed.scene import SceneContext, Worker, optional_method


class WorkerProcess:
    """State of this process."""

    def __init__(self, number: int, task_fd: int, result_fd: int, slots_fd: int, bulletin: Bulletin) -> None:
        self._number = number
        self._task_fd = task_fd
        self._result_fd = result_fd
        self._slots_fd = slots_fd
        self._bulletin = bulletin
        self._line = bulletin.worker_line(number)
        self._seed = 0
        self._count = 0
        self._sequence: Any = None
        self._maker: Any = None
        self._version = 0
        self._begun = False
        self._layout: Layout | None = None
        self._filler: Filler | None = None
        self._segments: dict[int, mmap.mmap] = {}
        self._views: dict[tuple[int, int], SlotView] = {}
        self._told_of_waste = False

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
            # Noted first: a session that has not seen this note sends the task anew, and has raised the floor before.
            self._line[0] = task.number + 1
            if task.number < self._bulletin.floor:
                self._report(link, Status.RETURNED, task.number, 0.0)
            else:
                self._serve(task, link)
            self._line[0] = 0
        self._end_worker()

    def _begin(self) -> None:
        _, start = self._bulletin.read(Topic.START)
        assert isinstance(start, Start)
        sys.path[:] = start.sys_path
        self._seed = start.seed
        if start.has_maker:
            _, self._maker = self._bulletin.read(Topic.MAKER)
        self._version, self._sequence = self._bulletin.read(Topic.SEQUENCE)
        self._count, self._length = start.count, start.length
        self._begin_worker()

    def _begin_worker(self) -> None:
        begin = optional_method(self._sequence, "on_worker_begin")
        if begin is not None:
            begin(Worker(self._number, self._count, "process"))
        self._begun = True

    def _end_worker(self) -> None:
        end = optional_method(self._sequence, "on_worker_end")
        begun, self._begun = self._begun, False
        if end is not None and begun:
            end()

    def _serve(self, task: Task, link: socket.socket) -> None:
        started = time.perf_counter()
        try:
            if self._version < task.version:
                self._renew(task)
            if task.kind == Kind.PROBE:
                self._line[1] = task.start
                payload: Any = probe(self._sequence, task.start, self._seed, self._maker)
            else:
                payload = self._with_waste(self._load(task) or None)
            self._report(link, Status.DONE, task.number, time.perf_counter() - started, payload)
        except Cancelled:
            self._report(link, Status.CANCELLED, task.number, 0.0)
        except FailedSceneError as carrier:
            self._report(link, Status.FAILED, task.number, 0.0, to_failure(carrier))

    def _renew(self, task: Task) -> None:
        try:
            self._end_worker()
            version, self._sequence = self._bulletin.read(Topic.SEQUENCE)
            self._filler = None
            self._begin_worker()
            self._version = version  # not before: a sequence that could not begin begins again with the next task
        except Exception as error:
            raise FailedSceneError(None, None, "on_worker_begin") from error

    def _load(self, task: Task) -> Any:
        if self._layout is None:
            _, self._layout = self._bulletin.read(Topic.LAYOUT)
            assert isinstance(self._layout, Layout)
        if self._filler is None:
            self._filler = Filler(self._sequence, self._layout, self._length, self._maker)
        view = self._views.get((task.segment_offset, task.slot_offset))
        if view is None:
            memory = self._segments.get(task.segment_offset)
            if memory is None:
                memory = mmap.mmap(self._slots_fd, task.segment_bytes, offset=task.segment_offset)
                self._segments[task.segment_offset] = memory
            view = SlotView(self._layout, memory, task.slot_offset)
            self._views[(task.segment_offset, task.slot_offset)] = view
        context = SceneContext(self._seed, task.epoch)
        if task.stop - task.start > 1:  # not the whole batch: other workers, with caches of their own, load the rest
            self._filler.read_ahead(view.indices[task.start : task.stop])
        return self._filler.fill(view, task.start, task.stop, task.serial, context, self._line)

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
    bulletin_fd: int,
    stacks_fd: int,
) -> None:
    """Entry point of the process: its number, the number of workers, and inherited descriptors."""
    faulthandler.enable(stacks_fd)
    faulthandler.register(STACK_SIGNAL, stacks_fd)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides what it means
    # Blocked since before this interpreter started.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT, STACK_SIGNAL})
    link = socket.socket(fileno=link_fd)
    threading.Thread(target=watch_parent, args=(link_fd,), name="kerasfeed-watch-parent", daemon=True).start()
    try:
        WorkerProcess(number, task_fd, result_fd, slots_fd, Bulletin(bulletin_fd, count)).run(link)
    except (BrokenPipeError, ConnectionResetError):
        pass  # the parent is gone
