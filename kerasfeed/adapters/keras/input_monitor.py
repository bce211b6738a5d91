"""Keras callbacks that read a feed's measurements.

Invariant: a callback only notes moments while training runs, never waits and never makes Keras wait; what it
found is a frozen snapshot an epoch, and the same figures in `logs`.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import keras

from kerasfeed.loaders.base import LoaderStats
from kerasfeed.loaders.worker_choice import Setup
from kerasfeed.orders.plan import Plan
from kerasfeed.util.counted import counted

if TYPE_CHECKING:
    from kerasfeed.adapters.keras.feed import Feed

_NOTABLE = 0.2  # share of the first epoch that is told


@dataclass(frozen=True)
class EpochTiming:
    """How fast one epoch of training was, and how much of it was waiting.

    Attributes:
        epoch: Keras's number of the epoch, from 0.
        steps: Batches trained on.
        scenes: Scenes in those batches; batches, if the feed has `batch_size=None`.
        seconds: Time from the beginning of the epoch to the end of its last step, without validation, s.
        wait_seconds: Part of `seconds` in which a step could have begun but its batch was not there, s.
    """

    epoch: int
    steps: int
    scenes: int
    seconds: float
    wait_seconds: float

    @property
    def scenes_per_second(self) -> float:
        """Scenes trained on for each second, 1/s."""
        return self.scenes / self.seconds if self.seconds else 0.0

    @property
    def input_wait_share(self) -> float:
        """Share of the epoch that training waited for input, in [0, 1]."""
        return min(1.0, self.wait_seconds / self.seconds) if self.seconds else 0.0


def waited(begin: float, end: float, finished: Sequence[float | None]) -> float:
    """Seconds that one execution of consecutive steps waited for its batches.

    With one step this is the time from `begin` until the batch was there. With several, only the outer
    moments are known; the steps are taken to compute for equally long, which leaves one computing time that
    fits: the longest with which every step, begun once its batch is there and the step before is done, is
    over by `end`.

    Args:
        begin: Moment at which the execution could have begun, s.
        end: Moment at which it was over, s.
        finished: Moment at which each step's batch was there, s; None where it was there beforehand.

    Returns:
        Seconds, in [0, end - begin].
    """
    steps = len(finished)
    if not steps or end <= begin:
        return 0.0
    computing = (end - begin) / steps
    for step, moment in enumerate(finished):
        if moment is not None:
            computing = min(computing, (end - moment) / (steps - step))
    return (end - begin) - steps * max(0.0, computing)


class InputMonitor(keras.callbacks.Callback):  # type: ignore[misc]
    """Callback that reports scenes per second, and the share of time that training waited for input, for each epoch.

    Adds `scenes_per_second` and `input_wait_share` to `logs`, so that the progress bar and `History` show them. Put
    this callback before those that should see the two, such as `CSVLogger`. Works with `fit(feed)` on every backend,
    and with `fit(feed.to_tf_dataset(), shuffle=False)` if nothing after it (`batch`, `filter`, `shuffle`) changes which
    batch is which.

    The time waited for a batch begins when the step before it has been computed and Keras asks for the batch; it ends
    when the batch has been loaded. With several steps per execution on a backend that computes in the background (JAX),
    the share is an upper limit. The first epoch includes compiling the model.

    After each epoch, `verdict` says how long training waited in it; where it waited for more than a fifth of the epoch,
    that is printed (not with `verbose=0`). `kerasfeed.profile` measures why, and what would help. The `repr` has a line
    for each epoch.

    Args:
        feed: The feed that `fit` is given.

    Attributes:
        epochs: One [EpochTiming][kerasfeed.adapters.keras.input_monitor.EpochTiming] for each epoch trained, in order.
        verdict: What the last epoch of this training waited for, in a sentence; empty before the end of the first.

    Examples:
        >>> import keras
        >>> scenes = kf.Zip(np.zeros((8, 2), np.float32), np.zeros((8, 1), np.float32))
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        >>> model.compile("sgd", "mse")
        >>> with kf.Feed(scenes, batch_size=4, workers=0) as feed:
        ...     monitor = kf.InputMonitor(feed)
        ...     history = model.fit(feed, epochs=2, callbacks=[monitor], verbose=0)
        >>> [(epoch.steps, epoch.scenes) for epoch in monitor.epochs]
        [(2, 8), (2, 8)]
        >>> sorted(history.history)
        ['input_wait_share', 'loss', 'scenes_per_second']
    """

    # Keras may then call `on_train_batch_end` from another thread, once the step's results are there, instead of
    # making training wait for them; so what is noted there is when the device was done, and is noted under a lock.
    async_safe = True

    def __init__(self, feed: "Feed") -> None:
        super().__init__()
        self.feed = feed
        self.epochs: list[EpochTiming] = []
        self.verdict = ""
        self._to_tell = ""
        self._told = False  # whether the reasons were
        # PyTorch's trainer takes a batch before `on_train_batch_begin`, the others take it after.
        self._taken_before_step = keras.backend.backend() == "torch"
        self._lock = threading.Lock()
        self._steps_an_execution = 1
        self._reset(time.perf_counter())

    def _reset(self, now: float) -> None:
        self._began = now
        self._over: float | None = None
        self._pending: tuple[float, int] | None = None
        self._free, self._done = now, -1
        self._steps = 0
        self._wait = 0.0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras; forgets an earlier training."""
        self.epochs, self.verdict, self._to_tell, self._told = [], "", "", False
        self._steps_an_execution = int(getattr(self.model, "steps_per_execution", 1))

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras."""
        self._tell()
        self._reset(time.perf_counter())

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras; `batch` is the first step of an execution."""
        now = time.perf_counter()
        with self._lock:
            if not self._taken_before_step:
                before = self._pending
                self._account_execution(before, now)
                # A feed has been waited for already, a dataset is waited for from now on.
                self._pending = (min(self._free, now), batch)
                return
            begin = max(self._free, self.feed.request_log.begun(batch) or self._free)
            there = self.feed.request_log.finished(batch) or begin
            self._account(max(0.0, there - begin) if self._done >= batch - 1 else 0.0, batch + 1)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras; `batch` is the last step of an execution, whose results are there."""
        now = time.perf_counter()
        with self._lock:
            if self._pending is not None and self._pending[1] + self._steps_an_execution - 1 == batch:
                before, self._pending = self._pending, None
                self._account_execution(before, now)
            if batch > self._done:
                self._free, self._done = now, batch

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras before it validates, which is not training."""
        if self._over is None:
            self._over = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras after validation, and after every `on_train_batch_end`."""
        over = time.perf_counter() if self._over is None else self._over
        with self._lock:
            before, self._pending = self._pending, None
            if self.feed.plan.length or (before and self.feed.request_log.finished(before[1]) is not None):
                self._account_execution(before, over)  # else the stream has ended, and there was no such step
        timing = EpochTiming(epoch, self._steps, scenes_of(self.feed.plan, self._steps), over - self._began, self._wait)
        self.epochs.append(timing)
        self.verdict = verdict_of(timing, self.feed.stats())
        if timing.input_wait_share > _NOTABLE and self.params and self.params.get("verbose"):
            self._to_tell = wait_text(timing) if self._told else self.verdict
            self._told = True
        if logs is not None:
            logs["scenes_per_second"] = timing.scenes_per_second
            logs["input_wait_share"] = timing.input_wait_share

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras."""
        self._tell()

    def _tell(self) -> None:
        """Print the verdict, between the lines of Keras's progress bar."""
        if self._to_tell:
            print(f"kerasfeed: {self._to_tell}")
            self._to_tell = ""

    def __repr__(self) -> str:
        lines = [
            f"epoch {each.epoch}: {counted(each.steps, 'step')}, {each.scenes_per_second:,.0f} scenes/s, waited "
            f"{each.input_wait_share:.0%} for input"
            for each in self.epochs
        ]
        return "\n".join([f"InputMonitor of {self.feed!r}", *(f"  {line}" for line in lines)])

    def _account_execution(self, execution: tuple[float, int] | None, end: float) -> None:
        """Account for an execution (moment of its beginning, first step) that is over at `end`."""
        if execution is None:
            return
        begin, first = execution
        finished = self._finished(first)
        # Where the device is not done with the step before, the batch was there in time.
        # The first step of a training compiles the model before it asks for a batch.
        begin = max(begin, self._free, self.feed.request_log.begun(first) or begin)
        wait = waited(begin, end, finished) if self._done >= first - 1 else 0.0
        self._account(wait, first + len(finished))

    def _account(self, wait: float, steps: int) -> None:
        self._wait += wait
        self._steps = max(self._steps, steps)

    def _finished(self, first: int) -> list[float | None]:
        """Moments at which the batches of the execution that begins with step `first` were there."""
        last = first + self._steps_an_execution
        if self.params and self.params.get("steps"):
            last = min(last, self.params["steps"])
        return [self.feed.request_log.finished(step) for step in range(first, last)]


def wait_text(timing: EpochTiming) -> str:
    """How long an epoch waited, in words."""
    return f"training waited {timing.input_wait_share:.0%} of epoch {timing.epoch} for input"


def verdict_of(timing: EpochTiming, stats: LoaderStats) -> str:
    """What an epoch waited for, in a sentence.

    Args:
        timing: Of the epoch.
        stats: Of the feed.
    """
    waited_text = wait_text(timing)
    training = timing.seconds - timing.wait_seconds
    if timing.input_wait_share <= _NOTABLE or training <= 0:
        return waited_text
    return (
        f"{waited_text}: {Setup(stats.workers_argument, stats.worker_type)} loaded {timing.scenes_per_second:,.0f} "
        f"scenes/s, and training could take {timing.scenes / training:,.0f}. kf.profile(feed, model) measures why, and "
        "what would help"
    )


def scenes_of(plan: Plan, steps: int) -> int:
    """Scenes of the first `steps` steps of a feed that has this plan, filler not counted."""
    if plan.batch_size is None:
        return steps
    if not plan.length:  # a stream, whose last batch may be short
        return steps * plan.rows
    if not plan.cut.is_even:  # short batches stand anywhere, of any size
        return round(steps * plan.cut.kept / (plan.cut.steps * plan.shard_count))
    epochs, rest = divmod(steps, plan.steps)
    # Keras shuffles steps: which ones an unfinished epoch left out is unknown, most likely full batches.
    return epochs * plan.scenes_an_epoch + rest * plan.rows
