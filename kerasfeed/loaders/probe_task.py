"""A scene to describe, as a task of a pool.

Invariant: what goes wrong is what its future gives, and is dealt with by whoever asked.
"""

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kerasfeed.loaders.batches.pending_batch import BatchInProgress, scene_text
from kerasfeed.loaders.batches.spec_inference import Probe
from kerasfeed.loaders.failures.exceptions import SceneLocation, for_consumer
from kerasfeed.pool.task import NOWHERE, Crash, FutureTask, Place, Task


class Told(Protocol):
    """Whoever is told of results and crashes; see `kerasfeed.loaders.session.Session`."""

    def note_result(self, payload: Any) -> Any:
        """A worker has told something beside its payload, which is returned."""

    def crash_error(self, index: int, batch: BatchInProgress | None, crash: Crash, count: int) -> BaseException:
        """What to raise for a scene that ends its workers."""


@dataclass(frozen=True, eq=False)
class ProbeTask(FutureTask):
    """One scene to describe; the future gives a `Probe`, or what went wrong."""

    told: Told | None = None

    def done(self, payload: Any, seconds: float, worker: str) -> Sequence[Task]:
        """See `Task.done`."""
        assert self.told is not None
        self.told.note_result(None)
        self.set_result(Probe(self.number, payload, seconds))
        return ()

    def failed(self, place: Place, error: BaseException, worker: str, traceback: str) -> Sequence[Task]:
        """See `Task.failed`."""
        location = SceneLocation((self.number,), None, None, worker, place.method)
        try:
            self.set_exception(for_consumer(error, location, traceback))
            return ()
        finally:
            del error, self  # the traceback ends in this frame: only the collector would free them

    def crashed(self, note: int, crash: Crash, count: int) -> Sequence[Task]:
        """See `Task.crashed`; noted where the others are that fail while the spec is inferred."""
        assert self.told is not None
        self.set_exception(self.told.crash_error(self.number, None, crash, count))
        return ()

    def culprit(self, note: int) -> Hashable | None:
        """See `Task.culprit`."""
        return None if note == NOWHERE else self.number

    def culprits(self) -> Iterable[Hashable]:
        """See `Task.culprits`."""
        return (self.number,)

    def text(self, note: int) -> str:
        """See `Task.text`."""
        return "" if note == NOWHERE else scene_text(None, self.number)

    def set_exception(self, error: BaseException) -> None:
        """See `FutureTask`; scenes that fail are dealt with by whoever asked."""
        self.set_result(error)
