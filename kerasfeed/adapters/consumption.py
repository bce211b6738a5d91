"""What a loop over a feed's own dataset has consumed.

Invariant: a loop that begins within an epoch ends with it, like a loop over the feed; what TensorFlow loaded beyond is
given back to the feed.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kerasfeed.feed import Feed


class Consumption:
    """The batches that one eager iterator has returned.

    Args:
        feed: The feed.
        count: Batches in one iteration of the dataset.
        counted: Whether they come in the order of the feed.
    """

    def __init__(self, feed: "Feed", count: int, counted: bool) -> None:
        self._side = feed.keras_side
        self._count = count
        self._counted = counted
        self._begun = False
        self._numbers: range | None = None
        self._returned = 0

    def begin(self) -> bool:
        """A batch is about to be asked for; False where the loop is over."""
        if not self._begun:
            self._begun = True
            self._numbers = self._side.loop_over_dataset(self._count)
        numbers = self._numbers
        if numbers is None or self._returned < len(numbers) or len(numbers) == self._count:
            return True
        self._side.clock.end_claim(numbers.stop, numbers.start + self._count)
        return False

    def end(self) -> None:
        """The batch was returned."""
        self._returned += 1
        if self._counted and self._numbers is not None:
            self._side.clock.consumed = self._numbers.start + self._returned
