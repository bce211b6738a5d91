"""Batches of a stream that one iterator takes, of Keras's or of a dataset, and what of them comes again.

Invariant: what was taken and not used comes again, in its order, as far as it is still known.
"""

import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from kerasfeed.errors import FeedClosedError
from kerasfeed.feeds.cursor import EndOfData, check_alive
from kerasfeed.feeds.streams.place import Place
from kerasfeed.util.polling import NotYet

SUPERSEDED = "another fit, or loop, of the stream has begun. A stream is read by one at a time; make a feed for each"
KEPT = 8  # more than Keras and its backends take ahead of what they use


class StreamCursor:
    """The batches that one iterator takes; see `kerasfeed.feeds.cursor.Cursor`."""

    def __init__(self, feed: Any, *, endless: bool, afresh: bool, building: bool = False, kept: int = KEPT) -> None:
        """Take batches of `feed`.

        Args:
            feed: The feed, or a weak proxy of it.
            endless: Whether the next repetition follows where one ends.
            afresh: Whether to begin a repetition, instead of going on where the endless cursor before this one ended.
            building: Whether Keras takes only to build a model, and so uses nothing.
            kept: How many of the last batches are kept, to come again.

        Attributes:
            left: Whether no more is taken.
            superseded: Whether that is because another fit, or a loop, has begun.
            taken: Batches taken so far.
            building: As it was given.
        """
        self._feed = feed
        self._endless = endless
        self._chained = endless and not afresh
        self.building = building
        self._repetition: Any = None
        self._last: deque[Any] = deque(maxlen=kept)
        self._places: deque[Place] = deque(maxlen=kept + 1)  # behind each of these, and before
        self.taken = 0
        self._given = 0  # of these, by the present repetition
        self._over = False
        self.left = self.superseded = False
        self._lock = threading.Lock()

    def take(self, timeout: float | None = None) -> Any:
        """The next batch; waits for it.

        Args:
            timeout: How long, s; None is for ever.

        Raises:
            NotYet: It was not there for so long.
            EndOfData: There is none, or this cursor was left.
            FeedClosedError: Another fit, or a loop, has begun.
            Exception: What the stream raised.
        """
        with self._lock:
            empty = False
            while not self._over:
                if self._repetition is None:
                    self._repetition = self._feed.begin_repetition(chained=self._chained, timeout=timeout)
                    self._given = 0
                    if not self._places:
                        self._places.append(self._repetition.place)
                try:
                    batch = self._repetition.take(timeout)
                except EndOfData:
                    if not self._endless:
                        self._places[-1] = Place(self._repetition.number + 1)
                    self._over = not self._endless or empty
                    empty, self._repetition = True, None
                    continue
                if batch is not None:
                    self._last.append(batch)
                    self._places.append(self._repetition.place)
                    self.taken += 1
                    self._given += 1
                    return batch
            if self.superseded:
                raise FeedClosedError(SUPERSEDED)
            raise EndOfData

    def place_after(self, used: int) -> Place | None:
        """Where a consumer stands that has used so many batches; None where nothing was taken, or nobody knows."""
        behind = max(0, self.taken - used)
        return self._places[-1 - behind] if behind < len(self._places) else None

    def leave(self, used: int) -> None:
        """No more is taken: the batches after the first `used` ones come again. Idempotent."""
        with self._lock:
            place = self.place_after(used)
            if place is not None and not self.left:
                with suppress(ReferenceError):
                    self._feed.note_place(place)
            left = max(0, self.taken - used)
            self._leave(list(self._last)[max(0, len(self._last) - left) :], left)

    def close(self, returned: list[Any]) -> None:
        """See `kerasfeed.feeds.cursor.Cursor.close`."""
        with self._lock:
            self._leave(returned, len(returned))

    def fail(self) -> None:
        """What was taken last ends the repetition, as it ends a loop."""
        with self._lock:
            self._leave([], -1)

    def _leave(self, kept: list[Any], left: int) -> None:
        """Take no more. Of the `left` batches that were not used, `kept` come again; -1 where there was an error."""
        self.left = True
        if self._over:
            return
        self._over = True
        repetition, self._repetition = self._repetition, None
        if repetition is None:
            return
        repetition.put_back(kept)
        whole = left == len(kept)
        try:
            self._feed.keep_repetition(
                repetition, chained=self._chained and whole, untouched=whole and left >= self._given
            )
        except ReferenceError:  # the feed was collected before Keras's generator
            repetition.close()


class RepetitionCursor:
    """The next repetition of a stream, which it does not keep alive; see `kerasfeed.feeds.cursor.Cursor`.

    Args:
        feed: A weak reference to the stream.
    """

    def __init__(self, feed: Callable[[], Any]) -> None:
        self._feed = feed
        known = check_alive(feed())
        known.end_fit()
        known.note_place(None)
        self._cursor = StreamCursor(weakref.proxy(known), endless=False, afresh=True, kept=0)

    def take(self, timeout: float | None) -> Any:
        """See `kerasfeed.feeds.cursor.Cursor.take`. An error ends the repetition, as it ends a loop."""
        feed = check_alive(self._feed())
        try:
            batch = self._cursor.take(timeout)
            feed.issue_warnings()
        except (NotYet, EndOfData):
            raise
        except BaseException:
            self._cursor.fail()
            raise
        return batch

    def close(self, returned: list[Any]) -> None:
        """See `kerasfeed.feeds.cursor.Cursor.close`."""
        self._cursor.close(returned)
