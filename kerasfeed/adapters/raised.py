"""Exceptions that cross TensorFlow, which keeps nothing of them but their text, and their way back.

Invariant: an error of TensorFlow is replaced by the very exception it came from, known by a number in its message, or
left as it is. Where Keras or TensorFlow lacks a name that is looked for here, the user gets TensorFlow's error, whose
text tells type, place, traceback and reproduction all the same.
"""

import itertools
import re
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

from kerasfeed.error_text import drop_frame, message_of, summary
from kerasfeed.errors import SceneError
from kerasfeed.loaders.failure import text_of

_NUMBER = re.compile(r"\[kerasfeed error (\d+)\]")
_numbers = itertools.count(1)


class Raised:
    """The exceptions that one dataset, or one run of a trainer, has given to TensorFlow. Thread-safe.

    Args:
        ahead: Batches that TensorFlow asks for before it delivers the first; as many may fail before one is told.
    """

    def __init__(self, ahead: int = 1) -> None:
        self._kept = ahead + 4  # an iterator that was abandoned may leave some behind
        self._errors: dict[int, BaseException] = {}
        self._lock = threading.Lock()

    def carrier(self, error: BaseException) -> SceneError:
        """What to raise inside TensorFlow in place of `error`: all that is known of it, as text, and its number."""
        drop_frame(error)  # the caller's, which may hold this
        number = next(_numbers)
        with self._lock:
            self._errors[number] = error
            while len(self._errors) > self._kept:
                del self._errors[next(iter(self._errors))]
        head = summary(error)
        return SceneError(f"{head} [kerasfeed error {number}]{text_of(error).removeprefix(head)}")

    def original(self, error: BaseException) -> BaseException | None:
        """The exception that TensorFlow's `error` tells of, once; None where it tells of none that is known here."""
        numbers = [int(number) for number in _NUMBER.findall(message_of(error, whole=True))]
        with self._lock:
            found = [self._errors.pop(number, None) for number in dict.fromkeys(numbers)]
        return next((original for original in found if original is not None), None)


def watch_trainer(num_batches: FrameType, raised: Raised) -> bool:
    """Have a Keras trainer on TensorFlow raise the exceptions of `raised` in place of the errors that tell of them.

    Args:
        num_batches: The frame of the adapter's property of that name, which the trainer's new iterator asks for.
        raised: Where they are remembered; the iterator keeps it.

    Returns:
        Whether it will.
    """
    caller = num_batches.f_back
    if num_batches.f_code.co_name != "num_batches" or caller is None or caller.f_code.co_name != "__init__":
        return False
    variables = caller.f_locals
    iterator: Any = variables.get("self")
    if isinstance(variables, dict):
        variables.clear()  # the frame would keep this copy
    if type(iterator).__name__ != "TFEpochIterator" or not hasattr(type(iterator), "catch_stop_iteration"):
        return False
    iterator.catch_stop_iteration = partial(_catching, weakref.ref(iterator), raised)
    return True


@contextmanager
def _catching(reference: Any, raised: Raised) -> Iterator[None]:
    iterator = reference()
    original = None
    try:
        with type(iterator).catch_stop_iteration(iterator):
            yield
    except Exception as error:
        original = raised.original(error)
        if original is None:
            raise
    if original is not None:
        raise original
