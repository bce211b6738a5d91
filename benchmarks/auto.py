"""The choice of "auto", against a grid of set-ups: `python -m benchmarks.auto`.

Each workload runs with each set-up of the grid, and with "auto". Each run has its own process and loads batches of 32
in random order; all runs take turns. Because a machine's speed varies, ratios compare runs of one turn, and the result
is their median. The bar: "auto" reaches 0.9 of the best of the grid.

"auto" of a `StreamFeed` reads no scene before it chooses: it takes one process per generator.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import kerasfeed as kf
from benchmarks.workloads import BigImages, CountingScenes, MaskedImages, PointScenes, WaitingScenes
from kerasfeed.feeds.base import BaseFeed
from kerasfeed.feeds.stream_feed import BaseStreamFeed

BATCH = 32
LENGTH = 10_000_000
AUTO_BAR = 0.9
SMALL = (("inline", 0), ("thread", 1), ("thread", 2), ("process", 1), ("process", 2), ("process", 4))
WAITS = (("thread", 2), ("thread", 16), ("thread", 64), ("process", 2), ("process", 8))
GENERATORS = 2


@dataclass(frozen=True)
class Workload:
    """Scenes, and the set-ups that load them.

    Attributes:
        title: In words.
        make: Makes the sequence, or for a stream the function that makes a generator.
        grid: Type and number of workers.
        is_stream: Whether generators yield the scenes.
    """

    title: str
    make: Callable[[], Any]
    grid: tuple[tuple[str, int], ...]
    is_stream: bool = False


def _chunks_of_one() -> Any:
    from benchmarks.hdf5 import files, scenes

    return scenes.DirectScenes(files.GZIP, files.SCENES, LENGTH)


def _chunks_of_many() -> Any:
    from benchmarks.hdf5 import files, scenes

    return scenes.DirectScenes(files.CHUNKED, files.CHUNKED_SCENES, chunk_cache=scenes.CACHE_BYTES)


def _counted() -> Callable[[int, int], Iterator[Any]]:
    def generate(number: int, count: int) -> Iterator[Any]:
        scenes = CountingScenes(LENGTH)
        for index in range(number, LENGTH, count):
            yield scenes[index]

    return generate


WORKLOADS = {
    "tiny": Workload("41 kB from memory", lambda: PointScenes(LENGTH), SMALL),
    "gil": Workload("4 ms of Python that hold the GIL", lambda: CountingScenes(LENGTH), SMALL),
    "waiting-10": Workload("wait for 10 ms", lambda: WaitingScenes(LENGTH), WAITS),
    "waiting-100": Workload("wait for 100 ms", lambda: MaskedImages(LENGTH), WAITS),
    "big": Workload("786 kB from memory", lambda: BigImages(LENGTH), SMALL),
    "hdf5-one": Workload("HDF5, gzip, one scene a chunk", _chunks_of_one, SMALL),
    "hdf5-many": Workload("HDF5, gzip, 64 scenes a chunk, in blocks", _chunks_of_many, SMALL),
    "stream": Workload(f"StreamFeed, {GENERATORS} generators, 4 ms of Python", _counted, SMALL[1:5], True),
}


def _feed(name: str, workers: Any, worker_type: Any) -> Any:
    workload = WORKLOADS[name]
    if workload.is_stream:
        return BaseStreamFeed(
            workload.make(), BATCH, count=GENERATORS, seed=0, workers=workers, worker_type=worker_type
        )
    order = kf.BlockShuffled(64) if name == "hdf5-many" else kf.Shuffled()
    return BaseFeed(workload.make(), BATCH, order=order, seed=0, workers=workers, worker_type=worker_type)


def rate(feed: Any, seconds: float) -> float:
    """Scenes/s after the first batches, over several epochs."""

    def batches() -> Iterator[Any]:
        while True:
            yield from feed

    iterator = batches()
    next(iterator)  # "auto" measures here
    end = time.perf_counter() + 0.3 * seconds
    while time.perf_counter() < end:
        next(iterator)
    begun, count = time.perf_counter(), 0
    while count < 3 or time.perf_counter() - begun < seconds:
        count += len(next(iterator)[0])
    found = count / (time.perf_counter() - begun)
    iterator.close()  # type: ignore[attr-defined]
    return found


def one(name: str, worker_type: str, workers: str, seconds: float) -> dict[str, Any]:
    """A run of a set-up, or of "auto"."""
    warnings.simplefilter("ignore", kf.errors.ReadCostWarning)
    kind = "auto" if worker_type == "inline" else worker_type
    with _feed(name, "auto" if workers == "auto" else int(workers), kind) as feed:
        found_rate = rate(feed, seconds)
        return {"rate": found_rate, "chosen": feed.stats().chosen}


def _in_own_process(name: str, worker_type: str, workers: Any, seconds: float) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.auto", "--seconds", str(seconds)]
    done = subprocess.run(
        [*command, "--one", name, worker_type, str(workers)], check=True, capture_output=True, text=True, timeout=300
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(name: str, seconds: float, repeats: int) -> list[str]:
    """The cells of one workload's row in the table."""
    rates: dict[tuple[str, Any], list[float]] = {case: [] for case in [("auto", "auto"), *WORKLOADS[name].grid]}
    chosen = ""
    for _ in range(repeats):
        for case in list(rates):
            found = _in_own_process(name, case[0], case[1], seconds)
            rates[case].append(found["rate"])
            if case[0] == "auto":
                chosen = found["chosen"].partition(":")[0] or "by rule"
    auto = rates.pop(("auto", "auto"))
    medians = {case: statistics.median(found) for case, found in rates.items()}
    best = max(medians, key=lambda case: medians[case])
    share = statistics.median(one / other for one, other in zip(auto, rates[best], strict=True))
    judged = f"{share:.2f}" + ("" if share >= AUTO_BAR else " *")
    best_text = f"{medians[best]:,.0f} ({best[1]} {best[0]})"
    return [name, best_text, f"{statistics.median(auto):,.0f} ({chosen})", judged]


def main(arguments: list[str]) -> None:
    """Prints the table, or one figure with `--one`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.auto", description=__doc__)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of each measurement, s")
    parser.add_argument("--repeats", type=int, default=3, help="number of turns")
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--one", nargs=3, metavar=("WORKLOAD", "TYPE", "WORKERS"))
    options = parser.parse_args(arguments)
    if options.one is not None:
        name, worker_type, workers = options.one
        print(json.dumps(one(name, worker_type, workers, options.seconds)))
        return
    print("scenes/s; * is below the bar\n")
    print("| workload | best of the grid | auto | auto / best |")
    print("|---|---|---|---|", flush=True)
    for name in options.workloads:
        print("| " + " | ".join(measure(name, options.seconds, options.repeats)) + " |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
