"""Workers that are chosen with the first batch, by the time of the first scenes; and trials of workers.

Invariant: takes about a second, and longer only where one scene does; batches do not depend on it. Several threads read
only where the class says that they may.
"""

import dataclasses
import itertools
import math
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from kerasfeed.loaders.base import Job
from kerasfeed.loaders.batch_runner import MEASURE, MeasureOrder
from kerasfeed.loaders.batches.layout import Layout
from kerasfeed.loaders.first_scenes import FirstScenes
from kerasfeed.loaders.scene_cost import SceneCost
from kerasfeed.loaders.session import Session
from kerasfeed.loaders.worker_choice import (
    WORKER_TYPE,
    WORKERS,
    Choice,
    Setup,
    duration,
    is_faster,
    processes_for,
    threads_for,
    waits,
    why,
)
from kerasfeed.orders.plan import Plan
from kerasfeed.pool.task import NOWHERE, Crash, FutureTask, Place, Record, Task
from kerasfeed.sequences.view_base import parts_of, says_if_thread_safe
from kerasfeed.util.error_text import class_name
from kerasfeed.util.resources import cores


class Trial:
    """Workers that load batches of epoch 0 for some time, and then, each time that they run, those that come next.

    What is new at first is met in the first run: memory of batches, and what a sequence keeps of files.
    """

    def __init__(self, submit: Callable[[int, int], Any], plan: Plan, workers: int, ahead: int, first: int = 0) -> None:
        """Try workers.

        Args:
            submit: From epoch and step to a future of a batch.
            plan: Which scenes the batches have.
            workers: Workers that load them: their first batches come all at once, and do not count.
            ahead: Batches in flight.
            first: The step to begin with.
        """
        self._submit, self._rows, self._ahead = submit, plan.rows, ahead
        self._late = max(1, math.ceil(workers / plan.rows))
        self._steps = ((first + number) % plan.steps for number in itertools.count())

    def run(self, seconds: float, patience: float | None = None) -> float | None:
        """Load for so long after the first batch, s; scenes/s.

        None where a scene raises, or where after the first batch another takes longer than `patience`, s.
        """
        pending: list[Any] = []
        left = self._late
        try:
            pending = [self._submit(0, next(self._steps)) for _ in range(self._ahead)]
            count, begun = 0, 0.0
            while True:
                pending.pop(0).result(patience if begun else None)
                now = time.perf_counter()
                left -= 1
                if left == 0:
                    begun = now
                elif begun:
                    count += 1
                if begun and now - begun >= seconds:
                    return count * self._rows / (now - begun) if count else None
                pending.append(self._submit(0, next(self._steps)))
        except Exception:  # noqa: BLE001 - whatever a scene raises, it will raise again where the user sees it
            return None
        finally:
            for future in pending:
                future.cancel()


_LEAST_EPOCH = 0.25  # s that a pass over the sequence takes: below, there is nothing to gain
_TRIAL_SECONDS = 0.06  # of a run, at least: as long as a few batches take
_TRIAL_ROUNDS = 3
_LEAST_BATCHES = 4  # in a run
_MOST_TRIAL_SECONDS = 0.2  # of a run: where it would take longer, the time of the first scenes decides
_MOST_ROUNDS_SECONDS = 1.0  # of all rounds since worker processes have started; and of a batch
_RUNS, _MOST_RUNS, _FASTER = 3, 9, 1.1  # of a trial for a profile
_WORTH_A_HINT = 1.5  # times as many scenes by threads
_SAMPLE = 512  # scenes that are measured for a profile
_TASK_SECONDS = 2e-3  # as many scenes at a time as a loader gives a worker


class TrialLoader(Protocol):
    """A loader for a trial."""

    @property
    def look_ahead(self) -> int:
        """See `Loader.look_ahead`."""

    def submit(self, epoch: int, step: int, *, timeout: float | None = None) -> Future[Any]:
        """See `Loader.submit`."""

    def close(self) -> None:
        """See `Loader.close`."""


MakeLoader = Callable[[Job, str, Layout], TrialLoader]


@dataclass(frozen=True, eq=False)
class MeasureTask(FutureTask):
    """Scenes to measure; the future gives a `SceneCost`, or None. Nothing that becomes of it is an error."""

    cores: int = 1

    def record(self) -> Record:
        """See `Task.record`."""
        return self.kind, self.number, self.cores

    def failed(self, place: Place, error: BaseException, worker: str, traceback: str) -> tuple[Task, ...]:
        """See `Task.failed`."""
        self.set_result(None)
        return ()

    def crashed(self, note: int, crash: Crash, count: int) -> tuple[Task, ...]:
        """See `Task.crashed`."""
        self.set_result(None)
        return ()

    def text(self, note: int) -> str:
        """See `Task.text`."""
        return "" if note == NOWHERE else "scenes, to measure what they cost"

    def set_exception(self, error: BaseException) -> None:
        """See `FutureTask`."""
        self.set_result(None)


def measure_scenes(session: Session, seconds: float) -> SceneCost | None:
    """Have a worker measure what scenes of epoch 0 cost, in their order; None where one raises, or hangs.

    Args:
        session: Its workers; slots are set up.
        seconds: How long the worker may read, s; ten times as long is waited for.
    """
    assert session.slots is not None
    layout, plan = session.slots.layout, session.job.plan
    rows = min(plan.rows, max(1, math.ceil(_TASK_SECONDS / max(session.timing.seconds, 1e-6))))
    steps = range(min(plan.steps, math.ceil(_SAMPLE / plan.rows)))
    indices = np.concatenate([plan.indices(0, step) for step in steps])
    task = MeasureTask(MEASURE, int(seconds * 1e6), cores=cores())
    session.pool.post(MeasureOrder(dataclasses.replace(layout, rows=rows), indices))
    try:
        session.pool.submit([task])
        try:
            found = task.future.result(10 * seconds)
        except TimeoutError:
            return None
        assert found is None or isinstance(found, SceneCost)
        return found
    finally:
        session.pool.post(layout)


def choose(session: Session, make: MakeLoader) -> Choice:
    """Choose what of the workers of a loader is to be chosen, by what the first scenes have cost.

    Several threads may read only where the class says so, and are tried beside the worker processes.

    Args:
        session: That with which the loader has begun, which has read the first scenes; nothing is in flight.
        make: Makes a loader for a trial: of a job, a type of workers, and the layout.
    """
    job, first = session.job, session.first
    present = Setup(job.workers, session.pool.worker_type)
    if first is None:
        return Choice(present, "no scene was read")
    if first.trouble:
        return Choice(Setup(1 if WORKERS in job.free else job.workers, present.worker_type), first.trouble)
    seconds, busy, count = first.seconds, first.cpu_seconds, cores()
    epoch = job.plan.scenes * seconds / max(1, min(job.workers, count))
    if epoch < _LEAST_EPOCH:
        return Choice(present, f"an epoch takes {duration(epoch)}, and there is little to gain")
    reason, threads = why(seconds, busy), Setup(job.workers, "thread")
    if WORKERS in job.free:
        threads = Setup(threads_for(seconds, busy, count), "thread")
    if present.worker_type == "thread":
        return Choice(threads, reason, True)
    processes = Setup(processes_for(seconds, busy, count), "process") if WORKERS in job.free else present
    if WORKER_TYPE not in job.free or session.pool.used_random or job.policy.timeout is not None:
        return Choice(processes, reason, True)
    if not job.thread_safe:
        return Choice(processes, reason, True, _hint(job, first, processes, threads))
    rates = _trials(session, present, threads, make)
    if rates is None:
        is_better = threads.workers > processes.workers
        return Choice(threads if is_better else processes, reason, True)
    rate, others = rates
    tried = f"in a trial, {rate:,.0f} scenes/s with {threads}, {others:,.0f} with {present}"
    # Twice as many processes load twice as much at most.
    is_better = is_faster(rate, others * processes.workers / present.workers)
    return Choice(threads if is_better else processes, f"{reason}; {tried}", True)


def _hint(job: Job, first: FirstScenes, processes: Setup, threads: Setup) -> str:
    """What `thread_safe = True` would bring, where that is much and the class says nothing of it."""
    names = [class_name(part) for part in parts_of(job.sequence) if not says_if_thread_safe(part)]
    seconds, busy = first.seconds, first.cpu_seconds
    gain = min(threads.workers, seconds / max(busy, 1e-6)) / processes.workers
    if not names or not waits(seconds, busy) or gain < _WORTH_A_HINT:
        return ""
    return (
        f"scenes of {names[0]} wait for {1 - busy / seconds:.0%} of {duration(seconds)}. If several "
        f"threads may read them at once, set thread_safe = True in the class: {threads} may load about "
        f"{gain:.1f} times as many. thread_safe = False ends this hint"
    )


def _trials(session: Session, present: Setup, threads: Setup, make: MakeLoader) -> tuple[float, float] | None:
    """Scenes/s of threads and of the present worker processes; None where that takes too long, or a scene raises.

    They run in turns, and the best run of each counts: what is new at first, and what else the machine does, makes one
    slower, never faster. A batch that takes a second ends them: it would in each run.
    """
    assert session.slots is not None
    job, layout = session.job, session.slots.layout
    needed = _LEAST_BATCHES * job.plan.rows * session.timing.seconds / present.workers
    if needed > _MOST_TRIAL_SECONDS or job.policy.on_error != "raise":
        return None
    loader = _loader_for(job, threads, layout, make)
    if loader is None:
        return None
    before = session.batches, session.copied
    rates: list[tuple[float, float]] = []
    with closing(loader):
        ahead = loader.look_ahead
        tried = Trial(loader.submit, job.plan, threads.workers, ahead)
        processes = Trial(session.submit, job.plan, job.workers, job.look_ahead, job.plan.steps // 2)
        end = math.inf
        while len(rates) < _TRIAL_ROUNDS and time.perf_counter() < end:
            try:
                session.failure_log.muted = True
                others = processes.run(max(_TRIAL_SECONDS, needed), _MOST_ROUNDS_SECONDS)
            finally:
                session.pool.wait_until_idle()
                session.batches, session.copied = before
                session.failure_log.muted = False
            if others is None:
                return None
            end = min(end, time.perf_counter() + _MOST_ROUNDS_SECONDS)
            rate = tried.run(max(_TRIAL_SECONDS, needed), _MOST_ROUNDS_SECONDS)
            if rate is None:
                return None
            rates.append((rate, others))
    best, best_others = map(max, zip(*rates, strict=True))
    return best, best_others


def _loader_for(job: Job, setup: Setup, layout: Layout, make: MakeLoader) -> TrialLoader | None:
    try:
        return make(job.with_workers(setup.workers), setup.worker_type if setup.workers else "inline", layout)
    except (TypeError, OSError):
        return None


def trial(job: Job, setup: Setup, layout: Layout, make: MakeLoader, *, seconds: float) -> tuple[float, float] | None:
    """Scenes/s that workers reach once they are under way: of the slowest run and of the quickest.

    None where a scene raises, or such workers cannot be had.

    Args:
        job: What is loaded.
        setup: The workers.
        layout: Of a slot of it.
        make: Makes the loader, which is closed afterwards.
        seconds: How long, s; up to three times as long where they go on to get faster.
    """
    loader = _loader_for(job, setup, layout, make)
    if loader is None:
        return None
    with closing(loader):
        found = Trial(loader.submit, job.plan, setup.workers, loader.look_ahead)
        rates: list[float] = []
        while len(rates) < _MOST_RUNS and (rate := found.run(seconds / _RUNS)) is not None:
            rates.append(rate)
            if len(rates) >= _RUNS and rate < _FASTER * max(rates[:-1]):
                break
    return (min(rates[1 - _RUNS :]), max(rates)) if rates else None  # in the first of them all is new


def smaller_batches(job: Job, layout: Layout, scenes: float) -> tuple[Job, Layout]:
    """A job for a trial of about so many scenes: in batches of a sixteenth of them, where those of the feed are larger.

    What each batch costs does not show then: scenes so slow are what counts.
    """
    size = max(1, int(scenes / 16))
    plan = job.plan
    if plan.batch_size is None or size >= plan.batch_size or job.maker or not plan.cut.is_even:
        return job, layout
    plan = dataclasses.replace(plan, batch_size=size, drop_remainder=False, shard_index=0, shard_count=1)
    return dataclasses.replace(job, plan=plan), dataclasses.replace(layout, rows=plan.rows)
