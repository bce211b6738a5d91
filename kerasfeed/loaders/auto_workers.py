"""Workers, which of them suit scenes of which it is known for how long they keep a processor busy; trials of workers.

Invariant: a choice takes about a second, and longer only where one scene does; batches do not depend on it. Several
threads read only where the class says that they may.
"""

import itertools
import math
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from kerasfeed.loaders.base import Job
from kerasfeed.loaders.batch_runner import FirstScenes
from kerasfeed.loaders.session import Session
from kerasfeed.orders.plan import Plan
from kerasfeed.sequences.view_base import parts_of, says_if_thread_safe
from kerasfeed.util.counted import counted
from kerasfeed.util.error_text import class_name
from kerasfeed.util.resources import cores

WORKERS, WORKER_TYPE = "workers", "worker_type"
_MOST_PROCESSES_A_CORE = 4
_MOST_THREADS = 64
_BETTER = 1.1  # times as fast: less is noise
_SHORT = 1e-4  # s that a scene waits: below, more workers than cores gain nothing


@dataclass(frozen=True)
class Setup:
    """Workers of a feed.

    Attributes:
        workers: How many.
        worker_type: "thread" or "process"; "inline" where there are none.
    """

    workers: int
    worker_type: str

    def __str__(self) -> str:
        if not self.workers:
            return "no workers"
        names = {"thread": ("thread", "threads"), "process": ("worker process", "worker processes")}
        return counted(self.workers, *names[self.worker_type])


@dataclass(frozen=True)
class Choice:
    """Workers, and why.

    Attributes:
        setup: The workers.
        reason: Why, in words.
        measured: Whether the time of scenes has decided.
        hint: What the user might do to have better ones; empty for nothing.
    """

    setup: Setup
    reason: str
    measured: bool = False
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.setup}: {self.reason}"


def waits(seconds: float, busy_seconds: float) -> bool:
    """Whether scenes wait for most of their time, so that more workers than cores are useful."""
    return seconds - busy_seconds > max(busy_seconds, _SHORT)


def processes_for(seconds: float, busy_seconds: float, cores: int) -> int:
    """As many worker processes as keep the cores busy: more than cores where scenes wait, four a core at most.

    Args:
        seconds: Time of a scene, s.
        busy_seconds: Part of it that keeps a processor busy, s.
        cores: Cores of the machine.
    """
    if not waits(seconds, busy_seconds):
        return cores
    return min(_MOST_PROCESSES_A_CORE * cores, math.ceil(cores * seconds / max(busy_seconds, 1e-6)))


def threads_for(seconds: float, busy_seconds: float, cores: int) -> int:
    """As many threads as there are scenes to wait for, at least the cores, at most 64; see `processes_for`.

    They may need the GIL for all of `busy_seconds`, or for none of it: twice as many as would be of use if they did.
    """
    if not waits(seconds, busy_seconds):
        return cores
    return max(cores, min(_MOST_THREADS, math.ceil(2 * seconds / max(busy_seconds, 1e-6))))


def why(seconds: float, busy_seconds: float) -> str:
    """In words what a scene does for most of its time."""
    if waits(seconds, busy_seconds):
        return f"a scene takes {duration(seconds)} and waits for {duration(seconds - busy_seconds)} of it"
    return f"a scene takes {duration(seconds)} and computes for {duration(min(seconds, busy_seconds))} of it"


def duration(seconds: float) -> str:
    """A time in words, three digits at most: 12 us, 3.4 ms, 1.2 s."""
    for unit, scale in (("us", 1e-6), ("ms", 1e-3)):
        if seconds < 999.5 * scale:
            return f"{seconds / scale:.{0 if seconds >= 9.95 * scale else 1}f} {unit}"
    return f"{seconds:.{0 if seconds >= 9.95 else 1}f} s"


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
_WORTH_A_HINT = 1.5  # times as many scenes by threads


def choose(session: Session, make: Callable[..., Any]) -> Choice:
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
    is_better = rate > _BETTER * others * processes.workers / present.workers
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


def _trials(session: Session, present: Setup, threads: Setup, make: Callable[..., Any]) -> tuple[float, float] | None:
    """Scenes/s of threads and of the present worker processes; None where that takes too long, or a scene raises.

    They run in turns, and the best run of each counts: what is new at first, and what else the machine does, makes one
    slower, never faster. A batch that takes a second ends them: it would in each run.
    """
    assert session.slots is not None
    job, layout = session.job, session.slots.layout
    needed = _LEAST_BATCHES * job.plan.rows * session.timing.seconds / present.workers
    if needed > _MOST_TRIAL_SECONDS or job.policy.on_error != "raise":
        return None
    before = session.batches, session.copied
    rates: list[tuple[float, float]] = []
    with closing(make(job.with_workers(threads.workers), threads.worker_type, layout)) as loader:
        tried = Trial(loader.submit, job.plan, threads.workers, loader.look_ahead)
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
