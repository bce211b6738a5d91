"""The scenes that every peer reads: plain classes with a length and one scene per index.

Invariant: this module imports only NumPy and `time`, so a worker process that loads it stays light. kerasfeed and
every peer get the same objects. A scene is always a tuple of two arrays, input and
target.

Each class keeps a few scenes in memory and repeats them up to `length`, so that an epoch may be as long as a
measurement needs and no peer pays for the end of an epoch in its steady state.
"""

import time

import numpy as np

GIL_LOOPS = 52_000
"""Turns of the pure Python loop of `CountingScenes`: about 4 ms at 3 GHz."""


class PointScenes:
    """Point clouds in memory: `(float32[1024, 9], int32[1024])`, 41 kB a scene.

    Args:
        length: Number of scenes.
        stored: Number of distinct scenes kept in memory (21 MB for 512).
    """

    def __init__(self, length: int, stored: int = 512) -> None:
        rng = np.random.default_rng(0)
        self.length = length
        self.points = rng.random((stored, 1024, 9), dtype=np.float32)
        self.labels = rng.integers(0, 13, (stored, 1024), dtype=np.int32)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        row = index % len(self.points)
        return self.points[row], self.labels[row]


class CountingScenes:
    """About 4 ms of pure Python per scene, holding the GIL: `(float32[256], int32[1])`.

    Args:
        length: Number of scenes.
    """

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        state = int(index)
        for turn in range(GIL_LOOPS):
            state = (state * 31 + turn) & 0xFFFF
        return np.full(256, state, np.float32), np.array([state], np.int32)


class WaitingScenes:
    """Scenes that wait, as for a disk or a server: `(float32[256], int32[1])`.

    Args:
        length: Number of scenes.
        seconds: Wait per scene, in seconds.
    """

    def __init__(self, length: int, seconds: float = 0.010) -> None:
        self.length = length
        self.seconds = seconds
        self.values = np.arange(256, dtype=np.float32)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        time.sleep(self.seconds)
        return self.values, np.array([index % 13], np.int32)


class MaskedImages:
    """The typical slow read: 100 ms, then an image and its mask, `(uint8[256, 256, 3], uint8[256, 256])`.

    Args:
        length: Number of scenes.
        seconds: Wait per scene, in seconds.
        stored: Number of distinct scenes kept in memory (4 MB for 16).
    """

    def __init__(self, length: int, seconds: float = 0.100, stored: int = 16) -> None:
        rng = np.random.default_rng(0)
        self.length = length
        self.seconds = seconds
        self.images = rng.integers(0, 256, (stored, 256, 256, 3), dtype=np.uint8)
        self.masks = rng.integers(0, 2, (stored, 256, 256), dtype=np.uint8)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        time.sleep(self.seconds)
        row = index % len(self.images)
        return self.images[row], self.masks[row]


class BigImages:
    """Large images in memory: `(uint8[512, 512, 3], int32[1])`, 786 kB a scene.

    Args:
        length: Number of scenes.
        stored: Number of distinct scenes kept in memory (50 MB for 64).
    """

    def __init__(self, length: int, stored: int = 64) -> None:
        rng = np.random.default_rng(0)
        self.length = length
        self.images = rng.integers(0, 256, (stored, 512, 512, 3), dtype=np.uint8)
        self.labels = rng.integers(0, 13, (stored, 1), dtype=np.int32)

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        row = index % len(self.images)
        return self.images[row], self.labels[row]
