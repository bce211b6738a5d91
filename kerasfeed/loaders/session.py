"""Make batches with the tasks of a pool.

A session splits batches into tasks, sends them, assembles the results and delivers them.

Invariant: a session is one pool and its slots. Its loader has one session at most, which holds no reference to
the loader. A session whose pool has failed stays failed, and the loader starts another at the next `submit`. Until the
tasks of a batch are sent, `submit` releases its slot after a failure; afterwards, the delivery of the batch does. An
interrupt (Ctrl-C) leaves a session in any state, so its loader closes it.
"""

import dataclasses
from collections.abc import Hashable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any

from kerasfeed.errors import FeedClosedError, SceneTimeoutError
from kerasfeed.loaders.base import Job
from kerasfeed.loaders.batch_runner import DESCRIBE, LOAD, BatchRunner, FailedFirst, FirstScenes, SpecRequest, WithCost
from kerasfeed.loaders.batches.layout import Layout
from kerasfeed.loaders.batches.pending_batch import BatchInProgress, SceneTiming
from kerasfeed.loaders.batches.row_loader import ALL_AT_ONCE
from kerasfeed.loaders.batches.slots import SlotPool, failed_future
from kerasfeed.loaders.batches.spec_inference import Read, read_first_scenes, warn_of_random, watched
from kerasfeed.loaders.failures.exceptions import SceneLocation, fatal_text, for_consumer, function_text
from kerasfeed.loaders.failures.failure_log import FailureLog
from kerasfeed.loaders.failures.recovery import Recovery
from kerasfeed.pool.base import CLOSED_BEFORE_DONE, Pool, PoolOptions
from kerasfeed.pool.factory import make_pool
from kerasfeed.pool.task import NOWHERE, Crash, FailedTaskError, FailurePosition, FutureTask, Record, Task
from kerasfeed.readers.read_cost import ReadCost
from kerasfeed.sequences.context import MakeContext, SceneContext
from kerasfeed.sequences.held_random import Held, generators_from
from kerasfeed.util.error_text import class_name, is_the_programs


class Session:
    """The batches of one job, made by one pool in its slots.

    Attributes:
        pool: The workers.
        slots: Memory of batches; None until the spec is inferred.
        first: The scenes that were read to infer the spec; None before, or if the spec was known.
        batches: Number of batches delivered so far.
        copied: Number of these that were copied out of their slots.
    """

    def __init__(
        self,
        job: Job,
        failure_log: FailureLog,
        worker_type: str,
        most_workers: int,
        context: MakeContext,
        seconds: float,
    ) -> None:
        """Start a pool.

        Args:
            job: The job.
            failure_log: Record of failures.
            worker_type: "inline", "thread", "process" or "auto".
            most_workers: See `PoolOptions`.
            context: Makes the context of scenes.
            seconds: Time per scene, s; 0 if unknown.

        Raises:
            TypeError, OSError: The user asked for processes, and they cannot start or the job cannot be pickled.
        """
        self.job = job
        self.failure_log = failure_log
        self.recovery = Recovery(job, failure_log)
        self.runner = BatchRunner(job, context)
        options = PoolOptions(
            workers=max(1, job.workers), owner=f"the feed of {class_name(job.sequence)}", seed=job.plan.seed,
            timeout=job.policy.timeout, tries=job.policy.tries, environment=job.environment, inherit=job.inherit,
            deferred_warnings=failure_log.deferred_warnings, host_numbers=job.host_numbers,
            thread_safe=job.thread_safe, most_workers=most_workers,
        )  # fmt: skip
        self.pool: Pool = make_pool(self.runner, options, worker_type)
        workers = 1 if self.has_first_thread else self.pool.options.workers
        if workers < job.workers:  # threads take turns unless the user allows several at once
            self.job = dataclasses.replace(job, workers=workers)
        self.first: FirstScenes | None = None
        self.lock = self.pool.lock
        self.is_inline = self.pool.worker_type == "inline"
        self.timing = SceneTiming(whole=job.maker is not None or self.is_inline)
        self.timing.seconds = seconds
        self.slots: SlotPool | None = None
        self.batches = 0
        self.copied = 0
        self._waste: ReadCost | None = None

    def close(self) -> None:
        """End the workers and free all resources; idempotent.

        Futures in flight fail with `FeedClosedError`.
        """
        slots = self.slots
        if slots is not None and not self.is_inline and self.pool.is_here:
            slots.close()  # a thread that waits for a slot need not wait for the workers
        self.pool.close()
        if slots is not None and self.pool.is_here:
            slots.free(may_deliver=self.is_inline)  # another thread may still deliver a batch that it loads inline

    # ---- spec

    def infer(self, layout: Layout | None, epoch: int, least: int = 1) -> Layout:
        """Return the layout.

        If `layout` is None, wait for a worker to read a few scenes of `epoch`.

        Raises:
            Exception: The sequence's exception; SpecError; WorkerDiedError.
        """
        if self.is_inline:
            self.pool.submit(())  # calls on_worker_begin before read_ahead may be called
        if layout is None:
            read: Read = self._read_first
            if self.pool.worker_type != "process":
                generators = []
                if not self.pool.has_copies:
                    generators = [each for _, each in generators_from((self.job.sequence, self.job.maker))]
                    self.runner.held.fill(generators)
                read = watched(self.job, self._record_random, generators, read)
            self.first, layout = read_first_scenes(self.job, self.failure_log, read, epoch, least)
            self.timing.add(self.first.seconds, 1)
            if self.job.plan.batch_size is None and self.job.plan.length:
                layout = dataclasses.replace(layout, first=(epoch, self.first.specs[0][0]))
        return layout

    def _record_random(self, used: int, held: Held) -> None:
        """Record that scenes read in this process use global or `held` generators."""
        if self.pool.has_copies:
            self.pool.record_random(used)
        elif not self.failure_log.used_random:
            warn_of_random(self.failure_log, used, held, self.job, seeded=False)

    def take_processes(self, workers: int) -> None:
        """Replace the first thread by worker processes.

        This happens at once if its scenes would differ.
        """
        self.job = self.job.with_workers(workers)
        self.pool.take_processes(workers, at_once=self.pool.used_random > 0 or not self.job.environment.is_here)

    @property
    def has_first_thread(self) -> bool:
        """Whether the first thread works, and worker processes have not replaced it."""
        return self.pool.has_copies and self.pool.worker_type == "thread"

    def begin(self, layout: Layout) -> None:
        """Post the layout to the workers, and make the slots.

        Raises:
            ValueError: `max_memory` does not hold two batches.
            FeedClosedError, WorkerDiedError: The pool is closed, or has failed.
        """
        self.pool.post(layout)
        in_flight = 1 if self.is_inline else self.job.look_ahead
        with self.lock:
            self.pool.refuse_if_ended()
            self.slots = SlotPool(layout, self.pool.memory, max_memory=self.job.max_memory, in_flight=in_flight)
            self.pool.on_failure = self.slots.close  # wakes threads that wait for memory

    def _read_first(self, request: SpecRequest) -> FirstScenes | FailedFirst:
        self.pool.post(request)
        # All workers begin with a batch that one of them reads first.
        count = self.job.workers if request.keeps and self.pool.worker_type == "process" else 1
        tasks = [FirstTask(DESCRIBE, 0, session=self, request=request) for _ in range(count)]
        self.pool.submit(tasks)
        result: FirstScenes | FailedFirst = tasks[0].future.result()
        return result

    # ---- batches

    def submit(self, epoch: int, step: int, timeout: float | None = None) -> Future[Any]:
        """Split a batch into tasks and submit them; see `Loader.submit`."""
        assert self.slots is not None
        indices = self.job.plan.indices(epoch, step)
        if not self.pool.has_copies and not self.runner.is_kept(epoch, indices[0]):
            failed = self._read_ahead(epoch, step, indices)
            if failed is not None:
                return failed
        try:
            slot = self.slots.acquire(timeout)
        except FeedClosedError:  # the slots close with the session: report why it ended
            raise self.pool.failure or FeedClosedError(CLOSED_BEFORE_DONE) from None
        batch = None
        try:
            batch = BatchInProgress(self.job, slot, epoch, step, indices)
            ranges = self.timing.ranges(batch.rows, self.job.workers, self._ahead_of(step))
            with self.lock:
                ranges = self.recovery.begin(batch, ranges)
            tasks = [LoadTask(self, batch, start, stop) for start, stop in ranges]
            self.pool.submit(tasks)
            if not ranges:  # all of its scenes are known to end workers; in threads this cannot happen
                self.account(batch)
            return batch.future
        except Exception:  # no task was sent
            if batch is None or not batch.is_complete:
                self.slots.release(slot)
            raise

    def _ahead_of(self, step: int) -> int:
        """Number of other batches in slots, or fewer at an epoch's end."""
        assert self.slots is not None
        plan, taken = self.job.plan, self.slots.taken
        return (min(taken, plan.steps - step) if plan.length else taken) - 1  # a stream does not know its end

    def _read_ahead(self, epoch: int, step: int, indices: Any) -> Future[Any] | None:
        """Announce a batch to the sequence, and record a failure.

        After a failure, return a failed future if `on_error` is "raise". Otherwise the scenes are read without the
        announcement, and each may fail by itself.
        """
        assert self.slots is not None
        try:
            loader = self.runner.row_loader(self.slots.layout)
            if loader.reads_ahead:
                self.pool.options.turn.run(partial(loader.read_ahead, indices, SceneContext(self.job.plan.seed, epoch)))
        except FailedTaskError as carrier:
            error = carrier.error
            if is_the_programs(error):
                raise error from None
            worker = "the calling thread" if self.is_inline else "the thread that asked for the batch"
            location = SceneLocation(tuple(indices.tolist()), epoch, step, worker, carrier.position.method)
            error = for_consumer(error, location)
            self.failure_log.record(None, epoch, step, error)
            if self.failure_log.policy.on_error == "raise":
                return failed_future(error)
        return None

    # ---- outcomes of tasks

    def account(self, batch: BatchInProgress, start: int = 0, stop: int = 0, overflow: Any = None) -> None:
        """Count rows [start, stop) as loaded or skipped.

        Deliver the batch if no row is missing.
        """
        assert self.slots is not None
        with self.lock:
            batch.add(start, stop, overflow or {})
            if batch.missing or batch.is_complete:
                return
            batch.is_complete = True
            self.slots.stuck -= batch.is_stuck
        copied = batch.deliver(self.slots)
        if copied:
            self.failure_log.warn_of_copies(self.slots.limit * self.slots.layout.nbytes)
        with self.lock:
            self.batches += 1
            self.copied += copied

    def crash_error(self, index: int, batch: BatchInProgress | None, crash: Crash, count: int) -> BaseException:
        """Return the error for scene `index`, which ends its workers.

        The scene is not tried again.
        """
        epoch, step = (batch.epoch, batch.step) if batch else (0, None)
        call = "" if step is None or not self.job.plan.length else f"kf.load(feed, epoch={epoch}, step={step})"
        item = None if self.job.item_text is None else self.job.item_text(epoch, index)
        error = crash.kind(fatal_text(crash, index, count, call, item))
        self.failure_log.record_fatal(index, epoch, error)
        return error

    def record_result(self, payload: Any) -> Any:
        """Record a worker's measurements; return the payload itself."""
        used = self.pool.used_random
        if used & ~self.failure_log.used_random:
            warn_of_random(self.failure_log, used, self.runner.held, self.job, seeded=True)
        if isinstance(payload, WithCost):
            self._waste = payload.cost
            return payload.payload
        return payload

    @property
    def layout(self) -> Layout | None:
        """Layout of a slot; None until it is known."""
        return None if self.slots is None else self.slots.layout

    @property
    def look_ahead(self) -> int:
        """Number of batches to keep in flight, fewer than the slots."""
        assert self.slots is not None
        return max(1, min(self.job.look_ahead, self.slots.limit - 1))

    def wasted(self) -> ReadCost | None:
        """The wasteful reads that one worker has measured; see `Loader.waste`."""
        return self._waste or self.runner.meter.waste()


@dataclass(frozen=True, eq=False)
class LoadTask(Task):
    """Load rows [start, stop) of a batch of a session."""

    session: Session
    batch: BatchInProgress
    start: int
    stop: int

    def record(self) -> Record:
        """See `Task.record`."""
        batch, slot = self.batch, self.batch.slot
        return (
            LOAD, batch.serial, slot.segment_offset, len(slot.memory), slot.offset, batch.epoch, self.start, self.stop
        )  # fmt: skip

    def done(self, payload: Any, seconds: float, worker: str) -> Sequence[Task]:
        """See `Task.done`."""
        session = self.session
        payload = session.record_result(payload)
        session.timing.add(seconds, self.stop - self.start)
        session.account(self.batch, self.start, self.stop, payload)
        return ()

    def failed(self, position: FailurePosition, error: BaseException, worker: str, traceback: str) -> Sequence[Task]:
        """See `Task.failed`."""
        batch = self.batch
        indices = self._indices() if position.scene is None else (position.scene,)
        location = SceneLocation(indices, batch.epoch, batch.step, worker, position.method)
        # Scenes that failed together are read again one by one, perhaps by `get_batch` again, which names no scene.
        is_one = len(indices) == 1 and not self.session.job.maker
        scene = indices[0] if is_one else position.scene
        return self._recover(scene, position.row, for_consumer(error, location, traceback))

    def _recover(self, scene: int | None, row: int | None, error: BaseException) -> Sequence[Task]:
        """Record that the `scene` in `row` failed.

        Return the tasks that replace this one.
        """
        session, batch = self.session, self.batch
        session.failure_log.record(scene, batch.epoch, batch.step, error)
        with session.lock:
            ranges = session.recovery.handle(batch, self.start, self.stop, row, error)
        session.account(batch)
        return [LoadTask(session, batch, first, last) for first, last in ranges]

    def cancelled(self) -> None:
        """See `Task.cancelled`."""
        if not self.batch.is_given_up:
            raise ValueError(f"a worker has skipped {self.text(ALL_AT_ONCE)}, but its consumer is waiting")
        self.session.account(self.batch, self.start, self.stop)

    def crashed(self, position: int, crash: Crash, count: int) -> Sequence[Task]:
        """See `Task.crashed`."""
        batch, index = self.batch, self._index_at(position)
        if index is None:
            error: BaseException = crash.kind(function_text(crash, batch.epoch, batch.step))
        else:
            error = self.session.crash_error(index, batch, crash, count)
        return self._recover(index, None if index is None else self._row_at(position), error)

    def give_up(self, error: BaseException) -> None:
        """See `Task.give_up`."""
        self.batch.give_up(error)

    def stuck(self, position: int, crash: Crash) -> None:
        """See `Task.stuck`. The slot stays in flight until the thread returns."""
        session, batch = self.session, self.batch
        error = SceneTimeoutError(f"{self.text(position) or batch.scene_text(ALL_AT_ONCE)} {crash.thread_text}")
        session.failure_log.record(self._index_at(position), batch.epoch, batch.step, error)
        assert session.slots is not None
        with session.lock:
            if batch.missing and not batch.is_stuck:  # else the batch is being finished, or another thread hangs too
                batch.is_stuck = True
                session.slots.stuck += 1
        batch.give_up(error)

    def text(self, position: int) -> str:
        """See `Task.text`."""
        return "" if position == NOWHERE else self.batch.scene_text(self._row_at(position))

    def culprit(self, position: int) -> Hashable | None:
        """See `Task.culprit`: the index of the scene.

        For a batch of a collate function, it is -1 minus the serial number.
        """
        index = self._index_at(position)
        return -1 - self.batch.serial if index is None and position == ALL_AT_ONCE and self._is_whole else index

    def culprits(self) -> Iterable[Hashable]:
        """See `Task.culprits`."""
        return (*self._indices(), -1 - self.batch.serial)

    def items_at(self, position: int) -> int:
        """See `Task.items_at`; at NOWHERE, the worker may be announcing all scenes."""
        return self.stop - self.start if position in (ALL_AT_ONCE, NOWHERE) else 1

    def parts(self, position: int) -> Sequence[Task]:
        """See `Task.parts`."""
        if position != ALL_AT_ONCE or self._is_whole:
            return ()
        return [LoadTask(self.session, self.batch, row, row + 1) for row in range(self.start, self.stop)]

    @property
    def _is_whole(self) -> bool:
        return self.session.job.maker is not None

    def _indices(self) -> tuple[int, ...]:
        return tuple(self.batch.slot.view.indices[self.start : self.stop].tolist())

    def _index_at(self, position: int) -> int | None:
        """The scene that a worker loads at `position`; None if unknown."""
        row = self._row_at(position)
        return int(self.batch.slot.view.indices[row]) if self.start <= row < self.stop else None

    def _row_at(self, position: int) -> int:
        return self.start if position == ALL_AT_ONCE and self.stop - self.start == 1 else position


@dataclass(frozen=True, eq=False, kw_only=True)
class FirstTask(FutureTask):
    """Read the scenes of the posted `SpecRequest`.

    The result of the future is `FirstScenes` or a `FailedFirst`, which the caller handles.
    """

    session: Session
    request: SpecRequest

    def done(self, payload: Any, seconds: float, worker: str) -> Sequence[Task]:
        """See `Task.done`."""
        self.session.record_result(None)
        self.set_result(payload)
        return ()

    def failed(self, position: FailurePosition, error: BaseException, worker: str, traceback: str) -> Sequence[Task]:
        """See `Task.failed`."""
        indices = () if position.scene is None else (position.scene,)
        location = SceneLocation(indices, None, None, worker, position.method)
        self.set_result(FailedFirst(position.scene, for_consumer(error, location, traceback)))
        return ()

    def crashed(self, position: int, crash: Crash, count: int) -> Sequence[Task]:
        """See `Task.crashed`. The caller records the failure."""
        self.set_result(FailedFirst(position, self.session.crash_error(position, None, crash, count)))
        return ()

    def culprit(self, position: int) -> Hashable | None:
        """See `Task.culprit`."""
        return None if position == NOWHERE else position

    def culprits(self) -> Iterable[Hashable]:
        """See `Task.culprits`."""
        return self.request.indices

    def stuck(self, position: int, crash: Crash) -> None:
        """See `Task.stuck`."""
        self.set_result(FailedFirst(position, crash.kind(f"{self.text(position) or 'a scene'} {crash.thread_text}")))

    def text(self, position: int) -> str:
        """See `Task.text`."""
        return "" if position == NOWHERE else f"scene {position} (to infer the spec)"

    def set_exception(self, error: BaseException) -> None:
        """See `FutureTask`. The caller handles failures."""
        self.set_result(FailedFirst(None, error))
