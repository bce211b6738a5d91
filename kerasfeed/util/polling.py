"""Waiting with a time limit, for callers that must not block.

Invariant: a caller that gets `NotYet` may ask again and loses nothing.

TensorFlow is such a caller: deleting an iterator waits until no Python call of its dataset is running. So these calls
return soon, with or without a batch. In between, TensorFlow checks whether the iterator is still in use.
"""

import threading
from concurrent.futures import Future
from typing import Any

POLL_SECONDS = 0.2  # asking again costs TensorFlow 0.1 ms


class NotYet(Exception):
    """Internal: the result is not available yet."""


def wait_for_exit() -> None:
    """Block a daemon thread if the program is exiting.

    Otherwise return at once. Call it, with no lock held, when a feed that this thread uses is closed. The interpreter
    then ends the blocked thread, while an error would print a useless traceback.
    """
    if threading.current_thread().daemon and not threading.main_thread().is_alive():
        threading.Event().wait()


def result_of(future: "Future[Any]", timeout: float | None) -> Any:
    """Return the result of `future`; wait at most `timeout` seconds.

    None waits without a limit.

    Raises:
        NotYet: There is no result yet.
        Exception: The future raised it.
    """
    try:
        if timeout is not None:
            try:
                return future.result(timeout)
            except TimeoutError:  # the wait was too long; or the future has just ended, perhaps with this error
                if not future.done():
                    raise NotYet from None
        return future.result()
    finally:
        del future  # the traceback of its exception holds this frame; a reference here would make a cycle
