"""Exceptions of users' code on their way to whoever waits for the scene.

Invariant: the consumer catches the type that the user's code raised. What kerasfeed knows (index, epoch, step, worker,
the worker's traceback) is attached as notes, never mixed into the user's own message.
"""

from typing import TypeVar

from kerasfeed.errors import SceneError
from kerasfeed.util.error_text import add_note, full_text, notes_of, set_notes, summary, without_own_frames

TRACEBACK_HEAD = "Traceback in the worker:"
CAUSE_HEAD = "Traceback with its causes:"
_E = TypeVar("_E", bound=Exception)


def noted(
    error: BaseException, note: str, traceback: str = "", *, replaces: str = "", what: str = "the sequence raised "
) -> BaseException:
    """`error`, from the user's first frame on and with a note; what stands for it where it may not travel: `wrapped`.

    Args:
        error: What the user's code raised.
        note: What is known of it; may be empty.
        traceback: Of another process, as text.
        replaces: How the notes begin that this one replaces: the same object may have been raised before.
        what: What raised it, for `wrapped`.
    """
    error.with_traceback(without_own_frames(error.__traceback__))
    if replaces:
        set_notes(error, [each for each in notes_of(error) if not each.startswith(replaces)])
    if not can_travel(error) or (note and not add_note(error, note)):  # a frozen exception takes none
        error = wrapped(error, what)
        add_note(error, note)
    if traceback:
        # A note and not the cause: Keras raises what it caught `from None`.
        add_note(error, f"{TRACEBACK_HEAD}\n{traceback}")
    return error


def can_travel(error: BaseException) -> bool:
    """Whether consumers can be given `error` itself.

    `StopIteration` would end a loop in silence, `KeyboardInterrupt`, `SystemExit` and `GeneratorExit` would be taken
    for the consumer's own. A future passes over one that does not count as true.
    """
    return isinstance(error, Exception) and not isinstance(error, StopIteration | StopAsyncIteration) and bool(error)


def wrapped(error: BaseException, what: str, kind: type[_E] = SceneError) -> _E:  # type: ignore[assignment]
    """A `kind` in place of `error`, "<what><type and message>", with `error` as its cause."""
    made = kind(f"{what}{summary(error)}")
    made.__cause__ = error
    return made


def note_causes(error: BaseException) -> None:
    """Keep the text of the causes of `error` in a note, for a consumer that raises it `from None`, as Keras does."""
    has_causes = error.__cause__ is not None or not (error.__suppress_context__ or error.__context__ is None)
    if has_causes and not _tells_traceback(error):
        add_note(error, f"{CAUSE_HEAD}\n{full_text(error, with_notes=False)}")


def text_of(error: BaseException) -> str:
    """All that is known of an error, for a consumer that keeps a text alone."""
    lines = [summary(error), *notes_of(error)]
    if not _tells_traceback(error):
        lines.append("\n" + full_text(error, with_notes=False))
    return "\n".join(lines)


def _tells_traceback(error: BaseException) -> bool:
    return any(note.startswith((TRACEBACK_HEAD, CAUSE_HEAD)) for note in notes_of(error))
