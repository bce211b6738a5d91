"""Classes balanced by index and by rejection: `python -m benchmarks.resample`.

The same skewed scenes (in 1,011 consecutive scenes, 1,000 of the first class, 10 of the second, 1 of the third) are
delivered so that each class comes equally often: by `kf.Balanced`, by `kf.Weighted`, and by tf.data's
`rejection_resample`, which reads scenes and drops most of them. Each read of a scene is counted.

Each peer runs in its own process until it has delivered a number of scenes, or the time is over.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

MEGABYTE = 1_000_000
BATCH_SIZE = 32
SKEW = (1000, 10, 1)


class Skewed:
    """Scenes (float32[256], int label) of very unequal classes; counts its reads."""

    def __init__(self, count: int) -> None:
        rng = np.random.default_rng(0)
        self.labels = np.repeat(np.arange(3), SKEW)[rng.integers(sum(SKEW), size=count)]
        self.values = rng.random((64, 256), dtype=np.float32)
        self.read = 0

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.int64]:
        self.read += 1
        return self.values[index % 64], self.labels[index]


@contextmanager
def _feed(scenes: Skewed, order: Any) -> Iterator[Iterable[Any]]:
    import kerasfeed as kf

    with kf.Feed(scenes, BATCH_SIZE, order=order, seed=0, workers=0) as feed:
        _ = feed.element_spec
        scenes.read = 0
        yield (batch for epoch in range(1 << 30) for batch in feed.epoch(epoch))


@contextmanager
def _balanced(scenes: Skewed) -> Iterator[Iterable[Any]]:
    import kerasfeed as kf

    with _feed(scenes, kf.Balanced(scenes.labels)) as batches:
        yield batches


@contextmanager
def _weighted(scenes: Skewed) -> Iterator[Iterable[Any]]:
    import kerasfeed as kf

    counts = np.bincount(scenes.labels, minlength=3)
    with _feed(scenes, kf.Weighted(1 / counts[scenes.labels])) as batches:
        yield batches


@contextmanager
def _rejected(scenes: Skewed) -> Iterator[Iterable[Any]]:
    import tensorflow as tf

    def load(index: Any) -> Any:
        values, label = tf.numpy_function(scenes.__getitem__, [index], [tf.float32, tf.int64], stateful=False)
        return tf.ensure_shape(values, [256]), tf.ensure_shape(label, [])

    shares = (np.array(SKEW) / sum(SKEW)).tolist()
    dataset = tf.data.Dataset.range(len(scenes)).repeat().map(load)
    dataset = dataset.rejection_resample(lambda _, label: tf.cast(label, tf.int32), [1 / 3] * 3, shares, seed=0)
    yield dataset.map(lambda _, scene: scene).batch(BATCH_SIZE).prefetch(2).as_numpy_iterator()


PEERS = {"kf.Balanced": _balanced, "kf.Weighted": _weighted, "tf.data rejection_resample": _rejected}


def held() -> int:
    """Bytes of memory that only this process holds: anonymous pages."""
    fields = dict(line.split()[:2] for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:])
    return 1024 * int(fields["Pss_Anon:"])


def measure(peer: str, count: int, deliver: int, seconds: float) -> str:
    """One row of the table: a warm-up of a tenth of `seconds`, then at most `deliver` scenes or `seconds`."""
    scenes = Skewed(count)
    classes, delivered, start, before, read = np.zeros(3, int), 0, 0.0, 0, 0
    opened = time.perf_counter()
    with PEERS[peer](scenes) as batches:
        for _, labels in batches:
            now = time.perf_counter()
            if not start:
                if now - opened > 0.1 * seconds:  # the warm-up is over
                    start, before, read = now, held(), scenes.read
                continue
            classes += np.bincount(labels, minlength=3)
            delivered += len(labels)
            if delivered >= deliver or now - start > seconds:
                break
        rate = delivered / (time.perf_counter() - start)
        grown, a_scene = held() - before, (scenes.read - read) / delivered
    shares = " / ".join(f"{share:.1%}" for share in classes / delivered)
    return f"| {peer} | {count:,} | {a_scene:.2f} | {rate:,.0f} | {shares} | {grown / MEGABYTE:+.1f} |"


def main(arguments: list[str]) -> None:
    """Prints the table, or one row with `--peer`."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.resample", description=__doc__)
    parser.add_argument("--scenes", type=int, nargs="+", default=[100_000, 1_000_000], help="numbers of scenes")
    parser.add_argument("--deliver", type=int, default=100_000, help="scenes to deliver")
    parser.add_argument("--seconds", type=float, default=8.0, help="time limit for each peer and size, s")
    parser.add_argument("--peer", choices=PEERS, help="measure only this peer, in this process")
    options = parser.parse_args(arguments)
    if options.peer is not None:
        print(measure(options.peer, options.scenes[0], options.deliver, options.seconds), flush=True)
        return
    columns = "peer | scenes | read for each delivered | delivered, scenes/s | share of each class | memory growth, MB"
    print(f"| {columns} |")
    print("|---|---|---|---|---|---|", flush=True)
    for count in options.scenes:
        for peer in PEERS:
            command = [sys.executable, "-m", "benchmarks.resample", "--peer", peer, "--scenes", str(count)]
            command += ["--deliver", str(options.deliver), "--seconds", str(options.seconds)]
            done = subprocess.run(command, check=False, timeout=600)
            if done.returncode:
                print(f"| {peer} | {count:,} | failed (exit code {done.returncode}) | | | |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
