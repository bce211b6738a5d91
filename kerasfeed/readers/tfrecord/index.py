"""Where the records of a file begin: found once, kept beside the file, checked whenever it is used.

Invariant: an index belongs to one state of a file, told by its size and time of modification; of another it is never
used. Only the heads of records are read. Where they stop making sense, the rest of the file counts as one record that
cannot be read: what follows a damaged length cannot be found.
"""

import contextlib
import io
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kerasfeed.errors import RecordError
from kerasfeed.readers.remote import identity_at, last_part
from kerasfeed.readers.tfrecord.framing import FRAME_BYTES, HEADER_BYTES, data_length
from kerasfeed.readers.tfrecord.names import Place
from kerasfeed.readers.tfrecord.random_access import Stream, open_stream
from kerasfeed.util.atomic_write import write_whole
from kerasfeed.util.error_text import message_of
from kerasfeed.util.lru import Lru
from kerasfeed.util.opened_files import Identity

_VERSION = 1
_SMALL = 1 << 14  # below, heads are looked for in blocks: one read of 64 KiB costs what twenty of 12 bytes do
_BLOCK = 1 << 16
_SCAN_CACHE = 1 << 23


@dataclass(frozen=True, eq=False)
class FileIndex:
    """The records of one file.

    Attributes:
        path: The file.
        identity: What it was.
        starts: int64[N + 1]: where each record begins when decompressed, bytes, and where the last one ends.
        members: int64[M, 2]: where members begin, in the file and decompressed, bytes; M is 0 where nothing is
            compressed.
        damage: Why the last of the N records cannot be read; None where all can.
    """

    path: Place
    identity: Identity
    starts: NDArray[np.int64]
    members: NDArray[np.int64]
    damage: str | None = None

    def __len__(self) -> int:
        return len(self.starts) - 1


def index_files(paths: Sequence[Place], cache: Path | bool, workers: int) -> list[FileIndex]:
    """The indices of some files, those that are not kept found by `workers` threads.

    Args:
        paths: The files.
        cache: A folder to keep indices in; True for a hidden file beside each, where that can be written, which it
            cannot beside a URL; False to keep none.
        workers: Threads, at least 1.

    Raises:
        OSError: A file cannot be read.
    """
    if workers == 1 or len(paths) == 1:
        return [_index(path, cache) for path in paths]
    with ThreadPoolExecutor(min(workers, len(paths)), thread_name_prefix="kerasfeed-index") as pool:
        return list(pool.map(lambda path: _index(path, cache), paths))


def _index(path: Place, cache: Path | bool) -> FileIndex:
    kept = None
    if isinstance(cache, Path):
        kept = index_path(path, cache)
    elif cache and isinstance(path, Path):
        kept = index_path(path)
    found = None if kept is None else load_index(path, kept)
    if found is None:
        found = scan(path)
        if kept is not None and found.damage is None:
            save_index(found, kept)
    return found


def index_path(path: Place, folder: Path | None = None) -> Path:
    """Where the index of a file is kept: in a folder, or beside the file."""
    if folder is None:
        return Path(path).with_name(f".{last_part(path)}.index.npz")
    place = blake2b(os.fsencode(path), digest_size=6).hexdigest()  # files of one name in several folders
    return folder / f"{last_part(path)}.{place}.index.npz"


def load_index(path: Place, kept: Path) -> FileIndex | None:
    """The index that is kept of a file, if it is of the file as it is now."""
    try:
        with np.load(kept, allow_pickle=False) as file:
            key, starts, members = (file[name] for name in ("key", "starts", "members"))
    except Exception:  # noqa: BLE001 - there is none, or half of one, or another program's: it is made anew
        return None
    identity = identity_at(path)
    fits = key.shape == (3,) and key.tolist() == [_VERSION, identity.size, identity.mtime_ns]
    if not fits or starts.ndim != 1 or not len(starts) or members.shape[1:] != (2,):
        return None
    return FileIndex(path, identity, starts.astype(np.int64), members.astype(np.int64))


def save_index(index: FileIndex, kept: Path) -> None:
    """Keep an index; where that cannot be, do without."""
    key = np.array([_VERSION, index.identity.size, index.identity.mtime_ns], np.int64)
    content = io.BytesIO()
    np.savez(content, key=key, starts=index.starts, members=index.members)
    with contextlib.suppress(OSError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_whole(kept, content.getvalue())


def scan(path: Place) -> FileIndex:
    """Find the records of a file.

    Raises:
        OSError: It cannot be read.
    """
    stream = open_stream(path, Lru(_SCAN_CACHE, len), forward=True)
    starts = [0]
    damage = None
    try:
        damage = _walk(stream, starts)
    except RecordError as error:
        damage = message_of(error)
        if len(starts) > 1 and not _is_there(stream, starts[-1] - 1):
            starts.pop()
    if damage is not None:
        end = stream.length
        damage = f"{damage}. What follows cannot be found: record {len(starts) - 1} stands for all of it"
        starts.append(max(starts[-1] + 1, end or 0))
    members: Any = stream.members
    return FileIndex(
        path, stream.identity, np.array(starts, np.int64), np.array(members, np.int64).reshape(-1, 2), damage
    )


def _is_there(stream: Stream, position: int) -> bool:
    try:
        return bool(stream.read(position, 1))
    except RecordError:
        return False


def _walk(stream: Stream, starts: list[int]) -> str | None:
    """Append where each record ends; returns what is wrong where the heads end too early."""
    block, first, length = b"", 0, 0
    while True:
        position = starts[-1]
        if position + HEADER_BYTES > first + len(block):
            block, first = stream.read(position, _BLOCK if length < _SMALL else HEADER_BYTES), position
        if len(block) < HEADER_BYTES and first == position:
            break
        found = data_length(block, position - first)
        if found is None:
            return f"the checksum of the length at byte {position:,} does not hold"
        length = found
        starts.append(position + length + FRAME_BYTES)
    end = stream.length
    if end is not None and end == starts[-1]:
        return None
    if len(starts) > 1 and end is not None and end < starts[-1]:
        starts.pop()
    return f"the file is cut off in the middle of the record at byte {starts[-1]:,}"
