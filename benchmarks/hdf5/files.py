"""The files of the HDF5 workloads: made once, kept in a folder for temporary files, about 450 MB in all.

Invariant: a file appears complete or not at all, and two cases that need it at once make it once. Its content is
a function of its name. Nothing is written into the repository.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

try:
    import fcntl
except ImportError:  # on Windows, two cases must not make a file at once
    fcntl = None  # type: ignore[assignment]

SCENE = (4096, 9)
"""Shape of a point cloud: float32, 147 kB."""
SCENES = 768
"""Point clouds in each of the files with one scene per chunk and with contiguous storage: 113 MB decoded."""
CHUNK_SCENES = 64
CHUNKED_SCENES = 24 * CHUNK_SCENES
"""Point clouds of the file with 64 scenes a chunk: 24 chunks of 9.4 MB."""
ROWS, ROW_BYTES = 65_536, 784
MANY_CHUNKS = 1_000_000
GROUP_SCENES = 2000
SPREAD = 0.2
"""Standard deviation of the points, which are rounded to two decimals, like scans to a centimetre. gzip 4 with
shuffle then makes them 1.76 times smaller."""
FOLDER_VARIABLE = "KERASFEED_BENCHMARK_DATA"
_STEP = 64


@dataclass(frozen=True)
class DataFile:
    """A file that can be made again.

    Attributes:
        name: Its name in the folder; changes with the content.
        write: Makes it at a path.
    """

    name: str
    write: Callable[[Path], None]

    def path(self) -> Path:
        """Path of the file; it is made if it is missing. All of it is then in the page cache."""
        folder = data_folder()
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / self.name
        with _alone(folder):
            if not path.exists():
                part = folder / f".{self.name}.part"
                _remove(part)
                self.write(part)
                _evict(part)
                part.rename(path)
        _warm(path)
        return path


def data_folder() -> Path:
    """The folder of the environment variable `KERASFEED_BENCHMARK_DATA`, else one in the user's temporary folder."""
    chosen = os.environ.get(FOLDER_VARIABLE)
    user = os.getuid() if hasattr(os, "getuid") else 0
    return Path(chosen) if chosen else Path(tempfile.gettempdir()) / f"kerasfeed-benchmarks-{user}"


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    with (folder / ".lock").open("w") as lock:
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _files(path: Path) -> list[Path]:
    return [found for found in path.rglob("*") if found.is_file()] if path.is_dir() else [path]


def _evict(path: Path) -> None:
    """Drop a new file from the system's cache, which holds small pieces that were written in small pages.

    A file that was read from a disk, like users' files, is in large pages, and reads 2 to 3 times faster.
    """
    if not hasattr(os, "posix_fadvise"):
        return
    for each in _files(path):
        with each.open("rb+") as stream:
            os.fsync(stream.fileno())
            os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _warm(path: Path) -> None:
    block = bytearray(1 << 22)
    for each in _files(path):
        with each.open("rb", buffering=0) as stream:
            while stream.readinto(block):
                pass


def point_clouds(start: int, stop: int) -> np.ndarray:
    """Point clouds [start, stop), a multiple of 64 to a multiple of 64: float32[stop - start, 4096, 9]."""
    blocks = [
        np.random.default_rng((7, first)).standard_normal((_STEP, *SCENE), dtype=np.float32) * np.float32(SPREAD)
        for first in range(start, stop, _STEP)
    ]
    return np.round(np.concatenate(blocks), 2)


def labels(count: int) -> np.ndarray:
    """One class per scene: int32[count, 1]."""
    return np.random.default_rng(8).integers(0, 13, (count, 1), dtype=np.int32)


def _write_clouds(path: Path, scenes: int, **storage: Any) -> None:
    with h5py.File(path, "w") as file:
        data = file.create_dataset("points", (scenes, *SCENE), np.float32, **storage)
        for start in range(0, scenes, _STEP):
            data[start : start + _STEP] = point_clouds(start, start + _STEP)


def _write_rows(path: Path) -> None:
    with h5py.File(path, "w") as file:
        rng = np.random.default_rng(9)
        file.create_dataset("points", data=rng.integers(0, 256, (ROWS, ROW_BYTES), dtype=np.uint8))


def _write_many(path: Path) -> None:
    step = 50_000
    with h5py.File(path, "w") as file:
        data = file.create_dataset("points", (MANY_CHUNKS, 8), np.float32, chunks=(1, 8))
        for start in range(0, MANY_CHUNKS, step):
            data[start : start + step] = np.arange(start * 8, (start + step) * 8, dtype=np.float32).reshape(-1, 8)


def group_name(number: int) -> str:
    """Path of the point cloud of one group of `GROUPS`."""
    return f"scene_{number:05d}/points"


def _write_groups(path: Path) -> None:
    rng = np.random.default_rng(11)
    with h5py.File(path, "w") as file:
        for number in range(GROUP_SCENES):
            points = rng.standard_normal((rng.integers(1000, 3000), 3), dtype=np.float32)
            file.create_dataset(group_name(number), data=np.round(points, 2), compression="gzip")


def _write_zarr(path: Path) -> None:
    import zarr
    from zarr.codecs.numcodecs import Shuffle

    array = zarr.create_array(
        store=path,
        shape=(SCENES, *SCENE),
        chunks=(1, *SCENE),
        dtype="float32",
        compressors=[Shuffle(elementsize=4), zarr.codecs.GzipCodec(level=4)],
    )
    for start in range(0, SCENES, _STEP):
        array[start : start + _STEP] = point_clouds(start, start + _STEP)


_GZIP = {"compression": "gzip", "compression_opts": 4, "shuffle": True}

GZIP = DataFile("gzip-2.h5", lambda path: _write_clouds(path, SCENES, chunks=(1, *SCENE), **_GZIP))
"""gzip 4 and shuffle, one scene a chunk: 64 MB."""
ZARR = DataFile("gzip-2.zarr", _write_zarr)
"""The same scenes, chunks and filters in zarr's own store."""
CONTIGUOUS = DataFile("contiguous-2.h5", lambda path: _write_clouds(path, SCENES))
"""The same scenes, neither chunked nor compressed: 113 MB."""
CHUNKED = DataFile(
    "chunked-2.h5", lambda path: _write_clouds(path, CHUNKED_SCENES, chunks=(CHUNK_SCENES, *SCENE), **_GZIP)
)
"""gzip 4 and shuffle, 64 scenes a chunk: 128 MB, 226 MB decoded."""
ROW_FILE = DataFile("rows-1.h5", _write_rows)
"""Rows of 784 bytes, contiguous: 51 MB."""
MANY = DataFile("many-1.h5", _write_many)
"""A million chunks of 32 bytes: 79 MB."""
GROUPS = DataFile("groups-1.h5", _write_groups)
"""2,000 groups of one point cloud each, float32[1000 to 3000, 3], gzip: 25 MB."""
