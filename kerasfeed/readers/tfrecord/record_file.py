"""The bytes, the framing and the index of a record file.

Invariant: from 0.2 s after an open local file was truncated or rewritten, reading it raises an error. Any thread may
read. A record is length, checksum of the length, data, checksum of the data. All numbers are little-endian; checksums
are masked CRC32C (Castagnoli), as TensorFlow writes them. An index belongs to one state of a file. Making an index
reads only the heads of records. If a head is damaged, the rest of the file counts as one unreadable record, because
records after a damaged length cannot be found.
"""

import os
import struct
import weakref
import zlib
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.errors import RecordError
from kerasfeed.readers.file_bytes import ByteSource, OpenFile
from kerasfeed.readers.opened_files import Identity
from kerasfeed.readers.remote import Blocks, UrlFile
from kerasfeed.readers.tfrecord.example import Piece
from kerasfeed.readers.tfrecord.names import FileLocation
from kerasfeed.util.error_text import message_of

try:
    import google_crc32c
except ImportError as error:
    raise ImportError(
        "TFRecord files need google-crc32c, which is not installed: pip install google-crc32c "
        '(the extra "kerasfeed[tfrecord]")'
    ) from error

HEADER_BYTES = 12
FRAME_BYTES = 16
_LENGTH = struct.Struct("<Q")
_HEADER = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")
_MASK = 0xA282EAD8
_BLOCK = 1 << 16
_SMALL = 1 << 14  # bytes; smaller records are indexed in blocks: 64 KiB cost as much as twenty heads
_URL_BLOCK = 1 << 22  # fetching takes as long as the request, at 40 MB/s and 0.1 s
_GZIP_HEADER, _ZLIB_HEADER = 31, 15  # the values of zlib's argument `wbits`


class RecordFile:
    """An open, uncompressed file.

    Attributes:
        identity: Size, time and inode when the file was opened.
        length: Bytes in the file.
    """

    def __init__(self, source: ByteSource) -> None:
        """Read `source`."""
        self.identity, self.length = source.identity, source.identity.size
        self._source = source

    def read(self, start: int, size: int) -> bytes:
        """Return up to `size` bytes from `start`; fewer at the end.

        Raises:
            OSError: The file cannot be read, or has changed since it was opened.
        """
        size = min(size, self.length - start)
        return self._source.read(start, size) if size > 0 else b""


def open_records(path: FileLocation, expected: Identity | None = None, *, forward: bool = False) -> RecordFile:
    """Open an uncompressed file of records; garbage collection closes it.

    Args:
        path: The file, or its URL.
        expected: The identity that the file must have.
        forward: Whether one thread will read it from beginning to end, in small steps.

    Raises:
        RecordError: The file is compressed.
        OSError: The file cannot be opened, or its identity differs.
    """
    source = _opened(path, forward=forward)
    if expected is not None:
        expected.refuse(source.identity, str(path))
    if _compression(source) is not None:
        raise RecordError(
            f"{str(path)!r} is compressed, so its records can only be read in order. Read it with "
            "kf.StreamFeed(lambda: kf.TFRecordSequence.read(paths), ...) or with tf.data, or write it again without "
            "compression"
        )
    return RecordFile(source)


def records_in_order(path: FileLocation, *, verify: bool = True) -> Iterator[bytes]:
    """Yield the data of each record of a file, compressed or not.

    Args:
        path: The file, or its URL.
        verify: Whether to compare each record with its checksum.

    Raises:
        RecordError: The file is damaged; the message names file and record.
        OSError: The file cannot be read.
    """
    chunks, buffer, number = _chunks(path), bytearray(), 0

    def take(size: int) -> bytes:
        while len(buffer) < size and (chunk := next(chunks, b"")):
            buffer.extend(chunk)
        taken = bytes(buffer[:size])
        del buffer[:size]
        return taken

    try:
        while head := take(HEADER_BYTES):
            length = data_length(head) if len(head) == HEADER_BYTES else None
            if length is None:
                raise RecordError("the checksum of its length does not match")
            record = head + take(length + FRAME_BYTES - HEADER_BYTES)
            if len(record) < length + FRAME_BYTES:
                raise RecordError("the file ends within this record")
            if verify and not is_whole(record):
                raise RecordError("its checksum does not match")
            yield record[HEADER_BYTES:-4]
            number += 1
    except (RecordError, zlib.error) as error:
        raise RecordError(f"record {number} of {str(path)!r} is damaged: {message_of(error)}") from None


def _chunks(path: FileLocation) -> Iterator[bytes]:
    """Yield the decompressed bytes of a file in non-empty pieces."""
    source = _opened(path, forward=True)
    wbits: Any = _compression(source)
    state: Any = None if wbits is None else zlib.decompressobj(wbits)
    for start in range(0, source.identity.size, _BLOCK):
        data = source.read(start, min(_BLOCK, source.identity.size - start))
        while data and state is not None:
            if state.eof:
                state = zlib.decompressobj(wbits)
            piece, data = state.decompress(data), state.unused_data
            if piece:
                yield piece
        if data:
            yield data
    if state is not None and not state.eof:
        raise RecordError("the compressed data are incomplete")


def _opened(path: FileLocation, *, forward: bool) -> ByteSource:
    if isinstance(path, str):
        source = UrlFile(path)
        return Blocks(source, _URL_BLOCK, 2) if forward else source
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise FileNotFoundError(f"the file {str(path)!r} no longer exists") from None
    file = OpenFile(str(path), descriptor, Identity.of(os.fstat(descriptor)))
    weakref.finalize(file, os.close, descriptor).atexit = False  # a thread may be reading as the process ends
    return file


def _compression(source: ByteSource) -> int | None:
    """Return zlib's argument `wbits` for a compressed file; None for plain records."""
    head = source.read(0, min(HEADER_BYTES, source.identity.size))
    if len(head) < 2 or (len(head) == HEADER_BYTES and data_length(head) is not None):
        return None
    if head[:2] == b"\x1f\x8b":
        return _GZIP_HEADER
    return _ZLIB_HEADER if head[0] & 0x0F == 8 and int.from_bytes(head[:2], "big") % 31 == 0 else None


def masked_crc(data: bytes) -> int:
    """Return the masked CRC32C, for data that may contain checksums."""
    return _masked(google_crc32c.value(data))


def _masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def framed(pieces: list[Piece]) -> list[Piece]:
    """Add head and checksum to the pieces of a record's data."""
    size, crc = sum(map(len, pieces)), 0
    for piece in pieces:
        crc = google_crc32c.extend(crc, piece)
    length = _LENGTH.pack(size)
    return [length + _CHECKSUM.pack(masked_crc(length)), *pieces, _CHECKSUM.pack(_masked(crc))]


def data_length(head: bytes, start: int = 0) -> int | None:
    """Return the size of a record's data; None if damaged."""
    length, crc = _HEADER.unpack_from(head, start)
    return length if masked_crc(head[start : start + 8]) == crc else None


def is_whole(record: bytes) -> bool:
    """Whether the checksum in a framed record matches its data."""
    crc: int = _CHECKSUM.unpack_from(record, len(record) - 4)[0]
    return masked_crc(record[HEADER_BYTES:-4]) == crc


# ---- the start of each record


@dataclass(frozen=True, eq=False)
class FileIndex:
    """The records of one file.

    Attributes:
        path: The file.
        identity: Its identity when it was indexed.
        starts: int64[N + 1]: the first byte of each record, and the end of the last one.
        damage: Why the last of the N records cannot be read; None if all can.
    """

    path: FileLocation
    identity: Identity
    starts: NDArray[np.int64]
    damage: str | None = None

    def __len__(self) -> int:
        return len(self.starts) - 1


def index_files(paths: Sequence[FileLocation], workers: int) -> list[FileIndex]:
    """Index files with `workers` threads.

    Raises:
        RecordError: A file is compressed.
        OSError: A file cannot be read.
    """
    if workers == 1 or len(paths) == 1:
        return list(map(scan, paths))
    with ThreadPoolExecutor(min(workers, len(paths)), thread_name_prefix="kerasfeed-index") as pool:
        return list(pool.map(scan, paths))


def scan(path: FileLocation) -> FileIndex:
    """Find the records of a file.

    Raises:
        RecordError: The file is compressed.
        OSError: The file cannot be read.
    """
    file = open_records(path, forward=True)
    starts = [0]
    damage = _walk(file, starts)
    if damage is not None:
        damage = f"{damage}. Record {len(starts) - 1} represents the rest of the file, which cannot be read"
        starts.append(max(starts[-1] + 1, file.length))
    return FileIndex(path, file.identity, np.array(starts, np.int64), damage)


def _walk(file: RecordFile, starts: list[int]) -> str | None:
    """Append the end of each record; return the damage, if any."""
    block, first, length = b"", 0, 0
    while True:
        position = starts[-1]
        if position + HEADER_BYTES > first + len(block):
            block, first = file.read(position, _BLOCK if length < _SMALL else HEADER_BYTES), position
        if len(block) < HEADER_BYTES and first == position:
            break
        next_length = data_length(block, position - first)
        if next_length is None:
            return f"the checksum of the length at byte {position:,} does not match"
        length = next_length
        starts.append(position + length + FRAME_BYTES)
    if file.length == starts[-1]:
        return None
    if len(starts) > 1 and file.length < starts[-1]:
        starts.pop()
    return f"the file ends within the record at byte {starts[-1]:,}"
