"""`WrappedSource`: a source that changes which items of another one come, and when.

Invariant: everything else is the other's: threads, processes, counters, failures.
"""

from collections.abc import Sequence

from kerasfeed.feeds.streams.place import Departure
from kerasfeed.feeds.streams.source import Source
from kerasfeed.loaders.base import LoaderStats
from kerasfeed.loaders.failures.table import FailedScene
from kerasfeed.util.deferred_warnings import DeferredWarnings


class WrappedSource(Source):
    """A source over another one.

    Attributes:
        source: The other one.
        deferred_warnings: What this one has to say.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.deferred_warnings = DeferredWarnings()

    @property
    def departures(self) -> Sequence[Departure]:
        """See `Source.departures`."""
        return self.source.departures

    def joined(self, items: int) -> int:
        """See `Source.joined`."""
        return self.source.joined(items)

    def length(self, departures: Sequence[Departure]) -> int | None:
        """See `Source.length`."""
        return self.source.length(departures)

    def leave(self) -> None:
        """See `Source.leave`."""
        self.source.leave()

    def stats(self) -> LoaderStats | None:
        """See `Source.stats`."""
        return self.source.stats()

    def issue_warnings(self) -> None:
        """See `Source.issue_warnings`."""
        self.source.issue_warnings()
        self.deferred_warnings.issue()

    def failures(self) -> list[FailedScene]:
        """See `Source.failures`."""
        return self.source.failures()

    def close(self) -> None:
        """See `Source.close`."""
        self.source.close()
