"""One run of worker processes: the pipes, the slots, the supervisor thread.

Invariant: after `submit` has written a batch's tasks, nothing in this process need run for the workers to carry on:
the kernel hands the next task to whichever worker is free. One supervisor thread, never the user's, reads results and
settles batches, so that Ctrl-C in the main thread cannot tear the state. Whoever holds `lock` never calls user code.

A session that has failed stays failed; the loader starts another.
"""

import os
import pickle
import select
import sys
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from kerasfeed.costs import ReadCost
from kerasfeed.errors import FeedClosedError, KerasfeedError, WorkerDiedError, WorkerStartError
from kerasfeed.load import Job
from kerasfeed.load.batch import BatchInProgress, Pace
from kerasfeed.load.bulletin import Bulletin, Topic
from kerasfeed.load.failure import Failure, Place, from_failure
from kerasfeed.load.inline import layout_for
from kerasfeed.load.messages import Kind, Result, Start, Status, Task, Wasteful
from kerasfeed.load.pipes import Pipes
from kerasfeed.load.slots import Arena, SlotPool
from kerasfeed.load.spawn import WorkerHandle, end_workers, start_worker
from kerasfeed.machine import cores
from kerasfeed.spec import SceneSpec, probe_indices

_GRACE = 2.0


@dataclass(frozen=True)
class _Load:
    batch: BatchInProgress
    start: int
    stop: int


@dataclass(frozen=True)
class _Probe:
    index: int
    future: Future[tuple[SceneSpec, float]]


class Session:
    """See the module's invariant."""

    def __init__(self, job: Job) -> None:
        """Start the workers of `job`.

        Raises:
            TypeError: The sequence cannot be pickled.
            OSError: No process can be started.
        """
        self.job = job
        # Reentrant: the collector may close a dropped loader from inside any of these sections.
        self.lock = threading.RLock()
        self.idle = threading.Condition(self.lock)
        self.pace = Pace()
        self.pool: SlotPool | None = None
        self.failure: BaseException | None = None
        self.version = 0
        self.batches = 0
        self.copied = 0
        self.waste: ReadCost | None = None
        self.workers: list[WorkerHandle] = []
        self._owner = os.getpid()
        self._closed = False
        self._next_number = 0
        self._work: dict[int, _Load | _Probe] = {}
        self._bulletin = Bulletin.create(job.workers)
        try:
            self._arena = Arena(shared=True)
        except BaseException:
            self._bulletin.close()
            raise
        try:
            self._bulletin.post(Topic.START, Start(tuple(sys.path), job.workers, job.plan.seed, job.plan.length))
            self.post_sequence()
            self._pipes = Pipes()
        except BaseException:
            self._bulletin.close()
            self._arena.close()
            raise
        self._up: set[int] = set()
        self._poll = select.poll()
        self._links: dict[int, WorkerHandle] = {}
        self._supervisor = threading.Thread(target=self._supervise, name="kerasfeed-supervisor", daemon=True)
        started = False
        try:
            # The first few at once, each next one when one is up: interpreters that start together share the cores,
            # and the first batch would wait for the last of them.
            for _ in range(min(job.workers, 2 * cores())):
                self._start_worker()
            started = True
        finally:
            self._supervisor.start()
            if not started:
                self.close()

    def _start_worker(self) -> WorkerHandle:
        assert self._arena.fd is not None
        handle = start_worker(
            len(self.workers),
            self.job.workers,
            task_fd=self._pipes.task_out,
            result_fd=self._pipes.result_in,
            slots_fd=self._arena.fd,
            bulletin_fd=self._bulletin.fd,
        )
        self.workers.append(handle)
        return handle

    # ---- any thread

    def infer(self) -> None:
        """Have the workers describe a few scenes, then set the slots up. Waits.

        Raises:
            Exception: What the sequence raised; SpecError; WorkerDiedError.
        """
        probes: list[tuple[int, Future[tuple[SceneSpec, float]]]] = []
        with self.lock:
            for index in probe_indices(self.job.plan.length):
                future: Future[tuple[SceneSpec, float]] = Future()
                probes.append((index, future))
                self._send(
                    [(Task(Kind.PROBE, self._number(), start=index, version=self.version), _Probe(index, future))]
                )
        results = [(index, *future.result()) for index, future in probes]
        # The fastest: the first scene a worker reads also opens files and warms caches.
        self.pace.note(min(seconds for _, _, seconds in results), 1)
        layout = layout_for(self.job, [(index, spec) for index, spec, _ in results])
        with self.lock:
            if self.failure is not None or self._closed:
                raise self.failure or FeedClosedError("the feed was closed while its first scenes were read")
            self._bulletin.post(Topic.LAYOUT, layout)
            self.pool = SlotPool(layout, self._arena, max_memory=self.job.max_memory, in_flight=self.job.look_ahead)

    def submit(self, epoch: int, step: int) -> Future[Any]:
        """Cut a batch into tasks and hand them to the kernel; see `Loader.submit`."""
        assert self.pool is not None
        indices = self.job.plan.indices(epoch, step)
        rows = len(indices)
        try:
            slot = self.pool.acquire()
        except FeedClosedError:  # the pool closes with the session: say why that ended
            raise self.failure or FeedClosedError("the feed was closed before this batch was loaded") from None
        slot.view.indices[:rows] = indices
        batch = BatchInProgress(slot, epoch, step, rows)
        future = batch.future
        tasks: list[tuple[Task, _Load | _Probe]] = []
        with self.lock:
            for start, stop in self.pace.ranges(rows, self.job.workers):
                task = Task(
                    Kind.LOAD, self._number(), batch.serial, slot.segment_offset, len(slot.memory), slot.offset,
                    epoch, step, start, stop, self.version,
                )  # fmt: skip
                tasks.append((task, _Load(batch, start, stop)))
            self._send(tasks)
        return future

    def _number(self) -> int:
        self._next_number += 1
        return self._next_number

    def _send(self, tasks: list[tuple[Task, _Load | _Probe]]) -> None:
        if self.failure is not None:
            raise self.failure
        if self._closed:
            raise FeedClosedError("the feed is closed; make a new one")
        try:
            for task, work in tasks:
                self._work[task.number] = work
            if not self._pipes.send([task for task, _ in tasks]):
                self._pipes.wake()
        except BaseException:  # Ctrl-C: nobody will wait for these, and nobody must
            for task, _ in tasks:
                self._work.pop(task.number, None)
            raise

    def wait_until_idle(self) -> None:
        """Wait for the work in flight."""
        with self.lock:
            self.idle.wait_for(lambda: not self._work)

    def post_sequence(self) -> None:
        """Post the present state of the sequence; tasks sent from now on see it.

        Raises:
            TypeError: It cannot be pickled.
        """
        sequence = self.job.sequence
        try:
            self.version = self._bulletin.post(Topic.SEQUENCE, sequence)
        except Exception as error:
            raise TypeError(
                f"the sequence ({type(sequence).__name__}) cannot be sent to worker processes: {error}. Open files and "
                "connections in __getitem__ or on_worker_begin (for HDF5, keep a kerasfeed.HDF5File, which pickles), "
                "leave locks out of its state, or use worker_type='thread'"
            ) from error

    # ---- the supervisor thread

    def _supervise(self) -> None:
        try:
            self._watch()
        except BaseException as error:  # whoever waits must not wait for a thread that is gone
            self.fail(KerasfeedError(f"the supervisor of the workers failed: {type(error).__name__}: {error}"))
            raise

    def _watch(self) -> None:
        poll = self._poll
        poll.register(self._pipes.result_out, select.POLLIN)
        poll.register(self._pipes.wake_out, select.POLLIN)
        for handle in self.workers:
            self._watch_worker(handle)
        links = self._links
        writing = False
        while not self._closed:
            ready = {fd for fd, _ in poll.poll()}
            if self._pipes.wake_out in ready:
                self._pipes.calm()
            gone = [links[fd] for fd in ready & links.keys() if not links[fd].receive()]
            if self._pipes.result_out in ready:
                self._handle_results()
            for handle in gone:
                poll.unregister(handle.link.fileno())
                del links[handle.link.fileno()]
                self._handle_last_results()
                self._worker_gone(handle)
            if writing or self._pipes.wake_out in ready:
                writing = self._flush(poll, writing)

    def _watch_worker(self, handle: WorkerHandle) -> None:
        self._links[handle.link.fileno()] = handle
        self._poll.register(handle.link.fileno(), select.POLLIN)

    def _flush(self, poll: select.poll, writing: bool) -> bool:
        """Write the tasks that wait; returns whether some still do, and then has `poll` tell when there is room."""
        with self.lock:
            blocked = not self._closed and not self._pipes.flush()
        if blocked and not writing:
            poll.register(self._pipes.task_in, select.POLLOUT)
        elif writing and not blocked:
            poll.unregister(self._pipes.task_in)
        return blocked

    def _handle_results(self) -> None:
        for result in self._pipes.results():
            self._handle(result)

    def _handle_last_results(self) -> None:
        """Handle whatever a dead worker, among others, still reported."""
        poll = select.poll()
        poll.register(self._pipes.result_out, select.POLLIN)
        while poll.poll(0):
            self._handle_results()

    def _handle(self, result: Result) -> None:
        handle = self.workers[result.worker]
        payload = pickle.loads(handle.take(result.payload_bytes)) if result.payload_bytes else None
        if result.status == Status.STARTED:
            self._up.add(handle.number)
            if len(self.workers) < self.job.workers and self.failure is None:
                self._watch_worker(self._start_worker())
            return
        if result.status == Status.NOT_STARTED:
            self.fail(_start_error(handle, payload))
            return
        with self.lock:
            work = self._work.pop(result.number, None)
        if isinstance(work, _Probe):
            self._finish_probe(work, result, payload, handle)
        elif isinstance(work, _Load):
            self._finish_rows(work, result, payload, handle)
        with self.lock:
            if not self._work:
                self.idle.notify_all()

    def _finish_probe(self, work: _Probe, result: Result, payload: Any, handle: WorkerHandle) -> None:
        if isinstance(payload, Failure):
            place = Place((work.index,), None, None, _name(handle))
            work.future.set_exception(from_failure(payload, place))
        else:
            work.future.set_result((payload, result.seconds))

    def _finish_rows(self, work: _Load, result: Result, payload: Any, handle: WorkerHandle) -> None:
        batch, start, stop = work.batch, work.start, work.stop
        if isinstance(payload, Wasteful):
            self.waste, payload = payload.cost, payload.payload
        if isinstance(payload, Failure):
            indices = (payload.index,) if payload.index is not None else _indices(work)
            place = Place(indices, batch.epoch, batch.step, _name(handle), payload.method)
            complete = batch.fail(start, stop, payload.row or start, from_failure(payload, place))
        else:
            complete = batch.add(start, stop, payload or {})
        if result.status == Status.DONE:
            self.pace.note(result.seconds, stop - start)
        if complete:
            assert self.pool is not None
            copied = batch.settle(self.pool)
            self.batches += 1
            self.copied += copied

    def _worker_gone(self, handle: WorkerHandle) -> None:
        if self._closed or self.failure is not None:
            return
        if handle.number not in self._up:
            self.fail(
                WorkerStartError(
                    f"{_name(handle)} {handle.ending()} before it could load the sequence; what it printed to stderr "
                    "says why"
                )
            )
            return
        number, index = self._bulletin.worker_line(handle.number)[:2].tolist()
        with self.lock:
            work = self._work.get(number - 1)
        ending = handle.ending()
        if isinstance(work, _Load):
            at = f"while it loaded scene {index} (epoch {work.batch.epoch}, step {work.batch.step})"
            remedy = f" Load sequence[{index}] in a Python of its own to see what it does there."
        elif isinstance(work, _Probe):
            at = f"while it loaded scene {work.index} to infer the spec"
            remedy = f" Load sequence[{work.index}] in a Python of its own to see what it does there."
        else:
            at, remedy = "between two scenes", ""
        self.fail(
            WorkerDiedError(
                f"{_name(handle)} {ending} {at}.{remedy} Out of memory shows as SIGKILL, a fault in a compiled library "
                "as SIGSEGV; the next iteration of the feed starts new workers"
            )
        )

    def fail(self, error: BaseException) -> None:
        """Give every batch in flight this error, and end the session."""
        with self.lock:
            if self.failure is None:
                self.failure = error
            work = list(self._work.values())
            self._work.clear()
            self._pipes.forget()
            self.idle.notify_all()
        for item in work:
            if isinstance(item, _Load):
                item.batch.give_up(error)
            elif not item.future.done():
                item.future.set_exception(error)
        if self.pool is not None:
            self.pool.close()

    # ---- any thread

    def pids(self) -> tuple[int, ...]:
        """Process ids of the workers."""
        return tuple(handle.process.pid for handle in self.workers)

    def close(self) -> None:
        """End the workers and free everything; idempotent. Futures in flight fail with `FeedClosedError`."""
        if os.getpid() != self._owner:
            return  # a fork of the owner: the workers are not ours
        with self.lock:
            if self._closed:
                return
            self._closed = True
        self.fail(FeedClosedError("the feed was closed before this batch was loaded"))
        self._pipes.wake()
        if self._supervisor.is_alive() and self._supervisor is not threading.current_thread():
            self._supervisor.join()
        # End of file alone would not do: a fork of this process holds the pipe open too.
        self._pipes.send([Task(Kind.STOP, 0)] * len(self.workers))
        self._pipes.close_tasks()
        dead = self.failure is not None and not isinstance(self.failure, FeedClosedError)
        end_workers(self.workers, grace=0.2 if dead else _GRACE)
        self._pipes.close()
        self._bulletin.close()
        self._arena.close()


def _name(handle: WorkerHandle) -> str:
    return f"worker process {handle.number} (pid {handle.process.pid})"


def _indices(work: _Load) -> tuple[int, ...]:
    return tuple(work.batch.slot.view.indices[work.start : work.stop].tolist())


def _start_error(handle: WorkerHandle, text: Any) -> KerasfeedError:
    last = str(text).strip().splitlines()[-1]
    return WorkerStartError(
        f"{_name(handle)} could not load the sequence: {last}. A module that the sequence needs must be importable in "
        f"a new interpreter (installed, or beside the script); on_worker_begin must not fail. Its traceback:\n{text}"
    )
