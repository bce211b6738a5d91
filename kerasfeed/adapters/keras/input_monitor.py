"""`InputMonitor`: a Keras callback that measures how long training waits.

Invariant: during training the callback only records times, never waits and never makes Keras wait. The result is a
frozen snapshot per epoch, with the same figures in `logs`.
"""

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import keras

from kerasfeed.adapters.keras.adapter import copied_callback
from kerasfeed.errors import FeedWarning
from kerasfeed.loaders.auto_workers import Setup
from kerasfeed.loaders.base import LoaderStats
from kerasfeed.orders.plan import Plan
from kerasfeed.util.deferred_warnings import warn_caller
from kerasfeed.util.error_text import pluralize

if TYPE_CHECKING:
    from kerasfeed.adapters.keras.feed import Feed

_NOTABLE = 0.2  # share of an epoch; a larger wait is printed


@dataclass(frozen=True)
class EpochTiming:
    """The speed of one epoch, and the time it waited for input.

    Attributes:
        epoch: Keras's number of the epoch, from 0.
        steps: Batches trained on.
        scenes: Scenes in those batches; batches, if the feed has `batch_size=None`.
        seconds: Time from the beginning of the epoch to the end of its last step, without validation, s.
        wait_seconds: Time within `seconds` that steps were ready to begin but their batches were not, s.
    """

    epoch: int
    steps: int
    scenes: int
    seconds: float
    wait_seconds: float

    @property
    def scenes_per_second(self) -> float:
        """Scenes trained on per second, 1/s."""
        return self.scenes / self.seconds if self.seconds else 0.0

    @property
    def input_wait_share(self) -> float:
        """Share of the epoch that training waited for input, in [0, 1]."""
        return min(1.0, self.wait_seconds / self.seconds) if self.seconds else 0.0


class InputMonitor(keras.callbacks.Callback):  # type: ignore[misc]
    """Callback that reports scenes per second and waiting for input.

    Adds `scenes_per_second` and `input_wait_share` to the `logs` of each epoch, so that the progress bar and `History`
    show them. Put this callback before callbacks that read these logs, such as `CSVLogger`. Works with `fit(feed)` on
    every backend, and with `fit(feed.to_tf_dataset(), shuffle=False)` if no later transformation (`batch`, `filter`,
    `shuffle`) changes the batches.

    The wait for a batch begins when the previous step has been computed and Keras requests the batch; it ends when the
    batch has been loaded. With several steps per execution the share is an upper limit. The first epoch includes
    compiling the model.

    After each epoch, `verdict` says how long training waited. If training waited for more than a fifth of the epoch,
    the callback prints the verdict (later, only the share), except with `verbose=0`. `kerasfeed.profile` measures the
    reason and possible remedies. The `repr` has a line for each epoch.

    Args:
        feed: The feed that is passed to `fit`.

    Attributes:
        epochs: One [EpochTiming][kerasfeed.adapters.keras.input_monitor.EpochTiming] for each epoch trained, in order.
        verdict: How long the last epoch waited, in a sentence; empty before the end of the first epoch.

    Raises:
        TypeError: `feed` is not a feed.

    Warns:
        FeedWarning: `fit` does not use `feed`.

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

    # Lets Keras call `on_train_batch_end` from another thread when the results of a step are ready, without making
    # training wait for them. The method records when the device finished; a lock guards the recorded time.
    async_safe = True

    def __init__(self, feed: "Feed") -> None:
        super().__init__()
        if not hasattr(feed, "request_log"):
            raise TypeError(f"InputMonitor(feed) needs the feed passed to fit, received a {type(feed).__name__}")
        self.feed = feed
        self.epochs: list[EpochTiming] = []
        self.verdict = ""
        self._pending_text = ""
        self._has_printed = False  # whether the full verdict was printed
        self._has_seen = False  # whether a batch of the feed was used
        self._lock = threading.Lock()
        self._steps_an_execution = 1
        self._reset(time.perf_counter())

    def __deepcopy__(self, memo: dict[int, Any]) -> "InputMonitor":
        made: InputMonitor = copied_callback(self, memo, self.feed, self._lock)
        return made

    def _reset(self, now: float) -> None:
        self._began = now
        self._over: float | None = None
        self._device_done = now  # when the device finished the last execution
        self._steps = 0
        self._wait = 0.0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras; resets the measurements."""
        self.epochs, self.verdict, self._pending_text, self._has_printed, self._has_seen = [], "", "", False, False
        self._steps_an_execution = int(getattr(self.model, "steps_per_execution", 1))

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras."""
        self._print_pending()
        self._reset(time.perf_counter())

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras when the results of step `batch` are ready."""
        now = time.perf_counter()
        log, plan = self.feed.request_log, self.feed.plan
        with self._lock:
            first = batch - batch % self._steps_an_execution
            if first < self._steps:
                return
            last = first + self._steps_an_execution
            if self.params and self.params.get("steps"):
                last = min(last, self.params["steps"])
            received = [moment for step in range(first, last) if (moment := log.finished(step)) is not None]
            self._has_seen |= bool(received)
            if first == self._steps:  # otherwise the end of an earlier execution was not reported
                # If the device was still busy with the previous step, the batch was in time.
                # The first step of a training compiles the model before it requests a batch.
                begin = max(self._device_done, log.begun(first) or self._device_done)
                self._wait += max(0.0, min(now, max(received, default=begin)) - begin)
            self._device_done = now
            self._steps = last if plan.length else first + max(1, len(received))

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras before validation, whose time is not counted."""
        if self._over is None:
            self._over = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras after validation, and after every `on_train_batch_end`."""
        over = time.perf_counter() if self._over is None else self._over
        if self._steps and not self._has_seen:
            self._has_seen = True  # warned
            warn_caller(
                "fit does not use the feed of InputMonitor, so it cannot measure how long training "
                "waits: pass the same feed to both",
                FeedWarning,
            )
        timing = EpochTiming(epoch, self._steps, scenes_of(self.feed.plan, self._steps), over - self._began, self._wait)
        self.epochs.append(timing)
        self.verdict = verdict_of(timing, self.feed.stats())
        if timing.input_wait_share > _NOTABLE and self.params and self.params.get("verbose"):
            self._pending_text = wait_text(timing) if self._has_printed else self.verdict
            self._has_printed = True
        if logs is not None:
            logs["scenes_per_second"] = timing.scenes_per_second
            logs["input_wait_share"] = timing.input_wait_share

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras."""
        self._print_pending()

    def _print_pending(self) -> None:
        """Print the verdict between the lines of Keras's progress bar."""
        if self._pending_text:
            print(f"kerasfeed: {self._pending_text}")
            self._pending_text = ""

    def __repr__(self) -> str:
        lines = [
            f"epoch {each.epoch}: {pluralize(each.steps, 'step')}, {each.scenes_per_second:,.0f} scenes/s, waited "
            f"{each.input_wait_share:.0%} for input"
            for each in self.epochs
        ]
        return "\n".join([f"InputMonitor of {self.feed!r}", *(f"  {line}" for line in lines)])


def wait_text(timing: EpochTiming) -> str:
    """Describe how long an epoch waited."""
    return f"training waited {timing.input_wait_share:.0%} of epoch {timing.epoch} for input"


def verdict_of(timing: EpochTiming, stats: LoaderStats) -> str:
    """Describe how long an epoch waited, and compare the speeds.

    Args:
        timing: Timing of the epoch.
        stats: Statistics of the feed.
    """
    waited_text = wait_text(timing)
    training = timing.seconds - timing.wait_seconds
    if timing.input_wait_share <= _NOTABLE or training <= 0:
        return waited_text
    return (
        f"{waited_text}: {Setup(stats.workers_argument, stats.worker_type)} loaded {timing.scenes_per_second:,.0f} "
        f"scenes/s, and training could take {timing.scenes / training:,.0f}. kf.profile(feed) measures why, and "
        "what would help"
    )


def scenes_of(plan: Plan, steps: int) -> int:
    """Count the scenes in the first `steps` steps, without padding rows."""
    if plan.batch_size is None:
        return steps
    if not plan.length:  # a stream, whose last batch may be short
        return steps * plan.rows
    if not plan.batches.is_even:  # batches of any size anywhere
        return round(steps * plan.batches.kept / (plan.batches.steps * plan.shard_count))
    epochs = steps // plan.steps  # complete epochs, whose last batch may be short
    # Keras shuffles steps, so the steps that an unfinished epoch left out are unknown. Most likely they are full
    # batches.
    return (steps - epochs) * plan.rows + epochs * plan.scenes_of(0, plan.steps - 1)
