"""Scenes of different lengths in batches, padded and ragged: `python -m benchmarks.collate`.

Every peer reads the same sequence with two workers and gives batches to a plain loop. "Plain" is a loop without a
loader that pads with NumPy. Each peer runs in its own process, interleaved. The table holds medians of
scenes per second, and their ratio to kerasfeed's processes in the same run.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

WORKERS = 2


class Lengths:
    """Scenes `(dtype[n, ...], int)` in memory, n drawn uniformly from [shortest, longest].

    Args:
        length: Number of scenes.
        shortest: Minimum rows of a scene.
        longest: Maximum rows of a scene.
        shape: Shape of one row.
        dtype: Dtype of a row.
    """

    def __init__(self, length: int, shortest: int, longest: int, shape: tuple[int, ...], dtype: str) -> None:
        rng = np.random.default_rng(0)
        self.length = length
        sizes = rng.integers(shortest, longest + 1, 512)
        self.scenes = [rng.integers(0, 100, (int(size), *shape)).astype(dtype) for size in sizes]

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.scenes[index % len(self.scenes)], index % 13


@dataclass(frozen=True)
class Data:
    """One kind of scene.

    Attributes:
        title: Words for the table.
        make: From a number of scenes to the sequence.
        batch_size: Scenes a batch.
    """

    title: str
    make: Callable[[int], Lengths]
    batch_size: int


DATA = {
    "clouds": Data(
        "point clouds, float32[256 to 2,048, 9], 41 kB on average, 32 a batch",
        lambda length: Lengths(length, 256, 2048, (9,), "float32"),
        32,
    ),
    "tokens": Data(
        "tokens, int32[5 to 60], 130 bytes on average, 128 a batch",
        lambda length: Lengths(length, 5, 60, (), "int32"),
        128,
    ),
}


@contextmanager
def _kerasfeed(sequence: Lengths, batch_size: int, collate: str, worker_type: str) -> Iterator[Iterable[Any]]:
    import kerasfeed as kf

    with kf.Feed(sequence, batch_size, collate=collate, workers=WORKERS, worker_type=worker_type) as feed:
        yield feed


def _pad_torch(scenes: list[Any]) -> Any:
    import torch
    from torch.nn.utils.rnn import pad_sequence

    arrays = [torch.from_numpy(array) for array, _ in scenes]
    return pad_sequence(arrays, batch_first=True), torch.tensor([label for _, label in scenes])


def _nest_torch(scenes: list[Any]) -> Any:
    import torch

    lengths = torch.tensor([len(array) for array, _ in scenes])
    values = torch.from_numpy(np.concatenate([array for array, _ in scenes]))
    return values, lengths, torch.tensor([label for _, label in scenes])


@contextmanager
def _torch(sequence: Lengths, batch_size: int, collate: str) -> Iterator[Iterable[Any]]:
    from torch.utils.data import DataLoader

    function = _pad_torch if collate == "pad" else _nest_torch
    yield DataLoader(sequence, batch_size, num_workers=WORKERS, collate_fn=function, persistent_workers=True)


@contextmanager
def _tf(sequence: Lengths, batch_size: int, collate: str) -> Iterator[Iterable[Any]]:
    import tensorflow as tf

    scene = sequence[0][0]

    def load(index: Any) -> Any:
        array, label = tf.numpy_function(
            lambda number: sequence[int(number)], [index], [tf.as_dtype(scene.dtype), tf.int64]
        )
        array.set_shape((None, *scene.shape[1:]))
        label.set_shape(())
        return array, label

    dataset = tf.data.Dataset.range(len(sequence)).map(load, num_parallel_calls=WORKERS)
    batched = dataset.padded_batch(batch_size) if collate == "pad" else dataset.ragged_batch(batch_size)
    yield batched.prefetch(tf.data.AUTOTUNE)


@contextmanager
def _feed_tf(sequence: Lengths, batch_size: int, collate: str, worker_type: str) -> Iterator[Iterable[Any]]:
    with _kerasfeed(sequence, batch_size, collate, worker_type) as feed:
        yield feed.to_tf_dataset()  # type: ignore[attr-defined]


@contextmanager
def _plain(sequence: Lengths, batch_size: int, collate: str) -> Iterator[Iterable[Any]]:
    def batches() -> Iterator[Any]:
        for start in range(0, len(sequence), batch_size):
            scenes = [sequence[index] for index in range(start, min(start + batch_size, len(sequence)))]
            labels = np.array([label for _, label in scenes])
            if collate == "ragged":
                yield np.concatenate([array for array, _ in scenes]), labels
                continue
            longest = max(len(array) for array, _ in scenes)
            padded = np.zeros((len(scenes), longest, *scenes[0][0].shape[1:]), scenes[0][0].dtype)
            for row, (array, _) in enumerate(scenes):
                padded[row, : len(array)] = array
            yield padded, labels

    yield batches()


PEERS: dict[str, Callable[..., Any]] = {
    "kerasfeed processes": lambda *given: _kerasfeed(*given, "process"),
    "kerasfeed threads": lambda *given: _kerasfeed(*given, "thread"),
    "kerasfeed to_tf_dataset, processes": lambda *given: _feed_tf(*given, "process"),
    "torch DataLoader": _torch,
    "tf.data range.map": _tf,
    "plain NumPy loop": _plain,
}


def rate(peer: str, data: str, collate: str, seconds: float) -> float:
    """Scenes per second of one peer over about `seconds`, after its first 20 batches."""
    kind = DATA[data]
    with PEERS[peer](kind.make(10_000_000), kind.batch_size, collate) as batches:
        iterator = iter(batches)
        for _ in range(20):
            next(iterator)
        started, count = time.perf_counter(), 0
        while time.perf_counter() - started < seconds:
            for _ in range(5):
                next(iterator)
            count += 5
        measured = count * kind.batch_size / (time.perf_counter() - started)
        del iterator
    return measured


def _in_own_process(peer: str, data: str, collate: str, seconds: float) -> float | None:
    command = [sys.executable, "-m", "benchmarks.collate", "--seconds", str(seconds), "--one", peer, data, collate]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    return float(done.stdout.split()[-1]) if done.returncode == 0 else None


def main(arguments: list[str]) -> None:
    """Prints the tables, or one figure with `--one`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.collate", description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0, help="length of each measurement, s")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--data", nargs="+", choices=DATA, default=list(DATA))
    parser.add_argument("--one", nargs=3, metavar=("PEER", "DATA", "COLLATE"))
    options = parser.parse_args(arguments)
    if options.one is not None:
        print(rate(*options.one, options.seconds))
        return
    for data in options.data:
        cases = [(peer, collate) for peer in PEERS for collate in ("pad", "ragged")]
        found: dict[tuple[str, str], list[float]] = {case: [] for case in cases}
        for _ in range(options.repeats):
            for peer, collate in cases:
                measured = _in_own_process(peer, data, collate, options.seconds)
                found[peer, collate] += [] if measured is None else [measured]
        print(f"\n{DATA[data].title}; scenes/s (ratio to kerasfeed processes)\n")
        print("| peer | padded | ragged |\n|---|---|---|")
        for peer in PEERS:
            print(f"| {peer} | " + " | ".join(_cell(found, peer, collate) for collate in ("pad", "ragged")) + " |")
        sys.stdout.flush()


def _cell(found: dict[tuple[str, str], list[float]], peer: str, collate: str) -> str:
    figures, reference = found[peer, collate], found["kerasfeed processes", collate]
    if not figures or not reference:
        return "failed"
    median = statistics.median(figures)
    return f"{median:,.0f} ({median / statistics.median(reference):.2f})"


if __name__ == "__main__":
    main(sys.argv[1:])
