"""Check of the hooks: that they may be called as pools and feeds call them, and free what they open."""

from functools import partial
from typing import Any

from kerasfeed.errors import KerasfeedError
from kerasfeed.explore.checks.case import Case, length_of
from kerasfeed.explore.checks.finding import Finding, failed, passed, skipped, warned
from kerasfeed.explore.checks.growth import descriptors_open
from kerasfeed.explore.checks.reading import Reader
from kerasfeed.pool.task import Note
from kerasfeed.sequences.context import Worker
from kerasfeed.sequences.view_base import apart
from kerasfeed.util.error_text import exception_text, is_the_programs, message_of
from kerasfeed.util.optional_methods import optional_method

_HOOKS = ("on_worker_begin", "on_worker_end", "on_epoch_begin", "on_epoch_end")
_ROUNDS = 3


class _HookError(Exception):
    """Internal: a hook has raised; the text says which and what."""


def hooks(case: Case) -> Finding:
    """Hooks take the arguments that they get, may be called again, and free what they have opened."""
    present = [name for name in _HOOKS if optional_method(case.sequence, name) is not None]
    if not present:
        return skipped("the class defines no hooks")
    try:
        index = case.good[0] if case.good else None
    except KerasfeedError:  # of on_worker_begin, perhaps; else another check says so
        index = None
    call = partial(_hooked, index=index, length=case.length, seed=case.seed)
    found: Finding | None = case.here(call, apart(case.sequence), hooks=False)
    return found or passed(", ".join(present))


def _hooked(sequence: Any, note: Note, worker: object, *, index: int | None, length: int, seed: int) -> Finding | None:
    reader = Reader(sequence, seed, note)
    try:
        return _begun_again(sequence, reader, index) or _shared(sequence, reader, index) or _epochs(sequence, length)
    except _HookError as error:
        return failed(message_of(error))


def _call(sequence: Any, name: str, *arguments: Any, when: str = "") -> None:
    hook = optional_method(sequence, name)
    if hook is None:
        return
    try:
        hook(*arguments)
    except BaseException as error:
        if is_the_programs(error):
            raise
        raise _HookError(f"{name} raises {exception_text(error)}{when}") from error


def _begun_again(sequence: Any, reader: Reader, index: int | None) -> Finding | None:
    """As a worker does that takes the place of another."""
    before = descriptors_open()
    for number in range(_ROUNDS):
        when = " when it is called again, after on_worker_end" if number else ""
        _call(sequence, "on_worker_begin", Worker(0, 1, "thread"), when=when)
        if index is not None and (trouble := reader.read(index).error):
            return failed(
                f"scene {index} raises {trouble} after on_worker_begin{when and ' was called again'}", index=index
            )
        _call(sequence, "on_worker_end", when=when)
    left = descriptors_open() - before
    if left < _ROUNDS:
        return None
    missing = "" if optional_method(sequence, "on_worker_end") else "; the class has no on_worker_end"
    return failed(
        f"{left} descriptors stay open after {_ROUNDS} calls of on_worker_begin and on_worker_end{missing}",
        remedy="Close in on_worker_end what on_worker_begin opens",
    )


def _shared(sequence: Any, reader: Reader, index: int | None) -> Finding | None:
    """As worker threads do, which share the sequence, and two feeds of it."""
    when = " when two worker threads call it one after the other"
    for number in range(2):
        _call(sequence, "on_worker_begin", Worker(number, 2, "thread"), when=when)
    _call(sequence, "on_worker_end")
    trouble = "" if index is None else reader.read(index).error
    _call(sequence, "on_worker_end", when=when)
    if not trouble:
        return None
    return warned(
        f"when one of two worker threads has ended, scene {index} raises {trouble} in the other",
        index=index,
        remedy="Count how often on_worker_begin was called, and free with the last on_worker_end; or keep what is open "
        "for each process, as kerasfeed.HDF5File does; or use worker processes",
    )


def _epochs(sequence: Any, length: int) -> Finding | None:
    for number in range(2):
        when = f" in epoch {number}"
        _call(sequence, "on_epoch_begin", when=when)
        _call(sequence, "on_epoch_end", when=when)
    if length_of(sequence) != length:
        return failed(
            f"len(sequence) was {length:,}, and is {length_of(sequence):,} after on_epoch_begin and on_epoch_end",
            remedy="Keep the length: a feed is as long as its sequence was when it was made",
        )
    return None
