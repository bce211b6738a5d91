"""What the calls of TensorFlow into Python do: they take a batch of a cursor, if it is there.

Invariant: TensorFlow keeps every function that it calls until the process ends, or the graph that it is part of. So
these hold numbers and names of fields. An iteration lives from the first batch that TensorFlow asks for until its
iterator is no more, and is closed then, whoever lets go of the iterator, in another thread.

Where the program ends while iterators live (the frames of an error that nobody caught hold one), the interpreter lets
go of them when no other thread may run Python any more: a call that has begun then never returns, and TensorFlow waits
for it for ever. So before that, at exit, all calls are ended, and those that come are refused.

TensorFlow keeps nothing of an exception but its text. So an error of TensorFlow is replaced by the very exception it
came from, known by a number in its message, or left as it is: its text tells type, place, traceback and reproduction.
"""

import atexit
import contextvars
import itertools
import re
import threading
import time
import weakref
from collections.abc import Sequence
from typing import Any

import numpy as np

from kerasfeed.adapters.tensorflow.dtypes import arrays_of
from kerasfeed.errors import FeedClosedError, SceneError, SpecError
from kerasfeed.feeds.cursor import Begin, Cursor, EndOfData, check_alive, run_in_background
from kerasfeed.util.error_text import drop_frame, message_of, note_causes, summary, text_of
from kerasfeed.util.polling import POLL_SECONDS, NotYet

_numbers = itertools.count(1)  # of datasets, their iterations and errors
_ERROR_NUMBER = re.compile(r"\[kerasfeed error (\d+)\]")
_ERRORS_KEPT = 5  # one batch is asked for at a time; an iterator that was abandoned may leave some behind


class BatchSource:
    """Where the batches of one dataset come from; the dataset holds it, and TensorFlow's functions its number.

    It keeps the last exceptions that TensorFlow was given, and is thread-safe.

    Args:
        begin: Makes the cursor of an iteration, called where its first batch is asked for, with the context variables
            that what users wrote is to run with. May be called by TensorFlow, so it must not wait long; it may raise
            `NotYet`, and is called again.

    Attributes:
        number: Its number.
        context: Context variables of whoever has begun the last loop.
    """

    def __init__(self, begin: Begin) -> None:
        self.begin = begin
        self.number = next(_numbers)
        self.context = contextvars.copy_context()
        self._errors: dict[int, BaseException] = {}
        self._lock = threading.Lock()
        _sources[self.number] = self

    def carrier(self, error: BaseException) -> SceneError:
        """What to raise inside TensorFlow in place of `error`: all that is known of it, as text, and its number."""
        drop_frame(error)  # the caller's, which may hold this
        number = next(_numbers)
        with self._lock:
            self._errors[number] = error
            while len(self._errors) > _ERRORS_KEPT:
                del self._errors[next(iter(self._errors))]
        head = summary(error)
        return SceneError(f"{head} [kerasfeed error {number}]{text_of(error).removeprefix(head)}")

    def original(self, error: BaseException) -> BaseException | None:
        """The exception that TensorFlow's `error` tells of, once; None where it tells of none that is known here."""
        numbers = [int(number) for number in _ERROR_NUMBER.findall(message_of(error, whole=True))]
        with self._lock:
            found = [self._errors.pop(number, None) for number in dict.fromkeys(numbers)]
        return next((original for original in found if original is not None), None)


class _DatasetIteration:
    def __init__(self, source: int, count: int | None) -> None:
        self._number = source
        self._left = count  # places still to fill, with a batch or an error; None where the data end by themselves
        self._cursor: Cursor | None = None

    def take(self, paths: Sequence[str], shapes: Sequence[Any]) -> list[Any] | None:
        """The arrays of the next batch, which has the fields `paths` of these shapes, or None at the end.

        Raises:
            NotYet: It is not there yet.
            Exception: It failed. What is raised is for TensorFlow.
        """
        if _exits and self._left is None:
            return None
        if self._left == 0:  # asked once more than there are places: nothing of the cursor may be lost by that
            return None
        try:
            if _exits:
                raise FeedClosedError("the program ends")
            if self._cursor is None:
                source = self._source()
                self._cursor = source.begin(source.context.copy())
                del source  # while this waits it holds no feed
            _, batch = self._cursor.take(POLL_SECONDS)
            arrays = arrays_of(batch, paths)
            _check_shapes(arrays, paths, shapes)
        except NotYet:
            raise
        except EndOfData:
            if self._left is None:
                return None
            error: BaseException = SceneError("the data ended before the last batch that the dataset was to have")
        except BaseException as raised:  # noqa: BLE001 - TensorFlow takes some (StopIteration) for the end of the data
            error = raised
        else:
            self._count()
            return arrays
        self._count()
        note_causes(error)  # Keras raises it `from None`
        raise self._source().carrier(error) from None

    def _count(self) -> None:
        if self._left is not None:
            self._left -= 1

    def _source(self) -> BatchSource:
        return check_alive(_sources.get(self._number))

    def end(self) -> None:
        """TensorFlow's iterator is no more."""
        cursor, self._cursor = self._cursor, None
        if cursor is not None:
            run_in_background(cursor.close, [])


_sources: "weakref.WeakValueDictionary[int, BatchSource]" = weakref.WeakValueDictionary()
_iterations: dict[int, _DatasetIteration] = {}
_calls: list[int] = []  # iterations of which a batch is asked for at this moment
_exits = False  # whether the program ends
_EXIT_SECONDS, _QUIET_SECONDS = 2.0, 0.05  # at exit: the most that is waited, and how long no call is seen then


def _end_calls() -> None:
    """Wait, as the program ends, until TensorFlow makes no more calls."""
    global _exits
    _exits = True
    quiet = now = time.monotonic()
    deadline = now + _EXIT_SECONDS
    while _iterations and now < min(deadline, quiet + _QUIET_SECONDS):
        time.sleep(0.005)
        now = time.monotonic()
        if _calls:
            quiet = now


atexit.register(_end_calls)


def begin(source: int, count: int | None, _: Any) -> np.int64:
    """The number of a new iteration of a source.

    Args:
        source: Number of the source.
        count: Batches of the iteration; None where it ends with the data.
    """
    number = next(_numbers)
    _iterations[number] = _DatasetIteration(source, count)
    return np.int64(number)


def end(number: Any) -> np.int64:
    """TensorFlow's iterator of an iteration is no more."""
    _iterations.pop(int(number)).end()
    return np.int64(0)


def _check_shapes(arrays: Sequence[Any], paths: Sequence[str], shapes: Sequence[Any]) -> None:
    """Refuse what a graph does not expect: items that are batches may differ from those that told the spec.

    Raises:
        SpecError: A field has another size than the graph was made for.
    """
    for array, path, shape in zip(arrays, paths, shapes, strict=True):
        found = getattr(array, "shape", shape)
        if found != shape and any(size not in (None, now) for size, now in zip(shape, found, strict=False)):
            free = tuple(size if size == now else None for size, now in zip(shape, found, strict=True))
            raise SpecError(
                f"field {path!r} has shape {tuple(found)} in a batch, and the graph was made for {tuple(shape)}, after "
                "the batches that were read first. Give the feed the spec of a batch, output_signature=..., with a "
                f"kf.ArraySpec of shape {free} for this field"
            )


def take(paths: Sequence[str], shapes: Sequence[Any], placeholders: list[Any], number: Any) -> list[Any]:
    """Ask for the next batch of an iteration; see `_DatasetIteration.take`.

    Returns:
        Whether the answer has come, else ask again; whether it is a batch, and not the end; its arrays, or
        `placeholders`.
    """
    _calls.append(int(number))
    try:
        arrays = _iterations[int(number)].take(paths, shapes)
    except NotYet:
        return [False, True, *placeholders]
    finally:
        _calls.remove(int(number))
    return [True, False, *placeholders] if arrays is None else [True, True, *arrays]
