"""The start of each record of a file.

Invariant: an index belongs to one state of a file. Only the heads of records are read. If a head is damaged, the rest
of the file counts as one unreadable record, because records after a damaged length cannot be found.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kerasfeed.readers.opened_files import Identity
from kerasfeed.readers.tfrecord.names import FileLocation
from kerasfeed.readers.tfrecord.record_file import FRAME_BYTES, HEADER_BYTES, RecordFile, data_length, open_records

_SMALL = 1 << 14  # bytes; smaller records are read in blocks: 64 KiB cost as much as twenty heads
_BLOCK = 1 << 16


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
        found = data_length(block, position - first)
        if found is None:
            return f"the checksum of the length at byte {position:,} does not hold"
        length = found
        starts.append(position + length + FRAME_BYTES)
    if file.length == starts[-1]:
        return None
    if len(starts) > 1 and file.length < starts[-1]:
        starts.pop()
    return f"the file is cut off in the record at byte {starts[-1]:,}"
