"""What a worker is to do, as the process that asks for it knows it: rows of a batch to load, or a scene to describe.

Invariant: a task may be given to another worker.
"""

from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from typing import ClassVar

from kerasfeed.loaders.batches.filler import MANY, NOWHERE
from kerasfeed.loaders.batches.pending_batch import BatchInProgress, scene_text
from kerasfeed.loaders.batches.spec_inference import Probe


@dataclass(frozen=True, eq=False)
class LoadTask:
    """Rows [start, stop) of a batch."""

    batch: BatchInProgress
    start: int
    stop: int

    def indices(self) -> tuple[int, ...]:
        """Indices of its scenes."""
        return tuple(self.batch.slot.view.indices[self.start : self.stop].tolist())

    def index_at(self, row: int) -> int | None:
        """The scene that a worker is at which has noted `row`; None where that is not known."""
        row = self._only(row)
        return int(self.batch.slot.view.indices[row]) if self.start <= row < self.stop else None

    def scene(self, row: int) -> str:
        """The same in words; empty for none."""
        return "" if row == NOWHERE else scene_text(self.batch, self._only(row))

    def _only(self, row: int) -> int:
        return self.start if row == MANY and self.stop - self.start == 1 else row

    def give_up(self, error: BaseException) -> None:
        """Fail whoever waits for it."""
        self.batch.give_up(error)


@dataclass(frozen=True, eq=False)
class ProbeTask:
    """One scene to describe; the future gives what it raised, too."""

    index: int
    future: "Future[Probe | BaseException]"
    batch: ClassVar[None] = None

    def indices(self) -> tuple[int, ...]:
        """Indices of its scenes."""
        return (self.index,)

    def index_at(self, row: int) -> int | None:
        """The scene that a worker is at which has noted `row`; None where that is not known."""
        return None if row == NOWHERE else self.index

    def scene(self, row: int) -> str:
        """The same in words; empty for none."""
        return "" if row == NOWHERE else scene_text(None, self.index)

    def set_result(self, outcome: Probe | BaseException) -> None:
        """Give whoever waits for it what came of it, unless that was done."""
        with suppress(InvalidStateError):
            self.future.set_result(outcome)

    def give_up(self, error: BaseException) -> None:
        """Fail whoever waits for it."""
        self.set_result(error)


Work = LoadTask | ProbeTask
