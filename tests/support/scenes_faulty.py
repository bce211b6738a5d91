"""Sequences whose scenes really fail; importable in worker processes without any framework."""

import ctypes
import os
import re
import resource
import signal
import time
from pathlib import Path

import numpy as np
import scenes


def sigkill():
    os.kill(os.getpid(), signal.SIGKILL)


def segfault():
    ctypes.string_at(0)


def leave():
    os._exit(7)


def hang():
    time.sleep(1e6)


def hang_in_c():
    re.match("(a+)+b", "a" * 64)  # holds the GIL for centuries


def hold_too_much():
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, resource.RLIM_INFINITY))
    np.ones(1 << 29)


DEADLY = {"sigkill": sigkill, "segfault": segfault, "exit": leave}
ENDINGS = {"sigkill": "was killed by SIGKILL", "segfault": "was killed by SIGSEGV", "exit": "ended with exit code 7"}


class Faulty(scenes.Augmented):
    """Clouds whose scenes `bad` have the `fault`: always, or `times` times each, counted by files in `folder`."""

    def __init__(self, fault, bad=(7,), *, folder=None, times=None, length=37) -> None:
        super().__init__(length)
        self.fault = fault
        self.bad = set(bad)
        self.folder = folder
        self.times = times

    def __getitem__(self, index):
        if index in self.bad and self._is_to_fail(index):
            self.fault()
        return super().__getitem__(index)

    def _is_to_fail(self, index):
        if self.times is None:
            return True
        for time_ in range(self.times):
            try:
                (Path(self.folder) / f"{index}.{time_}").touch(exist_ok=False)
            except FileExistsError:
                continue
            return True
        return False


class FaultyBatches(Faulty):
    """The same, read many at a time."""

    def get_batch(self, indices):
        scenes_ = [self._scene(int(index)) for index in indices]
        return tuple(np.stack(column) for column in zip(*scenes_, strict=True))

    def _scene(self, index):
        if index in self.bad and self._is_to_fail(index):
            self.fault()
        points = np.arange(12, dtype=np.float32).reshape(4, 3) + 100 * index
        rng = self.rng_for(index)
        return points + rng.normal(size=points.shape).astype(np.float32), rng.integers(1000)


class Raising(scenes.Clouds):
    """Clouds of two parts whose scenes `bad` raise a ValueError."""

    def __init__(self, bad=(7,), length=37) -> None:
        super().__init__(length)
        self.bad = set(bad)

    def __getitem__(self, index):
        if index in self.bad:
            raise ValueError(f"scene {index} is broken")
        return super().__getitem__(index)


class RaisingBatches(Raising):
    """The same, read many at a time."""

    def get_batch(self, indices):
        chosen = [self[int(index)] for index in indices]
        return np.stack([points for points, _ in chosen]), np.array([label for _, label in chosen])


class Weighted(Raising):
    """Scenes with their own weight."""

    def __getitem__(self, index):
        return *super().__getitem__(index), np.float32(0.5)


class RaisingNested(scenes.Nested):
    """Scenes (x, y) with every kind of field; some raise."""

    def __init__(self, bad=(3, 4)) -> None:
        self.bad = set(bad)

    def __getitem__(self, index):
        if index in self.bad:
            raise KeyError(index)
        return super().__getitem__(index), np.arange(3) + index


class RaisingSized(scenes.Sized):
    """Scenes (x, y) whose length depends on the index, three equal ones in a row; some raise."""

    def __init__(self, bad=(4,)) -> None:
        self.bad = set(bad)

    def __len__(self):
        return 12

    def __getitem__(self, index):
        if index in self.bad:
            raise ValueError(index)
        kind = index // 3
        return np.arange(kind * kind * 50 + 1, dtype=np.float32), index
