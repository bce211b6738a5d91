"""Read chunks without HDF5 and without holding a lock.

A chunk goes from the file through codec and cache to the destination. If only HDF5 knows its filters, h5py decodes it
under its lock, and the same cache keeps it. (HDF5's own cache has a limit per dataset, and none for all datasets.)

Invariant: the result equals h5py's bit for bit; otherwise `Declined` or OSError is raised, and the caller asks h5py.
Each chunk that a box touches is read once. The caller holds the open file.
"""

import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from kerasfeed.readers import read_cost
from kerasfeed.readers.file_bytes import ByteSource
from kerasfeed.readers.hdf5.codecs import Declined
from kerasfeed.readers.hdf5.inspection import HDF5_LOCK
from kerasfeed.readers.hdf5.selection import Box
from kerasfeed.readers.hdf5.stats import Counters
from kerasfeed.readers.hdf5.storage import AxisPiece, Chunked, ChunkLocation, ChunkPart
from kerasfeed.util.lru import Lru, PerProcess
from kerasfeed.util.resources import cores

_HELPED_NBYTES = 1 << 18  # with fewer decoded bytes, no second thread helps: it takes about 50 us to start
_COUNTED_PARTS = 4096  # selections of more chunks are assumed to miss the cache
_AHEAD_SECONDS = 10.0
_MOST_TILES = 64  # chunks of a row that are looked up together in the cache
_Item = TypeVar("_Item")
# Threads that decode chunks for callers of `read`, shared by all files. Only the caller sees their exceptions.
_threads = PerProcess(lambda: ThreadPoolExecutor(cores(), "kerasfeed-decode"))


class ChunkCache(Lru[int, NDArray[Any]]):
    """A cache of decoded, read-only chunks, by integer keys from `reserve`."""

    def __init__(self, limit: int) -> None:
        """Keep up to `limit` bytes."""
        super().__init__(limit, attrgetter("nbytes"))
        self._forgotten: deque[range] = deque()  # keys of closed files
        self._keys = 0

    def reserve(self, count: int) -> range:
        """Reserve `count` unique keys."""
        with self._lock:
            first = self._keys
            self._keys += count
            return range(first, self._keys)

    def get_all(self, keys: list[int]) -> list[NDArray[Any]] | None:
        """Values of `keys`; None if one is missing.

        The lock is taken once for all keys, because a scene may touch dozens of chunks.
        """
        with self._lock:
            if not all(key in self._kept for key in keys):
                return None
            for key in keys:
                self._kept.move_to_end(key)
            return [self._kept[key] for key in keys]

    def missing(self, keys: list[int]) -> list[int]:
        """The keys that are neither kept nor being decoded."""
        with self._lock:
            return [key for key in keys if key not in self._kept and key not in self._loading]

    def _keep(self, key: int, value: NDArray[Any]) -> list[NDArray[Any]]:
        value.flags.writeable = False
        self._sweep()
        return super()._keep(key, value)

    def forget(self, keys: range) -> None:
        """Free the reserved values of `keys`, which are no longer used.

        Never waits, because the garbage collector may call it in a thread that holds the lock. In this case, the next
        chunk that is kept frees them.
        """
        self._forgotten.append(keys)
        if self._lock.acquire(blocking=False):
            try:
                self._sweep()
            finally:
                self._lock.release()

    def _sweep(self) -> None:
        while self._forgotten:
            gone = self._forgotten.popleft()
            few, many = (gone, self._kept) if len(gone) < len(self._kept) else (list(self._kept), gone)
            for key in few:
                if key in many:
                    self.weight -= self._kept.pop(key).nbytes


class ChunkedReader:
    """Read one chunked dataset. All methods may be called from any thread."""

    def __init__(
        self,
        layout: Chunked,
        source: ByteSource,
        cache: ChunkCache,
        storage: read_cost.Storage,
        counters: Counters,
        handle: Any,
    ) -> None:
        """Read through `source` into `cache`.

        The cost of reading `storage` is added to `counters`. `handle` is h5py's dataset, which decodes chunks if the
        pipeline cannot.
        """
        grid = layout.grid
        self._handle = handle
        # All readers take this lock before the cache's: a callback of HDF5 may read while it holds HDF5's lock.
        self._lock: AbstractContextManager[Any] = HDF5_LOCK if layout.pipeline.refusal else nullcontext()
        self.counters = counters
        self._grid, self._index, self._pipeline = grid, layout.index, layout.pipeline
        self._dtype, self._fill = layout.dtype, layout.fill
        self._source, self._cache, self._storage = source, cache, storage
        self.keys = cache.reserve(grid.count)
        self._first_key = self.keys.start
        self._nbytes = layout.pipeline.nbytes
        # Chunks that a read takes whole are kept only if the cache has room for the whole dataset, for the next epoch.
        self._keeps_whole = grid.count * self._nbytes <= cache.limit
        self._ahead: dict[int, float] = {}  # chunks being decoded ahead and not yet read: start time, s
        self._ahead_lock = threading.Lock()
        self._row_chunks, self._row_stride = grid.chunks[0], grid.strides[0]
        row = grid.pieces((range(1), *map(range, grid.shape[1:])))
        self._inner = row[1:]
        tiles = list(islice(grid.parts(row), _MOST_TILES + 1))
        # The chunks of a row: number relative to the first, index into the row, and index into the rows of the chunk.
        self._tiles = [(part.number, part.target[1:], part.source[1:]) for part in tiles if len(tiles) <= _MOST_TILES]
        self._row_is_chunk = grid.chunks == (1, *grid.shape[1:]) and len(grid.shape) > 1

    def rows_into(self, rows: range, out: NDArray[Any]) -> None:
        """Read rows of axis 0, at least one, into `out`, [len(rows), *row].

        Raises the errors of `read`.
        """
        if self._row_is_chunk and len(rows) == 1 and not self._pipeline.refusal:
            self._place(ChunkPart(rows[0], (0,), (0,), True), out, read_cost.current())
            return
        pieces = self._grid.pieces((rows,))
        if 0 < len(pieces[0]) * len(self._tiles) <= _MOST_TILES:
            parts = [
                ChunkPart(piece.offset + tile, (piece.target, *target), (piece.source, *source), False)
                for piece in pieces[0]
                for tile, target, source in self._tiles
            ]
            if self._copy_kept(parts, out):
                return
        self._read([*pieces, *self._inner], out)

    def read(self, box: Box, out: NDArray[Any]) -> None:
        """Fill `out`, which has the box's shape and plain items.

        Raises:
            Declined: A chunk is damaged, or h5py is faster.
            OSError: The file ended or changed.
        """
        self._read(self._grid.pieces(box), out)

    def _read(self, pieces: list[list[AxisPiece]], out: NDArray[Any]) -> None:
        keeps = self._keeps_whole or not self._pipeline.refusal
        if not keeps and all(piece.whole for along in pieces for piece in along):
            raise Declined("whole chunks, which h5py reads all in one call")
        parts, helpers = self._grid.parts(pieces), 0
        count = math.prod(map(len, pieces))
        if count <= _COUNTED_PARTS:
            listed = list(parts)
            if self._copy_kept(listed, out):
                return
            count = len(self._cache.missing([self._first_key + part.number for part in listed]))
            parts = iter(listed)
        if count > 1 and count * self._nbytes >= _HELPED_NBYTES and not self._pipeline.refusal:
            helpers = min(cores(), count) - 1
        meter = read_cost.current()
        if helpers > 0:
            share(parts, lambda part: self._place(part, out, meter), helpers)
        else:
            for part in parts:
                self._place(part, out, meter)

    def _copy_kept(self, parts: list[ChunkPart], out: NDArray[Any]) -> bool:
        """Fill `out` if the cache holds the chunks of all `parts`.

        Return whether it does.
        """
        chunks = self._cache.get_all([self._first_key + part.number for part in parts])
        if chunks is None:
            return False
        for chunk, part in zip(chunks, parts, strict=True):
            self._asked(part.number)
            out[part.target] = chunk[part.source]
        self.counters.add(hits=len(parts))
        return True

    def ahead(self, rows: NDArray[np.int64], owner: "weakref.ref[Any]") -> None:
        """Begin to decode the chunks of `rows`, up to half the cache.

        Args:
            rows: int64[n], each within axis 0.
            owner: The open file. A task holds it only while it runs.
        """
        if self._nbytes > self._cache.limit // 2 or not len(rows):
            return
        if self._row_is_chunk and not self._keeps_whole:
            return  # the row is decoded straight into its destination: decoding ahead gains nothing
        meter = read_cost.current()
        numbers = np.unique(rows // self._row_chunks) * self._row_stride
        most = self._cache.limit // 2 // self._nbytes
        first = self._first_key
        tails = range(first, first + self._row_stride)  # of the chunks of a row
        wanted = [number + tail for number in numbers[:most].tolist() for tail in tails[:most]][:most]
        now = time.monotonic()
        for key in self._cache.missing(wanted):
            number = key - first
            if not self._may_run_ahead(number, most, now):
                return
            with suppress(RuntimeError):  # the interpreter is ending, or the system has no thread left
                _threads.here().submit(self._decode_ahead, owner, number, meter)

    def _may_run_ahead(self, number: int, most: int, now: float) -> bool:
        """Record that chunk `number` is decoded ahead.

        Return False if `most` others were decoded ahead and not read yet. Chunks of an epoch that ended early are never
        read; they stop counting after some seconds.
        """
        with self._ahead_lock:
            if len(self._ahead) >= most:
                self._ahead = {each: at for each, at in self._ahead.items() if now - at < _AHEAD_SECONDS}
            if len(self._ahead) >= most:
                return False
            self._ahead[number] = now
            return True

    def _decode_ahead(self, owner: "weakref.ref[Any]", number: int, meter: read_cost.Meter | None) -> None:
        """Decode one chunk before a read needs it."""
        file = owner()
        # Else the file was closed meanwhile, or a read has decoded the chunk itself.
        if file is not None and number in self._ahead:
            self.load(number, meter)

    def _asked(self, number: int) -> None:
        if self._ahead:
            with self._ahead_lock:
                self._ahead.pop(number, None)

    def load(self, number: int, meter: read_cost.Meter | None, *, keep: bool = True) -> NDArray[Any] | None:
        """Return chunk `number` in its full shape.

        None if the file does not have it.

        Args:
            number: The chunk.
            meter: The caller's meter, which counts decoded chunks, or None.
            keep: Whether a decoded chunk goes into the cache. Other threads that need the chunk then wait for it.
        """
        key = self._first_key + number
        chunk, was_cached = self._cache.get(key), True
        if chunk is None:
            location = self._index.find(number)
            if location is None:
                return None
            with self._lock:
                if keep:
                    chunk, was_cached = self._cache.get_or_load(key, lambda: self._decoded(number, location, meter))
                else:
                    chunk, was_cached = self._decoded(number, location, meter), False
        if was_cached:
            self.counters.add(hits=1)
        return chunk

    def _place(self, part: ChunkPart, out: NDArray[Any], meter: read_cost.Meter | None) -> None:
        """Copy one chunk's part into the result."""
        self._asked(part.number)
        # If a whole chunk fills one contiguous part of the result, as a row does, it is not needed again soon. Chunks
        # of overlapping boxes (patches) are needed again, and fill no contiguous part.
        is_done = part.whole and not self._keeps_whole and out[part.target].flags.c_contiguous
        chunk = self.load(part.number, meter, keep=not is_done)
        out[part.target] = self._fill if chunk is None else chunk[part.source]

    def _decoded(self, number: int, location: ChunkLocation, meter: read_cost.Meter | None) -> NDArray[Any]:
        """Read and decode a stored chunk; return its full shape."""
        begin = time.perf_counter()
        if self._pipeline.refusal:
            decoded = self._decoded_by_h5py(number)
        else:
            data = self._source.read(location.address, location.size)
            decoded = np.frombuffer(self._pipeline.decode(data, location.mask), self._dtype).reshape(self._grid.chunks)
        seconds = time.perf_counter() - begin
        self.counters.add(nbytes=location.size)
        for each in (self.counters.meter, meter):
            if each is not None:
                each.record(self._storage, location.position, nbytes=self._nbytes, seconds=seconds)
        return decoded

    def _decoded_by_h5py(self, number: int) -> NDArray[Any]:
        inside: NDArray[Any] = self._handle[self._grid.region(number)].view(self._dtype)
        self._source.check(now=True)  # h5py reads zeros beyond the end of a truncated file
        if inside.shape != self._grid.chunks:  # at the edge
            whole = np.zeros(self._grid.chunks, self._dtype)
            whole[tuple(map(slice, inside.shape))] = inside
            return whole
        return inside


def share(items: Iterator[_Item], work: Callable[[_Item], None], helpers: int) -> None:
    """Call `work` once for each of `items`, in any thread and order.

    The caller works too, and waits only for helpers that have begun, so busy threads cannot block it. No helper is
    working when this returns or raises, unless Ctrl-C interrupts this wait: helpers then finish their present items.

    Args:
        items: Taken one by one, under a lock.
        work: Called for each item, several at a time.
        helpers: Number of threads to ask; with 0 the caller does all items in order.

    Raises:
        Exception: `work` raised; the items not yet begun are dropped.
    """
    lock = threading.Lock()
    # This is the only reference to `work`. The executor keeps cancelled helpers, which must not hold a destination.
    calls: Iterator[Callable[[], None]] = (partial(work, item) for item in items)

    def drain() -> None:
        nonlocal calls
        try:
            while True:
                with lock:
                    call = next(calls, None)
                if call is None:
                    return
                call()
        except BaseException:
            calls = iter(())
            raise

    asked: list[Future[None]] = []
    try:
        with suppress(RuntimeError):  # the interpreter is ending, or the system has no thread left
            asked += (_threads.here().submit(drain) for _ in range(helpers))
        drain()
    finally:  # an interrupt of the caller does not stop the helpers, which write to its memory
        calls = iter(())
        begun = [future for future in asked if not future.cancel()]
        wait(begun)
    for future in begun:
        future.result()
