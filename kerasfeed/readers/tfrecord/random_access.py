"""The bytes of a record file from any offset on, as if it were not compressed.

Invariant: what a file that was cut or rewritten meanwhile holds is never returned. Reads may come from any thread. A
compressed file is decompressed from the nearest known point before the offset: from the beginning of a member, of which
files written here have one every 64 KiB, or from the state that decompression had a while before.
"""

import bisect
import itertools
import os
import threading
import weakref
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Any

from isal import isal_zlib
from isal.igzip_lib import IsalError

from kerasfeed.errors import RecordError
from kerasfeed.readers.remote import Blocks, UrlFile
from kerasfeed.readers.tfrecord.framing import HEADER_BYTES, data_length
from kerasfeed.readers.tfrecord.names import Place
from kerasfeed.util.error_text import message_of
from kerasfeed.util.file_bytes import ByteSource, OpenFile
from kerasfeed.util.lru import Lru
from kerasfeed.util.opened_files import Identity

MEMBER_BYTES = 1 << 16  # records of a member of the files written here, before compression
_SPAN = 1 << 22  # decompressed bytes from one kept state to the next; a state takes about 40 KiB
_BLOCK = 1 << 16  # compressed bytes read at a time
_URL_BLOCK = 1 << 22  # as long to fetch as to ask for, at 40 MB/s and 0.1 s
_GZIP_HEADER, _ZLIB_HEADER = 31, 15  # zlib's own words for them
_serials = itertools.count()  # unlike the id of a stream, never that of another


Windows = Lru[tuple[int, int, int], bytes]  # decompressed pieces of files, weighed by `len`


def open_stream(
    path: Place, cache: Windows, expected: Identity | None = None, members: Sequence[tuple[int, int]] = (),
    length: int | None = None, *, forward: bool = False,
) -> "Stream":  # fmt: skip
    """Open a file of records, compressed or not. It closes when nobody refers to the stream any more.

    Args:
        path: The file, or its URL.
        cache: Where decompressed pieces are kept.
        expected: What it must be.
        members: Where its members are known to begin.
        length: Its bytes when decompressed, where known.
        forward: Whether one thread reads it from the beginning to the end, in small steps.

    Raises:
        OSError: It cannot be opened, or is not what was expected.
    """
    source: ByteSource = UrlFile(path) if isinstance(path, str) else _opened(path)
    if expected is not None:
        expected.refuse(source.identity, str(path))
    if forward and isinstance(path, str):
        source = Blocks(source, _URL_BLOCK, 2)
    header = _compression(source.read(0, min(HEADER_BYTES, source.identity.size)))
    return PlainStream(source) if header is None else CompressedStream(source, header, cache, members, length)


def _opened(path: Path) -> OpenFile:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise FileNotFoundError(f"there is no file {str(path)!r} any more") from None
    file = OpenFile(str(path), descriptor, Identity.of(os.fstat(descriptor)))
    weakref.finalize(file, os.close, descriptor).atexit = False  # a thread may be reading as the process ends
    return file


def _compression(head: bytes) -> int | None:
    """The header of compressed data, in zlib's words; None where `head` begins a record."""
    if len(head) < 2 or (len(head) == HEADER_BYTES and data_length(head) is not None):
        return None
    if head[:2] == b"\x1f\x8b":
        return _GZIP_HEADER
    return _ZLIB_HEADER if head[0] & 0x0F == 8 and int.from_bytes(head[:2], "big") % 31 == 0 else None


class PlainStream:
    """A file that is not compressed.

    Attributes:
        identity: What the file was when it was opened.
        length: Bytes in all.
        members: None.
    """

    def __init__(self, source: ByteSource) -> None:
        """Read `source`."""
        self.identity, self.length = source.identity, source.identity.size
        self.members: list[tuple[int, int]] = []
        self._source = source

    def read(self, start: int, size: int) -> bytes:
        """Up to `size` bytes from `start` on; fewer where the file ends.

        Raises:
            OSError: It cannot be read, or changed since it was opened.
        """
        size = min(size, self.identity.size - start)
        return self._source.read(start, size) if size > 0 else b""


@dataclass(frozen=True)
class _Point:
    """A place from which decompression can go on. The last one may be the end of the file.

    Attributes:
        start: Offset in what the file decompresses to.
        compressed: Offset in the file.
        state: zlib's state there; None at the beginning of a member.
    """

    start: int
    compressed: int
    state: Any = None


_START = attrgetter("start")


class CompressedStream:
    """A file in the format of gzip or zlib.

    Attributes:
        identity: What the file was when it was opened.
    """

    def __init__(
        self, source: ByteSource, header: int, cache: Windows, members: Sequence[tuple[int, int]], length: int | None
    ) -> None:
        """Decompress `source`, whose `header` is told in zlib's words; the others are as in `open_stream`."""
        self.identity = source.identity
        self._serial = next(_serials)
        self._source = source
        self._header = header
        self._cache = cache
        self._lock = threading.Lock()
        self._points = [_Point(start, compressed) for compressed, start in members or [(0, 0)]]
        if length is not None:
            self._points.append(_Point(length, self.identity.size))

    @property
    def length(self) -> int | None:
        """Bytes in all; None while that is not known."""
        last = self._points[-1]
        return last.start if self._is_end(last) else None

    def _is_end(self, point: _Point) -> bool:
        return point.compressed == self.identity.size and point.state is None  # with a state, the rest is missing

    @property
    def members(self) -> list[tuple[int, int]]:
        """Where members begin, in the file and in what it decompresses to."""
        begins = (point for point in self._points if point.state is None and not self._is_end(point))
        return [(point.compressed, point.start) for point in begins]

    def read(self, start: int, size: int) -> bytes:
        """Up to `size` bytes from `start` on; fewer where the file ends, or is damaged after them.

        Raises:
            RecordError: The file is damaged at `start`.
            OSError: It cannot be read, or changed since it was opened.
        """
        pieces: list[bytes] = []
        while size > 0:
            with self._lock:
                point = self._points[bisect.bisect_right(self._points, start, key=_START) - 1]
            if self._is_end(point):
                break
            try:
                data = self._window(point)
            except RecordError:
                if not pieces:
                    raise
                break
            piece = data[start - point.start : start - point.start + size]
            pieces.append(piece)
            start += len(piece)
            size -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _window(self, point: _Point) -> bytes:
        """What stands between a point and the next, which is known afterwards."""
        self._source.check()
        key = (self._serial, point.start, point.compressed)  # an empty member begins where the next one does
        return self._cache.get_or_load(key, lambda: self._decompressed(point))[0]

    def _decompressed(self, point: _Point) -> bytes:
        try:
            data = self._member(point)
            return self._inflate(point) if data is None else data
        except (zlib.error, IsalError) as error:  # type: ignore[misc]
            self._source.check(now=True)
            raise RecordError(
                f"{self._source.path!r} is damaged: what is compressed from byte {point.compressed:,} on does not "
                f"decompress ({message_of(error)})"
            ) from None

    def _member(self, point: _Point) -> bytes | None:
        """A whole small member, of which is known where it ends."""
        with self._lock:
            place = bisect.bisect_right(self._points, point.start, key=_START)
            stop = self._points[place] if place < len(self._points) else point
        size = stop.start - point.start
        if point.state is not None or stop.state is not None or not 0 < size <= _SPAN:
            return None
        packed = self._source.read(point.compressed, stop.compressed - point.compressed)
        data: bytes = isal_zlib.decompress(packed, self._header, size)
        if len(data) != size:
            raise zlib.error(f"it gives {len(data):,} bytes and not {size:,}")
        return data

    def _inflate(self, point: _Point) -> bytes:
        """Decompress a span from a point on, and note where it ends."""
        state = zlib.decompressobj(self._header) if point.state is None else point.state.copy()
        offset, size, pieces = point.compressed, 0, []
        while size < _SPAN and not state.eof:
            packed = self._source.read(offset, min(_BLOCK, self.identity.size - offset))
            try:
                if not packed:
                    raise RecordError(f"{self._source.path!r} is cut off: its compressed data do not end")
                piece = state.decompress(packed, _SPAN - size)
            except (zlib.error, RecordError):
                if not size:
                    raise
                break  # what came before it is whole; whoever reads on from there gets the error again
            offset += len(packed) - len(state.unconsumed_tail) - len(state.unused_data)
            size += len(piece)
            pieces.append(piece)
        self._note(point.start + size, offset, None if state.eof else state)
        return b"".join(pieces)

    def _note(self, start: int, compressed: int, state: Any) -> None:
        with self._lock:
            first = bisect.bisect_left(self._points, start, key=_START)
            place = bisect.bisect_right(self._points, start, key=_START)
            if all(point.compressed != compressed for point in self._points[first:place]):
                self._points.insert(place, _Point(start, compressed, state))


Stream = PlainStream | CompressedStream
