"""The batches of a feed that one iteration of a `tf.data` dataset takes, and what loops over it consume.

Invariant: an iteration claims its batches when the first is asked for. A loop that begins within an epoch ends with it,
like a loop over the feed; what TensorFlow loaded beyond is given back to the feed.
"""

import contextvars
import weakref
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from kerasfeed.epochs import TimedTake
from kerasfeed.errors import FeedClosedError
from kerasfeed.keras_side import KerasSide, window_of
from kerasfeed.lookahead import Window
from kerasfeed.order import Sequential, Shuffled
from kerasfeed.order_blocks import BlockShuffled
from kerasfeed.parts import ahead_reader
from kerasfeed.taking import EndOfData, Taking

if TYPE_CHECKING:
    import tensorflow as tf


def dataset_of(feed: Any, count: int, device: str | None, *, in_order: bool) -> "tf.data.Dataset":
    """A dataset of the next `count` batches of `feed`, anew in each iteration; see `kerasfeed.Feed.to_tf_dataset`."""
    from kerasfeed.keras_dataset import dataset_for_keras

    loops = FeedLoops(feed, count, counted=in_order)
    begin = partial(begin_taking, feed, count, in_order)
    run_of = partial(feed.dataset_run, count, in_order)
    return dataset_for_keras(begin, feed, count=count, device=device, loops=loops, run_of=run_of)


def begin_taking(feed: Any, count: int, in_order: bool, context: contextvars.Context) -> Taking:
    """A taking of the next `count` batches of `feed`, to be taken in a call that must not wait.

    Where `submit` would run what users wrote (scenes, hooks, orders), a thread of its own runs it.
    """
    begin = partial(FeedTaking, weakref.ref(feed), count, in_order=in_order)
    return begin() if only_submits(feed) else feed.takings.begin(begin, context)


def only_submits(feed: Any) -> bool:
    """Whether asking a feed for batches runs nothing that users wrote."""
    job = feed.job
    quick = isinstance(job.plan.order, Sequential | Shuffled | BlockShuffled)
    return bool(job.workers) and quick and not feed.has_epoch_hooks and ahead_reader(job.sequence) is None


class FeedTaking:
    """The next batches of a feed, which it does not keep alive; see `kerasfeed.taking.Taking`."""

    def __init__(self, feed: Callable[[], Any], count: int, *, in_order: bool) -> None:
        """Claim `count` batches of `feed`, a weak reference; they come in their order, or as they are loaded."""
        self._feed = feed
        known = self._known()
        self._numbers = range(first := known.keras_side.claim(count), first + count)
        self._window: Window = window_of(weakref.proxy(known), known.keras_side.clock, self._numbers, in_order=in_order)
        self._timed = TimedTake(self._window.take, known.request_log)

    def _known(self) -> Any:
        feed = self._feed()
        if feed is None:
            raise FeedClosedError(
                "the feed of this dataset is gone: keep a reference to the feed, or to the dataset, while it is "
                "iterated"
            )
        return feed

    def take(self, patience: float | None) -> Any:
        """See `kerasfeed.taking.Taking.take`."""
        number = self._window.next
        if number >= self._numbers.stop:
            raise EndOfData
        self._known()
        return self._timed(number - self._numbers.start, patience)

    def close(self, returned: list[Any]) -> None:
        """See `kerasfeed.taking.Taking.close`; the feed's clock knows which batches come again."""
        self._window.close()


class FeedLoops:
    """What loops over a feed's dataset tell the feed.

    Args:
        feed: The feed.
        batches: How many one iteration of the dataset has.
        counted: Whether they come in the order of the feed.
    """

    def __init__(self, feed: Any, batches: int, *, counted: bool) -> None:
        self._side: KerasSide = feed.keras_side
        self._batches = batches
        self._counted = counted

    def begin(self) -> "FeedLoop":
        """A loop begins."""
        return FeedLoop(self._side, self._batches, self._counted)


class FeedLoop:
    """The batches that one loop has got."""

    def __init__(self, side: KerasSide, batches: int, counted: bool) -> None:
        self._side = side
        self._batches = batches
        self._counted = counted
        self._numbers: range | None = None
        self._got = 0

    def goes_on(self) -> bool:
        """A batch is about to be asked for; False where the loop is over."""
        if self._numbers is None:
            self._numbers = self._side.loop_over_dataset(self._batches)
        numbers = self._numbers
        if self._got < len(numbers) or len(numbers) == self._batches:
            return True
        self._side.clock.end_claim(numbers.stop, numbers.start + self._batches)
        return False

    def got(self) -> None:
        """The batch is there."""
        self._got += 1
        if self._counted and self._numbers is not None:
            self._side.clock.consumed = self._numbers.start + self._got
