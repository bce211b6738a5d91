"""How records stand in a TFRecord file: length, checksum of the length, data, checksum of the data.

Invariant: all numbers are little-endian; checksums are masked CRC32C (Castagnoli), as TensorFlow writes them.
"""

import struct

import google_crc32c

from kerasfeed.readers.tfrecord.example import Piece

HEADER_BYTES = 12
FRAME_BYTES = 16
_LENGTH = struct.Struct("<Q")
_HEADER = struct.Struct("<QI")
_CHECKSUM = struct.Struct("<I")
_MASK = 0xA282EAD8


def masked_crc(data: bytes) -> int:
    """Masked CRC32C of `data`: a checksum of data that may hold checksums."""
    return _masked(google_crc32c.value(data))


def _masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


def framed(pieces: list[Piece]) -> list[Piece]:
    """A record as it stands in the file, of data in pieces, which are as they are."""
    size, crc = sum(map(len, pieces)), 0
    for piece in pieces:
        crc = google_crc32c.extend(crc, piece)
    length = _LENGTH.pack(size)
    return [length + _CHECKSUM.pack(masked_crc(length)), *pieces, _CHECKSUM.pack(_masked(crc))]


def data_length(head: bytes, start: int = 0) -> int | None:
    """Bytes of the data of the record whose head begins at byte `start`; None where its checksum does not hold."""
    length, crc = _HEADER.unpack_from(head, start)
    return length if masked_crc(head[start : start + 8]) == crc else None


def is_whole(record: bytes) -> bool:
    """Whether the checksum of the data of a record, frame included, holds."""
    crc: int = _CHECKSUM.unpack_from(record, len(record) - 4)[0]
    return masked_crc(record[HEADER_BYTES:-4]) == crc
