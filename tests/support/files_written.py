"""Files of many scenes, and functions that read them and log each read."""

import os
from pathlib import Path

import numpy as np

COUNTS = (7, 0, 12, 1, 5, 9)


def write_files(folder, counts=COUNTS):
    """NPZ files of scenes (x float32[3], y int64) whose y is 100 * file + row; their paths."""
    paths = []
    for file, count in enumerate(counts):
        y = 100 * file + np.arange(count)
        paths.append(str(folder / f"part-{file:03d}.npz"))
        np.savez(paths[-1], x=y[:, None] + np.array([0, 0.25, 0.5], np.float32), y=y)
    return paths


def expected(counts=COUNTS):
    """The y of all scenes in file order."""
    return [100 * file + row for file, count in enumerate(counts) for row in range(count)]


class Noting:
    """Logs each call in a file, with the process that made it; `how` selects the form of the arrays."""

    def __init__(self, log, how="columns"):
        self.log = str(log)
        self.how = how

    def __call__(self, path):
        with Path(self.log).open("a") as log:
            log.write(f"{os.getpid()} {path}\n")
        return getattr(self, f"_{self.how}")(path)

    def _columns(self, path):
        with np.load(path) as file:
            return file["x"], file["y"]

    def _list(self, path):
        return list(zip(*self._columns(path), strict=True))

    def reads(self):
        """Pairs (process, path), in order."""
        if not Path(self.log).exists():
            return []
        return [tuple(line.split()) for line in Path(self.log).read_text().splitlines()]

    def forget(self):
        Path(self.log).unlink(missing_ok=True)
