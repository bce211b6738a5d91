"""A file that is read forward only: an open iterator, and the few scenes that were passed over.

Invariant: whatever is asked for, in whatever order and by however many threads, row r is the r-th scene that the
iterator gives from the beginning. At most `lookback` scenes are kept, of `most_bytes` together.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import optree

from kerasfeed.readers.files.contents import Contents, bytes_of, guarded


class ForwardContents(Contents):
    """Scenes by row, of an iterator.

    Rows asked for in order cost nothing. A row ahead is reached by reading on; the scenes passed over are kept, the
    last of them, each until it is asked for. A row that is neither ahead nor kept begins anew.
    """

    count = None

    def __init__(
        self, first: Iterator[Any], reopen: Callable[[int], Iterator[Any]], lookback: int, most_bytes: int
    ) -> None:
        """Read `first` to begin with, and what `reopen(scenes read so far)` gives from then on."""
        self._iterator: Iterator[Any] | None = first
        self._reopen = reopen
        self._lookback = lookback
        self._most_bytes = most_bytes
        self._next = 0
        self._kept: OrderedDict[int, Any] = OrderedDict()
        self.nbytes = 0
        self._retired = False
        self._lock = threading.Lock()

    def row(self, row: int) -> Any:
        """The scene at `row`.

        Raises:
            StreamEnded: The iterator ends before.
            Exception: What the iterator raises; the next call begins anew.
        """
        with self._lock:
            try:
                scene = guarded(self._take(row))
            except BaseException:
                self._close()
                raise
            finally:
                if self._retired:
                    self._close()
        if self._retired and self._iterator is not None:  # retired after the look above, before the lock was free
            self.retire()
        return scene

    def ends_after(self, row: int) -> bool:
        """Whether the scene at `row`, which was the last to be read, is the last there is; if so, closes the iterator.

        True where others have read on, or begun anew: then they have looked, or will.
        """
        with self._lock:
            if self._iterator is None or self._next != row + 1:
                return True
            if next(self._iterator, _END) is not _END:
                self._close()
                return False
            self._iterator = None  # an iterator that has ended has nothing open
            return True

    def _take(self, row: int) -> Any:
        if row in self._kept:
            scene = self._kept.pop(row)
            self.nbytes -= _size(scene)
            return scene
        if self._iterator is None or row < self._next:
            read = self._next
            self._close()
            self._iterator = self._reopen(read)
        while True:
            scene = next(self._iterator, _END)
            if scene is _END:
                raise StreamEnded(self._next)
            self._next += 1
            if self._next > row:
                return scene
            self._keep(self._next - 1, scene)

    def _keep(self, row: int, scene: Any) -> None:
        self._kept[row] = scene
        self.nbytes += _size(scene)
        while self._kept and (len(self._kept) > self._lookback or self.nbytes > self._most_bytes):
            self.nbytes -= _size(self._kept.popitem(last=False)[1])

    def count_all(self) -> int:
        """Read to the end, and tell how many scenes there are."""
        with self._lock:
            assert self._iterator is not None
            assert self._next == 0
            try:
                return sum(1 for _ in self._iterator)
            finally:
                self._close()

    def _close(self) -> None:
        iterator, self._iterator = self._iterator, None
        self._next, self.nbytes = 0, 0
        self._kept.clear()
        close = getattr(iterator, "close", None)
        if callable(close):
            close()

    def retire(self) -> None:
        """See `Contents.retire`; never waits for a thread that reads."""
        self._retired = True
        if self._lock.acquire(blocking=False):
            try:
                self._close()
            finally:
                self._lock.release()


class StreamEnded(Exception):
    """Internal: an iterator ended; the argument is how many scenes it gave."""


_END = object()


def _size(scene: Any) -> int:
    return sum(map(bytes_of, optree.tree_leaves(scene)))
