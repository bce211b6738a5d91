"""The Python functions that TensorFlow calls to take batches.

Invariant: TensorFlow keeps every function that it calls until the process ends, or as long as the graph. So these
functions hold only numbers and field names. An iteration lives from the first request for a batch until TensorFlow
deletes its iterator; another thread then closes the iteration.

At exit, iterators may still be alive, for example in the frames of an uncaught exception. The interpreter drops them
when no other thread can run Python. A call in progress then never returns, and TensorFlow waits for it forever. So an
atexit handler lets calls end before that, and refuses new ones.

TensorFlow keeps only the text of an exception. An error of TensorFlow is replaced by the original exception, which a
number in the message identifies. If the original is gone, the text still has type, place, traceback and reproduction.
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
_ERRORS_KEPT = 5  # one batch is requested at a time, but abandoned iterators may leave some


class BatchSource:
    """The source of a dataset's batches.

    The dataset holds it; TensorFlow's functions hold only its number. It keeps the last exceptions that were passed to
    TensorFlow, and is thread-safe.

    Args:
        begin: Makes the cursor of an iteration when its first batch is requested. Its argument is the context
            of the user's code. TensorFlow may call it, so it must not wait long; it may raise `NotYet`, and is
            called again.

    Attributes:
        number: Its number.
        context: Context variables of the last loop.
    """

    def __init__(self, begin: Begin) -> None:
        self.begin = begin
        self.number = next(_numbers)
        self.context = contextvars.copy_context()
        self._errors: dict[int, BaseException] = {}
        self._lock = threading.Lock()
        _sources[self.number] = self

    def carrier(self, error: BaseException) -> SceneError:
        """Return the error to raise inside TensorFlow, with its full text."""
        drop_frame(error)  # the caller's frame may hold this object
        number = next(_numbers)
        with self._lock:
            self._errors[number] = error
            while len(self._errors) > _ERRORS_KEPT:
                del self._errors[next(iter(self._errors))]
        head = summary(error)
        return SceneError(f"{head} [kerasfeed error {number}]{text_of(error).removeprefix(head)}")

    def original(self, error: BaseException) -> BaseException | None:
        """Return the exception behind TensorFlow's `error`, once; None if it is unknown."""
        numbers = [int(number) for number in _ERROR_NUMBER.findall(message_of(error, whole=True))]
        with self._lock:
            found = [self._errors.pop(number, None) for number in dict.fromkeys(numbers)]
        return next((original for original in found if original is not None), None)


class _DatasetIteration:
    def __init__(self, source: int, count: int | None) -> None:
        self._number = source
        self._left = count  # batches or errors still to deliver; None to stop at the end of the data
        self._cursor: Cursor | None = None

    def take(self, paths: Sequence[str], shapes: Sequence[Any]) -> list[Any] | None:
        """Return the arrays of the next batch, or None at the end.

        Raises:
            NotYet: The batch is not ready.
            Exception: The batch failed; the error is for TensorFlow.
        """
        if _exits and self._left is None:
            return None
        if self._left == 0:  # zip requests one more, which must not take a batch
            return None
        try:
            if _exits:
                raise FeedClosedError("the program ends")
            if self._cursor is None:
                source = self._source()
                self._cursor = source.begin(source.context.copy())
                del source  # do not hold the feed while waiting
            _, batch = self._cursor.take(POLL_SECONDS)
            arrays = arrays_of(batch, paths)
            _check_shapes(arrays, paths, shapes)
        except NotYet:
            raise
        except EndOfData:
            if self._left is None:
                return None
            error: BaseException = SceneError("the data ended before the last batch of the dataset")
        except BaseException as raised:  # noqa: BLE001 - for TensorFlow, StopIteration would end the data
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
        """Close the cursor; TensorFlow has deleted its iterator."""
        cursor, self._cursor = self._cursor, None
        if cursor is not None:
            run_in_background(cursor.close, [])


_sources: "weakref.WeakValueDictionary[int, BatchSource]" = weakref.WeakValueDictionary()
_iterations: dict[int, _DatasetIteration] = {}
_calls: list[int] = []  # iterations whose next batch is being requested
_exits = False  # whether the program is exiting
_EXIT_SECONDS, _QUIET_SECONDS = 2.0, 0.05  # at exit: longest wait; time without calls


def _end_calls() -> None:
    """Wait at exit until TensorFlow makes no calls."""
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
    """Begin an iteration of a source, and return its number.

    Args:
        source: Number of the source.
        count: Batches of the iteration; None to stop at the end of the data.
    """
    number = next(_numbers)
    _iterations[number] = _DatasetIteration(source, count)
    return np.int64(number)


def end(number: Any) -> np.int64:
    """End an iteration; TensorFlow has deleted its iterator."""
    _iterations.pop(int(number)).end()
    return np.int64(0)


def _check_shapes(arrays: Sequence[Any], paths: Sequence[str], shapes: Sequence[Any]) -> None:
    """Refuse batches whose shapes the graph does not expect.

    Raises:
        SpecError: The size of a field does not fit the graph.
    """
    for array, path, shape in zip(arrays, paths, shapes, strict=True):
        found = getattr(array, "shape", shape)
        if found != shape and any(size not in (None, now) for size, now in zip(shape, found, strict=False)):
            free = tuple(size if size == now else None for size, now in zip(shape, found, strict=True))
            raise SpecError(
                f"field {path!r} has shape {tuple(found)} in a batch, but the graph expects {tuple(shape)}, the shape "
                "of the first batches. Give the feed the spec of a batch, output_signature=..., with a "
                f"kf.ArraySpec of shape {free} for this field"
            )


def take(paths: Sequence[str], shapes: Sequence[Any], placeholders: list[Any], number: Any) -> list[Any]:
    """Request the next batch of an iteration; see `_DatasetIteration.take`.

    Returns:
        Whether there is an answer (otherwise call again); whether it is a batch (otherwise the end); and the arrays of
        the batch, or `placeholders`.
    """
    _calls.append(int(number))
    try:
        arrays = _iterations[int(number)].take(paths, shapes)
    except NotYet:
        return [False, True, *placeholders]
    finally:
        _calls.remove(int(number))
    return [True, False, *placeholders] if arrays is None else [True, True, *arrays]
