"""A slow store that sometimes fails, as a protocol of fsspec: "slow:///folder/file" is a file on the disk.

A read takes 0.1 s. In one of three files, the first read of each part fails; if the file's name contains "broken", each
read does. Worker processes know the protocol if they load a class of this module.
"""

import threading
import time
import zlib
from pathlib import Path

import fsspec
import numpy as np
from fsspec import AbstractFileSystem
from fsspec.spec import AbstractBufferedFile

import kerasfeed as kf

SECONDS = 0.1
_lock = threading.Lock()
_failed = set()
_now = 0
most_at_once = 0  # reads


class SlowStore(AbstractFileSystem):
    """See the module."""

    protocol = "slow"

    @classmethod
    def _strip_protocol(cls, path):
        return str(path).removeprefix("slow://").rstrip("/")

    def info(self, path, **_):
        """Properties of a file or folder."""
        place = Path(self._strip_protocol(path))
        status = place.stat()
        kind = "directory" if place.is_dir() else "file"
        return {"name": str(place), "size": status.st_size, "type": kind, "mtime": status.st_mtime_ns}

    def ls(self, path, detail=True, **_):
        """The files of a folder."""
        found = [self.info(each) for each in sorted(Path(self._strip_protocol(path)).iterdir())]
        return found if detail else [each["name"] for each in found]

    def cat_file(self, path, start=None, end=None, **_):
        """Some bytes of a file."""
        place = self._strip_protocol(path)
        data = Path(place).read_bytes()[start:end]
        with _counted():
            time.sleep(SECONDS)
        fails = zlib.crc32(f"{Path(place).name} {start}".encode()) % 3 == 0
        with _lock:
            is_first = (place, start) not in _failed
            _failed.add((place, start))
        if "broken" in place or (fails and is_first):
            raise OSError("the store is busy")
        return data

    def _open(self, path, mode="rb", block_size=None, **options):
        return _SlowFile(self, path, mode, 1 << 16, cache_type="none")


class _SlowFile(AbstractBufferedFile):
    def _fetch_range(self, start, end):
        return self.fs.cat_file(self.path, start, end)


class _counted:
    def __enter__(self):
        global _now, most_at_once
        with _lock:
            _now += 1
            most_at_once = max(most_at_once, _now)

    def __exit__(self, *_):
        global _now
        with _lock:
            _now -= 1


fsspec.register_implementation("slow", SlowStore, clobber=True)


class Rooms(kf.SceneSequence):
    """The rows of an HDF5 file."""

    thread_safe = True

    def __init__(self, url):
        self.file = kf.HDF5File(url)

    def __len__(self):
        return len(self.file["x"])

    def __getitem__(self, index):
        return self.file["x"][index]


def read_npz(url):
    """The arrays of an NPZ file."""
    with fsspec.open(url) as file, np.load(file) as arrays:
        return arrays["x"]


read_npz.thread_safe = True
