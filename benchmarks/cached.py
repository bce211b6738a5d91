"""Epochs over scenes that `kf.Cached` keeps, against the same scenes in NumPy arrays: `python -m benchmarks.cached`.

Two worker processes; feeds take turns, and the median ratio counts. The first epoch, which reads the scenes, does not
count. The table also shows how many scenes were read in four epochs.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import kerasfeed as kf
from kerasfeed.feeds.base import BaseFeed

BATCH = 32
SIZES = {"12 kB": (1024, 3), "200 kB": (16_384, 3)}  # shapes of float32 scenes


class Read:
    """Scenes float32[shape], made at each read, which appends a byte to the file `log`."""

    def __init__(self, shape: tuple[int, ...], length: int, log: Path) -> None:
        self.shape, self.length, self.log = shape, length, log

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        with self.log.open("ab") as file:
            file.write(b"r")
        return np.full(self.shape, index, np.float32), np.int64(index)


def rate(feed: Any, epochs: int) -> float:
    """Scenes/s over `epochs` epochs."""
    begun, count = time.perf_counter(), 0
    for _ in range(epochs):
        for batch in feed:
            count += len(batch[1])
    return count / (time.perf_counter() - begun)


def measure(shape: tuple[int, ...], length: int, turns: int, epochs: int, log: Path) -> tuple[list[float], int]:
    """Ratio of the cache to arrays in each turn, and the total number of reads."""
    log.touch()
    arrays = kf.Zip(np.zeros((length, *shape), np.float32), np.arange(length))
    options: dict[str, Any] = {"shuffle": True, "seed": 0, "workers": 2, "worker_type": "process"}
    with (
        BaseFeed(kf.Cached(Read(shape, length, log)), BATCH, **options) as cached,
        BaseFeed(arrays, BATCH, **options) as plain,
    ):
        rate(cached, 1)
        rate(plain, 1)
        found = [rate(cached, epochs) / rate(plain, epochs) for _ in range(turns)]
    return found, log.stat().st_size


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cached", description=__doc__)
    parser.add_argument("--length", type=int, default=600, help="number of scenes")
    parser.add_argument("--turns", type=int, default=5, help="number of turns")
    parser.add_argument("--epochs", type=int, default=10, help="epochs in each turn")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name, shape in SIZES.items():
            log = Path(folder, name)
            ratios, read = measure(shape, given.length, given.turns, given.epochs, log)
            print(
                f"{name}: {statistics.median(ratios):.2f} of arrays ({min(ratios):.2f} to {max(ratios):.2f}); "
                f"{read} reads of {given.length} scenes in {1 + given.turns * given.epochs} epochs"
            )


if __name__ == "__main__":
    main()
