"""Exceptions on their way from a worker to the consumer.

Invariant: the consumer catches the type that the sequence raised. What kerasfeed knows (index, epoch, step, worker,
the worker's traceback) is attached as notes, never mixed into the user's own message.
"""

from dataclasses import dataclass

from kerasfeed.util.error_notes import TRACEBACK_HEAD, can_travel, noted
from kerasfeed.util.error_text import (
    add_note,
    notes_of,
    set_notes,
    traceback_of,
    without_own_frames,
)

_REPRODUCTION = "Reproduce it here: "


@dataclass(frozen=True)
class SceneLocation:
    """Where a scene was being loaded.

    Attributes:
        indices: Indices of the scenes at work: one, or those of a `get_batch` call.
        epoch: Epoch number; None while the spec is inferred.
        step: Step number; None while the spec is inferred, and for a scene loaded by itself.
        worker: What loaded it, for example "worker process 1 (pid 4711)".
        method: The method of the sequence that was given several indices.
    """

    indices: tuple[int, ...]
    epoch: int | None
    step: int | None
    worker: str
    method: str = "get_batch"

    def __str__(self) -> str:
        if self.epoch is None:
            when = "while inferring the spec"
        else:
            when = f"epoch {self.epoch}" + ("" if self.step is None else f", step {self.step}")
        return f"kerasfeed: {self.scenes}, {when}, in {self.worker}\n{self.reproduction}"

    @property
    def scenes(self) -> str:
        """The scenes, as a message names them."""
        if len(self.indices) == 1:
            return f"scene {self.indices[0]}"
        known = [index for index in self.indices if index >= 0]  # the others were left out of the batch
        shown = ", ".join(map(str, known[:8])) + (", ..." if len(known) > 8 else "")
        return f"scenes {shown} ({self.method})"

    @property
    def reproduction(self) -> str:
        """The line that raises the exception again, in the user's own thread."""
        ways = []
        if self.step is not None:
            ways.append(f"kf.load(feed, epoch={self.epoch}, step={self.step})")
        elif self.epoch is not None:
            ways.append(f"kf.load(feed, epoch={self.epoch}, index={self.indices[0]})")
        if len(self.indices) == 1:
            ways.append(f"sequence[{self.indices[0]}]")
        return f"{_REPRODUCTION}{', or '.join(ways)}"


def for_consumer(error: BaseException, place: SceneLocation, traceback: str = "") -> BaseException:
    """The exception to raise in the consumer: `error` itself with the place as a note, where its type can travel.

    Others arrive as the cause of a `SceneError`; see `can_travel`. The `traceback` of another process becomes a note.
    """
    if can_travel(error):
        _forget(error, place)
    return with_note(error, str(place), traceback)


def with_note(error: BaseException, note: str, traceback: str = "") -> BaseException:
    """`for_consumer`, with any note; none where it is empty."""
    BaseException.with_traceback(error, without_own_frames(traceback_of(error)))  # which a frozen exception takes too
    found = noted(error, "the sequence raised ", note) if note else error
    if traceback:
        # A note and not the cause: Keras raises what it caught `from None`.
        add_note(found, f"{TRACEBACK_HEAD}\n{traceback}")
    return found


def without_reproduction(error: BaseException) -> None:
    """Drop the advice to load the scene by its index, which a stream has not."""
    if notes := notes_of(error):
        set_notes(error, [note.split(f"\n{_REPRODUCTION}")[0] for note in notes])


def _forget(error: BaseException, place: SceneLocation) -> None:
    """Drop what was noted when the same object was raised for the same scene before."""
    if notes := notes_of(error):
        set_notes(error, [note for note in notes if not note.startswith(f"kerasfeed: {place.scenes}, ")])
