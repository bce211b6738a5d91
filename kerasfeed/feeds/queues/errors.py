"""What a producer is told that a queue turns away.

Invariant: each text says what became of the queue, how many scenes it had, and what to do.
"""

from kerasfeed.errors import ConsumerGoneError, FeedClosedError, QueueFullError
from kerasfeed.util.error_text import class_name, message_of


def consumer_gone(count: int) -> ConsumerGoneError:
    """The consumer has closed the queue."""
    return ConsumerGoneError(
        f"the feed takes no more scenes: its consumer has closed it, after {count} were put. End the producer, or put "
        "inside `with feed.producing():`, which ends quietly then"
    )


def program_over(count: int) -> ConsumerGoneError:
    """Only producers keep the program from its end."""
    return ConsumerGoneError(
        f"the feed takes no more scenes: the program has ended, after {count} were put, and nobody is left to take them"
    )


def failed(failure: BaseException, count: int) -> FeedClosedError:
    """Another producer has failed."""
    return FeedClosedError(
        f"the feed takes no more scenes: a producer has failed, after {count} were put ({class_name(failure)}: "
        f"{message_of(failure)}). Mend that, and make a new feed"
    )


def finished(count: int) -> FeedClosedError:
    """A producer has said that no more comes."""
    return FeedClosedError(
        f"the feed takes no more scenes: close() has said, after {count} were put, that no more come. Call it once, "
        "after the last put() of all producers"
    )


def full(timeout: float | None, maxsize: int, what: str) -> QueueFullError:
    """There was no room in time."""
    return QueueFullError(
        f"the queue was full for {timeout:g} s: {maxsize} {what} wait to be taken (maxsize={maxsize}). The consumer is "
        "slower than the producers: wait longer (timeout=None waits for ever), or raise maxsize"
    )


def other_process(owner: int, pid: int) -> RuntimeError:
    """A forked process has a copy of the queue."""
    return RuntimeError(
        f"this queue is filled in process {owner}, and this is process {pid}, which has only a copy of it. Give the "
        "process `feed.producer()` and put to that"
    )
