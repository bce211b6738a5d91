"""Scenes/s from files that each hold many scenes: `python -m benchmarks.files`.

The scenes are in compressed NPZ files, and each file must be read whole. Every peer delivers batches that mix the
scenes of several files: kerasfeed by `BlockShuffled` over a cache that holds 8 of the files; tf.data by `interleave` of
one `from_generator` per file and a shuffle buffer; torch by its simplest Dataset, whose item is a row of a file that it
loads. Each runs in its own process, for the same time after a first batch, over several epochs.
"""

import argparse
import itertools
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

BATCH_SIZE = 32
WINDOW = 4
WORKERS = 2
SCENE = (1024, 3)


def write(folder: Path, files: int, scenes: int) -> None:
    """Files of scenes (points float32[1024, 3], label int64)."""
    rng = np.random.default_rng(0)
    for number in range(files):
        points = rng.normal(size=(scenes, *SCENE)).astype(np.float32)
        np.savez_compressed(folder / f"{number:03d}.npz", points=points, labels=np.arange(scenes))


def read_file(path: Any) -> Any:
    """The scenes of one file, as a tuple of arrays."""
    with np.load(path) as file:
        return file["points"], file["labels"]


def _kerasfeed(worker_type: Any) -> Callable[[list[str], int], Iterable[Any]]:
    def make(paths: list[str], scenes: int) -> Iterable[Any]:
        import kerasfeed as kf

        files = kf.FileSequence(paths, read_file, count=scenes, cache_files=2 * WINDOW)
        order = kf.BlockShuffled(files, window=WINDOW)
        return kf.Feed(files, BATCH_SIZE, order=order, workers=WORKERS, worker_type=worker_type)

    return make


def _tf_data(paths: list[str], scenes: int) -> Iterable[Any]:
    import tensorflow as tf

    def rows_of(path: Any) -> Any:
        return zip(*read_file(path.decode()), strict=True)

    signature = (tf.TensorSpec(SCENE, tf.float32), tf.TensorSpec((), tf.int64))

    def dataset_of(path: Any) -> Any:
        return tf.data.Dataset.from_generator(rows_of, args=(path,), output_signature=signature)

    dataset = tf.data.Dataset.from_tensor_slices(paths).shuffle(len(paths))
    dataset = dataset.interleave(dataset_of, cycle_length=WINDOW, num_parallel_calls=WINDOW)
    return dataset.shuffle(WINDOW * scenes).batch(BATCH_SIZE).prefetch(tf.data.AUTOTUNE)  # type: ignore[no-any-return]


class NaiveRows:
    """The rows of files; each read of a row loads its whole file."""

    def __init__(self, paths: list[str], scenes: int) -> None:
        self.paths = paths
        self.scenes = scenes

    def __len__(self) -> int:
        return len(self.paths) * self.scenes

    def __getitem__(self, index: int) -> Any:
        file, row = divmod(index, self.scenes)
        points, labels = read_file(self.paths[file])
        return points[row], labels[row]


def _torch(paths: list[str], scenes: int) -> Iterable[Any]:
    from torch.utils.data import DataLoader

    return DataLoader(NaiveRows(paths, scenes), BATCH_SIZE, shuffle=True, num_workers=WORKERS)  # type: ignore[arg-type]


PEERS: dict[str, Callable[[list[str], int], Iterable[Any]]] = {
    "kerasfeed FileSequence, 2 threads": _kerasfeed("thread"),
    "kerasfeed FileSequence, 2 processes": _kerasfeed("process"),
    "tf.data interleave of from_generator": _tf_data,
    "torch DataLoader, np.load an item, 2 processes": _torch,
}


def measure(peer: str, paths: list[str], scenes: int, seconds: float) -> float:
    """Scenes/s after the first batch, including the beginning of later epochs."""
    loader = PEERS[peer](paths, scenes)
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    next(batches)
    began, delivered = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        delivered += len(next(batches)[1])
    return delivered / (time.perf_counter() - began)


def main(arguments: list[str]) -> None:
    """Prints the table, or one row with `--peer`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.files", description=__doc__)
    parser.add_argument("--files", type=int, default=40, help="number of files")
    parser.add_argument("--scenes", type=int, default=500, help="scenes in each file")
    parser.add_argument("--seconds", type=float, default=6.0, help="length of each measurement, s")
    parser.add_argument("--folder", help="folder with existing files")
    parser.add_argument("--peer", choices=PEERS, help="measure only this peer, in this process")
    options = parser.parse_args(arguments)
    if options.peer is not None:
        paths = sorted(map(str, Path(options.folder).glob("*.npz")))
        rate = measure(options.peer, paths, options.scenes, options.seconds)
        print(f"| {options.peer} | {rate:,.0f} |", flush=True)
        return
    print(f"{options.files} NPZ files of {options.scenes} scenes float32{list(SCENE)}, batches of {BATCH_SIZE}\n")
    print("| peer | scenes/s |")
    print("|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), options.files, options.scenes)
        for peer in PEERS:
            command = [sys.executable, "-m", "benchmarks.files", *arguments, "--folder", folder, "--peer", peer]
            done = subprocess.run(command, check=False, timeout=1200, stderr=subprocess.PIPE, text=True)
            if done.returncode:
                print(f"| {peer} | failed (exit code {done.returncode}): {done.stderr[-300:]} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
