"""Call the hooks `on_worker_begin` and `on_worker_end` of a sequence.

Invariant: an exception in a hook neither ends a worker silently nor loses a batch. If `on_worker_begin` fails, so do
all tasks of the worker. If `on_worker_end` fails, every batch has been loaded, and a warning reports it.
"""

from typing import Any

from kerasfeed.errors import FeedWarning, WorkerStartError
from kerasfeed.sequences.base import Worker, optional_method
from kerasfeed.util.deferred_warnings import DeferredWarnings
from kerasfeed.util.error_text import full_text, is_the_programs, summary, wrapped


def begin_worker(sequence: Any, worker: Worker, name: str) -> WorkerStartError | None:
    """Call `on_worker_begin` if it exists.

    If it fails, return the error for all tasks of the worker.
    """
    begin = optional_method(sequence, "on_worker_begin")
    if begin is None:
        return None
    try:
        begin(worker)
    except BaseException as error:
        if is_the_programs(error):
            raise
        return wrapped(error, f"on_worker_begin failed in {name}: ", WorkerStartError)
    return None


def end_worker(sequence: Any, name: str) -> str:
    """Call `on_worker_end` if it exists.

    Return a warning if it fails, else "".
    """
    end = optional_method(sequence, "on_worker_end")
    if end is None:
        return ""
    try:
        end()
    except BaseException as error:
        if is_the_programs(error):
            raise
        return (
            f"on_worker_end failed in {name}: {summary(error)}. No batch is lost, because the worker had loaded all of "
            "its batches. This warning appears once.\n"
            f"{full_text(error)}"
        )
    return ""


def defer_failed_end(deferred_warnings: DeferredWarnings, text: str) -> None:
    """Defer the warning of a failed `on_worker_end`."""
    if text:
        deferred_warnings.defer("worker end", text, FeedWarning)
