"""What a task is for, in the parent: rows of a batch, or a scene to describe.

Invariant: a work can be sent again as another task, under another number.
"""

from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass

from kerasfeed.loaders.batches.filler import MANY
from kerasfeed.loaders.batches.pending_batch import BatchInProgress, scene_text
from kerasfeed.loaders.batches.spec_inference import Probe
from kerasfeed.loaders.processes.protocol import NOWHERE, Kind, Task


@dataclass(frozen=True, eq=False)
class LoadWork:
    """Rows [start, stop) of a batch."""

    batch: BatchInProgress
    start: int
    stop: int

    def task(self, number: int, version: int) -> Task:
        """The task that asks a worker for it."""
        batch, slot = self.batch, self.batch.slot
        return Task(
            Kind.LOAD, number, batch.serial, slot.segment_offset, len(slot.memory), slot.offset,
            batch.epoch, batch.step, self.start, self.stop, version,
        )  # fmt: skip

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
class ProbeWork:
    """One scene to describe."""

    index: int
    future: "Future[Probe]"

    def task(self, number: int, version: int) -> Task:
        """The task that asks a worker for it."""
        return Task(Kind.PROBE, number, start=self.index, version=version)

    def indices(self) -> tuple[int, ...]:
        """Indices of its scenes."""
        return (self.index,)

    def index_at(self, row: int) -> int | None:
        """The scene that a worker is at which has noted `row`; None where that is not known."""
        return None if row == NOWHERE else self.index

    def scene(self, row: int) -> str:
        """The same in words; empty for none."""
        return "" if row == NOWHERE else scene_text(None, self.index)

    def give_up(self, error: BaseException) -> None:
        """Fail whoever waits for it."""
        try:
            self.future.set_exception(error)
        except InvalidStateError:
            pass  # settled meanwhile


Work = LoadWork | ProbeWork
