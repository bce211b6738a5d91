"""What the calls of TensorFlow into Python do: they take a batch of a cursor, if it is there.

Invariant: TensorFlow keeps every function that it calls until the process ends, so these hold numbers and nothing else.
An iteration lives from the first batch that TensorFlow asks for until its iterator is no more, and is closed then,
whoever lets go of the iterator, in another thread.
"""

import contextvars
import itertools
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np
import optree

from kerasfeed.adapters.tensorflow.error_relay import ErrorRelay
from kerasfeed.errors import SceneError
from kerasfeed.feeds.cursor import Begin, Cursor, EndOfData, check_alive, run_in_background
from kerasfeed.util.error_notes import note_causes
from kerasfeed.util.polling import POLL_SECONDS, NotYet

# What a call says of the batch. NOT_YET: ask again.
NOT_YET, READY, END = np.int32(0), np.int32(1), np.int32(2)


class BatchSource:
    """Where the batches of one dataset come from; the dataset holds it, and TensorFlow's functions its number.

    Args:
        begin: Makes the cursor of an iteration, called where its first batch is asked for, with the context variables
            that what users wrote is to run with. May be called by TensorFlow, so it must not wait.
        raised: The exceptions that TensorFlow was given.
        ends: Whether the data may end, else they have as many batches as the dataset says.

    Attributes:
        number: Its number.
        context: Context variables of whoever has begun the last loop.
    """

    def __init__(self, begin: Begin, raised: ErrorRelay, *, ends: bool) -> None:
        self.begin = begin
        self.raised = raised
        self.ends = ends
        self.number = next(_numbers)
        self.context = contextvars.copy_context()
        _sources[self.number] = self


class _Iteration:
    def __init__(self, source: int) -> None:
        self._number = source
        self._cursor: Cursor | None = None
        self._kept: Any = None

    def look(self) -> Any:
        """Whether the next batch is there: NOT_YET, READY or END. It is kept until it is taken."""
        if self._kept is not None:
            return READY
        try:
            if self._cursor is None:
                source = self._source()
                self._cursor = source.begin(source.context.copy())
                del source  # while this waits it holds no feed
            self._kept = self._cursor.take(POLL_SECONDS)
        except NotYet:
            return NOT_YET
        except EndOfData:
            if self._source().ends:
                return END
            error: BaseException = SceneError("the data ended before the last batch that the dataset was to have")
        except BaseException as raised:  # noqa: BLE001 - TensorFlow takes some (StopIteration) for the end of the data
            error = raised
        else:
            return READY
        note_causes(error)  # Keras raises it `from None`
        raise self._source().raised.carrier(error) from None

    def _source(self) -> BatchSource:
        return check_alive(_sources.get(self._number))

    def take(self) -> list[Any]:
        """The arrays of the batch that is kept."""
        kept, self._kept = self._kept, None
        return [_plain(leaf) for leaf in optree.tree_leaves(kept)]

    def end(self) -> None:
        """TensorFlow's iterator is no more."""
        cursor, self._cursor = self._cursor, None
        kept, self._kept = self._kept, None
        if cursor is not None:
            run_in_background(cursor.close, [] if kept is None else [kept])


_numbers = itertools.count()
_sources: "weakref.WeakValueDictionary[int, BatchSource]" = weakref.WeakValueDictionary()
_iterations: dict[int, _Iteration] = {}


def iteration_of(source: int) -> Iterator[Any]:
    """A generator of one number, that of a new iteration of a source; TensorFlow closes it with its iterator."""
    number = next(_numbers)
    _iterations[number] = _Iteration(source)
    try:
        yield np.int64(number)
    finally:
        _iterations.pop(number).end()


def look(number: Any) -> Any:
    """Whether the next batch of an iteration is there."""
    return _iterations[int(number)].look()


def take(placeholders: list[Any], number: Any) -> list[Any]:
    """Whether the next batch of an iteration is there, and its arrays, or `placeholders`."""
    iteration = _iterations[int(number)]
    found = iteration.look()
    return [found, *(iteration.take() if found == READY else placeholders)]


def _plain(leaf: Any) -> Any:
    """`leaf` as TensorFlow takes it."""
    return np.asarray(leaf, dtype=object) if isinstance(leaf, str | bytes) else leaf
