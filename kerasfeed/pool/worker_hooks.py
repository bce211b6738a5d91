"""The hooks with which a sequence is told that a worker begins and ends: called here for every kind of worker.

Invariant: one that raises neither ends a worker in silence nor loses a batch. Where `on_worker_begin` fails, so does
all that the worker is given; where `on_worker_end` fails, every batch has been loaded, and a warning tells of it.
"""

from typing import Any

from kerasfeed.errors import FeedWarning, WorkerStartError
from kerasfeed.sequences.base import Worker, optional_method
from kerasfeed.util.deferred_warnings import DeferredWarnings
from kerasfeed.util.error_text import full_text, is_the_programs, summary, wrapped


def begin_worker(sequence: Any, worker: Worker, name: str) -> WorkerStartError | None:
    """Call `on_worker_begin`, if there is one; where it fails, what to raise for all that this worker was to do."""
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
    """Call `on_worker_end`, if there is one; what to warn of where it failed, else nothing."""
    end = optional_method(sequence, "on_worker_end")
    if end is None:
        return ""
    try:
        end()
    except BaseException as error:
        if is_the_programs(error):
            raise
        return (
            f"on_worker_end failed in {name}: {summary(error)}. No batch is lost by that, for the worker had loaded "
            "all that it was given; what the method was to free or to write may be left undone. This is said once.\n"
            f"{full_text(error)}"
        )
    return ""


def defer_failed_end(deferred_warnings: DeferredWarnings, text: str) -> None:
    """Have the user warned of what `end_worker` says."""
    if text:
        deferred_warnings.defer("worker end", text, FeedWarning)
