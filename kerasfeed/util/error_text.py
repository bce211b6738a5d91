"""Text and notes of exceptions that the user's code raised.

Invariant: a `__str__` or `__repr__` that raises does not replace the exception it belongs to. The consumer catches the
type that the user's code raised. kerasfeed adds index, epoch, step, worker and the worker's traceback as notes.
"""

import linecache
import os
import re
import reprlib
import signal
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any, TypeVar

from kerasfeed.errors import SceneError

PACKAGE_FOLDER = f"{Path(__file__).parent.parent}{os.sep}"
_DEMO = f"{PACKAGE_FOLDER}demo{os.sep}"  # has scenes like a user's
TEXT_LIMIT = 20_000  # characters; a longer text (some messages have 2 MB) keeps only its beginning and end
_MAX_LINE = 200
TRACEBACK_HEAD = "Traceback in the worker:"
_FRAME_WITHOUT_LINE = re.compile(r'^  File "(?P<file>.+)", line (?P<number>\d{1,9}), in .+\n(?!    )', re.MULTILINE)
_CAUSE_HEAD = "Traceback with its causes:"
_T = TypeVar("_T")
_E = TypeVar("_E", bound=BaseException)


def pluralize(count: int, noun: str, plural: str = "") -> str:
    """Return "1 scene" or "2 scenes"; `plural` is an irregular plural."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def class_name(value: object) -> str:
    """Return the name of the class of `value`."""
    return type(value).__name__


def message_of(error: BaseException) -> str:
    """Return `str(error)`, without its middle if it is very long."""
    return guarded(
        lambda: shortened(str(error)),
        lambda broken: f"(its message is not available: __str__ raised {class_name(broken)})",
    )


def summary(error: BaseException) -> str:
    """Return type and message of an exception, with all lines."""
    return f"{class_name(error)}: {message_of(error)}"


def exception_text(error: BaseException) -> str:
    """Return type and message in one line of at most 200 characters."""
    text = " ".join(summary(error)[: 3 * _MAX_LINE].split())
    return text if len(text) <= _MAX_LINE else text[: _MAX_LINE - 1] + "…"


def full_text(error: BaseException, *, with_notes: bool = True) -> str:
    """Return the traceback of an exception, with its causes and its notes."""
    formatted = traceback.TracebackException.from_exception(error)
    if not with_notes:
        formatted.__notes__ = []
    return shortened("".join(formatted.format()))


def without_own_frames(frames: TracebackType | None) -> TracebackType | None:
    """Return a traceback without its first frames, which are in kerasfeed."""
    outside = frames
    while outside is not None and _is_own(outside.tb_frame.f_code.co_filename):
        outside = outside.tb_next
    return outside or frames


def _is_own(filename: str) -> bool:
    return filename.startswith(PACKAGE_FOLDER) and not filename.startswith(_DEMO)


def shown(value: object) -> str:
    """Return a short `repr` of an object of the user."""
    return guarded(
        lambda: reprlib.repr(value),
        lambda broken: f"a {class_name(value)} (whose __repr__ raised {class_name(broken)})",
    )


def shortened(text: str) -> str:
    """Return `text` without its middle if it is very long."""
    if len(text) <= TEXT_LIMIT:
        return text
    half = TEXT_LIMIT // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters left out ...]\n{text[-half:]}"


def notes_of(error: BaseException) -> list[str]:
    """Return the notes of an exception that are text."""
    return [note for note in getattr(error, "__notes__", ()) if isinstance(note, str)]


def add_note(error: BaseException, note: str) -> bool:
    """Add a note to an exception.

    Return whether that worked (a frozen dataclass refuses it).
    """

    def add() -> bool:
        error.add_note(note)
        return True

    return guarded(add, lambda _: False)


def set_notes(error: BaseException, notes: list[str]) -> None:
    """Replace the notes of an exception, if it allows that."""
    with suppress(Exception):
        error.__notes__ = list(notes)


def reworded(error: _E, text: str) -> _E:
    """Return an error of the same type with another message.

    If its constructor refuses that, return `error` with a note.
    """

    def made() -> _E:
        # Many OSErrors have no errno, for example h5py's.
        number = getattr(error, "errno", None) if isinstance(error, OSError) else None
        copy = type(error)(text) if number is None else type(error)(number, text)
        return copy if isinstance(copy, type(error)) else error

    result = guarded(made, lambda _: error)
    if result is error:
        add_note(error, f"kerasfeed: {text}")
    return result


def cause_message(error: BaseException) -> str:
    """Return the message of an exception's cause, or its own."""
    return message_of(error if error.__cause__ is None else error.__cause__)


def drop_frame(error: BaseException) -> None:
    """Remove the outermost frame from an exception's traceback."""
    trace = error.__traceback__
    error.with_traceback(None if trace is None else trace.tb_next)


def with_note(
    error: BaseException, note: str, traceback: str = "", *, replaces: str = "", what: str = "the sequence raised "
) -> BaseException:
    """Return `error` with a note and a shorter traceback, wrapped if necessary.

    Args:
        error: The exception that the user's code raised.
        note: The note; may be empty.
        traceback: The traceback in another process, as text.
        replaces: Prefix of notes to remove, because the same object may have been raised before.
        what: The beginning of the message if it is wrapped, see `wrapped`.
    """
    error.with_traceback(without_own_frames(error.__traceback__))
    if replaces:
        set_notes(error, [each for each in notes_of(error) if not each.startswith(replaces)])
    if not can_travel(error) or (note and not add_note(error, note)):  # a frozen exception refuses notes
        error = wrapped(error, what)
        add_note(error, note)
    if traceback:
        # A note, not the cause, because Keras re-raises exceptions `from None`.
        add_note(error, f"{TRACEBACK_HEAD}\n{_with_lines(traceback)}")
    return error


def _with_lines(traceback: str) -> str:
    """Add lines of code that only this process has (notebook cells)."""

    def with_line(frame: re.Match[str]) -> str:
        is_known = frame["file"] in linecache.cache
        line = linecache.getline(frame["file"], int(frame["number"])).strip() if is_known else ""
        return f"{frame[0]}    {line}\n" if line else frame[0]

    return _FRAME_WITHOUT_LINE.sub(with_line, traceback)


def can_travel(error: BaseException) -> bool:
    """Whether consumers can get `error` itself.

    `StopIteration` would end a loop silently. Consumers would take `KeyboardInterrupt`, `SystemExit` and
    `GeneratorExit` for their own. A future ignores an exception whose `bool` is False.
    """
    return isinstance(error, Exception) and not isinstance(error, StopIteration | StopAsyncIteration) and bool(error)


def wrapped(error: BaseException, what: str, kind: type[_E] = SceneError) -> _E:  # type: ignore[assignment]
    """Return a `kind` caused by `error`, with "<what><type and message>"."""
    made = kind(f"{what}{summary(error)}")
    made.__cause__ = error
    return made


def note_causes(error: BaseException) -> None:
    """Add a note on the causes of `error`.

    Consumers such as Keras raise it `from None`, so Python does not print the causes.
    """
    has_causes = error.__cause__ is not None or not (error.__suppress_context__ or error.__context__ is None)
    if has_causes and not _has_traceback_note(error):
        add_note(error, f"{_CAUSE_HEAD}\n{full_text(error, with_notes=False)}")


def text_of(error: BaseException) -> str:
    """Return summary, notes and traceback as one text."""
    lines = [summary(error), *notes_of(error)]
    if not _has_traceback_note(error):
        lines.append("\n" + full_text(error, with_notes=False))
    return "\n".join(lines)


def _has_traceback_note(error: BaseException) -> bool:
    return any(note.startswith((TRACEBACK_HEAD, _CAUSE_HEAD)) for note in notes_of(error))


def is_the_programs(error: BaseException) -> bool:
    """Whether an exception comes from Ctrl-C or a signal handler.

    Both are raised in the main thread, at any line. A worker process ignores Ctrl-C.
    """
    if isinstance(error, Exception) or threading.get_ident() != threading.main_thread().ident:
        return False
    if isinstance(error, KeyboardInterrupt):
        return signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    return bool(handlers) and any(frame.f_code in handlers for frame, _ in traceback.walk_tb(error.__traceback__))


def _code_of(handler: Any) -> CodeType | None:
    function = getattr(handler, "func", handler)  # of a partial
    function = getattr(function, "__func__", function)
    if not callable(function):  # SIG_DFL and SIG_IGN
        return None
    return getattr(function, "__code__", None) or getattr(vars(type(function)).get("__call__"), "__code__", None)


def guarded(make: Callable[[], _T], otherwise: Callable[[BaseException], _T]) -> _T:
    """Return `make()`; if that raises, return `otherwise(exception)`."""
    try:
        return make()
    except Exception as broken:  # noqa: BLE001 - `make` calls methods of the user's classes
        return otherwise(broken)
