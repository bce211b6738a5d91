"""Batches of a stream that one iterator of Keras's takes, and what of them comes again.

Invariant: what was taken and not used comes again, in its order, as far as it is still known.
"""

import threading
from collections import deque
from typing import Any

from kerasfeed.errors import FeedClosedError
from kerasfeed.streams.repetition import EndOfRepetition

_KEPT = 8  # more than Keras and its backends take ahead of what they use


class Taking:
    """The batches that one iterator of Keras's takes."""

    def __init__(self, feed: Any, *, endless: bool, afresh: bool, building: bool = False) -> None:
        """Take batches of `feed`.

        Args:
            feed: The feed, or a weak proxy of it.
            endless: Whether the next repetition follows where one ends.
            afresh: Whether to begin a repetition, instead of where the endless taking before this one has ended.
            building: Whether Keras takes only to build a model, and so uses nothing.

        Attributes:
            left: Whether Keras takes no more.
            superseded: Whether that is because another fit, or a loop, has begun.
            taken: Batches taken so far.
            building: As it was given.
        """
        self._feed = feed
        self._endless = endless
        self._chained = endless and not afresh
        self.building = building
        self._repetition: Any = None
        self._last: deque[Any] = deque(maxlen=_KEPT)
        self.taken = 0
        self._given = 0  # of these, by the present repetition
        self._over = False
        self.left = self.superseded = False
        self._lock = threading.Lock()

    def take(self, patience: float | None = None) -> Any:
        """The next batch; waits for it.

        Args:
            patience: How long, s; None is for ever.

        Raises:
            NotYet: It was not there for so long.
            EndOfRepetition: There is none, or Keras has another iterator now.
            FeedClosedError: Another fit, or a loop, has begun.
            Exception: What the stream raised.
        """
        with self._lock:
            empty = False
            while not self._over:
                if self._repetition is None:
                    self._repetition, self._given = self._begin(patience), 0
                try:
                    batch = self._repetition.take(patience)
                except EndOfRepetition:
                    self._over = not self._endless or empty
                    empty, self._repetition = True, None
                    continue
                if batch is not None:
                    self._last.append(batch)
                    self.taken += 1
                    self._given += 1
                    return batch
            if self.superseded:
                raise FeedClosedError(
                    "another fit, or loop, of the stream has begun. A stream is read by one at a time; make a feed for "
                    "each"
                )
            raise EndOfRepetition

    def _begin(self, patience: float | None) -> Any:
        return self._feed.begin_repetition(chained=self._chained, patience=patience)

    def leave(self, used: int) -> None:
        """Keras has used the first `used` batches, and takes no more: those after them come again. Idempotent."""
        with self._lock:
            self.left = True
            if self._over:
                return
            self._over = True
            repetition, self._repetition = self._repetition, None
            left = max(0, self.taken - used)
            if repetition is None:
                return
            kept = list(self._last)[max(0, len(self._last) - left) :]
            repetition.put_back(kept)
            whole = left == len(kept)
            try:
                self._feed.keep_repetition(
                    repetition, chained=self._chained and whole, untouched=whole and left >= self._given
                )
            except ReferenceError:  # the feed was collected before Keras's generator
                repetition.close()
