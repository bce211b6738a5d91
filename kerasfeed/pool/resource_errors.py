"""What the system refuses a feed: descriptors, threads, memory. Said with the feed's name, the amount and a remedy.

Invariant: an error keeps its type and its errno, and is otherwise left alone.
"""

import errno
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from kerasfeed.util.error_text import counted, message_of, reworded
from kerasfeed.util.resources import descriptors

_NO_THREAD = "can't start new thread"  # in Python's words
DESCRIPTORS = 16  # of a feed of processes, beside one for each worker: pipes, memory, and those of a start


@contextmanager
def naming_descriptors(who: str, count: int) -> Iterator[None]:
    """Have an error that there are no descriptors left say who needs `count` of them, and what to do.

    Raises:
        OSError: What came within, reworded where it is such an error.
    """
    try:
        yield
    except OSError as error:
        if error.errno == errno.EMFILE:
            left = f"this process has not so many left of {descriptors():,}"
            remedy = (
                "Raise the limit in the shell that starts the program (ulimit -n 65536), use fewer workers, or close "
                "feeds and files that are done with"
            )
        elif error.errno == errno.ENFILE:
            left, remedy = "the system has not so many left", "Close feeds, files and programs that are done with"
        else:
            raise
        raise reworded(
            error, f"{who} needs about {count} file descriptors, and {left}: {message_of(error)}. {remedy}"
        ) from error


def start_thread(thread: threading.Thread, who: str, count: int = 1) -> None:
    """Start `thread`, one of `count` that `who` needs.

    Raises:
        RuntimeError: The system starts no more; it says who needs how many, and what to do.
    """
    try:
        thread.start()
    except RuntimeError as error:
        if message_of(error) != _NO_THREAD:  # which it is also as the interpreter ends, with another message
            raise
        raise reworded(
            error,
            f"{who} needs {counted(count, 'thread')}, and the system starts no more for this process, which has "
            f"{threading.active_count():,}: {_NO_THREAD}. Use fewer workers, close feeds that are done with, or raise "
            "the limit: ulimit -u in the shell that starts the program, --pids-limit of a container",
        ) from error


@contextmanager
def naming_memory(who: str, nbytes: int, held: int, *, shared: bool = True, what: str = "batches") -> Iterator[None]:
    """Have an error that there is no memory left say who asked for how much, and what to do.

    Args:
        who: Who asks, as messages name it.
        nbytes: What for, bytes.
        held: What it has already, bytes.
        shared: Whether other processes use the memory, too.
        what: What it is for.

    Raises:
        OSError: What came within, reworded where it is such an error.
    """
    try:
        yield
    except OSError as error:
        if not is_of_memory(error):
            raise
        if error.errno == errno.EFBIG:
            import resource  # absent on Windows, where memory is no file

            most = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
            why = (
                "memory that processes share counts as a file, and files of this process may have at most "
                f"{most:,} bytes"
            )
            remedy = "Raise that (ulimit -f unlimited), or use worker_type='thread'"
        else:
            why = "the system has not so much left" + (" for memory that processes share" if shared else "")
            remedy = "Lower max_memory, max_queue_size or batch_size, and let go of batches that are done with"
        raise reworded(
            error,
            f"{who} asked for {nbytes:,} bytes more for {what}, beside {held:,} that it has, and was refused: "
            f"{message_of(error)}; {why}. {remedy}",
        ) from error


def is_of_memory(error: BaseException) -> bool:
    """Whether it says that memory, or a file in memory, cannot be as large as was asked for."""
    return isinstance(error, OSError) and error.errno in (errno.EFBIG, errno.ENOSPC, errno.ENOMEM, errno.EDQUOT)
