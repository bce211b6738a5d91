"""Exceptions that users may catch.

Invariant: an exception raised by the user's own `__getitem__` keeps its type on its way to the consumer; the
classes here are for what kerasfeed itself finds wrong. Each derives from the built-in a caller would expect.
"""

import queue


class KerasfeedError(Exception):
    """Base of every exception defined by kerasfeed."""


class SceneError(KerasfeedError, RuntimeError):
    """Loading a scene failed with an exception that cannot travel as itself.

    Raised in place of `StopIteration`, `SystemExit`, `KeyboardInterrupt` and of exceptions that cannot be pickled;
    the original is the cause, or its text is in the message.
    """


class SpecError(KerasfeedError, ValueError):
    """A scene's structure, shape or dtype is not what the feed's spec says, or cannot be part of a batch."""


class RecordError(KerasfeedError, ValueError):
    """A file of records is damaged, cut off or incomplete."""


class WorkerDiedError(KerasfeedError, RuntimeError):
    """A scene ended its worker process again and again, or worker processes could not be kept alive."""


class WorkerStartError(WorkerDiedError):
    """A worker process could not load the sequence."""


class SceneTimeoutError(KerasfeedError, TimeoutError):
    """A scene took longer than the feed's `timeout`."""


class TooManyFailuresError(KerasfeedError, RuntimeError):
    """More scenes failed than `max_failures` allows; the cause is the failure that was one too many."""


class FeedClosedError(KerasfeedError, RuntimeError):
    """The feed was used after `close()`."""


class ConsumerGoneError(FeedClosedError):
    """Nobody takes what is put any more."""


class QueueFullError(KerasfeedError, queue.Full):
    """A queue was full for longer than a `put` would wait."""


class ProducerDiedError(KerasfeedError, RuntimeError):
    """A process that put scenes into a queue ended in the middle of it."""


class FeedWarning(UserWarning):
    """Something went wrong that the feed dealt with: a worker was replaced, a scene hangs, batches are copied."""
