"""Exceptions as bytes, from a worker process to the consumer.

Invariant: an exception arrives as an instance of its own class, with its message, notes and attributes, or it is said
what is missing. Packing never fails: a worker that cannot report would look like one that died.
"""

import itertools
import os
import pickle
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import cloudpickle

from kerasfeed.errors import SceneError, SpecError

_PACKAGE = f"{Path(__file__).parents[1]}{os.sep}"
_DEMO = f"{_PACKAGE}demo{os.sep}"  # scenes as a user writes them
TEXT_LIMIT = 20_000  # characters of a text that repeats an exception: of a 2 MB message, beginning and end will do


@dataclass(frozen=True)
class Packed:
    """An exception as bytes.

    Attributes:
        data: For `unpack`; None where its class does not pickle.
        complete: Whether `unpack` gives all of it, and not only its class and what pickles.
    """

    data: bytes | None
    complete: bool


@dataclass(frozen=True)
class _Whole:
    error: BaseException
    notes: list[str]  # a class with a `__reduce__` of its own leaves them out

    def exception(self) -> BaseException:
        if list(getattr(self.error, "__notes__", ())) != self.notes:
            self.error.__notes__ = list(self.notes)
        return self.error


@dataclass(frozen=True)
class _Parts:
    """An exception whose constructor cannot be called with `args` alone, as classes with several arguments have it."""

    kind: type[BaseException]
    args: tuple[Any, ...]
    state: dict[str, Any]
    missing: list[str]

    def exception(self) -> BaseException:
        builtin: Any = next(base for base in self.kind.__mro__ if base.__module__ == "builtins")
        error: BaseException = builtin.__new__(self.kind, *self.args)
        builtin.__init__(error, *self.args)
        error.__dict__.update(self.state)
        if self.missing:
            error.add_note(f"kerasfeed: without its {', '.join(self.missing)}, which cannot be sent between processes")
        return error


@dataclass(frozen=True)
class _Group:
    kind: type[BaseExceptionGroup[Any]]
    message: str
    members: list[Packed]
    summaries: list[str]
    state: dict[str, Any]

    def exception(self) -> BaseException:
        members = [arrived(packed, text) for packed, text in zip(self.members, self.summaries, strict=True)]
        builtin: Any = ExceptionGroup if issubclass(self.kind, ExceptionGroup) else BaseExceptionGroup
        error: BaseException = builtin.__new__(self.kind, self.message, members)
        error.__dict__.update(self.state)
        return error


def pack(error: BaseException) -> Packed:
    """`error` as bytes, as completely as it goes."""
    try:
        notes = [note for note in getattr(error, "__notes__", ()) if isinstance(note, str)]
        data = _tried(_Whole(error, notes), error)
        if data is None and isinstance(error, BaseExceptionGroup):
            members = [pack(member) for member in error.exceptions]
            summaries = [summary(member) for member in error.exceptions]
            state, _ = _picklable(vars(error))
            data = _tried(_Group(type(error), error.message, members, summaries, state), error)
        if data is None:
            data = _tried(_Parts(type(error), error.args, vars(error), []), error)
        if data is not None:
            return Packed(data, complete=True)
        state, missing = _picklable(vars(error))
        args, missing_args = _picklable(dict(enumerate(error.args)))
        kept = tuple(args.get(number, "?") for number in range(len(error.args)))
        lacking = [*(f"argument {name}" for name in missing_args), *(f"attribute {name!r}" for name in missing)]
        return Packed(_tried(_Parts(type(error), kept, state, lacking), None), complete=False)
    except Exception:  # noqa: BLE001 - attributes that raise when looked at: the text still travels
        return Packed(None, complete=False)


def unpack(data: bytes) -> BaseException:
    """The exception that `pack` was given; raises whatever its class raises."""
    return pickle.loads(data).exception()  # type: ignore[no-any-return]


def arrived(packed: Packed, text: str) -> BaseException:
    """The exception itself, or a `SceneError` of its summary `text` whose cause is what could be sent of it."""
    error: BaseException | None = None
    if packed.data is not None:
        try:
            error = unpack(packed.data)
        except Exception:  # noqa: BLE001 - its class may exist in the worker alone
            error = None
    if error is not None and packed.complete:
        return error
    wrapped = SceneError(f"the sequence raised {text} (an exception that cannot be sent to this process)")
    wrapped.__cause__ = error
    return wrapped


def summary(error: BaseException) -> str:
    """Type and message of an exception on one line, more where the message has more."""
    try:
        return shortened(f"{type(error).__name__}: {error}")
    except Exception as failure:  # noqa: BLE001 - its own __str__
        return f"{type(error).__name__} (its message cannot be had: __str__ raised {type(failure).__name__})"


def without_own_frames(frames: TracebackType | None) -> TracebackType | None:
    """A traceback from the first frame on that is not kerasfeed's; as it is where there is none."""
    found = frames
    while found is not None and _is_own(found.tb_frame.f_code.co_filename):
        found = found.tb_next
    return found or frames


def _is_own(filename: str) -> bool:
    return filename.startswith(_PACKAGE) and not filename.startswith(_DEMO)


def _begin_with_the_users(described: traceback.TracebackException | None) -> None:
    """Leave out frames of kerasfeed's before the user's, of an exception and of its causes; of a `SpecError` all."""
    if described is None:
        return
    own = list(itertools.takewhile(lambda frame: _is_own(frame.filename), described.stack))
    if len(own) < len(described.stack) or described.exc_type is SpecError:
        del described.stack[: len(own)]
    for each in (described.__cause__, described.__context__, *(described.exceptions or ())):
        _begin_with_the_users(each)


def full_text(error: BaseException, *, with_notes: bool = True) -> str:
    """Traceback of an exception with its causes, and with its own notes; it begins with the user's frames."""
    try:
        described = traceback.TracebackException.from_exception(error)
        _begin_with_the_users(described)
        if not with_notes:
            described.__notes__ = []
        return shortened("".join(described.format()))
    except Exception:  # noqa: BLE001 - attributes that raise when looked at
        return summary(error)


def shortened(text: str) -> str:
    """`text`, without its middle where it is very long."""
    if len(text) <= TEXT_LIMIT:
        return text
    half = TEXT_LIMIT // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters left out ...]\n{text[-half:]}"


def _tried(value: Any, error: BaseException | None) -> bytes | None:
    """`value` as bytes, where they make an exception that equals `error`."""
    try:
        data: bytes = cloudpickle.dumps(value)
        copy = unpack(data)
    except Exception:  # noqa: BLE001 - whatever fails here, there is another way
        return None
    if error is None or _said(copy) == _said(error):
        return data
    return None


def _said(error: BaseException) -> tuple[str, str | None]:
    # By name: in its own process a class that is sent by value may come back as another.
    try:
        return type(error).__qualname__, str(error)
    except Exception:  # noqa: BLE001 - its own __str__
        return type(error).__qualname__, None


def _picklable(values: dict[Any, Any]) -> tuple[dict[Any, Any], list[Any]]:
    """The values that pickle, and the names of those that do not."""
    kept, missing = {}, []
    for name, value in values.items():
        try:
            pickle.loads(cloudpickle.dumps(value))
            kept[name] = value
        except Exception:  # noqa: BLE001 - what does not pickle raises anything
            missing.append(name)
    return kept, missing
