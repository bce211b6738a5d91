"""Generators that the tests of streams share. No framework is imported here."""

import numpy as np

WAYS = [(0, "auto"), (2, "thread"), (2, "process")]


def numbered(n, count, length=22):
    """Scenes `(float32[1], float32)` of the numbers below `length` that are n mod count."""
    for number in range(n, length, count):
        yield np.full(1, number, np.float32), np.float32(number)


def endless(n=0, count=1):
    """The same without an end."""
    number = n
    while True:
        yield np.full(1, number, np.float32), np.float32(number)
        number += count


def names(n, count, length=22):
    """Names of scenes."""
    for number in range(n, length, count):
        yield f"scene-{number}"


def scene_of(name):
    """The scene of a name: (float32[1], float32, its name)."""
    number = float(name.rpartition("-")[2])
    return np.full(1, number, np.float32), np.float32(number), name


class Rooms:
    """A typical class: one method that loops endlessly over its files, and does not know about feeds."""

    def __init__(self, paths):
        self.paths = paths

    def generate_data(self):
        import h5py

        while True:
            for path in self.paths:
                with h5py.File(path) as file:
                    yield from zip(file["points"], file["labels"], strict=True)


def labels_in(batches):
    """The second field of batches, as one list per batch."""
    return [np.asarray(batch[1]).astype(int).tolist() for batch in batches]
