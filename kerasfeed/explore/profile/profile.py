"""`kf.profile`: the speed of a feed and of other workers.

Invariant: all measurements use loaders made for them, which build batches as the feed would. The feed keeps its
position, and `on_epoch_begin` is not called. An error of a scene ends a measurement and is not raised.
"""

import dataclasses
import itertools
import math
import time
from collections import deque
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Any

from kerasfeed.explore.profile.result import Profile, SetupRate
from kerasfeed.loaders.auto_workers import Setup, processes_for, threads_for, waits
from kerasfeed.loaders.base import Job
from kerasfeed.loaders.batches.layout import Layout
from kerasfeed.loaders.loader import Loader, make_loader
from kerasfeed.pool.processes.pool import processes_supported
from kerasfeed.pool.processes.shared_objects import copy_as_sent
from kerasfeed.util.resources import cores
from kerasfeed.util.thread_times import ThreadWatch
from kerasfeed.util.validate import check_number

if TYPE_CHECKING:
    from kerasfeed.feeds.base import BaseFeed

_ALTERNATIVES = 3
_RUNS = 3  # of each set-up; the set-ups take turns
_RAISED = "a scene raised while the feed was profiled: loop over the feed to see the error"


def profile(feed: "BaseFeed", seconds: float = 10.0) -> Profile:
    """Measure the speed of a feed, and of other workers for it.

    The workers of the feed and of up to three alternatives read scenes of epoch 0 in turns. The calling thread also
    reads some, to measure how long a scene waits. Several threads read only if the feed uses them or the class sets
    `thread_safe = True`. If the runs of one set-up differ much because the machine is busy, the slowest and the
    quickest are shown. The feed's position and its counters do not change. The figures are for this machine, even if
    the feed has `hosts`. `kf.InputMonitor` measures how long training waits for the feed.

    Args:
        feed: A `kerasfeed.Feed`.
        seconds: About how long to measure, s, at least 1. Starting worker processes and finishing scenes in progress
            take extra time.

    Returns:
        A [Profile][kerasfeed.explore.profile.result.Profile]. It prints as a table with bars;
        `verdict` is a summary in one sentence, `to_dict()` returns all figures.

    Raises:
        TypeError: `feed` is not a `kerasfeed.Feed`.
        ValueError: `seconds` is below 1.
        RuntimeError: A scene raised and the feed has `on_error="raise"`, so nothing could be measured.
        Exception: The error of the first scenes.

    Examples:
        >>> scenes = kf.Zip(np.zeros((64, 8), np.float32), np.zeros(64, np.float32))
        >>> with kf.Feed(scenes, batch_size=8, workers=2, worker_type="thread") as feed:
        ...     found = kf.profile(feed, seconds=1)
        >>> found.present.setup.worker_type, found.present.most > 0, len(found.alternatives)
        ('thread', True, 3)
    """
    if not (hasattr(feed, "plan") and hasattr(feed, "sequence") and hasattr(feed, "job")):
        raise TypeError(
            f"kf.profile(feed) needs a kerasfeed.Feed, received a {type(feed).__name__}. Wrap a sequence in one: "
            "kf.Feed(sequence, batch_size). For a stream, kf.InputMonitor(feed) shows how long fit waits"
        )
    seconds = check_number("seconds", seconds, "a number of at least 1", least=1)
    # Failing scenes follow the feed's policy, but are neither counted nor logged.
    policy = dataclasses.replace(feed.job.policy, max_failures=1.0, error_log=None)
    job = dataclasses.replace(feed.job, policy=policy, hosts=None)
    return _Measurement(job, feed.stats(), seconds).profile()


class _Measurement:
    """One profile: a job and the time budget of its measurements."""

    def __init__(self, job: Job, stats: Any, seconds: float) -> None:
        self._seconds = seconds
        if job.auto and not stats.chosen:
            loader = make_loader(job, "auto" if "worker_type" in job.auto else stats.worker_type)
        else:
            loader = Loader(job.with_workers(stats.workers_argument), stats.worker_type)
        with closing(loader):
            assert loader.spec is not None  # reads the first scenes
            assert loader.layout is not None
            self._layout = loader.layout
            chosen = loader.stats()
            self._scene_seconds = loader.scene_seconds  # so that tasks are as long as the feed's
        self._setup = Setup(chosen.workers_argument, chosen.worker_type)
        # This process reads the user's own object only if the feed does.
        self._apart = chosen.worker_type == "process" or "worker_type" in job.auto
        self._job = job.with_workers(self._setup.workers)
        # Read a copy here: reading may open files in the user's object, which could then not be pickled.
        self._here = dataclasses.replace(self._job, sequence=_copied(job.sequence))

    def profile(self) -> Profile:
        """Run all measurements."""
        # The feed's workers come first, so that a scene that crashes its process does not crash this one.
        with closing(self._run_of(self._setup)) as present:
            if present(0.0) is None:
                raise RuntimeError(_RAISED)
        cost = self._cost()
        if cost is None:
            raise RuntimeError(_RAISED)
        present_rate, *alternatives = self._rates(self._setups(*cost))
        if present_rate is None:
            raise RuntimeError(_RAISED)
        return Profile(
            type(self._job.sequence).__name__, present_rate, cost[0], max(0.0, cost[0] - cost[1]),
            tuple(each for each in alternatives if each is not None),
        )  # fmt: skip

    def _setups(self, seconds: float, busy: float) -> list[Setup]:
        """Return the present workers, then the alternatives."""
        count = cores()
        setups = []
        if processes_supported():
            setups = [Setup(processes_for(seconds, busy, count), "process"), Setup(count, "process")]
        if self._job.thread_safe or (self._setup.worker_type == "thread" and self._setup.workers > 1):
            setups.insert(int(not waits(seconds, busy)), Setup(threads_for(seconds, busy, count), "thread"))
        setups += [Setup(0, "inline"), Setup(1, "process" if processes_supported() else "thread")]
        if processes_supported():
            setups.append(Setup(2 * count, "process"))
        others = dict.fromkeys(setup for setup in setups if setup != self._setup)
        return [self._setup, *itertools.islice(others, _ALTERNATIVES)]

    def _cost(self) -> tuple[float, float] | None:
        """Measure a scene's wall and processor time, s; None if it raises."""
        seconds = max(0.2, 0.1 * self._seconds)
        job = self._here.with_workers(0)
        job, layout = smaller_batches(job, self._layout, seconds / max(self._scene_seconds, 1e-9))
        scenes, took, busy = 0, 0.0, 0.0
        with closing(Loader(job, "inline", layout)) as loader:
            try:
                loader.submit(0, 0).result()  # opens files
                watch = ThreadWatch(whole_process=True)  # libraries may start threads
                end = time.perf_counter() + seconds
                for step in range(1, job.plan.steps) if job.plan.steps > 1 else (0,):
                    watch.restart()
                    loader.submit(0, step).result()
                    times = watch.look()
                    scenes += job.plan.indices(0, step).size
                    took, busy = took + times.own_seconds, busy + times.cpu_seconds
                    if time.perf_counter() > end:
                        break
            except Exception:  # noqa: BLE001 - a loop over the feed raises it again
                return None
        return took / scenes, busy / scenes

    def _run_of(self, setup: Setup) -> "_Run":
        expected = max(1, setup.workers) / max(self._scene_seconds, 1e-9)
        job = self._here if self._apart and setup.worker_type != "process" else self._job
        job, layout = smaller_batches(job, self._layout, expected * self._run_seconds)
        return _Run(job, setup, layout, self._scene_seconds)

    @property
    def _run_seconds(self) -> float:
        return max(0.1, 0.6 * self._seconds / (_RUNS * (1 + _ALTERNATIVES)))

    def _rates(self, setups: list[Setup]) -> list[SetupRate | None]:
        """Measure each set-up in turns; None if a scene raises."""
        with ExitStack() as stack:
            runs = []
            for setup in setups:
                try:
                    runs.append(stack.enter_context(closing(self._run_of(setup))))
                except (TypeError, OSError):  # the sequence does not pickle
                    continue
            for run in runs:
                run(0.0)  # opens files
            rates = [[run(self._run_seconds) for run in runs] for _ in range(_RUNS)]
        results: list[SetupRate | None] = []
        for run, *each in zip(runs, *rates, strict=True):
            known = [rate for rate in each if rate is not None]
            results.append(SetupRate(run.setup, min(known), max(known)) if len(known) == _RUNS else None)
        return results


def _copied(sequence: Any) -> Any:
    """Copy `sequence`, sharing large arrays; return it if that fails."""
    try:
        return copy_as_sent(sequence, shares=True)
    except Exception:  # noqa: BLE001 - pickling may raise anything
        return sequence


class _Run:
    """Workers that load batches of epoch 0 in turns.

    Attributes:
        setup: The workers.
    """

    def __init__(self, job: Job, setup: Setup, layout: Layout, scene_seconds: float) -> None:
        self.setup = setup
        self._rows = job.plan.rows
        self._late = max(1, math.ceil(setup.workers / job.plan.rows))  # batches that arrive together when workers start
        self._steps = itertools.cycle(range(job.plan.steps))
        self._loader = Loader(job.with_workers(setup.workers), setup.worker_type, layout, scene_seconds=scene_seconds)
        self.close = self._loader.close
        if setup.worker_type == "process":
            self._loader.start()

    def __call__(self, seconds: float) -> float | None:
        """Load for `seconds`; return scenes/s, or None if a scene raises."""
        pending: deque[Any] = deque()
        try:
            pending.extend(self._submitted() for _ in range(self._loader.look_ahead))
            for _ in range(self._late):
                pending.popleft().result()
                pending.append(self._submitted())
            count, begun, now = 0, time.perf_counter(), 0.0
            while now - begun < seconds or not count:
                pending.popleft().result()
                pending.append(self._submitted())
                count, now = count + 1, time.perf_counter()
            return count * self._rows / (now - begun)
        except Exception:  # noqa: BLE001 - a loop over the feed raises it again
            return None
        finally:
            for future in pending:
                future.cancel()

    def _submitted(self) -> Any:
        return self._loader.submit(0, next(self._steps))


def smaller_batches(job: Job, layout: Layout, scenes: float) -> tuple[Job, Layout]:
    """Shrink batches, so that a run has at least 16 batches.

    Only slow scenes need this, so the cost per batch does not matter.
    """
    size = max(1, int(scenes / 16))
    plan = job.plan
    if plan.batch_size is None or size >= plan.batch_size or job.maker or not plan.batches.is_even:
        return job, layout
    plan = dataclasses.replace(plan, batch_size=size, drop_remainder=False, shard_index=0, shard_count=1)
    return dataclasses.replace(job, plan=plan), dataclasses.replace(layout, rows=plan.rows)
