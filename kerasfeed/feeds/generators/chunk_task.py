"""A chunk of a generator as a task, and what becomes of it.

Invariant: what has failed is told in the words of a stream, here where it is known which generator was at work. The
future gives the chunk, or the error of the generator; it raises what is no generator's fault. A slot is given back
once, when no worker can write to it any more.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from kerasfeed.feeds.generators.round_robin import named
from kerasfeed.loaders.batches.slots import Slot
from kerasfeed.loaders.failures.crash_text import ending_text
from kerasfeed.pool.task import NOWHERE, Crash, FutureTask, Place, Record, Task
from kerasfeed.util.error_notes import TRACEBACK_HEAD
from kerasfeed.util.error_text import add_note, traceback_of, without_own_frames

if TYPE_CHECKING:
    from kerasfeed.feeds.generators.workers import ChunkSession

_serials = itertools.count(1)


@dataclass(frozen=True, eq=False, kw_only=True)
class ChunkTask(FutureTask):
    """The next chunk of generator `number`, into a slot.

    Attributes:
        session: Whose task it is.
        slot: Where the chunk goes.
        start: The scene to begin with, in a generator made afresh; `GO_ON` for going on.
        repetition: Number of the repetition.
        serial: Unique in the process, so that a cancellation that comes late cannot touch the slot's next chunk.
    """

    session: "ChunkSession"
    slot: Slot
    start: int
    repetition: int
    serial: int = field(default_factory=partial(next, _serials))

    def record(self) -> Record:
        """See `Task.record`."""
        slot = self.slot
        return (
            self.kind, self.number, self.start, self.repetition, self.serial, slot.segment_offset, len(slot.memory),
            slot.offset,
        )  # fmt: skip

    def done(self, payload: Any, seconds: float, worker: str) -> Sequence[Task]:
        """See `Task.done`; the payload is a chunk that had no room in the slot."""
        self.set_result(self.session.chunk(self, payload))
        return ()

    def failed(self, place: Place, error: BaseException, worker: str, traceback: str) -> Sequence[Task]:
        """See `Task.failed`."""
        BaseException.with_traceback(error, without_own_frames(traceback_of(error)))  # which a frozen exception takes
        assert place.scene is not None
        try:
            error = named(error, self.number, self.session.count, place.scene, self.repetition, worker)
            if traceback:
                add_note(error, f"{TRACEBACK_HEAD}\n{traceback}")
            return self._fail(error)
        finally:
            del error, self  # the traceback ends in this frame: only the collector would free them

    def crashed(self, note: int, crash: Crash, count: int) -> Sequence[Task]:
        """See `Task.crashed`."""
        remedy = "To go on without generators that do so use on_error='skip'"
        return self._fail(self._named(crash.kind(f"{ending_text(crash, count)} {remedy}"), note))

    def cancelled(self) -> None:
        """See `Task.cancelled`."""
        self.session.release(self)

    def broken(self, error: BaseException) -> None:
        """See `Task.broken`."""
        self.session.release(self)
        super().broken(error)

    def stuck(self, note: int, crash: Crash) -> None:
        """See `Task.stuck`; the slot stays in flight until the thread is back."""
        self.session.note_stuck(self)
        self.set_result(self._named(crash.kind(f"{self.text(note)} {crash.thread_text}"), note))

    def text(self, note: int) -> str:
        """See `Task.text`."""
        return "" if note == NOWHERE else f"scene {note} of generator {self.number} (repetition {self.repetition})"

    def _fail(self, error: BaseException) -> Sequence[Task]:
        self.session.release(self)
        self.set_result(error)
        return ()

    def _named(self, error: BaseException, position: int) -> BaseException:
        return named(error, self.number, self.session.count, position, self.repetition)
