"""Chunks read past HDF5: file, codec, cache and destination, with no lock held while bytes move.

Invariant: equal to h5py bit for bit, or `DecodeError` or OSError; then the caller asks h5py. A selection reads each
chunk it touches once. Whoever calls holds the open file.
"""

import math
import threading
import time
import weakref
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.readers.hdf5 import decode_pool
from kerasfeed.readers.hdf5.chunk_cache import ChunkCache
from kerasfeed.readers.hdf5.chunks import ChunkLocation, Part, Piece
from kerasfeed.readers.hdf5.parallel_for import share
from kerasfeed.readers.hdf5.selection import Selection, Span, row, rows
from kerasfeed.readers.hdf5.stats import Counters
from kerasfeed.readers.hdf5.storage import Chunked
from kerasfeed.util import read_cost
from kerasfeed.util.file_bytes import ByteSource

_HELPED_NBYTES = 1 << 18  # decoded bytes from which a second thread pays: it takes about 50 us to join in
_COUNTED_PARTS = 4096  # selections of more chunks are taken to miss the cache
_MOST_TILES = 64
_AHEAD_SECONDS = 10.0


def plain_of(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype to move items with: structures as opaque bytes, so that padding moves along."""
    return np.dtype((np.void, dtype.itemsize)) if dtype.names is not None else dtype


class ChunkedReader:
    """Reads one chunked dataset. All methods may be called from any thread."""

    def __init__(
        self, layout: Chunked, source: ByteSource, cache: ChunkCache, storage: read_cost.Storage, counters: Counters
    ) -> None:
        """Read through `source`, keep chunks in `cache`, post what decoding costs as that of `storage`."""
        grid = layout.grid
        self.counters = counters
        self._grid, self._index, self._pipeline = grid, layout.index, layout.pipeline
        self._dtype, self._plain = layout.dtype, plain_of(layout.dtype)
        self._fill = layout.fill.view(self._plain)
        self._source, self._cache, self._storage = source, cache, storage
        self.keys = cache.reserve(grid.count)
        self._first_key = self.keys.start
        self._nbytes = layout.pipeline.nbytes
        # A chunk that is read whole is done with. Where all of them fit they are kept all the same: for the next epoch.
        self._keeps_whole = grid.count * self._nbytes <= cache.limit
        self._ahead: dict[int, float] = {}  # chunks to be decoded ahead and not yet asked for: since when, s
        self._ahead_lock = threading.Lock()
        self._row_shape = grid.shape[1:]
        self._row_chunks = grid.chunks[0]
        self._row_stride = grid.strides[0]
        self._row_is_chunk = grid.chunks == (1, *grid.shape[1:]) and len(grid.shape) > 1
        tail = grid.pieces((Span(0, 1), *(Span(0, size) for size in self._row_shape))) if grid.count else []
        self._tiles = [(part.number, part.target[1:], part.source[1:]) for part in _few(grid.parts(tail))]
        self._one_tile = self._tiles == [(0, *((tuple(slice(0, n) for n in self._row_shape),) * 2))] and (
            grid.chunks[1:] == self._row_shape
        )

    def row(self, place: int) -> Any:
        """Row `place` of axis 0: an array, or a scalar where the dataset has one axis."""
        if self._row_is_chunk:
            flat = np.empty(self._nbytes, np.uint8)
            self._whole(place, flat)
            return flat.view(self._dtype).reshape(self._row_shape)
        number, within = divmod(place, self._row_chunks)
        base = self._first_key + number * self._row_stride
        if self._one_tile:
            chunk = self._cache.get(base)
            if chunk is not None:
                self._asked(base - self._first_key)
                self.counters.hit()
                return _owned(chunk[within], self._dtype)
        elif self._tiles:
            found = self._cache.get_all([base + tile[0] for tile in self._tiles])
            if found is not None:
                for tile in self._tiles if self._ahead else ():
                    self._asked(base - self._first_key + tile[0])
                self.counters.hit(len(found))
                return self._assembled(found, within)
        out = np.empty(self._row_shape, self._dtype)
        self.read(row(place, self._grid.shape), out)
        return out if out.ndim else out[()]

    def row_into(self, place: int, out: NDArray[Any]) -> None:
        """Row `place` of axis 0 into `out`, of a row's shape; else as `read`."""
        if self._row_is_chunk and out.flags.c_contiguous:
            self._whole(place, out.reshape(-1).view(np.uint8))
        else:
            self.read(row(place, self._grid.shape), out)

    def _assembled(self, chunks: list[NDArray[Any]], within: int) -> NDArray[Any]:
        out = np.empty(self._row_shape, self._plain)
        for chunk, (_, target, source) in zip(chunks, self._tiles, strict=True):
            out[target] = chunk[within][source]
        return out.view(self._dtype)

    def read(self, selection: Selection, out: NDArray[Any]) -> None:
        """Fill `out`, of the selection's shape, of the dataset's dtype.

        Raises:
            DecodeError: A chunk is damaged.
            OSError: The file ended or changed.
        """
        kept = out.reshape(selection.kept)
        if self._plain is not self._dtype:
            kept = kept.view(self._plain)
        pieces = self._grid.pieces(selection.axes)
        meter = read_cost.current()
        helpers = self._helpers(pieces)
        share(self._grid.parts(pieces), lambda part: self._place(part, kept, meter), helpers)

    def ahead(self, places: NDArray[np.int64], owner: "weakref.ref[Any]") -> None:
        """Begin to decode the chunks of rows `places`, as many as half of the cache holds.

        Args:
            places: int64[n], each within axis 0.
            owner: The open file, which a task holds while it runs and not before.
        """
        if self._nbytes > self._cache.limit // 2 or not len(places):
            return
        if self._row_is_chunk and not self._keeps_whole:
            return  # such a row is decoded where it goes: nothing is gained by a detour
        meter = read_cost.current()
        numbers = np.unique(places // self._row_chunks) * self._row_stride
        most = self._cache.limit // 2 // self._nbytes
        tails = [tile[0] for tile in self._tiles] or self._grid.numbers(
            self._grid.pieces(rows(places[:1], self._grid.shape).axes)
        )
        first = self._first_key
        wanted = [first + int(number) + tail for number in numbers[:most] for tail in tails][:most]
        now = time.monotonic()
        for key in self._cache.missing(wanted):
            number = key - first
            if not self._may_run_ahead(number, most, now):
                return
            decode_pool.shared().submit(partial(self._decode_ahead, owner, number, meter))

    def _may_run_ahead(self, number: int, most: int, now: float) -> bool:
        """Note that chunk `number` is decoded ahead, unless `most` are that nobody has read yet."""
        with self._ahead_lock:
            if len(self._ahead) >= most:  # given up on, as when an epoch ends early: else there would be no more ever
                self._ahead = {each: at for each, at in self._ahead.items() if now - at < _AHEAD_SECONDS}
            if len(self._ahead) >= most:
                return False
            self._ahead[number] = now
            return True

    def _decode_ahead(self, owner: "weakref.ref[Any]", number: int, meter: read_cost.Meter | None) -> None:
        """Decode one chunk before it is asked for."""
        held = owner()
        # Else the file was closed meanwhile, or whoever needed the chunk did not wait.
        if held is not None and number in self._ahead:
            self.load(number, meter)

    def _asked(self, number: int) -> None:
        if self._ahead:
            with self._ahead_lock:
                self._ahead.pop(number, None)

    def load(self, number: int, meter: read_cost.Meter | None) -> NDArray[Any] | None:
        """Chunk `number` in its full shape, from the cache or the file; None when it is missing."""
        place = self._index.find(number)
        if place is None:
            return None
        chunk, found = self._cache.get_or_load(self._first_key + number, lambda: self._decoded(place, meter))
        if found:
            self.counters.hit()
        return chunk

    def _helpers(self, pieces: list[list[Piece]]) -> int:
        count = math.prod(len(along) for along in pieces)
        if count < 2 or count * self._nbytes < _HELPED_NBYTES or decode_pool.shared().workers < 2:
            return 0
        if count <= _COUNTED_PARTS:
            first = self._first_key
            count = len(self._cache.missing([first + number for number in self._grid.numbers(pieces)]))
            if count * self._nbytes < _HELPED_NBYTES:
                return 0
        return min(decode_pool.shared().workers, count) - 1

    def _place(self, part: Part, kept: NDArray[Any], meter: read_cost.Meter | None) -> None:
        """Move what one chunk contributes to its place in the result."""
        if part.whole and not self._keeps_whole:
            target = kept[part.target]
            if target.flags.c_contiguous:
                self._whole(part.number, target.reshape(-1).view(np.uint8), meter)
                return
        self._asked(part.number)
        chunk = self.load(part.number, meter)
        kept[part.target] = self._fill if chunk is None else chunk[part.source]

    def _whole(self, number: int, into: NDArray[np.uint8], meter: read_cost.Meter | None = None) -> None:
        """The bytes of a whole chunk into uint8[nbytes]."""
        if meter is None:
            meter = read_cost.current()
        self._asked(number)
        chunk: NDArray[Any] | None
        if self._keeps_whole:
            chunk = self.load(number, meter)
        else:
            chunk = self._cache.get(self._first_key + number) if self._cache.limit else None  # decoded ahead
            if chunk is not None:
                self.counters.hit()
        if chunk is not None:
            into[:] = chunk.reshape(-1).view(np.uint8)
            return
        place = self._index.find(number)
        if place is None:
            into.view(self._plain)[:] = self._fill
        else:
            self._decoded(place, meter, into)

    def _decoded(
        self, place: ChunkLocation, meter: read_cost.Meter | None, into: NDArray[np.uint8] | None = None
    ) -> NDArray[Any]:
        """Read and decode a stored chunk: its full shape, or uint8[nbytes] where it went `into`."""
        begin = time.perf_counter()
        data = self._source.read(place.address, place.size)
        found = self._pipeline.decode(data, place.mask, into)
        seconds = time.perf_counter() - begin
        self.counters.decode(place.position, len(self._index), place.size, seconds)
        if meter is not None:
            meter.note(self._storage, place.position, nbytes=self._nbytes, seconds=seconds)
        if into is not None:
            return into
        return np.frombuffer(found, self._plain).reshape(self._grid.chunks)


def _owned(view: Any, dtype: np.dtype[Any]) -> Any:
    """What a user may keep and write: a copy of a row in the cache, a scalar where rows are scalars."""
    if isinstance(view, np.ndarray):
        return view.copy().view(dtype)
    item = np.empty((), dtype)
    item.view(plain_of(dtype))[()] = view
    return item[()]


def _few(parts: Iterator[Part]) -> list[Part]:
    """All parts, or none where a row has so many that keeping them would cost more than it gains."""
    found = list(islice(parts, _MOST_TILES + 1))
    return [] if len(found) > _MOST_TILES else found
