"""Items on their way from the source to the workers that make scenes of them.

Invariant: an item that was put stays until its batch is dropped. A worker that looks for an item which was dropped
meanwhile serves a batch that nobody waits for any more, and skips it.

Between threads an item is passed as it is. For worker processes a batch's items are pickled, each by itself, into one
shared file that the workers inherit: a table of the batches in flight at its beginning, then the items. Where in the
table a batch stands its step says, so a batch takes the place of one of the same step in a repetition that was left. A
worker reads the table, then the item, then the table again: what is still there in the table was not overwritten.
"""

import io
import os
import pickle
import struct
import threading
from collections.abc import Sequence
from typing import Any

from kerasfeed.pool.memory import anonymous_file
from kerasfeed.pool.resource_errors import DESCRIPTORS, naming_descriptors, naming_memory
from kerasfeed.pool.task import CancelledTaskError
from kerasfeed.util.error_text import message_of
from kerasfeed.util.picklers import CloudPickler

_MORE = 64  # batches of which Ctrl-C has not let go yet
_ENTRY = struct.Struct("=4q")  # of the table: epoch + 1 (0 for none), step, offset, number of the `put`
_BOUNDS = struct.Struct("=2q")  # of an item: where it begins and ends, bytes from the batch's offset
_ALIGNMENT = 64
_MOST_BYTES = 1 << 30  # at once; Linux writes at most 2 GB

Key = tuple[int, int]


class MemoryStore:
    """The items of the batches in flight, for workers of this process. `put` and `drop` may be called by any thread."""

    fds: tuple[int, ...] = ()  # descriptors that worker processes must inherit

    def __init__(self, rows: int) -> None:
        """`rows`: items in a batch."""
        self._rows = rows
        self._batches: dict[Key, Sequence[Any]] = {}

    def put(self, epoch: int, step: int, items: Sequence[Any]) -> None:
        """Keep the items of a batch; all but the last batch of an epoch are of the same size."""
        self._batches[epoch, step] = items

    def drop(self, epoch: int, step: int) -> None:
        """Forget the items of a batch; idempotent."""
        self._batches.pop((epoch, step), None)

    def item(self, epoch: int, index: int) -> Any:
        """An item, by its number in the epoch.

        Raises:
            CancelledTaskError: Its batch was dropped.
        """
        step, row = divmod(index, self._rows)
        items = self._batches.get((epoch, step))
        if items is None:
            raise CancelledTaskError
        return items[row]

    def close(self) -> None:
        """Free everything; idempotent."""
        self._batches.clear()


class StoreReader:
    """A worker's view of a `FileStore`."""

    def __init__(self, fd: int, rows: int, entries: int) -> None:
        self._fd = fd
        self._rows = rows
        self._entries = entries

    def item(self, epoch: int, index: int) -> Any:
        """See `MemoryStore.item`."""
        step, row = divmod(index, self._rows)
        entry = self._entry(step)
        begun, number, offset, _ = _ENTRY.unpack(entry)
        if (begun, number) != (epoch + 1, step):
            raise CancelledTaskError
        start, stop = _BOUNDS.unpack(self._read(step, entry, range(offset + 8 * row, offset + 8 * row + _BOUNDS.size)))
        return pickle.loads(self._read(step, entry, range(offset + start, offset + stop)))

    def _entry(self, step: int) -> bytes:
        return os.pread(self._fd, _ENTRY.size, _ENTRY.size * (step % self._entries))

    def _read(self, step: int, entry: bytes, places: range) -> bytes:
        """The bytes at `places` in the file, of the batch that has this `entry` in the table."""
        parts = [places[start : start + _MOST_BYTES] for start in range(0, len(places), _MOST_BYTES)]
        found = b"".join([os.pread(self._fd, len(part), part.start) for part in parts])
        if self._entry(step) != entry:
            raise CancelledTaskError
        return found


class FileStore(StoreReader):
    """The same for worker processes; it pickles as a reader of the inherited file."""

    def __init__(self, rows: int, batches: int) -> None:
        """`rows`: items in a batch; `batches`: how many are in flight at most."""
        with naming_descriptors("a stream feed with worker processes", DESCRIPTORS):
            super().__init__(anonymous_file("kerasfeed-items"), rows, batches + _MORE)
        self._table_bytes = _ENTRY.size * self._entries
        self._lock = threading.Lock()
        self._places: dict[int, tuple[Key, int, int]] = {}  # by entry: of which batch, offset, bytes
        self.fds = (self._fd,)
        os.ftruncate(self._fd, self._table_bytes)
        self._puts = 0
        self._closed = False

    def put(self, epoch: int, step: int, items: Sequence[Any]) -> None:
        """See `MemoryStore.put`.

        Raises:
            TypeError: An item cannot be pickled.
        """
        blob = _pickled(items, step * self._rows)
        with self._lock:
            if self._closed:
                return
            entry = step % self._entries
            self._forget(entry)
            offset = self._place(len(blob))
            start = 0
            with naming_memory("the stream feed", len(blob), offset, what="items on their way to workers"):
                while start < len(blob):  # a write up to a limit of the system is cut short there
                    start += os.pwrite(self._fd, memoryview(blob)[start : start + _MOST_BYTES], offset + start)
            self._places[entry] = (epoch, step), offset, len(blob)
            self._puts += 1
            os.pwrite(self._fd, _ENTRY.pack(epoch + 1, step, offset, self._puts), _ENTRY.size * entry)

    def _place(self, nbytes: int) -> int:
        """Offset of room for `nbytes`: the first between, or behind, the batches that are there."""
        offset = self._table_bytes
        for _, start, length in sorted(self._places.values(), key=lambda place: place[1]):
            if start - offset >= nbytes:
                break
            offset = start + length + -length % _ALIGNMENT
        return offset

    def _forget(self, entry: int) -> None:
        """Let go of what stands at `entry` of the table, if anything does."""
        if self._places.pop(entry, None) is not None:
            os.pwrite(self._fd, bytes(_ENTRY.size), _ENTRY.size * entry)

    def drop(self, epoch: int, step: int) -> None:
        """See `MemoryStore.drop`."""
        with self._lock:
            entry = step % self._entries
            if self._closed or self._places.get(entry, (None,))[0] != (epoch, step):
                return
            self._forget(entry)
            if not self._places:  # what a batch of large items took is given back
                os.ftruncate(self._fd, self._table_bytes)

    def close(self) -> None:
        """See `MemoryStore.close`."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._places.clear()
            os.close(self._fd)

    def __reduce__(self) -> Any:
        return StoreReader, (self._fd, self._rows, self._entries)


ItemStore = MemoryStore | FileStore


def _pickled(items: Sequence[Any], first: int) -> bytes:
    """int64[count + 1] bounds of the items from the beginning, then the items, each pickled."""
    file = io.BytesIO()
    file.write(bytes(8 * (len(items) + 1)))
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
    file.write(struct.pack(f"={len(bounds)}q", *bounds))
    return file.getvalue()
