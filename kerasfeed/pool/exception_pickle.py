"""Exceptions as bytes, from a worker process, a producer or a host to the consumer.

Invariant: an exception is pickled once and made anew once: an instance of its own class, with its message, notes and
attributes. Where either fails, its text arrives in a `SceneError`. Neither ever raises: a worker that cannot report
would look like one that died.
"""

import io
from dataclasses import dataclass
from typing import Any

from kerasfeed.errors import SceneError
from kerasfeed.util.error_text import guarded, notes_of, set_notes, summary
from kerasfeed.util.picklers import CloudPickler, unpickled


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


@dataclass(frozen=True)
class Sent:
    """An exception on its way from another process.

    Attributes:
        packed: The exception and its notes, pickled; empty where it does not pickle.
        text: Its type and message.
        cause: What it was raised from, as far as that is sent along.
    """

    packed: bytes
    text: str
    cause: "Sent | None" = None

    @classmethod
    def of(cls, error: BaseException, *, causes: int = 0) -> "Sent":
        """`error`, with so many of its causes, one behind the other."""

        def packed() -> bytes:
            stream = io.BytesIO()
            # A class with a way of its own to pickle leaves out the notes.
            _ExceptionPickler(stream, protocol=5).dump((error, notes_of(error)))
            return stream.getvalue()

        cause = error.__cause__ if causes else None
        sent_cause = None if cause is None else cls.of(cause, causes=causes - 1)
        return cls(guarded(packed, lambda _: b""), summary(error), sent_cause)

    def arrived(self) -> BaseException:
        """The exception, or a `SceneError` of its text."""

        def unpacked() -> object:
            error, notes = unpickled(self.packed)
            if notes_of(error) != notes:
                set_notes(error, notes)
            return error

        # Its class may exist in the worker alone, or refuse to be made here.
        error = guarded(unpacked, lambda _: None)
        if not isinstance(error, BaseException):
            error = SceneError(f"the sequence raised {self.text} (an exception that cannot be sent to this process)")
        if self.cause is not None and error.__cause__ is None:
            error.__cause__ = self.cause.arrived()
        return error
