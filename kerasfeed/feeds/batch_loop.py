"""`BatchLoop`: a loop over a feed whose batches a framework gets as its own arrays, some of them converted ahead.

Invariant: the feed counts what the consumer has received, whatever was converted ahead of it. Everything happens in the
consumer's thread, in its calls for the next batch; only batches that are there already are converted ahead, so nobody
waits for a batch longer than without. What a framework cannot hold is told by the name of its field.
"""

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

import numpy as np
import optree

from kerasfeed.errors import FeedClosedError
from kerasfeed.feeds.cursor import Cursor, EndOfData
from kerasfeed.spec.field_forms import RaggedArray
from kerasfeed.spec.nesting import field_paths
from kerasfeed.util.error_text import add_note, drop_frame, is_the_programs
from kerasfeed.util.polling import POLL_SECONDS, NotYet, wait_for_exit

Converted = TypeVar("Converted")
_CLOSED = "this loop was closed, by close() or at the end of its `with` block: begin another one, feed.to_jax() or so"


class Conversion(Protocol[Converted]):
    """How a framework takes batches.

    Attributes:
        ahead: Batches that are converted ahead of the consumer, at least 0.
    """

    ahead: int

    def begin(self, batch: Any) -> Converted:
        """Convert a batch of NumPy arrays, and begin to copy it to where it goes; does not wait for that.

        Raises:
            TypeError: A field is of a dtype that the framework lacks; the message names it.
        """

    def finish(self, converted: Converted) -> Any:
        """What the consumer gets of what `begin` returned, now that it is about to get it."""


@dataclass(eq=False)
class _Taken(Generic[Converted]):
    """A batch that was taken and not received.

    Attributes:
        place: Where it stands, for `Cursor.received`.
        batch: The arrays of the feed.
        converted: What the framework made of them.
    """

    place: Any
    batch: Any
    converted: Converted | None = None


class BatchLoop(Generic[Converted]):
    """Batches of a feed as arrays of a framework: what `to_jax` and `to_torch` return.

    `for batch in loop` is one iteration: the next epochs of the feed. `len(loop)` is the number of batches in it, where
    the feed has a length. A loop that is left early leaves nothing running, and the next one begins behind its epochs.
    `with feed.to_jax() as loop:` also ends iterations that somebody still holds; the feed stays open.
    """

    def __init__(self, feed: Any, begin: Callable[[], Cursor], conversion: Conversion[Converted], epochs: int) -> None:
        """Loop over `feed`, which it keeps alive.

        Args:
            feed: The feed.
            begin: Takes the batches of an iteration; called when its first one is asked for.
            conversion: What becomes of them.
            epochs: Epochs of the feed in an iteration, at least 1.
        """
        self._feed = feed
        self._begin = begin
        self._conversion = conversion
        self._epochs = epochs
        self._running: weakref.WeakSet[_LoopIteration[Converted]] = weakref.WeakSet()

    def __len__(self) -> int:
        """Batches in an iteration. The first one after `feed.set_state` has only those that are left of the epoch.

        Raises:
            TypeError: The feed has no length.
        """
        return self._epochs * len(self._feed)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Any]:
        """The batches of the next epochs of the feed."""
        iteration = _LoopIteration(self._begin, self._conversion)
        self._running.add(iteration)
        return iteration.batches()

    def close(self) -> None:
        """End all iterations: what was converted ahead is let go of. May be called again; the feed stays open.

        Another thread that waits for a batch of one of them gets a `FeedClosedError`.
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
    def __init__(self, begin: Callable[[], Cursor], conversion: Conversion[Converted]) -> None:
        self._begin = begin
        self._conversion = conversion
        self._cursor: Cursor | None = None
        self._taken: deque[_Taken[Converted]] = deque()
        self._last: BaseException | None = None  # what is raised behind these
        self._closed = False
        self._lock = threading.Lock()  # held by calls for the next batch, and by who gives back the others

    def batches(self) -> Iterator[Any]:
        """The batches; while the consumer has one, this holds none but those ahead of it."""
        self._check_open()
        try:
            self._cursor = cursor = self._begin()
            while found := self._next(cursor):
                yield found.pop()
            cursor.received(None)
        finally:
            self.close()

    def close(self) -> None:
        """Take no more, and give back what nobody has received; idempotent.

        A call for the next batch that another thread is in does the latter as it ends, which it does soon.
        """
        self._closed = True
        if not self._lock.acquire(blocking=False):
            return
        try:
            returned = [taken.batch for taken in self._taken]
            self._taken.clear()
            cursor, self._cursor = self._cursor, None
            if cursor is not None:
                cursor.close(returned)
        finally:
            self._lock.release()

    def _check_open(self) -> None:
        if self._closed:
            raise FeedClosedError(_CLOSED)

    def _next(self, cursor: Cursor) -> list[Any]:
        """The next batch, alone in a list, which is empty at the end."""
        with self._lock:
            self._fill(cursor)
            self._check_open()
            if self._taken:
                first = self._taken[0]
                assert first.converted is not None
                found = [self._conversion.finish(first.converted)]
                self._taken.popleft()  # only now, for Ctrl-C in between
                cursor.received(first.place)
                return found
            assert self._last is not None
            raised, self._last = [self._last], EndOfData()
        if isinstance(raised[0], EndOfData):
            return []
        if isinstance(raised[0], FeedClosedError):
            wait_for_exit()
        raise raised.pop()  # its traceback holds this frame, which must not hold it: only the collector would free them

    def _fill(self, cursor: Cursor) -> None:
        """Take and convert the next batch, and those behind it that are there, as many as are wanted ahead."""
        while len(self._taken) <= self._conversion.ahead and self._last is None and not self._closed:
            try:
                self._taken.append(_Taken(*cursor.take(0.0 if self._taken else POLL_SECONDS)))
                self._taken[-1].converted = self._conversion.begin(self._taken[-1].batch)
            except NotYet:
                if self._taken:
                    return
            except BaseException as error:
                if is_the_programs(error):
                    raise
                drop_frame(error)  # this one
                self._last = error
                if self._taken and self._taken[-1].converted is None:  # which is what it is about
                    self._taken.pop()


_REMEDY = "Turn text into numbers where scenes are made (in __getitem__, or with map)"


def numeric_leaves(batch: Any, framework: str) -> tuple[list[np.ndarray[Any, Any]], Any]:
    """The arrays of a batch and their nesting; a ragged field is two, its values and its row splits.

    Raises:
        TypeError: Fields are text; the message names them.
    """
    leaves, treespec = optree.tree_flatten(batch)
    arrays = [leaf if type(leaf) is np.ndarray else np.asarray(leaf) for leaf in leaves]
    if any(array.dtype.kind in "OSUT" for array in arrays):
        named = zip(field_paths(treespec), arrays, strict=True)
        paths = [repr(path) for path, array in named if array.dtype.kind in "OSUT"]
        are = "field" if len(paths) == 1 else "fields"
        raise TypeError(f"{framework} has no text: {are} {', '.join(paths)}. {_REMEDY}")
    return arrays, treespec


def ragged_paths(batch: Any) -> list[str]:
    """The names of the ragged fields of a batch."""

    def is_ragged(node: Any) -> bool:
        return isinstance(node, RaggedArray)

    leaves, treespec = optree.tree_flatten(batch, is_leaf=is_ragged)
    return [path for path, leaf in zip(field_paths(treespec), leaves, strict=True) if is_ragged(leaf)]


def converted(convert: Callable[[Any], Any], arrays: Sequence[Any], treespec: Any) -> list[Any]:
    """What `convert` makes of each array; what it raises has a note that names the field."""
    made = []
    for number, array in enumerate(arrays):
        try:
            made.append(convert(array))
        except Exception as error:
            shape = ", ".join(map(str, array.shape))
            add_note(error, f"field {field_paths(treespec)[number]!r} of the batch, {array.dtype}[{shape}]")
            raise
    return made
