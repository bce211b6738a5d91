"""Batches of a stream that one loop takes, of the user's, of Keras's or of a dataset, and what of them comes again.

Invariant: what was taken and not used comes again, in its order, as far as it is still known.
"""

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from kerasfeed.errors import FeedClosedError
from kerasfeed.feeds.cursor import EndOfData, check_alive
from kerasfeed.feeds.streams.source import StreamPlace
from kerasfeed.util.error_text import is_the_programs
from kerasfeed.util.polling import NotYet

SUPERSEDED = "another fit, or loop, of the stream has begun. A stream is read by one at a time; make a feed for each"
EMPTY = (
    "the stream is empty: it ended before its first scene. Check what its generators read; a generator made once and "
    "for all, outside make_generator, is exhausted after one repetition"
)
KEPT = 8  # more than Keras and its backends take ahead of what they use


class StreamCursor:
    """The next repetitions of a stream, which this does not keep alive; see `kerasfeed.feeds.cursor.Cursor`."""

    def __init__(
        self,
        feed: Callable[[], Any],
        repetitions: int | None = 1,
        *,
        chained: bool = False,
        required: bool = False,
        building: bool = False,
        kept: int = 0,
    ) -> None:
        """Take batches of a stream.

        Args:
            feed: A weak reference to it.
            repetitions: How many, at least 1. None is one after the other, until one of them is empty.
            chained: Whether to go on where a chained cursor before this one ended, instead of beginning a repetition.
            required: Whether it is an error that there is nothing.
            building: Whether Keras takes only to build a model, and so uses nothing.
            kept: How many of the last batches are kept, for `leave`.

        Attributes:
            left: Whether no more is taken.
            superseded: Whether that is because another fit, or a loop, has begun.
            taken: Batches taken so far.
            building: As it was given.
        """
        self._feed = feed
        self._repetitions = repetitions
        self._chained = chained
        self._required = required
        self.building = building
        self._repetition: Any = None
        self._last: deque[Any] = deque(maxlen=kept)
        self._places: deque[StreamPlace] = deque(maxlen=kept + 1)  # behind each of these, and before
        self.taken = 0
        self._ended = self._failed = False
        self.left = self.superseded = False
        self._lock = threading.Lock()

    def take(self, timeout: float | None) -> tuple[StreamPlace, Any]:
        """See `kerasfeed.feeds.cursor.Cursor.take`. An error ends the repetition; there is no batch after it.

        Raises:
            NotYet: See there.
            EndOfData: There is none, or this cursor was left.
            FeedClosedError: Another fit, or a loop, has begun.
            ValueError: There is nothing, and something is required.
            Exception: What the stream raised.
        """
        with self._lock:
            return self._take(check_alive(self._feed()), timeout)

    def _take(self, feed: Any, timeout: float | None) -> tuple[StreamPlace, Any]:
        if timeout == 0 and not feed.reads_ahead:
            raise NotYet
        empty = False
        while not (self.left or self._ended or self._failed):
            if self._repetition is None:
                self._repetition = feed.begin_repetition(chained=self._chained, timeout=timeout)
                if not self._places:
                    self._places.append(self._repetition.place)
            if timeout == 0 and not self._repetition.has_batch:
                raise NotYet  # also of an error, or the end, which are for a consumer that has had all before
            try:
                batch = self._take_from(feed, timeout)
            except EndOfData:
                if self._repetitions == 1:
                    self._places[-1] = StreamPlace(self._repetition.number + 1)
                if self._repetitions == 1 or (self._repetitions is None and empty):
                    self._ended = True
                    break
                if self._repetitions is not None:
                    self._repetitions -= 1
                self._repetition.close()
                empty, self._repetition = True, None
                continue
            if batch is not None:
                place = self._repetition.place
                self._last.append(batch)
                self._places.append(place)
                self.taken += 1
                return place, batch
        if self.superseded:
            raise FeedClosedError(SUPERSEDED)
        if self._required and not (self.taken or self.left):
            raise ValueError(EMPTY)
        raise EndOfData

    def _take_from(self, feed: Any, timeout: float | None) -> Any:
        try:
            batch = self._repetition.next_batch(timeout)
            try:
                feed.issue_warnings()
            except BaseException:  # Ctrl-C, or a warning that is an error: nobody has had the batch
                self._repetition.put_back([batch])
                raise
            return batch
        except (NotYet, EndOfData):
            raise
        except BaseException as error:
            self._failed = not is_the_programs(error)
            raise

    def received(self, place: StreamPlace | None) -> None:
        """See `kerasfeed.feeds.cursor.Cursor.received`."""
        feed = check_alive(self._feed())
        if place is not None:
            feed.note_place(place)
            return
        with self._lock:
            repetition, self._repetition = self._repetition, None
        if repetition is not None:
            feed.note_place(StreamPlace(repetition.number + 1))
            repetition.close()
        feed.issue_warnings()

    def place_after(self, used: int) -> StreamPlace | None:
        """Where a consumer stands that has used so many batches; None where nothing was taken, or nobody knows."""
        behind = max(0, self.taken - used)
        return self._places[-1 - behind] if behind < len(self._places) else None

    def leave(self, used: int) -> None:
        """No more is taken: the batches after the first `used` ones come again. Idempotent."""
        with self._lock:
            place, feed = self.place_after(used), self._feed()
            if place is not None and feed is not None and not self.left:
                feed.note_place(place)
            left = max(0, self.taken - used)
            self._leave(list(self._last)[max(0, len(self._last) - left) :], left)

    def close(self, returned: list[Any]) -> None:
        """See `kerasfeed.feeds.cursor.Cursor.close`."""
        with self._lock:
            self._leave(returned, len(returned))

    def _leave(self, kept: list[Any], left: int) -> None:
        """Take no more. Of the `left` batches that were not used, `kept` come again."""
        self.left = True
        repetition, self._repetition = self._repetition, None
        feed = self._feed()
        if repetition is None:
            return
        if feed is None or (self._ended and not kept):  # None: collected before Keras's generator
            repetition.close()
            return
        repetition.put_back(kept)
        feed.keep_repetition(repetition, chained=self._chained, whole=left == len(kept) and not self._failed)
