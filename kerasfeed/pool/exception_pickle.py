"""Exceptions as bytes, from a worker process to the consumer.

Invariant: an exception is pickled once and made anew once: an instance of its own class, with its message, notes and
attributes. Where either fails, its text arrives in a `SceneError`. Neither ever raises: a worker that cannot report
would look like one that died.
"""

import io
import pickle
from dataclasses import dataclass
from typing import Any

from kerasfeed.errors import SceneError
from kerasfeed.util.error_text import cause_of, guarded, notes_of, set_notes, summary
from kerasfeed.util.picklers import CloudPickler

Packed = bytes | None  # of `pack`; None where it does not pickle


class _ExceptionPickler(CloudPickler):
    """Has exceptions made anew without their constructor, which often wants something else than their `args`."""

    def reducer_override(self, obj: Any) -> Any:
        """Called by pickle for every object."""
        if isinstance(obj, BaseException):
            kind = type(obj)
            builtin: Any = next(base for base in kind.__mro__ if base.__module__ == "builtins")
            # Of a class that has a way of its own nothing else is known than that.
            if (kind.__reduce_ex__, kind.__reduce__) == (builtin.__reduce_ex__, builtin.__reduce__):
                _, args, *state = builtin.__reduce__(obj)
                slots = object.__getstate__(obj)
                slots = slots[1] if isinstance(slots, tuple) else {}
                return _made, (builtin, kind, args, dict(*state) | slots)
        return super().reducer_override(obj)


def _made(builtin: Any, kind: type[BaseException], args: tuple[Any, ...], state: dict[str, Any]) -> BaseException:
    error: BaseException = builtin.__new__(kind, *args)
    builtin.__init__(error, *args)
    for name, value in state.items():
        object.__setattr__(error, name, value)  # a frozen one refuses it otherwise
    return error


def pack(error: BaseException) -> Packed:
    """`error` as bytes."""

    def packed() -> bytes:
        stream = io.BytesIO()
        # A class with a way of its own to pickle leaves out the notes.
        _ExceptionPickler(stream, protocol=5).dump((error, notes_of(error)))
        return stream.getvalue()

    return guarded(packed, lambda _: None)


def arrived(packed: Packed, text: str) -> BaseException:
    """The exception that was packed, or a `SceneError` of its summary `text`."""

    def unpacked() -> BaseException | None:
        if packed is None:
            return None
        error, notes = pickle.loads(packed)
        if not isinstance(error, BaseException):
            return None
        if notes_of(error) != notes:
            set_notes(error, notes)
        return error

    # Its class may exist in the worker alone, or refuse to be made here.
    error = guarded(unpacked, lambda _: None)
    if error is not None:
        return error
    return SceneError(f"the sequence raised {text} (an exception that cannot be sent to this process)")


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
