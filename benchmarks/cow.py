"""Memory that workers gain while they read a list of strings: `python -m benchmarks.cow`.

A fork shares the pages of its parent until one of them writes. Python writes to an object whenever it reads it, because
the object holds its reference count. So forked workers copy, page by page, a list that they only read. kerasfeed's
workers are not forks: each unpickles its own list when it starts, so nothing is copied later. They hold the whole
list from the beginning, which the table shows too. A list that `kf.shared` has made is in memory that they share.

Each peer runs in its own process, so that it does not inherit the pages of another.
"""

import argparse
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil

MEGABYTE = 1_000_000
SCENES = 10_240
BATCH_SIZE = 256


class Names:
    """A list of strings. Each scene reads a part of the list, and an epoch reads all of it."""

    def __init__(self, count: int) -> None:
        self.names: Sequence[str] = [f"scan-{number:012d}.npy" for number in range(count)]

    def __len__(self) -> int:
        return SCENES

    def __getitem__(self, index: int) -> Any:
        share = len(self.names) // SCENES
        chosen = self.names[index * share : (index + 1) * share]
        return np.int64(len(chosen)), np.int64(sum(map(len, chosen)))


def private_bytes(pid: int) -> int:
    """Bytes that one process has written, and that no other process maps.

    Pages that the process only reads are left out: they belong to a file anyway, even if no other process maps them.
    """
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    fields = dict(line.split()[:2] for line in rollup[1:])
    return 1024 * int(fields["Private_Dirty:"])


@contextmanager
def _kerasfeed(sequence: Names, workers: int) -> Iterator[Iterable[Any]]:
    import kerasfeed as kf

    with kf.Feed(sequence, BATCH_SIZE, workers=workers, worker_type="process") as feed:
        yield feed


@contextmanager
def _shared(sequence: Names, workers: int) -> Iterator[Iterable[Any]]:
    import kerasfeed as kf

    sequence.names = kf.shared(sequence.names)
    with _kerasfeed(sequence, workers) as feed:
        yield feed


@contextmanager
def _torch(sequence: Names, workers: int) -> Iterator[Iterable[Any]]:
    from torch.utils.data import DataLoader

    yield DataLoader(sequence, BATCH_SIZE, num_workers=workers, persistent_workers=True, multiprocessing_context="fork")


PEERS = {
    "kerasfeed processes": _kerasfeed,
    "kerasfeed processes, kf.shared": _shared,
    "torch DataLoader (fork)": _torch,
}


def measure(peer: str, count: int, workers: int, epochs: int) -> list[tuple[int, int]]:
    """Private bytes of each worker after the first batches, and after `epochs` epochs."""
    with PEERS[peer](Names(count), workers) as loader:
        first = iter(loader)
        for _ in range(workers):
            next(first)
        pids = _workers()
        before = [private_bytes(pid) for pid in pids]
        for _ in first:
            pass
        for _ in range(epochs - 1):
            for _ in loader:
                pass
        return list(zip(before, [private_bytes(pid) for pid in pids], strict=True))


def _workers() -> list[int]:
    children = psutil.Process().children()
    return [child.pid for child in children if "resource_tracker" not in " ".join(child.cmdline())]


def main(arguments: list[str]) -> None:
    """Prints the table, or one row with `--peer`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cow", description=__doc__)
    parser.add_argument("--strings", type=int, default=5_000_000, help="strings in the list")
    parser.add_argument("--workers", type=int, default=2, help="worker processes")
    parser.add_argument("--epochs", type=int, default=3, help="number of epochs; each reads every string once")
    parser.add_argument("--peer", choices=PEERS, help="measure only this peer, in this process")
    options = parser.parse_args(arguments)
    if options.peer is not None:
        figures = measure(options.peer, options.strings, options.workers, options.epochs)
        before, after = (sum(column) / len(figures) / MEGABYTE for column in zip(*figures, strict=True))
        print(f"| {options.peer} | {before:.0f} | {after:.0f} | {after - before:+.1f} |", flush=True)
        return
    print(f"{options.strings:,} strings, {options.workers} workers, {options.epochs} epochs\n")
    print("| peer | private memory of a worker at the start, MB | at the end, MB | growth, MB |")
    print("|---|---|---|---|", flush=True)
    for peer in PEERS:
        command = [sys.executable, "-m", "benchmarks.cow", *arguments, "--peer", peer]
        done = subprocess.run(command, check=False, timeout=1200)
        if done.returncode:
            print(f"| {peer} | failed (exit code {done.returncode}) | | |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
