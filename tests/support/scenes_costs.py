"""Scenes with known costs; importable in worker processes without any framework."""

import os
import time

import numpy as np

import kerasfeed as kf


class Costly(kf.SceneSequence):
    """Scenes float32[4]. The length makes an epoch long enough for a choice to matter.

    Attributes:
        cost: Time and processor time of a scene on a quiet machine, s; None if unknown.
    """

    length = 20_000
    cost: tuple[float, float] | None = None

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return self.scene(index), np.float32(self.rng.random())

    def scene(self, index):
        return np.full(4, index, np.float32)


class Waits(Costly):
    """Scenes that wait, and that several threads may read."""

    thread_safe = True
    cost = (5e-3, 5e-5)

    def scene(self, index):
        time.sleep(0.005)
        return super().scene(index)


class Counts(Costly):
    """Scenes that hold the GIL."""

    cost = (1e-3, 1e-3)

    def scene(self, index):
        return super().scene(sum(n & 1 for n in range(30_000)) - 15_000 + index)


class Shares(Costly):
    """Scenes that wait. Several threads must not read them at once, but the class does not say so.

    They wait long enough that the extra time on a busy machine does not matter.
    """

    cost = (0.03, 1e-4)

    def scene(self, index):
        self.now = index
        time.sleep(0.03)
        return super().scene(self.now)


class DrawsGlobally(Costly):
    """Scenes that wait and draw from the global generators."""

    cost = (5e-3, 5e-5)

    def scene(self, index):
        time.sleep(0.005)
        return np.random.random(4).astype(np.float32)


class Fails(Costly):
    """Scenes that raise, except when they are read to infer the spec."""

    def __init__(self):
        self.probes = {0, self.length // 2, self.length - 1}

    def scene(self, index):
        time.sleep(0.005)
        if index % 100 == 7:
            raise ValueError(f"scene {index} is damaged")
        return super().scene(index)


class LogsHooks(Waits):
    """Logs calls of worker hooks in a file."""

    def __init__(self, path):
        self.path = path

    def on_worker_begin(self, worker):
        self._note("begin")

    def on_worker_end(self):
        self._note("end")

    def _note(self, what):
        with self.path.open("a") as file:
            file.write(f"{what} {os.getpid()}\n")


class Tiny(Costly):
    """Scenes that cost next to nothing."""

    thread_safe = True
    length = 5_000_000
    kept = (np.zeros(4, np.float32), np.float32(0))

    def __getitem__(self, index):
        return self.kept
