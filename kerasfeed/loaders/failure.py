"""Exceptions on their way from a worker to the consumer.

Invariant: the consumer catches the type that the sequence raised. What kerasfeed knows (index, epoch, step, worker,
the worker's traceback) is attached as notes, never mixed into the user's own message.
"""

import contextlib
from dataclasses import dataclass

from kerasfeed.errors import SceneError
from kerasfeed.loaders.fill import FailedSceneError
from kerasfeed.loaders.travel import Packed, arrived, full_text, pack, summary, without_own_frames

TRACEBACK_HEAD = "Traceback in the worker:"
CAUSE_HEAD = "Traceback with its causes:"
_REPRODUCTION = "Reproduce it here: "


@dataclass(frozen=True)
class Place:
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


@dataclass(frozen=True)
class Failure:
    """A failed scene in a form that crosses processes.

    Attributes:
        index: Index of the scene; None where many were read at once.
        row: Its row in the batch; None likewise.
        packed: The exception, as completely as it can be sent.
        summary: Type and message, for what cannot.
        text: The worker's traceback, formatted.
        method: The method that failed, where many were read at once.
    """

    index: int | None
    row: int | None
    packed: Packed
    summary: str
    text: str
    method: str


def to_failure(carrier: FailedSceneError) -> Failure:
    """Describe the exception behind `carrier` in the worker that met it."""
    error = carrier.__cause__
    assert error is not None
    return Failure(carrier.index, carrier.row, pack(error), summary(error), full_text(error), carrier.method)


def from_failure(failure: Failure, place: Place) -> BaseException:
    """The exception to raise in the consumer for a failure that came from another process."""
    error = for_consumer(arrived(failure.packed, failure.summary), place)
    # A note and not the cause: Keras raises what it caught `from None`.
    error.add_note(f"{TRACEBACK_HEAD}\n{failure.text}")
    return error


def for_consumer(error: BaseException, place: Place) -> BaseException:
    """The exception to raise in the consumer: `error` itself with the place as a note, where its type can travel.

    `StopIteration` would end a loop in silence, `KeyboardInterrupt`, `SystemExit` and `GeneratorExit` would be taken
    for the consumer's own: these arrive as the cause of a `SceneError`.
    """
    BaseException.with_traceback(error, without_own_frames(error.__traceback__))  # which a frozen exception takes too
    if isinstance(error, StopIteration | StopAsyncIteration) or not isinstance(error, Exception):
        error = _wrapped(error)
    try:
        _forget(error, place)
        error.add_note(str(place))
    except Exception:  # noqa: BLE001 - a frozen exception takes no note
        error = _wrapped(error)
        error.add_note(str(place))
    return error


def without_reproduction(error: BaseException) -> None:
    """Drop the advice to load the scene by its index, which a stream has not."""
    notes = getattr(error, "__notes__", None)
    if notes:
        with contextlib.suppress(Exception):  # a frozen exception
            error.__notes__ = [str(note).split(f"\n{_REPRODUCTION}")[0] for note in notes]


def note_causes(error: BaseException) -> None:
    """Keep the text of the causes of `error` in a note, for a consumer that raises it `from None`, as Keras does."""
    hidden = error.__suppress_context__ or error.__context__ is None
    if (error.__cause__ is None and hidden) or _tells_traceback(error):
        return
    with contextlib.suppress(Exception):  # a frozen exception takes no note
        error.add_note(f"{CAUSE_HEAD}\n{full_text(error, with_notes=False)}")


def text_of(error: BaseException) -> str:
    """All that is known of an error, for a consumer that keeps a text alone."""
    notes = [str(note) for note in getattr(error, "__notes__", ())]
    lines = [summary(error), *notes]
    if not _tells_traceback(error):
        lines.append("\n" + full_text(error, with_notes=False))
    return "\n".join(lines)


def _tells_traceback(error: BaseException) -> bool:
    return any(str(note).startswith((TRACEBACK_HEAD, CAUSE_HEAD)) for note in getattr(error, "__notes__", ()))


def _wrapped(error: BaseException) -> SceneError:
    wrapped = SceneError(f"the sequence raised {summary(error)}")
    wrapped.__cause__ = error
    return wrapped


def _forget(error: BaseException, place: Place) -> None:
    """Drop what was noted when the same object was raised for the same scene before."""
    notes = getattr(error, "__notes__", None)
    if notes:
        error.__notes__ = [note for note in notes if not note.startswith(f"kerasfeed: {place.scenes}, ")]
