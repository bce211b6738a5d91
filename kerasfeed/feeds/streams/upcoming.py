"""`UpcomingRepetition`: which repetition of a stream comes next, and what is kept of one that was left.

Invariant: of what was left, each batch comes again once, or never: it is given to one taker, or closed.
"""

import threading

from kerasfeed.feeds.streams.pipeline import StreamLoader
from kerasfeed.feeds.streams.place import Place
from kerasfeed.feeds.streams.repetition import Repetition


class UpcomingRepetition:
    """The repetition that whoever comes next takes from: one that was left, one that is resumed, or a new one."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._kept: Repetition | None = None
        self.is_chained = False
        self._next = 0
        self._resumed: Place | None = None  # where the next repetition that is asked for begins
        self._closed = False

    @property
    def resumed_number(self) -> int | None:
        """Number of the repetition that is gone on with by a state; None where none is."""
        return None if self._resumed is None else self._resumed.repetition

    def begin(self, core: StreamLoader, *, chained: bool, timeout: float | None) -> Repetition:
        """What is kept of a repetition, or the next one; see `kerasfeed.feeds.stream_base.BaseStream`.

        Args:
            core: Begins repetitions.
            chained: Whether what is kept is wanted, also of one of which something was used.
            timeout: How long to wait for the source to tell whether anything is left of it, s; None is for ever.

        Raises:
            NotYet: What is kept of one has told nothing for so long.
        """
        with self._lock:
            place = self._resumed
            if place is not None:
                self._kept, self.is_chained, self._next = core.begin(place), False, place.repetition + 1
                self._resumed = None
            kept, self._kept = self._kept, None
            wanted = kept is not None and (chained or not self.is_chained)
        try:
            goes_on = kept is not None and core.source.afresh and not kept.is_resumed
            if kept is not None and wanted and (goes_on or not kept.is_used_up(timeout)):
                return kept
        except BaseException:  # NotYet, or Ctrl-C while it waited for the source
            self._kept = kept
            raise
        with self._lock:
            number, self._next = self._next, self._next + 1
        return core.begin(Place(number))

    def keep(self, repetition: Repetition, *, chained: bool, untouched: bool, goes_on: bool) -> None:
        """Keep a repetition that was left, for whoever comes next, or close it.

        Args:
            repetition: It.
            chained: Whether it is gone on with later by who asks for that.
            untouched: Whether nothing of it was used.
            goes_on: Whether every loop goes on with what another one has left, as those over a queue do.
        """
        with self._lock:
            again = not self._closed and (chained or untouched or goes_on)
            if again:
                self._kept, self.is_chained = repetition, not untouched and not goes_on
        if not again:
            repetition.close()

    def resume(self, place: Place) -> None:
        """The next repetition begins at `place`; what is kept of one is closed."""
        with self._lock:
            kept, self._kept = self._kept, None
            self._resumed = place
        if kept is not None:
            kept.close()

    def close(self) -> None:
        """Nothing more is kept; what was, is the loader's to close. Idempotent."""
        with self._lock:
            self._closed = True
            self._kept = None
