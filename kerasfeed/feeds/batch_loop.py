"""`BatchLoop`: a loop over a feed that yields arrays of a framework.

Invariant: the feed counts the batches that the consumer received, not the batches converted ahead. The consumer's
thread does all work in its calls for the next batch. It converts only finished batches ahead, so prefetching never
delays the next batch. An error about a field that the framework cannot hold names the field.
"""

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
import optree

from kerasfeed.errors import FeedClosedError
from kerasfeed.feeds.cursor import EndOfData, LoopCursor
from kerasfeed.spec.field_forms import RaggedArray
from kerasfeed.spec.nesting import field_paths
from kerasfeed.util.error_text import add_note, drop_frame, is_the_programs
from kerasfeed.util.polling import POLL_SECONDS, NotYet, wait_for_exit

Converted = TypeVar("Converted")
_CLOSED = (
    "this loop was closed, by close() or at the end of its `with` block: begin another one, for example feed.to_jax()"
)


class Conversion(Protocol[Converted]):
    """How batches become arrays of a framework.

    Attributes:
        ahead: Batches to convert ahead of the consumer, at least 0.
    """

    ahead: int

    def begin(self, batch: Any) -> Converted:
        """Convert a batch of NumPy arrays and start its copy.

        Does not wait for the copy.

        Raises:
            TypeError: The framework lacks the dtype of a field; the message names the field.
        """

    def finish(self, converted: Converted) -> Any:
        """Turn the result of `begin` into the consumer's batch, just before delivery."""


class BatchLoop(Generic[Converted]):
    """Batches as arrays of a framework, from `to_jax` or `to_torch`.

    `for batch in loop` is one iteration over the next epochs of the feed. `len(loop)` is its number of batches, if the
    feed has a length. Breaking out of a loop leaves nothing running, and the next loop begins after the epochs of the
    unfinished one. `with feed.to_jax() as loop:` also ends unfinished iterations on exit; the feed stays open.
    """

    def __init__(
        self, feed: Any, begin: Callable[[], LoopCursor], conversion: Conversion[Converted], epochs: int
    ) -> None:
        """Create a loop over `feed`, which the loop keeps alive.

        Args:
            feed: The feed.
            begin: Returns the cursor of an iteration; called at its first batch.
            conversion: Converts the batches.
            epochs: Epochs of the feed in an iteration, at least 1.
        """
        self._feed = feed
        self._begin = begin
        self._conversion = conversion
        self._epochs = epochs
        self._running: weakref.WeakSet[_LoopIteration[Converted]] = weakref.WeakSet()

    def __len__(self) -> int:
        """Number of batches in an iteration.

        The first iteration after `feed.set_state` has only the remaining batches of its epoch.

        Raises:
            TypeError: The feed has no length.
        """
        return self._epochs * len(self._feed)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the batches of the next epochs of the feed."""
        iteration = _LoopIteration(self._begin, self._conversion)
        self._running.add(iteration)
        return iteration.batches()

    def close(self) -> None:
        """End all iterations and release the batches converted ahead.

        May be called again. The feed stays open.

        Another thread that waits for a batch of an iteration gets a `FeedClosedError`.
        """
        for iteration in list(self._running):
            iteration.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError("a loop over a feed cannot be pickled, nor sent to another process: pickle the feed")

    def __repr__(self) -> str:
        epochs = "" if self._epochs == 1 else f", {self._epochs} epochs"
        return f"<batches for {self._conversion}{epochs}, of {self._feed!r}>"


class _LoopIteration(Generic[Converted]):
    def __init__(self, begin: Callable[[], LoopCursor], conversion: Conversion[Converted]) -> None:
        self._begin = begin
        self._conversion = conversion
        self._cursor: LoopCursor | None = None
        self._taken: deque[tuple[Any, Converted]] = deque()  # position and arrays of each unreceived batch
        self._last: BaseException | None = None  # to raise after the taken batches
        self._closed = False
        self._lock = threading.Lock()  # held in calls for the next batch, and while close() drops the others

    def batches(self) -> Iterator[Any]:
        """Yield the batches, without a reference to the yielded batch."""
        self._check_open()
        try:
            self._cursor = cursor = self._begin()
            while batch := self._next(cursor):
                yield batch.pop()
            cursor.received(None)
        finally:
            self.close()

    def close(self) -> None:
        """Stop taking batches and drop the unreceived ones; idempotent.

        If another thread is in a call for the next batch, that call soon ends and drops the batches instead.
        """
        self._closed = True
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._taken.clear()
            cursor, self._cursor = self._cursor, None
            if cursor is not None:
                cursor.close()
        finally:
            self._lock.release()

    def _check_open(self) -> None:
        if self._closed:
            raise FeedClosedError(_CLOSED)

    def _next(self, cursor: LoopCursor) -> list[Any]:
        """Return a list of the next batch; empty at the end."""
        with self._lock:
            self._fill(cursor)
            self._check_open()
            if self._taken:
                position, arrays = self._taken.popleft()
                batch = [self._conversion.finish(arrays)]
                cursor.received(position)
                return batch
            assert self._last is not None
            raised, self._last = [self._last], EndOfData()
        if isinstance(raised[0], EndOfData):
            return []
        if isinstance(raised[0], FeedClosedError):
            wait_for_exit()
        raise raised.pop()  # pop: the traceback holds this frame, so a reference here would be a cycle

    def _fill(self, cursor: LoopCursor) -> None:
        """Take and convert the next batch and finished batches after it.

        At most `ahead` batches are converted ahead.
        """
        while len(self._taken) <= self._conversion.ahead and self._last is None and not self._closed:
            try:
                position, batch = cursor.take(0.0 if self._taken else POLL_SECONDS)
                self._taken.append((position, self._conversion.begin(batch)))
                del batch  # the next call may wait
            except NotYet:
                if self._taken:
                    return
            except BaseException as error:
                if is_the_programs(error):
                    raise
                drop_frame(error)  # the traceback must not hold this frame
                self._last = error


_REMEDY = "Convert text to numbers in __getitem__ or with map"


def numeric_leaves(batch: Any, framework: str) -> tuple[list[np.ndarray[Any, Any]], Any]:
    """Return the arrays of a batch and their nesting.

    A ragged field gives two arrays: values and row splits.

    Raises:
        TypeError: Fields hold text; the message names them.
    """
    leaves, treespec = optree.tree_flatten(batch)
    arrays = [leaf if type(leaf) is np.ndarray else np.asarray(leaf) for leaf in leaves]
    if any(array.dtype.kind in "OSUT" for array in arrays):
        named = zip(field_paths(treespec), arrays, strict=True)
        paths = [repr(path) for path, array in named if array.dtype.kind in "OSUT"]
        are = "field" if len(paths) == 1 else "fields"
        raise TypeError(f"{framework} has no dtype for text: {are} {', '.join(paths)}. {_REMEDY}")
    return arrays, treespec


def ragged_paths(batch: Any) -> list[str]:
    """Return the names of the ragged fields of a batch."""

    def is_ragged(node: Any) -> bool:
        return isinstance(node, RaggedArray)

    leaves, treespec = optree.tree_flatten(batch, is_leaf=is_ragged)
    return [path for path, leaf in zip(field_paths(treespec), leaves, strict=True) if is_ragged(leaf)]


def converted(convert: Callable[[Any], Any], arrays: Sequence[Any], treespec: Any) -> list[Any]:
    """Convert each array; an exception has a note naming the field."""
    results = []
    for number, array in enumerate(arrays):
        try:
            results.append(convert(array))
        except Exception as error:
            shape = ", ".join(map(str, array.shape))
            add_note(error, f"field {field_paths(treespec)[number]!r} of the batch, {array.dtype}[{shape}]")
            raise
    return results
