"""Shards that are TFRecord files, compressed or not, and the index of each.

Invariant: what a scene returned is written, or copied, before the next one is asked for: its arrays may be used again.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from isal import isal_zlib

from kerasfeed.readers.tfrecord.example import Piece
from kerasfeed.readers.tfrecord.fields import SceneCodec
from kerasfeed.readers.tfrecord.framing import framed
from kerasfeed.readers.tfrecord.index import FileIndex, index_path, load_index, save_index, scan
from kerasfeed.readers.tfrecord.random_access import MEMBER_BYTES
from kerasfeed.spec.scene_spec import SceneSpec
from kerasfeed.util.opened_files import Identity
from kerasfeed.writers.shard_format import ShardFormat

_WRITTEN_BYTES = 1 << 20
_PIECES_AT_ONCE = 512  # systems take 1,024
_GZIP_LEVEL, _GZIP_HEADER = 2, 31


class TFRecordFormat(ShardFormat):
    """Shards that are TFRecord files.

    Args:
        spec: Spec of a scene.
        compression: None or "GZIP".
    """

    def __init__(self, spec: SceneSpec, compression: str | None) -> None:
        self._codec = SceneCodec(spec)
        self._compression = compression

    def encode(self, scene: Any) -> list[Piece]:
        """See `ShardFormat.encode`; pieces of the record, which may be the scene's own arrays."""
        return framed(self._codec.pieces(scene))

    def write(self, descriptor: int, encoded: Iterator[Any], scenes: int) -> Any:
        """See `ShardFormat.write`; returns where records and members begin."""
        starts, members = [0], []
        waiting: list[bytes] = []
        most = _WRITTEN_BYTES if self._compression is None else MEMBER_BYTES
        first, place = 0, 0  # of what waits, decompressed and in the file

        def flush() -> None:
            nonlocal first, place
            if not waiting:
                return
            data = waiting[0] if len(waiting) == 1 else b"".join(waiting)
            waiting.clear()
            if self._compression is not None:
                members.append((place, first))
                first += len(data)
                data = isal_zlib.compress(data, _GZIP_LEVEL, _GZIP_HEADER)
            else:
                first += len(data)
            _write_all(descriptor, [data])
            place += len(data)

        for pieces in encoded:
            starts.append(starts[-1] + sum(map(len, pieces)))
            if len(pieces) > 1 and self._compression is None:  # arrays of the scene, which are its own again after this
                flush()
                _write_all(descriptor, pieces)
                first = place = starts[-1]
                continue
            waiting.append(pieces[0] if len(pieces) == 1 else b"".join(pieces))
            if starts[-1] - first >= most:
                flush()
        flush()
        return starts, members

    def finish(self, path: Path, written: Any) -> None:
        """See `ShardFormat.finish`; keeps the index."""
        starts, members = written
        arrays = np.array(starts, np.int64), np.array(members, np.int64).reshape(-1, 2)
        save_index(FileIndex(path, Identity.of(path.stat()), *arrays), index_path(path))

    def count(self, path: Path) -> int | None:
        """See `ShardFormat.count`."""
        index = load_index(path, index_path(path)) or scan(path)
        return len(index) if index.damage is None else None


def _write_all(descriptor: int, pieces: Sequence[Piece]) -> None:
    rest = [memoryview(piece) for piece in pieces if len(piece)]
    while rest:
        done = os.writev(descriptor, rest[:_PIECES_AT_ONCE])
        while rest and done >= len(rest[0]):
            done -= len(rest.pop(0))
        if done:
            rest[0] = rest[0][done:]
