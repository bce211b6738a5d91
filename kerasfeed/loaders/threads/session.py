"""One run of worker threads: the queue, the slots, the scenes at work.

Invariant: the threads know the job and the queue, never the loader, so a loader that is dropped is collected and its
threads end. A batch is guarded by one lock and settled by whichever thread accounts for its last row. A thread that
hangs cannot be ended: what it is at fails, and another thread takes its place.
"""

import os
import queue
import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from kerasfeed.errors import FeedClosedError, FeedWarning, SceneTimeoutError
from kerasfeed.loaders.base import Job
from kerasfeed.loaders.batches.filler import MANY, Cancelled, FailedSceneError, Filler, probe
from kerasfeed.loaders.batches.layout import Layout
from kerasfeed.loaders.batches.pending_batch import BatchInProgress, Pace, scene_text
from kerasfeed.loaders.batches.slots import SlotPool
from kerasfeed.loaders.batches.spec_inference import Probe, layout_for, outcome_of, probe_scenes, watched
from kerasfeed.loaders.failures import watchdog as watch
from kerasfeed.loaders.failures.exceptions import Place, for_consumer
from kerasfeed.loaders.failures.failure_log import FailureLog
from kerasfeed.loaders.failures.recovery import Range, Recovery
from kerasfeed.loaders.worker_hooks import begin_worker, end_worker, post_failed_end
from kerasfeed.sequences.base import SceneContext, Worker
from kerasfeed.util.error_text import cause_of

_TURN_SECONDS = 0.01  # how long a thread waits for the turn of another


@dataclass(frozen=True)
class LoadTask:
    """Rows [start, stop) of a batch to load."""

    batch: BatchInProgress
    start: int
    stop: int


@dataclass(frozen=True)
class _ProbeTask:
    index: int
    future: Future[Probe]


@dataclass(eq=False)
class _Post:
    """One worker thread and what it is at: row of a batch, or, while the spec is inferred, an index.

    It begins busy, with `on_worker_begin`.
    """

    number: int
    thread: threading.Thread | None = None
    batch: BatchInProgress | None = None
    probe: "_ProbeTask | None" = None
    note: list[int] = field(default_factory=lambda: [0, 0])
    busy: bool = True
    given_up: bool = False

    @property
    def row(self) -> int:
        """The row, or the index."""
        return self.note[1]

    def token(self) -> Any:
        """Changes from scene to scene; None between two."""
        batch = self.batch
        return (None if batch is None else batch.serial, self.row) if self.busy else None

    def __str__(self) -> str:
        return f"worker thread {self.number}"


class ThreadSession:
    """The threads and what they share; see the module's invariant."""

    def __init__(self, job: Job, faults: FailureLog) -> None:
        self.job = job
        self.faults = faults
        self.recovery = Recovery(job, faults)
        self.owner = os.getpid()
        # Reentrant: the collector may close a dropped loader from inside any of these sections.
        self.lock = threading.RLock()
        self.idle = threading.Condition(self.lock)
        # A list is a batch of tasks, queued at once so that Ctrl-C cannot queue a part of it.
        self.tasks: queue.SimpleQueue[list[LoadTask] | _ProbeTask | None] = queue.SimpleQueue()
        self._turn = threading.Lock()
        self._opened: deque[LoadTask] = deque()  # tasks of lists that were taken from the queue
        self.pace = Pace(whole=job.maker is not None)
        self.pool: SlotPool | None = None
        self.filler: Filler | None = None
        self.pending: set[BatchInProgress] = set()
        self.probes: list[Future[Probe]] = []
        self.closed = False
        self.batches = 0
        self.copied = 0
        self.posts: list[_Post] = []
        self._stuck: set[BatchInProgress] = set()  # a thread that was given up may still write to them
        self.patience = watch.Patience(watch.tick_seconds(job.policy.timeout))
        for number in range(job.workers):
            self.start_thread(number)
        self.watch = watch.Watchdog(self.look, watch.tick_seconds(job.policy.timeout))

    def start_thread(self, number: int) -> None:
        """Start worker thread `number`, in place of the one that has the number."""
        post = _Post(number)
        self.posts[number : number + 1] = [post]
        post.thread = threading.Thread(target=self.work, args=(post,), name=f"kerasfeed-worker-{number}", daemon=True)
        post.thread.start()

    def work(self, post: _Post) -> None:
        """Body of one worker thread."""
        sequence = self.job.sequence
        name = str(post)
        # Handed to every consumer of this worker's tasks.
        trouble = begin_worker(sequence, Worker(post.number, self.job.workers, "thread"), name)
        post.busy = False
        while not post.given_up and (task := self._next_task()) is not None:
            if isinstance(task, _ProbeTask):
                post.probe, post.note[1], post.busy = task, task.index, True
                self._probe(task, name, trouble)
            else:
                post.batch, post.note[1], post.busy = task.batch, task.start, True
                self._load(task, post, trouble)
            post.busy, post.batch, post.probe = False, None, None
            del task  # else an idle thread keeps the last batch's slot
        if trouble is None:
            post_failed_end(self.faults.notices, end_worker(sequence, name))
        del trouble  # its cause has a traceback that holds this frame

    def _next_task(self) -> LoadTask | _ProbeTask | None:
        """What is to be done next, in the order in which it was asked for; waits. None: this thread is to end."""
        found = self.tasks.get()
        if found is None or isinstance(found, _ProbeTask):
            return found
        self._opened.extend(found)
        for _ in found[1:]:  # each list, empty or not, lets one thread take one task
            self.tasks.put([])
        return self._opened.popleft()

    def _probe(self, task: _ProbeTask, name: str, trouble: BaseException | None) -> None:
        started = time.perf_counter()
        if task.future.done():  # closed meanwhile
            return
        if trouble is not None:
            _fail(task.future, trouble)
            return
        try:
            spec = probe(self.job.sequence, task.index, self.job.plan.seed, self.job.maker)
            task.future.set_result(Probe(task.index, spec, time.perf_counter() - started))
        except InvalidStateError:
            pass  # closed meanwhile
        except FailedSceneError as carrier:
            error = cause_of(carrier)
            assert error is not None
            _fail(task.future, for_consumer(error, Place((task.index,), None, None, name)))
            del error  # the frames of its traceback hold this one: only the collector would free them
        except BaseException as error:  # noqa: BLE001 - whatever it is, somebody waits
            _fail(task.future, error)
        del task  # see `_load`

    def _load(self, task: LoadTask, post: _Post, trouble: BaseException | None) -> None:
        batch, start, stop = task.batch, task.start, task.stop
        assert self.filler is not None
        started = time.perf_counter()
        again: list[Range] = []
        try:
            if trouble is not None:
                raise trouble
            context = SceneContext(self.job.plan.seed, batch.epoch)
            with self._turn_of_quick_scenes():
                beside = self.filler.fill(batch.slot.view, start, stop, batch.serial, context, post.note)
            self.pace.note(time.perf_counter() - started, stop - start)
            with self.lock:
                complete = batch.add(start, stop, beside)
        except Cancelled:
            with self.lock:
                complete = batch.add(start, stop, {})
        except FailedSceneError as carrier:
            complete, again = self._mend(task, carrier, str(post))
        except BaseException as error:  # noqa: BLE001 - whatever it is, somebody waits
            with self.lock:
                complete = batch.fail(start, stop, start, error)
        for first, last in again:
            self.tasks.put([LoadTask(batch, first, last)])
        if complete:
            self.settle(batch)
        # What a scene raised has a traceback that ends in this frame: only the collector would free them.
        del task, batch

    @contextmanager
    def _turn_of_quick_scenes(self) -> Iterator[None]:
        """One thread at a time where scenes are quick; see `Pace.is_quick`.

        No thread relies on it: where another holds it for long, because one of its scenes waits, this one goes on.
        """
        held = self.pace.is_quick and self._turn.acquire(timeout=_TURN_SECONDS)
        try:
            yield
        finally:
            if held:
                self._turn.release()

    def _mend(self, task: LoadTask, carrier: FailedSceneError, name: str) -> tuple[bool, list[Range]]:
        """Deal with a failed scene; returns whether its batch is complete, and the ranges to load again."""
        batch, start, stop = task.batch, task.start, task.stop
        error = cause_of(carrier)
        assert error is not None
        failed = tuple(batch.slot.view.indices[start:stop].tolist()) if carrier.index is None else (carrier.index,)
        try:
            error = for_consumer(error, Place(failed, batch.epoch, batch.step, name, carrier.method))
            self.faults.note(carrier.index, batch.epoch, batch.step, error)
        except BaseException as trouble:  # noqa: BLE001 - whatever it is, somebody waits for the batch
            error = trouble
        with self.lock:
            again = self.recovery.mend(batch, start, stop, carrier.row, error)
            return batch.missing == 0, again

    def settle(self, batch: BatchInProgress) -> None:
        """Deliver a batch of which no row is missing."""
        assert self.pool is not None
        if batch in self._stuck:
            self._note_stuck(batch, False)
        copied = batch.settle(self.pool)
        if copied:
            self.faults.note_copied(self.pool.ceiling)
        with self.lock:
            self.batches += 1
            self.copied += copied
            self.pending.discard(batch)
            if not self.pending:
                self.idle.notify_all()

    def look(self) -> None:
        """Deal with scenes that take too long; called by the watching thread."""
        timeout = self.job.policy.timeout
        self.patience.begin(time.monotonic())
        for post in list(self.posts):
            batch, row, token = post.batch, post.row, post.token()
            work = batch or post.probe
            seconds = self.patience.look(post.number, token)
            if token is None or post.thread is None:
                continue
            if timeout is not None and work is not None and seconds >= timeout * _scenes_at(batch, row):
                self._give_up(post, work, row, timeout)
            elif seconds >= watch.STALL_SECONDS:
                self._tell_stall(post, None if work is None else scene_text(batch, row), seconds)

    def _tell_stall(self, post: _Post, scene: str | None, seconds: float) -> None:
        kind = "loading" if scene is None else "stall"
        if self.faults.notices.told(kind):
            return
        assert post.thread is not None
        stack = watch.stack_of(post.thread)
        if scene is None:
            text = watch.loading_text("the sequence (on_worker_begin)", str(post), seconds, stack)
        else:
            remedy = watch.remedy_of("thread", self.job.policy.timeout)
            text = watch.stall_text(scene, str(post), seconds, stack, remedy)
        self.faults.notices.tell_now(kind, text, FeedWarning)

    def _give_up(self, post: _Post, work: BatchInProgress | _ProbeTask, row: int, timeout: float) -> None:
        """Fail what a hung thread is at, and let another take its number: a thread cannot be ended."""
        assert post.thread is not None
        batch = work if isinstance(work, BatchInProgress) else None
        scene = scene_text(batch, row)
        error = SceneTimeoutError(
            f"{scene} took longer than timeout={timeout} s in {post}, which cannot be ended because it is a thread; it "
            "goes on, and another thread has taken its place. Use worker_type='process', where such a worker is "
            f"replaced and its scene tried again. The thread is at\n{watch.stack_of(post.thread)}"
        )
        if batch is not None:
            index = None if row == MANY else int(batch.slot.view.indices[row])
            self.faults.note(index, batch.epoch, batch.step, error)
        with self.lock:
            if self.closed or post.given_up:
                return
            post.given_up = True
            if batch is not None and batch.missing:  # else it is being settled just now
                self._note_stuck(batch, True)
            self.start_thread(post.number)
        if isinstance(work, BatchInProgress):  # its slot stays in flight until the thread is back
            self.give_up(work, error)
        else:
            _fail(work.future, error)

    def _note_stuck(self, batch: BatchInProgress, stuck: bool) -> None:
        assert self.pool is not None
        with self.lock:
            (self._stuck.add if stuck else self._stuck.discard)(batch)
            self.pool.stuck = len(self._stuck)

    def give_up(self, batch: BatchInProgress, error: BaseException) -> None:
        """Fail a batch at once, and have nobody wait for what is left of it."""
        batch.give_up(error)  # outside the lock: callbacks of its future are the user's
        with self.lock:
            self.pending.discard(batch)
            self.idle.notify_all()

    def infer(self) -> Layout:
        """Read a few scenes, in parallel, and lay a slot out for them."""
        try:
            probes = probe_scenes(self.job, self.faults, watched(self.job, self.faults, self._read_probes))
        finally:
            self.probes = []
        # The fastest: the first scene a thread reads also opens files and warms caches.
        self.pace.note(min(probe.seconds for probe in probes), 1)
        return layout_for(self.job, probes)

    def _read_probes(self, indices: list[int]) -> list[Probe | BaseException]:
        futures: list[Future[Probe]] = []
        with self.lock:
            if self.closed:
                raise FeedClosedError("the feed is closed; make a new one")
            for index in indices:
                futures.append(Future())
                self.tasks.put(_ProbeTask(index, futures[-1]))
            self.probes = futures
        return [outcome_of(future) for future in futures]

    def wait_until_idle(self) -> None:
        """Wait for the batches in flight."""
        with self.lock:
            self.idle.wait_for(lambda: not self.pending)

    def close(self) -> None:
        """End the threads; those inside a scene are waited for, briefly."""
        if os.getpid() != self.owner:
            return  # a fork of the owner has none of its threads
        with self.lock:
            if self.closed:
                return
            self.closed = True
            pending, probes = list(self.pending), list(self.probes)
        for batch in pending:
            batch.give_up(FeedClosedError("the feed was closed before this batch was loaded"))
        for future in probes:
            _fail(future, FeedClosedError("the feed was closed while its first scenes were read"))
        if self.pool is not None:
            self.pool.close()
        self.watch.stop()
        for _ in self.posts:
            self.tasks.put(None)
        deadline = time.monotonic() + 5.0
        for post in self.posts:
            if post.thread is not None and post.thread is not threading.current_thread():
                post.thread.join(max(0.0, deadline - time.monotonic()))
        if self.pool is not None:
            self.pool.free(flying=False)


def _scenes_at(batch: BatchInProgress | None, row: int) -> int:
    return batch.rows if batch is not None and row == MANY else 1


def _fail(future: Future[Any], error: BaseException) -> None:
    try:
        future.set_exception(error)
    except InvalidStateError:
        pass  # settled meanwhile
