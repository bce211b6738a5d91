"""Waiting for a while only, for callers that must not wait for long.

Invariant: whoever is told `NotYet` may ask again, and loses nothing by it.

TensorFlow is such a caller. Whoever lets go of an iterator waits until no call into Python of its dataset runs any
more. So these calls return soon, with or without a batch, and TensorFlow, which looks in between whether the iterator
is still wanted, asks again.
"""

import threading
from concurrent.futures import Future
from typing import Any

POLL_SECONDS = 0.2  # asking again costs TensorFlow 0.1 ms


class NotYet(Exception):
    """Internal: what was asked for is not there yet."""


def wait_for_exit() -> None:
    """Where the program ends, and this is a daemon thread of it: wait for that. Else return at once.

    For whoever is told in such a thread that a feed is closed: the interpreter stops daemon threads where they are, and
    the error would print a traceback that nobody has asked for. Call it with no lock held.
    """
    if threading.current_thread().daemon and not threading.main_thread().is_alive():
        threading.Event().wait()


def result_of(future: "Future[Any]", timeout: float | None) -> Any:
    """The result of `future`; waits `timeout` s for it, for ever where that is None.

    Raises:
        NotYet: It is not there yet.
        Exception: What the future raises.
    """
    if timeout is not None:
        try:
            return future.result(timeout)
        except TimeoutError:
            if not future.done():
                raise NotYet from None
    return future.result()
