"""Sequences that tests share; importable in worker processes without any framework."""

import time
from pathlib import Path

import numpy as np
from waits import wait_until

import kerasfeed as kf


class Clouds(kf.SceneSequence):
    """Scenes (float32[4, 3], int label), each value derived from its index."""

    def __init__(self, length: int = 37) -> None:
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return np.arange(12, dtype=np.float32).reshape(4, 3) + np.float32(100 * index), index


class Augmented(Clouds):
    """Clouds with noise from `self.rng`, drawn twice."""

    def __getitem__(self, index):
        points, label = super().__getitem__(index)
        return points + self.rng.normal(size=points.shape).astype(np.float32), self.rng.integers(1000) + 0 * label


class Nested(kf.SceneSequence):
    """All kinds of fields: nested, of many dtypes, text, a shape that varies with the batch."""

    def __len__(self):
        return 23

    def __getitem__(self, index):
        return {
            "x": (np.full((2, 3), index, np.float16), np.array([index, -index], ">i4")),
            "flag": index % 2 == 0,
            "name": f"scene é {index}",
            "raw": bytes([0, index % 256, 0]),
            "z": np.array(index + 1j, np.complex64),
            "list": [np.full(1, index % 256, np.uint8), np.full(2, index / 3)],
            "numbers": [index, index / 3],
            "words": np.array(["a" * (index % 4), "b"]),
        }


class Sized(kf.SceneSequence):
    """Scenes whose length depends on the index: only batches of one can be stacked."""

    def __len__(self):
        return 9

    def __getitem__(self, index):
        return np.arange(index * index * 50 + 1, dtype=np.float32), index


class Batched(Clouds):
    """Clouds with a vectorised `get_batch`."""

    def get_batch(self, indices):
        points = np.arange(12, dtype=np.float32).reshape(1, 4, 3) + 100 * indices[:, None, None].astype(np.float32)
        return points, indices


class Slow(Clouds):
    """Clouds that take a while."""

    def __init__(self, length: int = 37, seconds: float = 0.01) -> None:
        super().__init__(length)
        self.seconds = seconds

    def __getitem__(self, index):
        time.sleep(self.seconds)
        return super().__getitem__(index)


class Meeting(Clouds):
    """Clouds that wait until a given number of them are being read at once, if a file "begin" is in a folder."""

    def __init__(self, folder, count: int, length: int = 64) -> None:
        super().__init__(length)
        self.folder, self.count = Path(folder), count

    def __getitem__(self, index):
        time.sleep(0.02)  # so that each is a separate task: a task has many quick scenes
        if (self.folder / "begin").exists():
            (self.folder / f"{index}.read").touch()
            wait_until(lambda: len(list(self.folder.glob("*.read"))) >= self.count)
        return super().__getitem__(index)


class Held(Clouds):
    """Clouds that wait, except the indices in `free`, while a file "hold" is in a folder; each leaves a file."""

    def __init__(self, folder, length: int = 37, free=()) -> None:
        super().__init__(length)
        self.folder, self.free = Path(folder), free

    def __getitem__(self, index):
        (self.folder / f"{index}.read").touch()
        while index not in self.free and (self.folder / "hold").exists():
            time.sleep(0.005)
        return super().__getitem__(index)

    def read(self):
        """Indices of the scenes that were begun."""
        return {int(path.stem) for path in self.folder.glob("*.read")}


class Reordered(kf.SceneSequence):
    """40 scenes, whose order changes with each epoch."""

    def __init__(self):
        self.order = np.arange(40, dtype=np.float32)
        self.began = 0

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return self.order[index, None], self.order[index, None]

    def on_epoch_begin(self):
        self.began += 1
        np.random.default_rng(self.began).shuffle(self.order)


class Growing(kf.SceneSequence):
    """Grows, or shrinks, by `step` scenes after each epoch."""

    def __init__(self, step):
        self.length, self.step = 6, step

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return np.full(1, index, np.float32), index

    def on_epoch_end(self):
        self.length += self.step


class Reshuffled:
    """A Keras-style class of batches that reshuffles itself after every epoch."""

    def __init__(self) -> None:
        self.order = list(range(6))
        self.began = 0

    def __len__(self):
        return 3

    def __getitem__(self, index):
        chosen = self.order[2 * index : 2 * index + 2]
        return np.array(chosen, np.float32)[:, None], np.array([self.began] * 2)

    def on_epoch_begin(self):
        self.began += 1

    def on_epoch_end(self):
        self.order = self.order[1:] + self.order[:1]


class Failing(Clouds):
    """Clouds whose scene `bad` raises `error`."""

    def __init__(self, bad: int, error: BaseException, length: int = 37) -> None:
        super().__init__(length)
        self.bad = bad
        self.error = error

    def __getitem__(self, index):
        if index == self.bad:
            raise self.error
        return super().__getitem__(index)


class HeldPairs(kf.SceneSequence):
    """Scenes of two float32[1]. Number 1, which is not read for the spec, waits while a file exists."""

    def __init__(self, hold) -> None:
        self.hold = hold

    def __len__(self):
        return 12

    def __getitem__(self, index):
        while index == 1 and self.hold.exists():
            time.sleep(0.005)
        return np.zeros(1, np.float32), np.zeros(1, np.float32)

    def generate(self):
        """The same as a stream of one scene."""
        yield self[1]
