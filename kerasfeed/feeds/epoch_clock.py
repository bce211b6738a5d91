"""`EpochClock`: a feed's position in the sequence of all its epochs.

Invariant: a batch has one number, `epoch * steps + step`, whichever consumer takes it. A consumer takes numbers when it
begins, before a batch is loaded, so batches loaded ahead cannot change them. The next consumer begins after them.
"""

import threading
from dataclasses import dataclass
from typing import Any

from kerasfeed.orders.base import Shuffled

_ONLY_THE_CONSUMER_KNOWS = (
    "only the consumer knows which batch is next: it uses a dataset of the feed, or an exception ended its fit. Pass "
    "the position of the next batch, feed.get_state(epoch=..., step=...), or use kf.FeedCheckpoint in fit"
)
_APART = (
    "a loop over feed.epoch(n) does not change the position of the feed. Loop over the feed itself (`for batch in "
    "feed`), or pass the position of the next batch, feed.get_state(epoch=n, step=...)"
)


@dataclass(frozen=True)
class FitPlan:
    """The batches of each epoch of one `fit`.

    Attributes:
        initial_epoch: Keras's number of its first epoch, at least 0.
        start: Number of the first batch.
        first: Batches of the first epoch, in [1, steps]: fewer than `steps` if it is resumed.
        steps: Batches of every other epoch, at least 1.
    """

    initial_epoch: int
    start: int
    first: int
    steps: int

    def numbers(self, epoch: int) -> range:
        """Return the numbers of the batches of one epoch of the `fit`."""
        stop = self.start + self.first + max(0, epoch - self.initial_epoch) * self.steps
        return range(max(self.start, stop - self.steps), stop)


class EpochClock:
    """The position of a feed. Thread-safe.

    Attributes:
        steps: Batches in an epoch of the feed.
        current: Epoch of `feed[step]`.
        taken: Number of the first batch that no consumer has taken.
        consumed: Number of the batch after the last one that is known to be consumed; None if only the consumer knows.
        shuffled: Whether the last consumer shuffles the steps of an epoch.
    """

    def __init__(self, steps: int, seed: int = 0) -> None:
        self._seed = seed
        self._lock = threading.RLock()
        self._begin_with(0, steps)

    def _begin_with(self, epoch: int, steps: int) -> None:
        self.steps = steps
        self.shuffled = False
        self.consumed: int | None = None
        self._apart: Any = None  # the unfinished loop over `feed.epoch(n)`, if it received the last batch
        self.resume(epoch * steps)
        self._within = False  # whether the next consumer may begin in the middle of an epoch

    def position(self, number: int, *, shuffled: bool = False) -> tuple[int, int]:
        """Return epoch and step of batch `number`.

        With `shuffled`, the consumer takes the steps of an epoch in random order; see `is_shuffled`.
        """
        epoch, step = divmod(number, self.steps)
        if self.is_shuffled(number, shuffled):
            step = int(Shuffled().indices(step, step + 1, length=self.steps, seed=self._seed, epoch=epoch)[0])
        return epoch, step

    def is_shuffled(self, number: int, wanted: bool) -> bool:
        """Whether the steps of the epoch of batch `number` are shuffled.

        A resumed epoch keeps its order of steps; any other epoch follows `wanted`.
        """
        resumed = self._resumed
        return resumed[1] if resumed is not None and resumed[0] == number // self.steps else wanted

    # ---- the next consumer

    @property
    def next_free(self) -> int:
        """Number of the first batch that the next consumer gets."""
        with self._lock:
            return self.taken if self._within else -(-self.taken // self.steps) * self.steps

    def claim(self, count: int) -> range:
        """Take the next batches for a dataset; return their numbers.

        A dataset does not report how many of them were consumed.
        """
        with self._lock:
            first = self.next_free
            self._take(range(first, first + count))
            self._within = first % self.steps > 0  # iterations follow each other
            return range(first, first + count)

    def claim_epochs(self, epochs: int = 1) -> range:
        """Take the batches of the next epochs for a loop; return their numbers.

        The first may be the rest of a resumed epoch.
        """
        with self._lock:
            consumed, first = self.consumed, self.next_free
            numbers = range(first, (first // self.steps + epochs) * self.steps)
            self._take(numbers)
            self.consumed = consumed  # until the loop receives its first batch
            return numbers

    def begin_fit(self, epoch: int, steps: int, *, shuffled: bool) -> FitPlan:
        """Move to the first batch of a `fit`; return its plan."""
        with self._lock:
            plan = self.plan_fit(epoch, steps)
            self.taken = plan.start
            self.current, step = divmod(plan.start, self.steps)
            self._within = self._within or step > 0
            self.shuffled = shuffled
            return plan

    def begin_fit_epoch(self, numbers: range, *, shuffled: bool) -> None:
        """Take the batches of an epoch of `fit`, from its plan."""
        with self._lock:
            self._take(numbers)
            self.shuffled = shuffled

    def _take(self, numbers: range) -> None:
        self.taken = numbers.stop
        self.current = numbers.start // self.steps
        self.consumed = None
        self._within = self.shuffled = False

    def plan_fit(self, epoch: int, steps: int) -> FitPlan:
        """Plan a `fit` that begins with `epoch`.

        The `fit` begins at that epoch, or at the first batch that no consumer has taken, if that batch is later.

        Args:
            epoch: Keras's number of the epoch.
            steps: Batches in each epoch of the `fit`.
        """
        with self._lock:
            start = epoch * steps
            if start >= self.taken:
                return FitPlan(epoch, start, steps, steps)
            start, first = self.next_free, steps
            if self._within:
                first = steps - start % steps if self._rest is None else self._rest
            return FitPlan(epoch, start, first, steps)

    def resume(self, number: int, *, shuffled: bool = False, rest: int | None = None) -> None:
        """Continue with batch `number`.

        Args:
            number: Its number.
            shuffled: Whether the steps of its epoch are shuffled, if some of them were consumed.
            rest: Remaining batches of its epoch of `fit`; None if the epochs of `fit` begin at multiples of their
                steps.
        """
        with self._lock:
            self.taken = self.consumed = number
            self.current, step = divmod(number, self.steps)
            self._within = True  # the next consumer begins at `taken`, even in the middle of an epoch
            self._resumed = (self.current, shuffled) if step else None
            self._rest = rest

    def change_steps(self, steps: int) -> bool:
        """Change the steps from the next epoch on.

        Return False if an unfinished epoch must be continued.
        """
        with self._lock:
            if self._within and self.taken % self.steps:
                return False
            self._begin_with(-(-self.taken // self.steps), steps)
            return True

    # ---- the consumed batches

    def record_consumed(self, number: int, epoch: int | None = None) -> None:
        """Record that the consumer has the batches before `number`.

        With `epoch`, the consumer is in that epoch.
        """
        with self._lock:
            self.consumed = number
            self._apart = None
            if epoch is not None:
                self.current = epoch

    def end_fit_epoch(self, number: int) -> None:
        """Record that an epoch of `fit` has ended before batch `number`."""
        self.record_consumed(number, -(-number // self.steps))

    def stop_fit_epoch(self, numbers: range, number: int) -> None:
        """Record that the `fit` that took `numbers` was stopped before batch `number`.

        Ignored if another consumer has begun.
        """
        with self._lock:
            if self.consumed is None and self.taken == numbers.stop:
                self.consumed = number

    def begin_apart(self, loop: Any) -> None:
        """Record that a loop over `feed.epoch(n)` has received a batch.

        Such a loop does not move the feed.
        """
        with self._lock:
            self._apart = loop

    def end_apart(self, loop: Any) -> None:
        """Record that this loop is over."""
        with self._lock:
            if self._apart is loop:
                self._apart = None

    def check_consumed(self) -> int:
        """Return the number of the batch after the last one consumed.

        Raises:
            RuntimeError: Only the consumer knows.
        """
        if self._apart is not None:
            raise RuntimeError(_APART)
        if self.consumed is None:
            raise RuntimeError(_ONLY_THE_CONSUMER_KNOWS)
        return self.consumed
