"""Text and notes of exceptions that the user's code raised; the consumer of the scene reads them.

Invariant: a `__str__` or `__repr__` that raises does not replace the exception it belongs to. The consumer catches the
type that the user's code raised. kerasfeed adds index, epoch, step, worker and the worker's traceback as notes. It does
not change the user's message.
"""

import linecache
import os
import re
import reprlib
import signal
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from types import CodeType, TracebackType
from typing import Any, TypeVar

from kerasfeed.errors import SceneError

PACKAGE_FOLDER = f"{Path(__file__).parent.parent}{os.sep}"
_DEMO = f"{PACKAGE_FOLDER}demo{os.sep}"  # scenes as a user writes them
TEXT_LIMIT = 20_000  # characters of a text that repeats an exception: of a 2 MB message, beginning and end will do
_MAX_LINE = 200
TRACEBACK_HEAD = "Traceback in the worker:"
_FRAME_WITHOUT_LINE = re.compile(r'^  File "(?P<file>.+)", line (?P<number>\d{1,9}), in .+\n(?!    )', re.MULTILINE)
_CAUSE_HEAD = "Traceback with its causes:"
_T = TypeVar("_T")
_E = TypeVar("_E", bound=BaseException)


def counted(count: int, noun: str, plural: str = "") -> str:
    """`1 scene`, `2 scenes`; `plural` is for a noun whose plural is not the noun with an s."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def class_name(value: object) -> str:
    """The name of the class of `value`."""
    return type(value).__name__


def message_of(error: BaseException, *, whole: bool = False) -> str:
    """What `str` makes of an exception, unless `whole` without its middle where that is very long."""

    def made() -> str:
        return str(error) if whole else shortened(str(error))

    return guarded(made, lambda broken: f"(its message cannot be had: __str__ raised {class_name(broken)})")


def summary(error: BaseException) -> str:
    """Type and message of an exception on one line, more where the message has more."""
    return f"{class_name(error)}: {message_of(error)}"


def exception_text(error: BaseException) -> str:
    """Type and message in one line of at most 200 characters."""
    text = " ".join(summary(error)[: 3 * _MAX_LINE].split())
    return text if len(text) <= _MAX_LINE else text[: _MAX_LINE - 1] + "…"


def full_text(error: BaseException, *, with_notes: bool = True) -> str:
    """Traceback of an exception with its causes, and with its own notes."""
    found = traceback.TracebackException.from_exception(error)
    if not with_notes:
        found.__notes__ = []
    return shortened("".join(found.format()))


def without_own_frames(frames: TracebackType | None) -> TracebackType | None:
    """A traceback from the first frame on that is not kerasfeed's; as it is where there is none."""
    found = frames
    while found is not None and _is_own(found.tb_frame.f_code.co_filename):
        found = found.tb_next
    return found or frames


def _is_own(filename: str) -> bool:
    return filename.startswith(PACKAGE_FOLDER) and not filename.startswith(_DEMO)


def shown(value: object) -> str:
    """A short `repr` of what a user has made."""
    return guarded(
        lambda: reprlib.repr(value),
        lambda broken: f"a {class_name(value)} (whose __repr__ raised {class_name(broken)})",
    )


def shortened(text: str) -> str:
    """`text`, without its middle where it is very long."""
    if len(text) <= TEXT_LIMIT:
        return text
    half = TEXT_LIMIT // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters left out ...]\n{text[-half:]}"


def notes_of(error: BaseException) -> list[str]:
    """The notes of an exception; those that are text."""
    return [note for note in getattr(error, "__notes__", ()) if isinstance(note, str)]


def add_note(error: BaseException, note: str) -> bool:
    """Add a note to an exception; returns whether it takes one (a frozen dataclass does not)."""

    def add() -> bool:
        error.add_note(note)
        return True

    return guarded(add, lambda _: False)


def set_notes(error: BaseException, notes: list[str]) -> bool:
    """Have an exception carry these notes; returns whether it takes them."""

    def put() -> bool:
        error.__notes__ = list(notes)
        return True

    return guarded(put, lambda _: False)


def reworded(error: _E, text: str) -> _E:
    """An error of the same type with another message; where its constructor refuses that, itself with a note."""

    def made() -> _E:
        # Many OSErrors, h5py's own among them, have no errno.
        number = getattr(error, "errno", None) if isinstance(error, OSError) else None
        found = type(error)(text) if number is None else type(error)(number, text)
        return found if isinstance(found, type(error)) else error

    found = guarded(made, lambda _: error)
    if found is error:
        add_note(error, f"kerasfeed: {text}")
    return found


def cause_message(error: BaseException) -> str:
    """The message of what an exception was raised from; its own where that is nothing."""
    return message_of(error if error.__cause__ is None else error.__cause__)


def drop_frame(error: BaseException) -> None:
    """Take the outermost frame out of its traceback."""
    trace = error.__traceback__
    error.with_traceback(None if trace is None else trace.tb_next)


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
        add_note(error, f"{TRACEBACK_HEAD}\n{_with_lines(traceback)}")
    return error


def _with_lines(traceback: str) -> str:
    """A traceback of another process, with lines of code that only this one knows, such as of cells of a notebook."""

    def told(frame: re.Match[str]) -> str:
        is_known = frame["file"] in linecache.cache
        line = linecache.getline(frame["file"], int(frame["number"])).strip() if is_known else ""
        return f"{frame[0]}    {line}\n" if line else frame[0]

    return _FRAME_WITHOUT_LINE.sub(told, traceback)


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
        add_note(error, f"{_CAUSE_HEAD}\n{full_text(error, with_notes=False)}")


def text_of(error: BaseException) -> str:
    """All that is known of an error, for a consumer that keeps a text alone."""
    lines = [summary(error), *notes_of(error)]
    if not _tells_traceback(error):
        lines.append("\n" + full_text(error, with_notes=False))
    return "\n".join(lines)


def _tells_traceback(error: BaseException) -> bool:
    return any(note.startswith((TRACEBACK_HEAD, _CAUSE_HEAD)) for note in notes_of(error))


def is_the_programs(error: BaseException) -> bool:
    """Whether an exception is no fault of the code that it came out of: Ctrl-C, or what a signal's handler has raised.

    Both strike the main thread, wherever it is. A worker process ignores Ctrl-C.
    """
    if isinstance(error, Exception) or threading.get_ident() != threading.main_thread().ident:
        return False
    if isinstance(error, KeyboardInterrupt):
        return signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    handlers = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    return bool(handlers) and any(frame.f_code in handlers for frame, _ in traceback.walk_tb(error.__traceback__))


def _code_of(handler: Any) -> CodeType | None:
    found = getattr(handler, "func", handler)  # of a partial
    found = getattr(found, "__func__", found)
    if not callable(found):  # SIG_DFL and SIG_IGN
        return None
    return getattr(found, "__code__", None) or getattr(vars(type(found)).get("__call__"), "__code__", None)


def guarded(make: Callable[[], _T], otherwise: Callable[[BaseException], _T]) -> _T:
    """Return `make()`; if that raises, return `otherwise(exception)`."""
    try:
        return make()
    except Exception as broken:  # noqa: BLE001 - `make` calls methods of the user's classes
        return otherwise(broken)
