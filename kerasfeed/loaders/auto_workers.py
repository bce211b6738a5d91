"""Workers that are chosen with the first batch: scenes are measured by the workers that a loader has begun with.

Invariant: takes a second at most, and batches do not depend on it. Where a scene raises, takes too long or ends its
worker, what the loader has begun with stays.
"""

import dataclasses
import itertools
import math
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kerasfeed.loaders.base import Job
from kerasfeed.loaders.batch_runner import MEASURE, MeasureOrder
from kerasfeed.loaders.batches.layout import Layout
from kerasfeed.loaders.scene_cost import SceneCost
from kerasfeed.loaders.scene_measure import SAMPLE
from kerasfeed.loaders.session import Session
from kerasfeed.loaders.worker_choice import (
    WORKER_TYPE,
    Choice,
    Setup,
    best,
    duration,
    setups,
    threads_for,
    why,
)
from kerasfeed.orders.batch_bounds import EvenCut
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

    def run(self, seconds: float) -> float | None:
        """Load for so long after the first batch, s; scenes/s, or None where a scene raises."""
        pending: list[Any] = []
        left = self._late
        try:
            pending = [self._submit(0, next(self._steps)) for _ in range(self._ahead)]
            count, begun = 0, 0.0
            while True:
                pending.pop(0).result()
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


_MOST_SECONDS = 1.0
_MEASURING = 0.5  # of them for reading scenes one by one
_LEAST_EPOCH = 0.25  # s that a pass over the sequence takes: below, there is nothing to gain
_TRIAL_SECONDS = 0.06  # at least, and three times as long where batches are slow and there is time
_TRIAL_ROUNDS = 4
_LEAST_BATCHES = 4  # in a trial
_FEWEST_RUNS, _MOST_RUNS, _FASTER = 3, 9, 1.1  # of a trial for a profile
_SLOW = 0.1  # s that a scene takes: what the first ones have cost says enough, and more would be waited for
_WORTH_A_HINT = 1.5  # times as many scenes by threads
_NEAR = 1.6  # times slower than the best by the model: such a setup is tried


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
    several: bool = False

    def record(self) -> Record:
        """See `Task.record`."""
        return self.kind, self.number, self.cores, self.several

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


def sample_of(job: Job) -> NDArray[np.int64]:
    """The first scenes of epoch 0, in its order: int64[N], N <= `SAMPLE`."""
    found: list[NDArray[np.int64]] = []
    step = count = 0
    while step < job.plan.steps and count < SAMPLE:
        found.append(job.plan.indices(0, step))
        count += len(found[-1])
        step += 1
    return np.concatenate(found)[: max(SAMPLE, len(found[0]) if job.maker else 0)]


def measure_scenes(session: Session, seconds: float, wait: float, *, several: bool) -> SceneCost | None:
    """Have a worker measure what scenes cost; None where it could not within `wait` seconds.

    Args:
        session: Its workers; slots are set up.
        seconds: How long the worker may read, s.
        wait: How long it is waited for, s.
        several: Whether several threads may read at once.
    """
    assert session.slots is not None
    layout = session.slots.layout
    task = MeasureTask(MEASURE, int(seconds * 1e6), cores=cores(), several=several)
    session.pool.post(MeasureOrder(layout, sample_of(session.job)))
    try:
        session.pool.submit([task])
        try:
            found = task.future.result(wait)
        except TimeoutError:
            return None
        assert found is None or isinstance(found, SceneCost)
        return found
    finally:
        session.pool.post(layout)


def choose(session: Session, free: frozenset[str], make: MakeLoader) -> Choice:
    """Choose the workers of a loader.

    Args:
        session: That with which it has begun, its slots set up; nothing is in flight.
        free: What is to be chosen.
        make: Makes a loader for a trial: of a job, a type of workers, and the layout.
    """
    begun = time.perf_counter()
    job, kind = session.job, session.pool.worker_type
    present = Setup(job.workers, kind)
    epoch = job.plan.scenes * session.timing.seconds / max(1, min(job.workers, cores()))
    if epoch < _LEAST_EPOCH:
        return Choice(present, f"an epoch takes {duration(epoch)}, and there is little to gain")
    first = session.first
    if first is not None and first.seconds > _SLOW:
        cost: SceneCost | None = SceneCost.of_one(first.seconds, first.cpu_seconds, cores())
    else:
        cost = measure_scenes(session, _MEASURING, _MOST_SECONDS - 0.1, several=job.thread_safe)
    if cost is None:
        return Choice(present, "scenes could not be measured: they raised, or took longer than 1 s")
    threads = job.thread_safe and not session.pool.used_random and job.policy.timeout is None
    rates = {
        setup: cost.predict(setup.workers, setup.worker_type, job.plan.rows)
        for setup in setups(cost, present, free, threads=threads)
    }
    measured: dict[Setup, float] = {}
    near = sorted((setup for setup in rates if rates[setup] * _NEAR > max(rates.values())), key=lambda one: -rates[one])
    if len(near) > 1:
        needed = _LEAST_BATCHES * job.plan.rows / rates[near[0]]
        measured = _trials(session, present, near, make, max(_TRIAL_SECONDS, needed), begun + _MOST_SECONDS)
    if measured:
        found = best(dict(sorted(measured.items(), key=lambda item: item[0] != present)))
        others = "; ".join(f"{rate:,.0f} with {setup}" for setup, rate in measured.items() if setup != found)
        reason = f"{why(cost)}; {measured[found]:,.0f} scenes/s in a trial" + (f", {others}" if others else "")
        return Choice(found, reason, measured[found], True, cost)
    found = best(rates)
    hint = "" if threads or WORKER_TYPE not in free else _hint(job, cost, rates[found])
    return Choice(found, why(cost), rates[found], True, cost, hint)


def _hint(job: Job, cost: SceneCost, rate: float) -> str:
    """What `thread_safe = True` would bring, where that is much and the class says nothing of it."""
    names = [class_name(part) for part in parts_of(job.sequence) if not says_if_thread_safe(part)]
    count, waits = threads_for(cost, cost.cores), cost.waiting_seconds / cost.seconds
    gain = cost.predict(count, "thread", job.plan.rows) / rate
    if not names or waits < 0.5 or gain < _WORTH_A_HINT:
        return ""
    return (
        f"scenes of {names[0]} wait for {waits:.0%} of {duration(cost.seconds)}. If several "
        f"threads may read them at once, set thread_safe = True in the class: {count} threads would load about "
        f"{gain:.1f} times as many. thread_safe = False ends this hint"
    )


def _trials(
    session: Session, present: Setup, wanted: list[Setup], make: MakeLoader, seconds: float, deadline: float
) -> dict[Setup, float]:
    """What setups reach that need no further processes, as far as there is time.

    They run in turns, and the best run of each counts: what is new at first, and what else the machine does, makes one
    slower, never faster.
    """
    assert session.slots is not None
    job, layout = session.job, session.slots.layout
    tried = [setup for setup in wanted if setup == present or setup.worker_type == "thread"]
    if present not in tried or job.policy.on_error != "raise":
        return {}
    if seconds > 3 * _TRIAL_SECONDS or time.perf_counter() + seconds * len(tried) > deadline:
        return {}
    log, before = session.failure_log, (session.batches, session.copied)
    found: dict[Setup, float] = {}
    with ExitStack() as undo:
        trials: dict[Setup, Trial] = {}
        for number, setup in enumerate(tried):
            first = number * job.plan.steps // len(tried)
            if setup == present:
                trials[setup] = Trial(session.submit, job.plan, job.workers, job.look_ahead, first)
            elif (loader := _loader_for(job, setup, layout, make)) is not None:
                undo.callback(loader.close)
                trials[setup] = Trial(loader.submit, job.plan, setup.workers, loader.look_ahead, first)
        took = seconds  # with the batches that do not count, the longest
        for setup in [*trials] * _TRIAL_ROUNDS:
            begun = time.perf_counter()
            if begun + took > deadline:
                break
            log.muted = setup == present
            try:
                rate = trials[setup].run(seconds)
            finally:
                if setup == present:
                    session.pool.wait_until_idle()
                    session.batches, session.copied = before
                    log.muted = False
            took = max(took, time.perf_counter() - begun)
            if rate is not None:
                found[setup] = max(rate, found.get(setup, 0.0))
    return found if present in found else {}


def _loader_for(job: Job, setup: Setup, layout: Layout, make: MakeLoader) -> TrialLoader | None:
    try:
        return make(job.with_workers(setup.workers), setup.worker_type if setup.workers else "inline", layout)
    except (TypeError, OSError):
        return None


def trial(job: Job, setup: Setup, layout: Layout, make: MakeLoader, *, seconds: float) -> float | None:
    """Scenes/s that workers reach once they are under way; None where a scene raises, or they cannot be had.

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
        while len(rates) < _MOST_RUNS and (rate := found.run(seconds / _FEWEST_RUNS)) is not None:
            rates.append(rate)
            if len(rates) >= _FEWEST_RUNS and rate < _FASTER * max(rates[:-1]):
                break
        return max(rates, default=None)


def smaller_batches(job: Job, layout: Layout, scenes: float) -> tuple[Job, Layout]:
    """A job for a trial of about so many scenes: in batches of a sixteenth of them, where those of the feed are larger.

    What each batch costs does not show then: scenes so slow are what counts.
    """
    size = max(1, int(scenes / 16))
    plan = job.plan
    if plan.batch_size is None or size >= plan.batch_size or job.maker or not isinstance(plan.cut, EvenCut):
        return job, layout
    plan = dataclasses.replace(plan, batch_size=size, drop_remainder=False, shard_index=0, shard_count=1)
    return dataclasses.replace(job, plan=plan), dataclasses.replace(layout, rows=plan.rows)


def free_of(free: frozenset[str], worker_type: str) -> frozenset[str]:
    """What is left to choose where workers are of this type."""
    return free - {WORKER_TYPE} if worker_type == "thread" else free
