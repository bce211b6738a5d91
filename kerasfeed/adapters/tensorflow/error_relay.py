"""Exceptions that cross TensorFlow, which keeps nothing of them but their text, and their way back.

Invariant: an error of TensorFlow is replaced by the very exception it came from, known by a number in its message, or
left as it is: its text tells type, place, traceback and reproduction all the same.
"""

import itertools
import re
import threading

from kerasfeed.errors import SceneError
from kerasfeed.util.error_notes import text_of
from kerasfeed.util.error_text import drop_frame, message_of, summary

_NUMBER = re.compile(r"\[kerasfeed error (\d+)\]")
_numbers = itertools.count(1)
_KEPT = 5  # one batch is asked for at a time; an iterator that was abandoned may leave some behind


class ErrorRelay:
    """The exceptions that one dataset has given to TensorFlow. Thread-safe."""

    def __init__(self) -> None:
        self._errors: dict[int, BaseException] = {}
        self._lock = threading.Lock()

    def carrier(self, error: BaseException) -> SceneError:
        """What to raise inside TensorFlow in place of `error`: all that is known of it, as text, and its number."""
        drop_frame(error)  # the caller's, which may hold this
        number = next(_numbers)
        with self._lock:
            self._errors[number] = error
            while len(self._errors) > _KEPT:
                del self._errors[next(iter(self._errors))]
        head = summary(error)
        return SceneError(f"{head} [kerasfeed error {number}]{text_of(error).removeprefix(head)}")

    def original(self, error: BaseException) -> BaseException | None:
        """The exception that TensorFlow's `error` tells of, once; None where it tells of none that is known here."""
        numbers = [int(number) for number in _NUMBER.findall(message_of(error, whole=True))]
        with self._lock:
            found = [self._errors.pop(number, None) for number in dict.fromkeys(numbers)]
        return next((original for original in found if original is not None), None)
