"""The scenes: the cost of one, by number, by generator, by file. Imports no framework."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

BATCH_SIZE = 32
SHAPE = (256, 9)
LENGTH = 20_000
BUSY = 0.001
WAIT = 0.005
STEPS = 20
"""Steps of an epoch of `fit`."""

_POINTS = np.random.default_rng(0).random((64, *SHAPE), dtype=np.float32)


def busy() -> None:
    """1 ms of Python that holds the GIL, on the thread's own clock."""
    begin = time.thread_time()
    while time.thread_time() - begin < BUSY:
        sum(range(100))


def load(kind: str, index: int) -> tuple[Any, Any]:
    """Scene (points float32[256, 9], label int64): "instant", "busy" (1 ms of Python) or "waiting" (5 ms)."""
    if kind == "busy":
        busy()
    elif kind == "waiting":
        time.sleep(WAIT)
    return _POINTS[index % 64], np.int64(index % 10)


class Scenes:
    """Scenes of one kind."""

    def __init__(self, kind: str, length: int = LENGTH) -> None:
        self.kind = kind
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        return load(self.kind, index)


class Generators:
    """Endless generators of scenes: the n-th of `count` yields every `count`-th."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __call__(self, n: int = 0, count: int = 1) -> Iterator[tuple[Any, Any]]:
        index = int(n)
        while True:
            yield load(self.kind, index)
            index += int(count)


def names() -> Iterator[str]:
    """Endless names of scenes, at no cost."""
    index = 0
    while True:
        yield f"scan-{index}"
        index += 1


def read(name: Any) -> tuple[Any, Any]:
    """The busy scene of a name, bytes or text."""
    name = name.decode() if isinstance(name, bytes) else name
    return load("busy", int(name.split("-")[1]))


def batches_of(kind: str) -> Iterator[tuple[Any, Any]]:
    """Endless batches, stacked by hand."""
    scenes = Generators(kind)()
    while True:
        points, labels = zip(*(next(scenes) for _ in range(BATCH_SIZE)), strict=True)
        yield np.stack(points), np.stack(labels)


class Rare(Scenes):
    """Busy scenes of two classes, nine to one."""

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        points, _ = load("busy", index)
        return points, np.int64(index % 10 == 0)


class Texts(Scenes):
    """Busy scenes (tokens int64[5 to 60], length int64)."""

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        busy()
        length = self.length_of(index)
        return np.full(length, index), np.int64(length)

    @staticmethod
    def length_of(index: Any) -> Any:
        return 5 + 37 * index % 56


def write_files(folder: Path, files: int = 16, scenes: int = 500) -> list[str]:
    """NPZ files of scenes, compressed."""
    paths = [str(folder / f"{number:03d}.npz") for number in range(files)]
    for path in paths:
        np.savez_compressed(path, points=np.resize(_POINTS, (scenes, *SHAPE)), labels=np.arange(scenes) % 10)
    return paths


def read_file(path: Any) -> tuple[Any, Any]:
    """The scenes of one file."""
    with np.load(path) as file:
        return file["points"], file["labels"]
