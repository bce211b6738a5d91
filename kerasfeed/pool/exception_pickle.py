"""Exceptions as bytes, from a worker process to the consumer.

Invariant: an exception arrives as an instance of its own class, with its message, notes and attributes, or it is said
what is missing. Packing never fails: a worker that cannot report would look like one that died.
"""

import pickle
from dataclasses import dataclass
from functools import partial
from typing import Any

import cloudpickle

from kerasfeed.errors import SceneError
from kerasfeed.util.error_text import (
    add_note,
    cause_of,
    class_name,
    guarded,
    is_printable,
    message_of,
    notes_of,
    set_notes,
    summary,
)


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
        if notes_of(self.error) != self.notes:
            set_notes(self.error, self.notes)
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
            add_note(error, f"kerasfeed: without its {', '.join(self.missing)}, which cannot be sent between processes")
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
    # Attributes may raise when they are looked at: the text still travels.
    return guarded(lambda: _packed(error), lambda _: Packed(None, complete=False))


def _packed(error: BaseException) -> Packed:
    data = _tried(_Whole(error, notes_of(error)), error)
    if data is None and issubclass(type(error), BaseExceptionGroup):
        group: Any = error
        members = [pack(member) for member in group.exceptions]
        summaries = [summary(member) for member in group.exceptions]
        state, _ = _picklable(vars(error))
        data = _tried(_Group(type(group), group.message, members, summaries, state), error)
    if data is None:
        data = _tried(_Parts(type(error), error.args, vars(error), []), error)
    if data is not None:
        return Packed(data, complete=True)
    state, missing = _picklable(vars(error))
    args, missing_args = _picklable(dict(enumerate(error.args)))
    kept = tuple(args.get(number, "?") for number in range(len(error.args)))
    lacking = [*(f"argument {name}" for name in missing_args), *(f"attribute {name!r}" for name in missing)]
    return Packed(_tried(_Parts(type(error), kept, state, lacking), None), complete=False)


def unpack(data: bytes) -> BaseException:
    """The exception that `pack` was given; raises whatever its class raises."""
    return pickle.loads(data).exception()  # type: ignore[no-any-return]


def arrived(packed: Packed, text: str) -> BaseException:
    """The exception itself, or a `SceneError` of its summary `text` whose cause is what could be sent of it."""
    data, error = packed.data, None
    if data is not None:  # its class may exist in the worker alone, or what it is made of refuse to be made here
        error = guarded(lambda: unpack(data), lambda _: None)
    if error is not None and packed.complete:
        return error
    wrapped = SceneError(f"the sequence raised {text} (an exception that cannot be sent to this process)")
    if error is not None and is_printable(error):
        wrapped.__cause__ = error
    return wrapped


@dataclass(frozen=True)
class Sent:
    """An exception on its way from another host, with what it was raised from.

    Attributes:
        packed: The exception.
        text: Its type and message.
        cause: Its cause, if there is one.
    """

    packed: Packed
    text: str
    cause: "Sent | None" = None

    @classmethod
    def of(cls, error: BaseException, causes: int = 2) -> "Sent":
        """`error`, with so many of its causes, one behind the other."""
        cause = cause_of(error) if causes else None
        return cls(pack(error), summary(error), None if cause is None else cls.of(cause, causes - 1))

    def arrived(self) -> BaseException:
        """The exception."""
        error = arrived(self.packed, self.text)
        if self.cause is not None and error.__cause__ is None:
            error.__cause__ = self.cause.arrived()
        return error


def _tried(value: Any, error: BaseException | None) -> bytes | None:
    """`value` as bytes, where they make an exception that equals `error`."""

    def made() -> tuple[bytes, BaseException] | None:
        data = cloudpickle.dumps(value)
        copy = unpack(data)
        return (data, copy) if issubclass(type(copy), BaseException) else None

    found = guarded(made, lambda _: None)  # whatever fails here, there is another way
    if found is not None and (error is None or _name_and_message(found[1]) == _name_and_message(error)):
        return found[0]
    return None


def _name_and_message(error: BaseException) -> tuple[str, str]:
    # By name: in its own process a class that is sent by value may come back as another.
    return class_name(error), message_of(error)


def _picklable(values: dict[Any, Any]) -> tuple[dict[Any, Any], list[Any]]:
    """The values that pickle, and the names of those that do not."""
    kept, missing = {}, []
    for name, value in values.items():
        if guarded(partial(_travels, value), lambda _: False):  # what does not pickle raises anything
            kept[name] = value
        else:
            missing.append(name)
    return kept, missing


def _travels(value: Any) -> bool:
    pickle.loads(cloudpickle.dumps(value))
    return True
