"""Items on their way from the source to the workers that make scenes of them.

Invariant: an item that was put stays until its batch is dropped. A worker that looks for an item which was dropped
meanwhile serves a batch that nobody waits for any more, and skips it.

Between threads an item is passed as it is. For worker processes a batch's items are pickled, each by itself, into one
shared file that the workers inherit: a table of the batches in flight at its beginning, then the items. A worker reads
the table, then the item, then the table again: what is still there in the table was not overwritten.
"""

import io
import mmap
import os
import pickle
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.pool.memory import anonymous_file
from kerasfeed.pool.resource_errors import descriptors_of, is_of_memory, memory_refused, naming_descriptors
from kerasfeed.pool.task import CancelledTaskError
from kerasfeed.util.error_text import message_of
from kerasfeed.util.picklers import CloudPickler

_MORE = 64  # batches of which Ctrl-C, an inference, or a repetition that was left has not let go yet
_ENTRY_WORDS = 4  # epoch + 1 (0 for none), step, offset, number of the `put`
_ALIGNMENT = 64
_MOST_BYTES = 1 << 30  # at once; Linux writes at most 2 GB

Key = tuple[int, int]


class ItemStore(ABC):
    """The items of the batches in flight. `put` and `drop` may be called from any thread."""

    @abstractmethod
    def put(self, epoch: int, step: int, items: Sequence[Any]) -> None:
        """Keep the items of a batch; all but the last batch of an epoch are of the same size.

        Raises:
            TypeError: An item cannot be pickled.
        """

    @abstractmethod
    def drop(self, epoch: int, step: int) -> None:
        """Forget the items of a batch; idempotent."""

    @abstractmethod
    def item(self, epoch: int, index: int) -> Any:
        """An item, by its number in the epoch.

        Raises:
            CancelledTaskError: Its batch was dropped.
        """

    @abstractmethod
    def close(self) -> None:
        """Free everything; idempotent."""

    @property
    def fds(self) -> tuple[int, ...]:
        """Descriptors that worker processes must inherit."""
        return ()


class MemoryStore(ItemStore):
    """Items for workers of this process."""

    def __init__(self, rows: int) -> None:
        """`rows`: items in a batch."""
        self._rows = rows
        self._batches: dict[Key, Sequence[Any]] = {}

    def put(self, epoch: int, step: int, items: Sequence[Any]) -> None:
        """See `ItemStore.put`."""
        self._batches[epoch, step] = items

    def drop(self, epoch: int, step: int) -> None:
        """See `ItemStore.drop`."""
        self._batches.pop((epoch, step), None)

    def item(self, epoch: int, index: int) -> Any:
        """See `ItemStore.item`."""
        step, row = divmod(index, self._rows)
        items = self._batches.get((epoch, step))
        if items is None:
            raise CancelledTaskError
        return items[row]

    def close(self) -> None:
        """See `ItemStore.close`."""
        self._batches.clear()


class FileStore(ItemStore):
    """Items for worker processes; it pickles as a reader of the inherited file."""

    def __init__(self, rows: int, batches: int = 1024) -> None:
        """`rows`: items in a batch; `batches`: how many are in flight at most."""
        self._rows = rows
        self._entries = batches + _MORE
        self._table_bytes = 8 * _ENTRY_WORDS * self._entries
        self._lock = threading.Lock()
        self._places: dict[Key, tuple[int, int, int]] = {}  # entry, offset, bytes
        with naming_descriptors("a stream feed with worker processes", descriptors_of(0)):
            self._fd = anonymous_file("kerasfeed-items")
        os.ftruncate(self._fd, self._table_bytes)
        self._memory = mmap.mmap(self._fd, self._table_bytes)
        self._table = memoryview(self._memory).cast("q")
        self._free = list(range(self._entries))
        self._puts = 0
        self._closed = False

    @property
    def fds(self) -> tuple[int, ...]:
        """See `ItemStore.fds`."""
        return (self._fd,)

    def put(self, epoch: int, step: int, items: Sequence[Any]) -> None:
        """See `ItemStore.put`."""
        blob = _pickled(items, step * self._rows)
        with self._lock:
            if self._closed:
                return
            offset = self._place(len(blob))
            try:
                start = 0
                while start < len(blob):  # a write up to a limit of the system is cut short there
                    start += os.pwrite(self._fd, memoryview(blob)[start : start + _MOST_BYTES], offset + start)
            except OSError as error:
                if not is_of_memory(error):
                    raise
                what = "items on their way to workers"
                raise memory_refused(error, "the stream feed", len(blob), offset, what=what) from error
            entry = self._free.pop()
            self._places[epoch, step] = (entry, offset, len(blob))
            word = entry * _ENTRY_WORDS
            self._puts += 1
            self._table[word + 1], self._table[word + 2], self._table[word + 3] = step, offset, self._puts
            self._table[word] = epoch + 1

    def _place(self, nbytes: int) -> int:
        """Offset of room for `nbytes`: the first between, or behind, the batches that are there."""
        offset = self._table_bytes
        for _, start, length in sorted(self._places.values(), key=lambda place: place[1]):
            if start - offset >= nbytes:
                break
            offset = start + length + -length % _ALIGNMENT
        return offset

    def drop(self, epoch: int, step: int) -> None:
        """See `ItemStore.drop`."""
        with self._lock:
            place = self._places.pop((epoch, step), None)
            if place is None or self._closed:
                return
            self._table[place[0] * _ENTRY_WORDS] = 0
            self._free.append(place[0])
            if not self._places:  # what a batch of large items took is given back
                os.ftruncate(self._fd, self._table_bytes)

    def item(self, epoch: int, index: int) -> Any:
        """See `ItemStore.item`."""
        return StoreReader(self._fd, self._rows, self._table_bytes).item(epoch, index)

    def close(self) -> None:
        """See `ItemStore.close`."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._places.clear()
            self._table.release()
            self._memory.close()
            os.close(self._fd)

    def __reduce__(self) -> Any:
        return StoreReader, (self._fd, self._rows, self._table_bytes)


class StoreReader:
    """A worker's view of a `FileStore`."""

    def __init__(self, fd: int, rows: int, table_bytes: int) -> None:
        self._fd = fd
        self._rows = rows
        self._table_bytes = table_bytes
        self._key: Key | None = None
        self._entry = self._start = self._put = 0
        self._bounds: NDArray[np.int64] = np.zeros(0, np.int64)

    def item(self, epoch: int, index: int) -> Any:
        """See `ItemStore.item`."""
        step, row = divmod(index, self._rows)
        if self._key != (epoch, step) or not self._holds(epoch, step):  # which may have been put again, elsewhere
            self._find(epoch, step)
        first, last = self._bounds[row], self._bounds[row + 1]
        pickled = self._read(int(first), int(last))
        if not self._holds(epoch, step):
            self._key = None
            raise CancelledTaskError
        return pickle.loads(pickled)

    def _read(self, first: int, last: int) -> bytes:
        parts = range(first, last, _MOST_BYTES)
        read = [os.pread(self._fd, min(_MOST_BYTES, last - start), self._start + start) for start in parts]
        return read[0] if len(read) == 1 else b"".join(read)

    def _find(self, epoch: int, step: int) -> None:
        self._key = None
        table = np.frombuffer(os.pread(self._fd, self._table_bytes, 0), np.int64).reshape(-1, _ENTRY_WORDS)
        found = np.flatnonzero((table[:, 0] == epoch + 1) & (table[:, 1] == step))
        if not len(found):
            raise CancelledTaskError
        self._entry = int(found[0])
        self._start, self._put = int(table[self._entry, 2]), int(table[self._entry, 3])
        head = os.pread(self._fd, 8, self._start)
        count = int.from_bytes(head, sys.byteorder) if len(head) == 8 else -1
        if not self._holds(epoch, step):
            raise CancelledTaskError
        bounds = os.pread(self._fd, 8 * (count + 1), self._start + 8)
        if not self._holds(epoch, step):
            raise CancelledTaskError
        self._bounds = np.frombuffer(bounds, np.int64)
        self._key = (epoch, step)

    def _holds(self, epoch: int, step: int) -> bool:
        entry = os.pread(self._fd, 8 * _ENTRY_WORDS, 8 * self._entry * _ENTRY_WORDS)
        return tuple(np.frombuffer(entry, np.int64)) == (epoch + 1, step, self._start, self._put)


def _pickled(items: Sequence[Any], first: int) -> bytes:
    """int64 count, int64[count + 1] bounds of the items from the beginning, then the items, each pickled."""
    file = io.BytesIO()
    file.write(bytes(8 * (len(items) + 2)))
    pickler = CloudPickler(file, protocol=5)
    bounds = [file.tell()]
    for number, item in enumerate(items, first):
        try:
            pickler.dump(item)
        except Exception as error:
            raise TypeError(
                f"item {number} of the stream, of type {type(item).__name__}, cannot be sent to worker processes: "
                f"{message_of(error)}. Yield what pickles (names, numbers, arrays), or use worker_type='thread'"
            ) from error
        pickler.clear_memo()
        bounds.append(file.tell())
    file.seek(0)
    file.write(np.array([len(items), *bounds], np.int64).tobytes())
    return file.getvalue()
