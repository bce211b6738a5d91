"""Exceptions that users may catch.

Invariant: an exception raised by the user's own `__getitem__` keeps its type on its way to the consumer; the
classes here are for what kerasfeed itself finds wrong. Each derives from the built-in a caller would expect.
"""


class KerasfeedError(Exception):
    """Base of every exception defined by kerasfeed."""


class SceneError(KerasfeedError, RuntimeError):
    """Loading a scene failed with an exception that cannot travel as itself.

    Raised in place of `StopIteration`, `SystemExit`, `KeyboardInterrupt` and of exceptions that cannot be pickled;
    the original is the cause, or its text is in the message.
    """


class SpecError(KerasfeedError, ValueError):
    """A scene's structure, shape or dtype is not what the feed's spec says, or cannot be part of a batch."""


class WorkerDiedError(KerasfeedError, RuntimeError):
    """A worker process ended while it was needed (killed, crashed, or failed to start)."""


class WorkerStartError(WorkerDiedError):
    """A worker process could not load the sequence."""


class FeedClosedError(KerasfeedError, RuntimeError):
    """The feed was used after `close()`."""
