"""How cost grows: `python -m benchmarks.growth`.

Each row varies one size. A cost is the processor time of the thread that reads, unless the row names another; it is
the lowest of several runs, because other programs can only add to it. A row has a law, such as "linear". The law holds
if no cost is more than twice the value that it predicts from a smaller size.

Invariant: one process, without Keras. Sizes, laws and verdicts are pure values.
"""

import argparse
import itertools
import math
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import kerasfeed as kf
from benchmarks import machine
from benchmarks.faults.table import spliced
from benchmarks.report import short, table
from kerasfeed.feeds.base import BaseFeed

BEGIN = "<!-- growth: written by `python -m benchmarks.growth --markdown docs/performance/growth.md` -->"
END = "<!-- end of growth -->"
Clock = Callable[[], float]
LAWS: dict[str, Callable[[int], float]] = {
    "constant": lambda size: 1.0,
    "logarithmic": lambda size: 1 + math.log2(size),
    "linear": float,
}
TOLERANCE = 2.0  # times the law
ROUNDS, ROUND_SECONDS = 7, 0.05
BATCH = 32
UNITS = {"us": 1e6, "ms": 1e3, "": 1.0}


@dataclass(frozen=True)
class Growth:
    """One row of the table.

    Attributes:
        name: Key on the command line.
        title: The size that grows, and the cost that depends on it.
        law: Key of `LAWS`.
        sizes: Sizes, ascending.
        measure: From a size to the cost: seconds, or a number.
        unit: Key of `UNITS`; the table shows the cost in it.
    """

    name: str
    title: str
    law: str
    sizes: tuple[int, ...]
    measure: Callable[[int], float]
    unit: str = "us"


def excess(growth: Growth, costs: list[float]) -> tuple[float, int, int]:
    """The largest growth of the cost as a multiple of the law, and the two sizes that show it."""
    law = LAWS[growth.law]
    points = list(zip(growth.sizes, costs, strict=True))
    pairs = itertools.combinations(points, 2)
    found = ((cost / least / (law(larger) / law(size)), size, larger) for (size, least), (larger, cost) in pairs)
    return max(found, default=(1.0, 1, 1))


def verdict(growth: Growth, costs: list[float]) -> str:
    """Whether the law holds, in words."""
    times, size, larger = excess(growth, costs)
    return "holds" if times <= TOLERANCE else f"{short(times)} times the law from {size:,} to {larger:,}"


class Numbers(kf.SceneSequence):
    """Scenes that are one number, or the same scene each time."""

    def __init__(self, length: int = 1 << 16, scene: Any = None) -> None:
        self.length, self.scene = length, scene

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return np.float32(index) if self.scene is None else self.scene


def nested(depth: int) -> Any:
    """`kf.Map` and `kf.Subset` in turns, so that none joins the one inside."""
    sequence: Any = Numbers()
    for level in range(depth):
        sequence = kf.Map(sequence, lambda scene: scene) if level % 2 else kf.Subset(sequence, np.arange(len(sequence)))
    return sequence


def per_batch(feed: Any, clock: Clock = time.thread_time, warm: int = 1) -> float:
    """Seconds of a batch of a feed, after the first `warm` ones."""
    batches = itertools.chain.from_iterable(itertools.repeat(feed))
    for _ in range(warm):
        next(batches)
    found = []
    for _ in range(ROUNDS):
        begin, count, end = clock(), 0, time.perf_counter() + ROUND_SECONDS
        while not count or time.perf_counter() < end:
            next(batches)
            count += 1
        found.append((clock() - begin) / count)
    return min(found)


def batch(
    sequence: Any, batch_size: int = BATCH, clock: Clock = time.thread_time, warm: int = 1, **options: Any
) -> float:
    """Seconds of a batch, in the calling thread unless `options` say otherwise."""
    with BaseFeed(sequence, batch_size, seed=0, drop_remainder=True, **{"workers": 0, **options}) as feed:
        return per_batch(feed, clock, warm)


def first_batch(make: Callable[[], Any], clock: Clock = time.thread_time, **options: Any) -> float:
    """Seconds to make a sequence and its feed, and to get the first batch."""
    found = []
    for _ in range(3):
        begin = clock()
        with BaseFeed(make(), BATCH, seed=0, **{"workers": 0, **options}) as feed:
            next(iter(feed))
            found.append(clock() - begin)
    return min(found)


@contextmanager
def iterated_feeds(count: int) -> Iterator[Any]:
    """The first of `count` feeds that are alive and have been iterated."""
    with ExitStack() as alive:
        feeds = [alive.enter_context(BaseFeed(Numbers(), BATCH, workers=0)) for _ in range(count)]
        iterators = [iter(feed) for feed in feeds]
        for iterator in iterators:
            next(iterator)
        yield feeds[0]


def among_feeds(count: int) -> float:
    """Seconds of a batch of one of `count` feeds."""
    with iterated_feeds(count) as feed:
        return per_batch(feed)


def threads_of_feeds(count: int) -> float:
    """Threads of this process while `count` feeds are in the middle of an epoch."""
    with iterated_feeds(count):
        time.sleep(2.5)  # a thread that watches scenes ends when nothing reads
        return float(threading.active_count())


def descriptors(workers: int) -> float:
    """Descriptors that worker processes take in this process."""
    before = psutil.Process().num_fds()
    with BaseFeed(Numbers(), BATCH, workers=workers, worker_type="process") as feed:
        next(iter(feed))
        while len(feed.stats().pids) < workers:
            time.sleep(0.01)
        return float(psutil.Process().num_fds() - before)


def file_sequence(count: int) -> float:
    """Seconds to make a sequence of files, and to get its first batch."""
    with tempfile.TemporaryDirectory(prefix="growth-") as folder:
        paths = [Path(folder, f"{number}.npy") for number in range(count)]
        for path in paths:
            np.save(path, np.zeros(4, np.float32))
        return first_batch(partial(kf.FileSequence, paths, np.load, 4), shuffle=True)


_ARRAY = np.zeros(BATCH, np.float32)
_POWERS = tuple(10**power for power in range(3, 10))
_WORKERS, _PARTS = (1, 4, 16, 64), (1, 10, 100, 1_000, 5_000)
_ROWS = (
    Growth("scenes", "scenes, shuffled: a batch", "constant", _POWERS, lambda n: batch(Numbers(n), shuffle=True)),
    Growth("scenes-first", "scenes, shuffled: the first batch of a new feed", "constant", _POWERS,
        lambda n: first_batch(lambda: Numbers(n), shuffle=True), "ms"),
    Growth("batch", "scenes of a batch: a batch", "linear", (1, 16, 256, 4_096), lambda n: batch(Numbers(), n)),
    Growth("fields", "fields of a scene: a batch", "linear", (1, 4, 16, 64, 256),
        lambda n: batch(Numbers(scene={f"field{k}": np.zeros(8, np.float32) for k in range(n)}))),
    Growth("bytes", "bytes of a scene: a batch of one", "linear", (8, 1 << 10, 1 << 16, 1 << 20, 16 << 20, 256 << 20),
        lambda n: batch(Numbers(scene=np.ones(n, np.uint8)), 1, max_memory=2 << 30)),
    Growth("depth", "views inside each other: a batch", "linear", (1, 4, 16, 64), lambda n: batch(nested(n))),
    Growth("parts", "parts of `kf.Concat`: a batch", "logarithmic", _PARTS, lambda n: batch(kf.Concat([_ARRAY] * n))),
    Growth("parts-first", "parts of `kf.Concat`: the first batch of a new feed", "linear", _PARTS,
        lambda n: first_batch(lambda: kf.Concat([_ARRAY] * n)), "ms"),
    Growth("sources", "sources of `kf.Mixture`: a batch, after 5,000", "logarithmic", _PARTS,
        lambda n: batch(kf.Mixture([_ARRAY] * n, [1 / n] * n), warm=5_000)),
    Growth("files", "files of `kf.FileSequence`: the first batch", "linear", (1, 10, 100, 1_000, 10_000),
        file_sequence, "ms"),
    Growth("feeds", "feeds alive: a batch of one", "constant", (1, 10, 100), among_feeds),
    Growth("feeds-threads", "feeds alive: threads", "constant", (1, 10, 100), threads_of_feeds, ""),
    Growth("threads", "worker threads: processor time of a batch, all threads", "constant", _WORKERS,
        lambda n: batch(Numbers(), clock=time.process_time, workers=n, worker_type="thread")),
    Growth("processes", "worker processes: time until the first batch of a new feed", "linear", _WORKERS,
        lambda n: first_batch(Numbers, time.perf_counter, workers=n, worker_type="process"), "ms"),
    Growth("descriptors", "worker processes: descriptors", "linear", _WORKERS, descriptors, ""),
)  # fmt: skip
ROWS = {row.name: row for row in _ROWS}


def line(growth: Growth, costs: list[float]) -> tuple[str, ...]:
    """A line of the table."""
    figures = "; ".join(
        f"{short(cost * UNITS[growth.unit])} ({size:,})" for size, cost in zip(growth.sizes, costs, strict=True)
    )
    return growth.title, growth.unit or "number", figures, growth.law, verdict(growth, costs)


def main(arguments: list[str]) -> int:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.growth", description="Measure how cost grows.")
    parser.add_argument("--rows", default="*", help=f"globs of {', '.join(ROWS)}, separated by commas")
    parser.add_argument("--smallest", type=int, metavar="N", help="measure only the N smallest sizes of each row")
    parser.add_argument("--markdown", type=Path, help="write the table into this document, between its markers")
    options = parser.parse_args(arguments)
    lines = []
    for row in ROWS.values():
        if any(fnmatch(row.name, glob) for glob in options.rows.split(",")):
            growth = replace(row, sizes=row.sizes[: options.smallest])
            costs = [growth.measure(size) for size in growth.sizes]
            if excess(growth, costs)[0] > TOLERANCE:  # other programs may have added to it
                costs = [min(cost, growth.measure(size)) for size, cost in zip(growth.sizes, costs, strict=True)]
            lines.append(line(growth, costs))
            print(*lines[-1], sep=" | ", file=sys.stderr, flush=True)
    if not lines:
        raise SystemExit(f"no row matches; there are {', '.join(ROWS)}")
    found = machine.describe()
    head = ("what grows: its cost", "unit", "cost (size)", "law", "verdict")
    text = f"{found['processor']}, {found['cores']} cores, Python {found['python']}.\n\n{table(head, lines)}"
    print(text)
    if options.markdown:
        options.markdown.write_text(spliced(options.markdown.read_text(), text, BEGIN, END))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
