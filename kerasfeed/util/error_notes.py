"""Exceptions of users' code on their way to whoever waits for the scene.

Invariant: what kerasfeed knows is attached as notes, never mixed into the user's own message.
"""

from typing import TypeVar

from kerasfeed.errors import SceneError
from kerasfeed.util.error_text import add_note, full_text, has_causes, is_printable, is_true, notes_of, summary

TRACEBACK_HEAD = "Traceback in the worker:"
CAUSE_HEAD = "Traceback with its causes:"
_E = TypeVar("_E", bound=Exception)


def noted(error: BaseException, what: str, note: str) -> BaseException:
    """`error` with a note, where it can travel and takes one; else what stands for it: see `wrapped`."""
    if can_travel(error) and add_note(error, note):  # a frozen exception takes none
        return error
    found: SceneError = wrapped(error, what)
    add_note(found, note)
    return found


def can_travel(error: BaseException) -> bool:
    """Whether consumers can be given `error` itself.

    `StopIteration` would end a loop in silence, `KeyboardInterrupt`, `SystemExit` and `GeneratorExit` would be taken
    for the consumer's own. A future passes over one that does not count as true, and what cannot be looked at would
    fail again wherever it is printed.
    """
    kind = type(error)
    steers = issubclass(kind, StopIteration | StopAsyncIteration) or not issubclass(kind, Exception)
    return not steers and is_true(error) and is_printable(error)


def wrapped(error: BaseException, what: str, kind: type[_E] = SceneError) -> _E:  # type: ignore[assignment]
    """A `kind` in place of `error`, "<what><type and message>"; `error` is the cause, where others can look at it."""
    made = kind(f"{what}{summary(error)}")
    if is_printable(error):
        made.__cause__ = error
    else:
        add_note(made, f"{CAUSE_HEAD}\n{full_text(error)}")
    return made


def note_causes(error: BaseException) -> None:
    """Keep the text of the causes of `error` in a note, for a consumer that raises it `from None`, as Keras does."""
    if not has_causes(error) or _tells_traceback(error):
        return
    add_note(error, f"{CAUSE_HEAD}\n{full_text(error, with_notes=False)}")


def text_of(error: BaseException) -> str:
    """All that is known of an error, for a consumer that keeps a text alone."""
    lines = [summary(error), *notes_of(error)]
    if not _tells_traceback(error):
        lines.append("\n" + full_text(error, with_notes=False))
    return "\n".join(lines)


def _tells_traceback(error: BaseException) -> bool:
    return any(note.startswith((TRACEBACK_HEAD, CAUSE_HEAD)) for note in notes_of(error))
