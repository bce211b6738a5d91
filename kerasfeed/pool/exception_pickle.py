"""Exceptions as bytes, to send them to the consumer's process.

Invariant: an exception arrives as an instance of its own class, with its message, notes and attributes. If it cannot be
pickled or restored, its text arrives in a `SceneError`. Neither step raises: a worker that cannot report would look
dead.
"""

import io
from dataclasses import dataclass
from typing import Any

from kerasfeed.errors import SceneError
from kerasfeed.util.error_text import guarded, notes_of, set_notes, summary
from kerasfeed.util.picklers import CloudPickler, unpickled


class _ExceptionPickler(CloudPickler):
    """Pickle exceptions so that unpickling skips their constructors.

    A constructor may need arguments that the exception does not keep.
    """

    def reducer_override(self, obj: Any) -> Any:
        """Called by pickle for every object."""
        if isinstance(obj, BaseException):
            kind = type(obj)
            builtin: Any = next(base for base in kind.__mro__ if base.__module__ == "builtins")
            # A class with its own reduce methods keeps them.
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
        object.__setattr__(error, name, value)  # frozen exceptions refuse setattr
    return error


@dataclass(frozen=True)
class Sent:
    """An exception pickled in another process.

    Attributes:
        packed: The exception and its notes, pickled; empty if it does not pickle.
        text: Its type and message.
        cause: Its cause, if that was sent too; else None.
    """

    packed: bytes
    text: str
    cause: "Sent | None" = None

    @classmethod
    def of(cls, error: BaseException, *, causes: int = 0) -> "Sent":
        """Pickle `error` and up to `causes` of its causes."""

        def packed() -> bytes:
            stream = io.BytesIO()
            # Classes with their own reduce methods leave out the notes.
            _ExceptionPickler(stream, protocol=5).dump((error, notes_of(error)))
            return stream.getvalue()

        cause = error.__cause__ if causes else None
        sent_cause = None if cause is None else cls.of(cause, causes=causes - 1)
        return cls(guarded(packed, lambda _: b""), summary(error), sent_cause)

    def as_exception(self) -> BaseException:
        """Return the exception, or a `SceneError` with its text."""

        def unpacked() -> object:
            error, notes = unpickled(self.packed)
            if notes_of(error) != notes:
                set_notes(error, notes)
            return error

        # The class may exist only in the worker, or refuse to be restored here.
        error = guarded(unpacked, lambda _: None)
        if not isinstance(error, BaseException):
            error = SceneError(f"the sequence raised {self.text} (an exception that cannot be sent to this process)")
        if self.cause is not None and error.__cause__ is None:
            error.__cause__ = self.cause.as_exception()
        return error
