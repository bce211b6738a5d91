"""The sequences over the files: a user's class with h5py, and the same with `kerasfeed.HDF5File`.

Invariant: both give the same scenes for the same index, a tuple of the point cloud and its label. Both open their file
at the first read, once per process, and pickle without it.
"""

import os
import sys
from typing import Any

import h5py
import numpy as np

import kerasfeed as kf
from benchmarks.hdf5 import files
from benchmarks.hdf5.files import DataFile

CACHE_BYTES = 128 << 20
"""Limit of the chunk cache: 13 of the 24 chunks of `files.CHUNKED`, so that no epoch is read from the cache."""
SMALL_CACHE_BYTES = 16 << 20
"""The same if a scene is a chunk: an eighth of the file, so that a scene is decoded when it is read."""


def hide(modules: tuple[str, ...]) -> None:
    """Make imports of these modules fail in this process, as if they were not installed."""
    for module in modules:
        sys.modules[module] = None  # type: ignore[assignment]


def virtual_order(stored: int) -> np.ndarray:
    """The rows of a file in the random order of every reader: int64[stored]."""
    return np.random.default_rng(10).permutation(stored)


class StoredScenes:
    """Scenes read with h5py, as its guide shows: one handle per process.

    The file is repeated in one random order up to `length`, so that no peer pays for the end of an epoch.

    Args:
        data: The file.
        stored: Scenes in it.
        length: Scenes of an epoch; None for the scenes of the file in its own order.
    """

    def __init__(self, data: DataFile, stored: int, length: int | None = None) -> None:
        self.path = str(data.path())
        self.stored = stored
        self.length = stored if length is None else length
        self.order = np.arange(stored) if length is None else virtual_order(stored)
        self.labels = files.labels(stored)
        self._cache_bytes: int | None = None
        self._process = 0
        self._points: Any = None

    @property
    def points(self) -> Any:
        """The h5py dataset of this process: a fork must not use the handle of its parent."""
        if self._process != os.getpid():
            self._points = h5py.File(self.path, "r", rdcc_nbytes=self._cache_bytes)["points"]
            self._process = os.getpid()
        return self._points

    def close(self, cache_bytes: int | None = None) -> None:
        """Close the file; the next read opens it again, with a chunk cache of `cache_bytes` (None: h5py's default)."""
        self._cache_bytes = cache_bytes
        if self._process == os.getpid():
            self._points.file.close()
        self._process = 0

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        row = self.order[index % self.stored]
        return self.points[row], self.labels[row]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_process": 0, "_points": None}


class GroupedScenes:
    """One group per scene. No file stays open: each case opens the file itself.

    Args:
        data: The file.
        stored: Scenes in it.
    """

    def __init__(self, data: DataFile, stored: int) -> None:
        self.path = str(data.path())
        self.stored = stored

    def __len__(self) -> int:
        return self.stored

    def __getitem__(self, index: int) -> np.ndarray:
        with h5py.File(self.path, "r") as file:
            scene: np.ndarray = file[files.group_name(index)][:]
            return scene

    def close(self) -> None:
        """Nothing is open."""


class DirectScenes(kf.SceneSequence):
    """The same scenes read with `kerasfeed.HDF5File`, straight into their rows of the batch.

    Args:
        data: The file.
        stored: Scenes in it.
        length: As for `StoredScenes`.
        hides: Optional modules that this process, and every worker, must not import.
        chunk_cache: Limit of the chunk cache, bytes, or "auto".
    """

    def __init__(
        self,
        data: DataFile,
        stored: int,
        length: int | None = None,
        *,
        hides: tuple[str, ...] = (),
        chunk_cache: int | str = SMALL_CACHE_BYTES,
    ) -> None:
        self.hides = hides
        hide(hides)
        self.path = str(data.path())
        self.file = kf.HDF5File(self.path, chunk_cache=chunk_cache)
        self.points = self.file["points"]
        self.stored = stored
        self.length = stored if length is None else length
        self.order = np.arange(stored) if length is None else virtual_order(stored)
        self.labels = files.labels(stored)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        row = int(self.order[index % self.stored])
        return self.points[row], self.labels[row]

    def read_into(self, index: int, out: tuple[np.ndarray, np.ndarray]) -> None:
        """Write scene `index` into `out`."""
        row = int(self.order[index % self.stored])
        self.points.read_into(row, out[0])
        out[1][...] = self.labels[row]

    def read_ahead(self, indices: np.ndarray) -> None:
        """Begin to decode the chunks of scenes `indices`."""
        self.points.read_ahead(self.order[indices % self.stored])

    def __setstate__(self, state: dict[str, Any]) -> None:
        hide(state["hides"])
        self.__dict__.update(state)
