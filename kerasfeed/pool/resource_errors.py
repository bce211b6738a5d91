"""Errors for exhausted descriptors, threads and memory, with a remedy.

Invariant: an error keeps its type and errno; other errors pass unchanged.
"""

import errno
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from kerasfeed.util.error_text import message_of, pluralize, reworded
from kerasfeed.util.resources import descriptors

_NO_THREAD = "can't start new thread"  # Python's message
DESCRIPTORS = 16  # per feed of processes, besides one per worker: pipes, memory, start of a process


@contextmanager
def naming_descriptors(owner: str, count: int) -> Iterator[None]:
    """Reword an error for exhausted descriptors.

    The new message names the user, the count and a remedy.

    Raises:
        OSError: The error of the body, reworded if descriptors are exhausted.
    """
    try:
        yield
    except OSError as error:
        if error.errno == errno.EMFILE:
            left = f"the limit of this process, {descriptors():,}, is reached"
            remedy = (
                "Raise the limit in the shell that starts the program (ulimit -n 65536), use fewer workers, or close "
                "feeds and files that you no longer need"
            )
        elif error.errno == errno.ENFILE:
            left, remedy = "the limit of the system is reached", "Close feeds, files and programs you no longer need"
        else:
            raise
        raise reworded(
            error, f"{owner} needs about {count} file descriptors, and {left}: {message_of(error)}. {remedy}"
        ) from error


def start_thread(thread: threading.Thread, owner: str, count: int = 1) -> None:
    """Start `thread`, one of the `count` threads that `owner` needs.

    Raises:
        RuntimeError: The system starts no more threads. The message names the user, the count and a remedy.
    """
    try:
        thread.start()
    except RuntimeError as error:
        if message_of(error) != _NO_THREAD:  # for example while the interpreter shuts down
            if isinstance(error.__context__, KeyboardInterrupt):
                raise error.__context__ from None  # Ctrl-C in start() may make CPython release a lock twice
            raise
        raise reworded(
            error,
            f"{owner} needs {pluralize(count, 'thread')}, and the system starts no more for this process, which has "
            f"{threading.active_count():,}: {_NO_THREAD}. Use fewer workers, close feeds that you no longer need, or "
            "raise the limit (ulimit -u in the shell that starts the program, --pids-limit of a container)",
        ) from error


@contextmanager
def naming_memory(owner: str, nbytes: int, held: int, *, shared: bool = True, what: str = "batches") -> Iterator[None]:
    """Reword an error for exhausted memory.

    The new message names the user, the size and a remedy.

    Args:
        owner: The user of the memory, as messages name it.
        nbytes: Requested bytes.
        held: Bytes that `owner` already has.
        shared: Whether other processes use the memory too.
        what: Purpose of the memory.

    Raises:
        OSError: The error of the body, reworded if memory is exhausted.
    """
    try:
        yield
    except OSError as error:
        if not is_of_memory(error):
            raise
        memory = "memory that processes share" if shared else "memory"
        raise reworded(
            error,
            f"{owner} cannot get {nbytes:,} bytes for {what}, in addition to the {held:,} that it has: "
            f"{message_of(error)}; the system has no more {memory} for it. Lower max_memory, max_queue_size or "
            "batch_size, and delete batches that you no longer need",
        ) from error


def is_of_memory(error: BaseException) -> bool:
    """Whether the system refused memory of the requested size.

    This includes files in memory.
    """
    return isinstance(error, OSError) and error.errno in (errno.EFBIG, errno.ENOSPC, errno.ENOMEM, errno.EDQUOT)
