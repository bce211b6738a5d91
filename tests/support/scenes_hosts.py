"""Scenes for hosts, which import this module by name."""

import os
import random
import signal
import time

import numpy as np

import kerasfeed as kf

LENGTH = 640


class Noisy(kf.SceneSequence):
    """Scenes that take a while."""

    def __init__(self, seconds=0.004, length=LENGTH):
        self.seconds, self.length = seconds, length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return self.rng.normal(size=(64, 3)).astype(np.float32), np.int64(index)


class Mixed(Noisy):
    """Scenes with every kind of field; a few rows do not fit into their slot."""

    def __getitem__(self, index):
        time.sleep(self.seconds)
        rows = int(self.rng.integers(1, 6)) + 400 * (index % 37 == 20)
        return {
            "fixed": self.rng.normal(size=(4, 3)),
            "text": "x" * (index % 5),
            "sized": self.rng.normal(size=(rows, 2)).astype(np.float32),
            "number": index,
        }


class Failing(Noisy):
    """Scenes; some of them raise."""

    def __getitem__(self, index):
        if index % 23 == 3:
            raise ValueError(f"bad {index}")
        return self.rng.normal(size=5), np.float32(index)


class Hanging(Noisy):
    """Scenes; one of them hangs."""

    def __getitem__(self, index):
        if index == 40:
            time.sleep(3600)
        return super().__getitem__(index)


class Variable(Noisy):
    """Scenes made of an environment variable."""

    def __getitem__(self, index):
        return float(os.environ.get("KERASFEED_TEST_VALUE", "0")) + index


class Global(Noisy):
    """Scenes that draw from the global generators."""

    def __getitem__(self, index):
        return np.array([random.random(), np.random.rand()]), index


class Epochs(Noisy):
    """Scenes that the hook changes."""

    epoch = -1

    def on_epoch_begin(self):
        self.epoch += 1

    def __getitem__(self, index):
        return index * 100 + self.epoch


class Held(Noisy):
    """Scene 40, or the beginning of a worker, waits until a file exists."""

    def __init__(self, place, file):
        super().__init__(0, 48)
        self.position, self.file = place, file

    def wait(self):
        while not self.file.exists():
            time.sleep(0.01)

    def on_worker_begin(self, worker):
        if self.position == "begin":
            self.wait()

    def __getitem__(self, index):
        if (self.position, index) == ("scene", 40):
            self.wait()
        return super().__getitem__(index)


class Killing(Noisy):
    """Scene 40 kills its worker, or the host."""

    def __init__(self, what):
        super().__init__(0, 96)
        self.what = what

    def __getitem__(self, index):
        if index == 40:
            os.kill(os.getpid() if self.what == "worker" else os.getppid(), signal.SIGKILL)
        return index


class KeepsDraws(kf.SceneSequence):
    """Scenes that keep a random number of their first read."""

    def __init__(self):
        self.drawn = {}

    def __len__(self):
        return 24

    def __getitem__(self, index):
        if index not in self.drawn:
            self.drawn[index] = np.array([index, np.random.rand()])
        return self.drawn[index]
