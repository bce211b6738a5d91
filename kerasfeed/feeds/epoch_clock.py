"""The stream of a feed's batches: its epochs 0, 1, 2, ... one after the other, and who has taken which part of it.

Invariant: a batch has one number in the stream, `epoch * steps + step`, whoever takes it. What an epoch of `fit` takes
is a function of its number and of where the `fit` began, decided before its first batch is asked for, so nothing that
is loaded ahead can change it. What loops and `fit`s take begins where the one before ended.
"""

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kerasfeed.orders.base import Shuffled

_ONLY_THE_CONSUMER_KNOWS = (
    "only the consumer knows which batch is next: a dataset loads ahead, and a fit was ended by an error or takes a "
    "dataset made of the feed's. Say feed.get_state(epoch=..., step=...) of the next batch, or use kf.FeedCheckpoint "
    "in fit"
)
_APART = (
    "a loop over feed.epoch(n) does not move the feed, and set_state has no influence on such a loop. Loop over the "
    "feed itself (`for batch in feed`), or call feed.get_state(epoch=n, step=...) with the step of the next batch"
)


@dataclass(frozen=True)
class FitCut:
    """How the epochs of one `fit` follow each other in the stream.

    Attributes:
        initial_epoch: Keras's number of its first epoch, at least 0.
        start: Number of the first batch.
        first: Batches of the first epoch, in [1, steps]: fewer than `steps` where it was begun before.
        steps: Batches of every other epoch, at least 1.
    """

    initial_epoch: int
    start: int
    first: int
    steps: int

    def numbers(self, epoch: int) -> range:
        """The batches of one epoch of the `fit`, by their numbers."""
        stop = self.start + self.first + max(0, epoch - self.initial_epoch) * self.steps
        return range(max(self.start, stop - self.steps), stop)


class EpochClock:
    """Where a feed stands in its stream. Thread-safe.

    Attributes:
        steps: Batches in an epoch of the feed.
        current: Epoch of `feed[step]`.
        taken: Number of the first batch that nobody has taken.
        consumed: Number of the batch after the last one that is known to be consumed; None where only the consumer
            knows.
        fit_numbers: The batches of the running epoch of `fit`.
        fit_steps: Batches of a whole epoch of `fit`.
    """

    def __init__(self, steps: int, seed: int = 0) -> None:
        self._seed = seed
        self._lock = threading.RLock()
        self._begin_with(0, steps)

    def _begin_with(self, epoch: int, steps: int) -> None:
        """Nothing is taken yet of this epoch, nor of any behind it, which have so many steps."""
        self.steps = self.fit_steps = steps
        self.current = epoch
        self.taken = epoch * steps
        self.consumed: int | None = self.taken
        self._apart: Any = None  # the unfinished loop over `feed.epoch(n)`, if one received the last batch
        self.shuffled = False
        self.fit_numbers = range(self.taken, self.taken + steps)
        # Whether the next consumer begins at `taken` even in the middle of an epoch, and not with the next epoch.
        self._within = False
        self._resumed: tuple[int, bool] | None = None
        self._rest: int | None = None
        self._cut: FitCut | None = None
        self._fit: Callable[[], Any] = lambda: None  # Keras's iterator of the last fit
        self._fit_began = False

    def place(self, number: int, *, shuffled: bool = False) -> tuple[int, int]:
        """Epoch and step of batch `number`, where steps may be shuffled."""
        epoch, step = divmod(number, self.steps)
        if self.is_shuffled(number, shuffled):
            step = int(Shuffled().indices(step, step + 1, length=self.steps, seed=self._seed, epoch=epoch)[0])
        return epoch, step

    def is_shuffled(self, number: int, wanted: bool) -> bool:
        """Whether the steps of the epoch that batch `number` is part of are shuffled; a resumed one stays as it was."""
        resumed = self._resumed
        return resumed[1] if resumed is not None and resumed[0] == number // self.steps else wanted

    # ---- plain loops and datasets

    def claim_epoch(self, epochs: int = 1) -> range:
        """Take what is left of the epoch in which `taken` stands, or the next one: a plain loop; or several of them."""
        with self._lock:
            first = self.free
            self.current = first // self.steps
            self.taken = (self.current + epochs) * self.steps
            self._within = self.shuffled = False
            return range(first, self.taken)

    def claim(self, count: int) -> int:
        """Take the next `count` batches, for a consumer that does not say what it consumes; returns the first."""
        with self._lock:
            first = self.free
            self.taken = first + count
            self.current = first // self.steps
            self.consumed = None
            self.shuffled = False
            return first

    @property
    def free(self) -> int:
        """Number of the first batch that the next consumer gets."""
        with self._lock:
            return self.taken if self._within else -(-self.taken // self.steps) * self.steps

    def note_consumed(self, number: int, epoch: int | None = None) -> None:
        """The consumer has what comes before batch `number`; with `epoch`, it is in that epoch."""
        with self._lock:
            self.consumed = number
            self._apart = None
            if epoch is not None:
                self.current = epoch

    def note_apart(self, loop: Any) -> None:
        """A loop over `feed.epoch(n)`, which does not move the feed, has received a batch."""
        with self._lock:
            self._apart = loop

    def end_apart(self, loop: Any) -> None:
        """That loop is over."""
        with self._lock:
            if self._apart is loop:
                self._apart = None

    def check_consumed(self) -> int:
        """Number of the batch after the last one consumed.

        Raises:
            RuntimeError: Only the consumer knows.
        """
        if self._apart is not None:
            raise RuntimeError(_APART)
        if self.consumed is None:
            raise RuntimeError(_ONLY_THE_CONSUMER_KNOWS)
        return self.consumed

    def begin_other(self) -> None:
        """A trainer that is not Keras's `fit` begins an epoch."""
        with self._lock:
            self.fit_numbers = self.claim_epoch()

    def resume(self, number: int, *, shuffled: bool = False, rest: int | None = None) -> None:
        """Go on with batch `number`.

        Args:
            number: Its number.
            shuffled: Whether the steps of its epoch are shuffled, of which some have been consumed.
            rest: Batches left of the epoch of `fit` that it is part of; None where those begin at multiples of their
                steps.
        """
        with self._lock:
            self.taken = self.consumed = number
            self.current, step = divmod(number, self.steps)
            self._within = True
            self._resumed = (self.current, shuffled) if step else None
            self._rest = rest
            self._fit_began = False

    def change_steps(self, steps: int) -> bool:
        """Have epochs of so many steps from the next one on; False where one has been begun, and is to be gone on."""
        with self._lock:
            if self._within and self.taken % self.steps:
                return False
            self._begin_with(-(-self.taken // self.steps), steps)
            return True

    # ---- Keras's fit

    def prepare(self, fit: Any, initial_epoch: int, steps: int, *, shuffled: bool = False) -> None:
        """A `fit` is about to begin, or, having built its model on a first batch, to begin anew.

        Args:
            fit: Keras's iterator of it.
            initial_epoch: Number of its first epoch, as far as that is known.
            steps: Batches in each of its epochs.
            shuffled: Whether their steps are shuffled.
        """
        with self._lock:
            known = self._cut if self.serves(fit) else None
            if known is None:
                self._fit = weakref.ref(fit)
                self.fit_steps = steps
                known = self._plan(initial_epoch)
            self._fit_began = False
            self.shuffled = shuffled
            self._start(known)

    def begin(self, epoch: int, *, shuffled: bool = False) -> range:
        """The `fit` begins `epoch`, and takes the batches that are its own, which are returned."""
        with self._lock:
            numbers = self._enter(epoch, shuffled=shuffled)
            self.current = numbers.start // self.steps
            self.taken = numbers.stop
            self._within = False
            return numbers

    def follow(self, epoch: int, *, anew: bool) -> None:
        """The `fit` begins `epoch`, whose batches a dataset claims; in an iteration that begins with it, if `anew`."""
        with self._lock:
            numbers = self._enter(epoch, shuffled=False)
            if anew:
                self.rewind(numbers.start)

    def _enter(self, epoch: int, *, shuffled: bool) -> range:
        if not self._fit_began:
            self._start(self._plan(epoch))
            self._fit_began = True
        self.fit_numbers = self.numbers(epoch)
        self.consumed = None
        self.shuffled = shuffled
        return self.fit_numbers

    def rewind(self, number: int) -> None:
        """Go back to batch `number`, which a dataset is to claim."""
        with self._lock:
            self.taken = number
            self._within = True

    def end_within(self, numbers: range, number: int) -> None:
        """The `fit` that took `numbers` was stopped before batch `number`, if no other consumer has begun since."""
        with self._lock:
            if self.consumed is None and self.fit_numbers == numbers and self.taken == numbers.stop:
                self.consumed = number

    def end(self) -> None:
        """The epoch of `fit` is over, with all its batches."""
        with self._lock:
            self.consumed = self.fit_numbers.stop
            self.current = -(-self.consumed // self.steps)

    def numbers(self, epoch: int) -> range:
        """The batches of an epoch of the `fit` that runs."""
        return self.planned(epoch).numbers(epoch)

    def planned(self, epoch: int) -> FitCut:
        """The cut of the `fit` that runs, or, before its first epoch, of one that begins with `epoch`."""
        with self._lock:
            return self._cut if self._cut is not None and self._fit_began else self._plan(epoch)

    def serves(self, fit: Any) -> bool:
        """Whether `fit`, Keras's iterator, is the one that runs."""
        return fit is not None and self._fit() is fit

    def _start(self, cut: FitCut) -> None:
        self._cut = cut
        self.fit_numbers = cut.numbers(cut.initial_epoch)
        self.taken = cut.start
        self.current = cut.start // self.steps
        self._within = self._within or cut.start % self.steps > 0

    def _plan(self, epoch: int) -> FitCut:
        """A `fit` that begins with `epoch`: where Keras's number says, or at the first new batch if that is later."""
        steps = self.fit_steps
        start = epoch * steps
        if start >= self.taken:
            return FitCut(epoch, start, steps, steps)
        start, first = self.free, steps
        if self._within:
            first = steps - start % steps if self._rest is None else self._rest
        return FitCut(epoch, start, first, steps)
