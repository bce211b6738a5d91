"""`kf.profile`: where the time of a feed goes, and what would change it.

Invariant: everything is measured with loaders of its own, which make batches as the feed's workers would, and are
closed: the feed stays where it is, its sequence is told of no epoch, and the model is put back. An error of a scene
ends a measurement and reaches nobody.
"""

import dataclasses
import itertools
import math
import time
from collections import deque
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Any

from kerasfeed.explore.profiling.profile import LITTLE, Prediction, Profile, recommended, verdict
from kerasfeed.explore.profiling.scene_cost import SceneCost
from kerasfeed.loaders.auto_workers import Setup, Trial, processes_for, threads_for, waits
from kerasfeed.loaders.base import Job
from kerasfeed.loaders.batches.layout import Layout
from kerasfeed.loaders.loader import Loader, make_loader
from kerasfeed.pool.processes.pool import processes_supported
from kerasfeed.pool.processes.shared_objects import copy_as_sent
from kerasfeed.sequences.cached import Cached, gives_the_same_twice
from kerasfeed.sequences.frames import is_in_memory
from kerasfeed.sequences.optional_methods import ahead_reader, scene_writer
from kerasfeed.sequences.patches import is_of_boxes
from kerasfeed.sequences.view_base import SceneByScene, View, part_reader
from kerasfeed.util.read_cost import ReadCost
from kerasfeed.util.report import bytes_text
from kerasfeed.util.resources import cores, memory
from kerasfeed.util.thread_times import ThreadWatch

if TYPE_CHECKING:
    from kerasfeed.feeds.base import BaseFeed

_SHOWN = 6  # setups that are compared
_TRIED = 3  # setups that are measured, beside the feed's own
_MEMORY_SHARE = 2  # half of the memory may hold scenes
_SLOW = 5.0  # times slower to read than to write into the batch: then a cache pays
_CACHED_SECONDS = 2e-6  # to get a scene from one
_RUNS, _MOST_RUNS, _FASTER = 3, 9, 1.1  # of a trial
_RAISED = "a scene raised while the feed was profiled: loop over the feed to see what and where"


def profile(feed: "BaseFeed", model: Any = None, seconds: float = 10.0) -> Profile:
    """Measure where the time of a feed goes, and what other workers, files or batches would bring.

    Scenes of epoch 0 are read: by the workers of the feed, by the calling thread (its processor time tells how long a
    scene waits), and by one worker process. The best of the other set-ups are tried. Several threads read only where
    the feed has them, or the class says `thread_safe = True` (what does not overlap then holds the GIL). Where runs of
    one set-up scatter, the slowest and the quickest are told. With a model, training steps are timed with one batch
    again and again, and with batches as they come. All of it happens beside the feed: its position, its counters and
    the model stay as they are. Figures are of this machine with what else it was doing; so they are where the feed has
    `hosts`.

    Args:
        feed: A `kerasfeed.Feed`.
        model: A compiled Keras model that the feed is to train; None measures the feed alone.
        seconds: About how long it may take, s, at least 1; a scene that has begun is waited for.

    Returns:
        A [Profile][kerasfeed.explore.profiling.profile.Profile]. Text and notebook show it as tables with bars;
        `verdict` is the one sentence, `to_dict()` gives all figures.

    Raises:
        TypeError: `feed` is not a `kerasfeed.Feed`.
        ValueError: `seconds` is below 1, or the model is not compiled.
        RuntimeError: A scene raised, and the feed has `on_error="raise"`, so that nothing could be measured.
        Exception: What the first scenes raised.

    Examples:
        >>> scenes = kf.Zip(np.zeros((64, 8), np.float32), np.zeros(64, np.float32))
        >>> with kf.Feed(scenes, batch_size=8, workers=2, worker_type="thread") as feed:
        ...     found = kf.profile(feed, seconds=1)
        >>> found.worker_type, found.rate > 0, [name for name, seconds in found.parts][0]
        ('thread', True, 'waiting')
    """
    if not (hasattr(feed, "plan") and hasattr(feed, "sequence") and hasattr(feed, "job")):
        raise TypeError(
            f"kf.profile(feed) needs a kerasfeed.Feed, received a {type(feed).__name__}. Put what can be indexed into "
            "one, kf.Feed(sequence, batch_size); what fit waits for with a stream tells kf.InputMonitor(feed)"
        )
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 1 <= seconds < math.inf:
        raise ValueError(f"seconds must be a number of at least 1, received {seconds!r}")
    # Scenes that fail are treated as the feed does, but counted and logged by nobody.
    policy = dataclasses.replace(feed.job.policy, max_failures=1.0, error_log=None)
    job = dataclasses.replace(feed.job, policy=policy, hosts=None)
    return _Measurement(job, feed.stats(), model, seconds).profile()


class _Measurement:
    """One profile: a job, and how long each part of it may take."""

    def __init__(self, job: Job, stats: Any, model: Any, seconds: float) -> None:
        self._began = time.perf_counter()
        self._seconds = seconds
        self._model = model
        self._rates: dict[Setup, tuple[float, float] | None] = {}
        self._scale = 1.0  # measured rate of the feed's workers, over the rate that the cost of a scene predicts
        if job.free and not stats.chosen:
            loader = make_loader(job, "auto" if "worker_type" in job.free else stats.worker_type)
        else:
            loader = Loader(job.with_workers(stats.workers_argument), stats.worker_type)
        with closing(loader):
            assert loader.spec is not None  # which has the first scenes read
            assert loader.layout is not None
            self.layout = loader.layout
            chosen = loader.stats()
            self._scene_seconds = loader.scene_seconds  # so that a trial hands scenes out as the feed does
        self.setup = Setup(chosen.workers_argument, chosen.worker_type)
        self.job = job.with_workers(self.setup.workers)
        # What this process reads is a copy: files that the user's own would hold open may keep that from being pickled.
        self._here = dataclasses.replace(self.job, sequence=_copied(job.sequence))
        self.rows = job.plan.rows
        self._safe = job.thread_safe or (self.setup.worker_type == "thread" and self.setup.workers > 1)

    def profile(self) -> Profile:
        """All of it."""
        # By the feed's workers first: where a scene ends its process, it is one of theirs.
        rates = self._rate(self.setup, 0.12, max(1, self.setup.workers) / max(self._scene_seconds, 1e-9))
        seconds = max(0.3, min(2.0, 0.15 * self._seconds))
        measured = None if rates is None else measured_cost(self._here, self.layout, seconds, self._scene_seconds)
        if rates is None or measured is None:
            raise RuntimeError(_RAISED)
        least, rate = rates
        cost, read_costs = self._with_threads(measured[0]), measured[1]
        self._scale = rate / self._expected(cost, self.setup)
        transport = self._transport(cost)
        step = self._step()
        training, share = (None, None) if step is None else (self.rows / step, self._wait_share())
        predictions = self._predictions(cost, read_costs, rate, training)
        best = None if share is not None and share < LITTLE else recommended(predictions)
        while best is not None and best.setup is not None and not best.measured:  # there was no time
            tried = [self._tried(option, rate) if option is best else option for option in predictions]
            predictions = _ranked(tried, training)
            best = recommended(predictions)
        return Profile(
            type(self.job.sequence).__name__, self.setup.workers, self.setup.worker_type, self.rows, rate, cost,
            transport, step, share, tuple(predictions), best,
            verdict(cost, self.setup, rate, training, share, best), least,
        )  # fmt: skip

    # ---- the parts

    def _rate(self, setup: Setup, share: float, expected: float) -> tuple[float, float] | None:
        """Scenes/s of the slowest and the quickest run of a trial, which is made once, and takes a share of the time.

        About so many are expected.
        """
        if setup not in self._rates:
            seconds = max(0.2, share * self._seconds)
            apart = self.setup.worker_type == "process"  # of such a feed nothing is read in this process
            job = self._here if apart and setup.worker_type == "thread" else self.job
            job, layout = smaller_batches(job, self.layout, expected * seconds)
            self._rates[setup] = trial(job, setup, layout, seconds=seconds, scene_seconds=self._scene_seconds)
        return self._rates[setup]

    def _with_threads(self, cost: SceneCost) -> SceneCost:
        """The cost, and how far apart scenes that compute come where as many threads as cores read, if several may."""
        if not self._safe or cost.cores < 2 or waits(cost.seconds, cost.cpu_seconds):
            return cost
        rates = self._rate(Setup(cost.cores, "thread"), 0.08, 1 / cost.total_seconds)
        return cost if rates is None else dataclasses.replace(cost, threads=cost.cores, apart_seconds=1 / rates[1])

    def _transport(self, cost: SceneCost) -> float | None:
        if not processes_supported() or is_in_memory(self.job.sequence):
            return None
        rates = self._rate(Setup(1, "process"), 0.06, 1 / cost.total_seconds)
        return None if rates is None else max(0.0, 1 / rates[1] - cost.total_seconds)

    def _expected(self, cost: SceneCost, setup: Setup) -> float:
        return self._scale * cost.predict(setup.workers, setup.worker_type, self.rows)

    def _loader(self) -> Loader:
        return Loader(self.job, self.setup.worker_type, self.layout, scene_seconds=self._scene_seconds)

    def _step(self) -> float | None:
        if self._model is None:
            return None
        from kerasfeed.adapters.keras.step_time import step_seconds, train_on  # imports Keras

        train_on(self._model)  # refuses one that is not compiled
        begun = time.perf_counter()
        with closing(self._loader()) as loader:
            batch = loader.submit(0, 0).result()
        seconds = step_seconds(self._model, batch, 0.1 * self._seconds)
        # Tracing and compiling take what they take: it is not what there is to measure.
        self._began += max(0.0, time.perf_counter() - begun - 0.15 * self._seconds)
        return seconds

    def _wait_share(self) -> float:
        from kerasfeed.adapters.keras.step_time import wait_share

        with closing(self._loader()) as loader:
            # The batches of epoch 0, loaded ahead, again and again.
            futures = (loader.submit(0, step) for step in itertools.cycle(range(self.job.plan.steps)))
            pending = deque(itertools.islice(futures, loader.look_ahead))

            def next_batch() -> Any:
                batch = pending.popleft().result()
                pending.append(next(futures))
                return batch

            return wait_share(self._model, next_batch, 0.15 * self._seconds)

    # ---- what else there is

    def _predictions(
        self, cost: SceneCost, read_costs: list[ReadCost], rate: float, training: float | None
    ) -> list[Prediction]:
        count, total, busy = cost.cores, cost.total_seconds, cost.busy_seconds
        setups = [Setup(number, "thread") for number in (1, count, 4 * count, threads_for(total, busy, count))]
        if processes_supported():
            setups += [Setup(number, "process") for number in (1, count, 2 * count, processes_for(total, busy, count))]
        rates = {setup: self._expected(cost, setup) for setup in setups if setup != self.setup}
        # Of those that differ by less than a tenth, fewer workers first.
        ordered = sorted(rates, key=lambda setup: (-round(10 * math.log(rates[setup])), setup.workers))
        # Threads that nobody has asked for are predicted, and not tried: the class may not be made for them.
        safe = {setup: self._safe or setup.worker_type == "process" or setup.workers == 1 for setup in ordered}
        tried = [setup for setup in ordered if safe[setup]][:_TRIED]
        predictions = []
        for setup in ordered[:_SHOWN]:
            predicted = Prediction(
                f'workers={setup.workers}, worker_type="{setup.worker_type}"', rates[setup], rates[setup] / rate,
                note="" if safe[setup] else "if several threads may read the class at once", remedy=safe[setup],
                setup=setup,
            )  # fmt: skip
            # One is tried on a busy machine, too; some were for what scenes cost.
            tries = setup in self._rates or (setup in tried and (setup == tried[0] or self._has_time()))
            predictions.append(self._tried(predicted, rate) if tries else predicted)
        return _ranked([*predictions, *remedies(self._here, self.setup, cost, read_costs, rate)], training)

    def _tried(self, predicted: Prediction, rate: float) -> Prediction:
        """The same with what a trial has found."""
        assert predicted.setup is not None
        rates = self._rate(predicted.setup, 0.08, predicted.rate)
        if rates is None:  # a scene raised
            return dataclasses.replace(predicted, remedy=False)
        least, most = rates
        return dataclasses.replace(predicted, rate=most, gain=most / rate, measured=True, least=least)

    def _has_time(self) -> bool:
        return time.perf_counter() - self._began < 0.85 * self._seconds


def _copied(sequence: Any) -> Any:
    """A copy that shares large arrays; the sequence itself where it cannot be copied."""
    try:
        return copy_as_sent(sequence, shares=True)
    except Exception:  # noqa: BLE001 - the user's, as pickling may raise anything
        return sequence


def _ranked(predictions: list[Prediction], training: float | None) -> list[Prediction]:
    """The best first, with what each leaves of the waiting of a model that trains on so many scenes/s."""
    ranked = sorted(predictions, key=lambda option: -option.rate)
    if training is None:
        return ranked
    return [dataclasses.replace(option, wait_share=max(0.0, 1 - option.rate / training)) for option in ranked]


# ---- measurements


class _Timed(SceneByScene):
    """A sequence of plain scenes, with the time that reading them took, s."""

    def __init__(self, sequence: Any) -> None:
        self._parts, self._lengths = (sequence,), (len(sequence),)
        self.seconds = 0.0

    def __getitem__(self, index: int) -> Any:
        begun = time.perf_counter()
        scene = self.sequence[index]
        self.seconds += time.perf_counter() - begun
        return scene


def measured_cost(
    job: Job, layout: Layout, seconds: float, scene_seconds: float
) -> tuple[SceneCost, list[ReadCost]] | None:
    """What a scene costs, and what reading each dataset does, found by loading batches of epoch 0 in this thread.

    Args:
        job: What is loaded.
        layout: Of a slot of it.
        seconds: How long, s, and at least two batches; the first, which opens files, does not count.
        scene_seconds: About how long a scene takes, s.

    Returns:
        The two; None where a scene raises.
    """
    job, layout = smaller_batches(job.with_workers(0), layout, seconds / max(scene_seconds, 1e-9))
    sequence, plan = job.sequence, job.plan
    methods = part_reader(sequence) or scene_writer(sequence) or ahead_reader(sequence)
    timed = None if methods or job.maker else _Timed(sequence)
    scenes, took, busy, collating = 0, 0.0, 0.0, 0.0
    loader = Loader(dataclasses.replace(job, sequence=sequence if timed is None else timed), "inline", layout)
    with closing(loader):
        try:
            loader.submit(0, 0).result()
            watch, end = ThreadWatch(whole_process=True), time.perf_counter() + seconds  # libraries use threads, too
            for step in range(1, plan.steps) if plan.steps > 1 else (0,):
                reading = 0.0 if timed is None else timed.seconds
                watch.restart()
                loader.submit(0, step).result()
                times = watch.look()
                scenes += plan.indices(0, step).size
                took, busy = took + times.own_seconds, busy + times.cpu_seconds
                if timed is not None:  # delays are taken to hit both alike
                    reading = timed.seconds - reading
                    collating += max(0.0, 1 - reading / times.seconds) * times.own_seconds
                if time.perf_counter() > end:
                    break
        except Exception:  # noqa: BLE001 - whatever a scene raises, it will raise again where the user sees it
            return None
        read_costs = loader.read_costs()
    collating = min(collating, busy)
    cost = SceneCost(
        seconds=(took - collating) / scenes, cpu_seconds=max(0.0, busy - collating) / scenes,
        collate_seconds=collating / scenes, threads=1, apart_seconds=None,
        nbytes=sum(layout.row_bytes) if all(field.is_fixed for field in layout.spec.fields) else 0,
        scenes=scenes, cores=cores(),
    )  # fmt: skip
    return cost, read_costs


def trial(
    job: Job, setup: Setup, layout: Layout, *, seconds: float, scene_seconds: float = 0.0
) -> tuple[float, float] | None:
    """Scenes/s that workers reach once they are under way: of the slowest run and of the quickest.

    None where a scene raises, or such workers cannot be had.

    Args:
        job: What is loaded.
        setup: The workers.
        layout: Of a slot of it.
        seconds: How long, s; up to three times as long where they go on to get faster.
        scene_seconds: How long a scene takes, s, so that they are given as many at a time as those of the feed.
    """
    loader = Loader(job.with_workers(setup.workers), setup.worker_type, layout, scene_seconds=scene_seconds)
    with closing(loader), suppress(TypeError, OSError):  # the sequence does not pickle
        found = Trial(loader.submit, job.plan, setup.workers, loader.look_ahead)
        rates: list[float] = []
        while len(rates) < _MOST_RUNS and (rate := found.run(seconds / _RUNS)) is not None:
            rates.append(rate)
            if len(rates) >= _RUNS and rate < _FASTER * max(rates[:-1]):
                break
        return (min(rates[1 - _RUNS :]), max(rates)) if rates else None  # in the first of them all is new
    return None


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


# ---- what helps beside other workers: it is told only where it applies, with what it is expected to bring


def remedies(job: Job, setup: Setup, cost: SceneCost, read_costs: list[ReadCost], rate: float) -> list[Prediction]:
    """Other files, orders and caches that would bring something.

    Args:
        job: What the feed loads.
        setup: Its workers.
        cost: What a scene costs.
        read_costs: What reading each dataset costs.
        rate: Scenes/s that they load.
    """
    return [*_of_reading(job, cost, read_costs, rate), *_cached(job, setup, cost, rate)]


def _of_reading(job: Job, cost: SceneCost, read_costs: list[ReadCost], rate: float) -> list[Prediction]:
    if job.plan.order.is_sequential or is_in_memory(job.sequence):
        return []
    wasted = [
        read for read in read_costs
        if read.storage.unit == "chunk" and read.is_amplified and read.storage.nbytes > read.storage.cache_bytes
    ]  # fmt: skip
    if not wasted:
        return []
    worst = max(wasted, key=lambda each: each.seconds)
    spent = worst.seconds / worst.scenes  # s of decoding for each scene
    saved = spent * (1 - 1 / worst.amplification)
    gain = cost.total_seconds / max(cost.total_seconds - saved, cost.collate_seconds, 0.05 * cost.total_seconds)
    storage = worst.storage
    rows = max(1, round(worst.scene_bytes / storage.row_bytes))
    block = "sequence" if is_of_boxes(job.sequence) else max(1, storage.block_size // rows)
    decoded = f"{worst.amplification:.0f} times what the scenes hold is decoded"
    changes = [(f"kf.rechunk(path, out, {storage.short_name!r})", "writes a new file")]
    if job.plan.order.window is None:
        changes.append((f"order=kf.BlockShuffled({block})", "scenes of a chunk then stay near each other"))
    return [Prediction(change, gain * rate, gain, note=f"{decoded}; {note}") for change, note in changes]


def _cached(job: Job, setup: Setup, cost: SceneCost, rate: float) -> list[Prediction]:
    nbytes = cost.nbytes * job.plan.length
    if not nbytes or nbytes > memory() // _MEMORY_SHARE or is_in_memory(job.sequence) or _has_cache(job.sequence):
        return []
    if cost.seconds < _SLOW * max(cost.collate_seconds, _CACHED_SECONDS) or _is_random(job.sequence, job.plan.length):
        return []
    then = dataclasses.replace(
        cost, seconds=_CACHED_SECONDS, cpu_seconds=_CACHED_SECONDS, apart_seconds=None, threads=1
    )
    expected = then.predict(max(1, setup.workers), "thread", job.plan.rows)
    if expected <= rate:
        return []
    return [
        Prediction(
            "kf.Cached(sequence)", expected, expected / rate,
            note=f"with threads, from the second epoch on; takes {bytes_text(nbytes)}",
        )
    ]  # fmt: skip


def _has_cache(sequence: Any) -> bool:
    if isinstance(sequence, Cached):
        return True
    return isinstance(sequence, View) and any(map(_has_cache, sequence._parts))


def _is_random(sequence: Any, length: int) -> bool:
    """Whether scenes draw random numbers, or differ when they are read twice, and so must not be kept."""
    try:
        return not gives_the_same_twice(sequence, sorted({0, length // 2, length - 1}))
    except Exception:  # noqa: BLE001 - of one that draws; or the user's, and then there is nothing that could be kept
        return True
