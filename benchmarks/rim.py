"""The cost of TensorFlow and Keras per batch, against their minimum: `python -m benchmarks.rim`.

Tiny scenes (float32[1024, 9], int32[1024]) in batches of 32, and scenes that wait 10 ms. Each case runs in its own
process, and all of them take turns, so that a ratio compares neighbouring runs:

* loops: `to_tf_dataset()` against a `numpy_function` that returns the same batch each time;
* `fit(feed)` against a PyDataset that returns the same batch each time, and one that loads with 2 threads of Keras;
* scenes that wait, 64 at a time: against 64 plain waits at a time, and against threads that only wait;
* scenes: `kf.from_indexable` against handwritten code.

Each timing follows a full garbage collection; see `benchmarks.measure`.
"""

import argparse
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

import numpy as np

import kerasfeed as kf
from benchmarks.measure import collect_garbage

BATCH = 32
BATCHES = 400
WAIT = 0.01  # s
WAITS = 60  # one after another
CALLS = 64


class Tiny(kf.SceneSequence):
    """Scenes from memory, each a new copy."""

    def __init__(self, batches: int = BATCHES) -> None:
        rng = np.random.default_rng(0)
        self.points = rng.random((16, 1024, 9), np.float32)
        self.labels = rng.integers(0, 9, (16, 1024), np.int32)
        self.length = batches * BATCH

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        return self.points[index % 16].copy(), self.labels[index % 16].copy()


class Waiting(kf.SceneSequence):
    """Scenes that wait, as for a disk."""

    def __len__(self) -> int:
        return CALLS * WAITS

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.int32]:
        time.sleep(WAIT)
        return np.full(9, index, np.float32), np.int32(index)


def per_batch(batches: Callable[[], Iterable[Any]], count: int) -> float:
    """Seconds per batch in the second iteration; the first one warms up."""
    for _ in batches():
        pass
    collect_garbage()
    begin = time.perf_counter()
    found = sum(1 for _ in batches())
    assert found == count, (found, count)
    return (time.perf_counter() - begin) / count


def constant_call() -> float:
    """Loop over a `numpy_function` that returns one batch."""
    import tensorflow as tf

    scenes = Tiny(1)
    with kf.Feed(scenes, BATCH, workers=0) as feed:
        batch = list(feed[0])  # aligned, so that TensorFlow does not copy

        def entry(index: Any) -> Any:
            points, labels = tf.numpy_function(lambda _: batch, [index], [tf.float32, tf.int32])
            return tf.ensure_shape(points, (BATCH, 1024, 9)), tf.ensure_shape(labels, (BATCH, 1024))

        options = tf.data.Options()
        options.autotune.enabled = False
        dataset = tf.data.Dataset.range(BATCHES).map(entry).with_options(options).prefetch(2)
        return per_batch(lambda: dataset, BATCHES)


def first_batch() -> float:
    """Seconds from the beginning of an iteration of `to_tf_dataset()` to its first batch."""
    with kf.Feed(Tiny(), BATCH, workers=2, worker_type="process", drop_remainder=True) as feed:
        dataset = feed.to_tf_dataset()
        seconds = []
        for _ in range(10):
            begin = time.perf_counter()
            next(iter(dataset))
            seconds.append(time.perf_counter() - begin)
        return median(seconds)


def loop(worker_type: str) -> float:
    """Loop over `to_tf_dataset()`."""
    with kf.Feed(Tiny(), BATCH, workers=2, worker_type=worker_type, drop_remainder=True) as feed:  # type: ignore[arg-type]
        dataset = feed.to_tf_dataset()
        return per_batch(lambda: dataset, BATCHES)


def epoch_seconds(model: Any, data: Any) -> float:
    """Seconds per epoch of `fit`, after the first."""
    import keras

    ends: list[float] = []

    def note_end(epoch: int, logs: Any) -> None:
        if epoch == 0:
            collect_garbage()
        ends.append(time.perf_counter())

    note = keras.callbacks.LambdaCallback(on_epoch_end=note_end)
    model.fit(data, epochs=3, shuffle=False, verbose=0, callbacks=[note])
    return (ends[2] - ends[0]) / 2


def fitted(data: Any) -> float:
    """Seconds per batch of `fit`, in the epochs after the first."""
    import keras

    inputs = keras.Input((1024, 9))
    hidden = keras.layers.Flatten()(inputs[:, ::64])
    model = keras.Model(inputs, keras.layers.Dense(1)(hidden))
    model.compile("sgd", lambda target, output: keras.ops.mean(output), jit_compile=False)
    return epoch_seconds(model, data) / BATCHES


def py_dataset(*, load: bool) -> Any:
    """A PyDataset that loads its batches with two threads, or returns the same one each time."""
    import keras

    scenes = Tiny()

    class Batches(keras.utils.PyDataset):  # type: ignore[misc]
        def __len__(self) -> int:
            return BATCHES

        def __getitem__(self, step: int) -> Any:
            return batch_of(step) if load else kept

    def batch_of(step: int) -> Any:
        points, labels = zip(*(scenes[index] for index in range(step * BATCH, (step + 1) * BATCH)), strict=True)
        return np.stack(points), np.stack(labels)

    kept = batch_of(0)
    return Batches(workers=2) if load else Batches()


def fit_feed(worker_type: str) -> float:
    """`fit(feed)`."""
    with kf.Feed(Tiny(), BATCH, workers=2, worker_type=worker_type, drop_remainder=True) as feed:  # type: ignore[arg-type]
        return fitted(feed)


def waits_in_a_loop() -> float:
    """Seconds per wait, with `CALLS` at a time, through `to_tf_dataset()`."""
    with kf.Feed(Waiting(), BATCH, workers=CALLS, worker_type="thread") as feed:
        dataset = feed.to_tf_dataset()
        return per_batch(lambda: dataset, len(feed)) * CALLS / BATCH


def waits_in_fit() -> float:
    """The same through `fit(feed)`, in the epochs after the first."""
    import keras

    inputs = keras.Input((9,))
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse", jit_compile=False)
    with kf.Feed(Waiting(), BATCH, workers=CALLS, worker_type="thread") as feed:
        return epoch_seconds(model, feed) / len(Waiting()) * CALLS


def waits_by_scene() -> float:
    """The same through `kf.from_indexable`."""
    dataset = kf.from_indexable(Waiting(), num_parallel_calls=CALLS).batch(BATCH).prefetch(2)
    return per_batch(lambda: dataset, len(Waiting()) // BATCH) * CALLS / BATCH


def waits_alone() -> float:
    """The same with threads that only wait: the best that the machine allows."""

    def wait() -> None:
        for _ in range(WAITS):
            time.sleep(WAIT)

    threads = [threading.Thread(target=wait) for _ in range(CALLS)]
    begin = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return (time.perf_counter() - begin) / WAITS


def by_hand(sequence: Any, calls: int) -> Any:
    """The code that `kf.from_indexable` replaces, with as many TensorFlow threads as calls."""
    import tensorflow as tf

    points, labels = sequence[0]

    def entry(index: Any) -> Any:
        found = tf.numpy_function(lambda i: sequence[i], [index], [tf.float32, tf.int32])
        return tf.ensure_shape(found[0], points.shape), tf.ensure_shape(found[1], labels.shape)

    options = tf.data.Options()
    options.threading.private_threadpool_size = calls + 2
    options.autotune.enabled = False
    return tf.data.Dataset.range(len(sequence)).map(entry, num_parallel_calls=calls).with_options(options)


def scenes_by_hand(sequence: Any, calls: int) -> float:
    """Seconds per batch with handwritten code."""
    dataset = by_hand(sequence, calls).batch(BATCH).prefetch(2)
    return per_batch(lambda: dataset, len(sequence) // BATCH)


def scenes_indexable(sequence: Any, calls: int) -> float:
    """Seconds per batch of `kf.from_indexable`."""
    dataset = kf.from_indexable(sequence, num_parallel_calls=calls).batch(BATCH).prefetch(2)
    return per_batch(lambda: dataset, len(sequence) // BATCH)


CASES: dict[str, Callable[[], float]] = {
    "constant numpy_function": constant_call,
    "to_tf_dataset, processes": lambda: loop("process"),
    "to_tf_dataset, threads": lambda: loop("thread"),
    "to_tf_dataset, first batch": first_batch,
    "fit, constant PyDataset": lambda: fitted(py_dataset(load=False)),
    "fit, PyDataset with 2 threads": lambda: fitted(py_dataset(load=True)),
    "fit(feed), processes": lambda: fit_feed("process"),
    "fit(feed), threads": lambda: fit_feed("thread"),
    "scenes by hand": lambda: scenes_by_hand(Tiny(60), 2),
    "from_indexable": lambda: scenes_indexable(Tiny(60), 2),
    "waits, to_tf_dataset": waits_in_a_loop,
    "waits, fit(feed)": waits_in_fit,
    "waits, from_indexable": waits_by_scene,
    "waits, scenes by hand": lambda: scenes_by_hand(Waiting(), CALLS) * CALLS / BATCH,
    "waits, threads alone": waits_alone,
}
# Numerator, denominator, and the goal; "<" is an upper bound.
BARS = (
    ("to_tf_dataset, processes", "constant numpy_function", "< 1.7"),
    ("to_tf_dataset, threads", "constant numpy_function", "< 2.4"),
    ("fit(feed), processes", "fit, constant PyDataset", "< 1.25"),
    ("fit, PyDataset with 2 threads", "fit(feed), processes", "> 2.2"),
    ("scenes by hand", "from_indexable", "> 1"),
    ("waits, scenes by hand", "waits, from_indexable", "> 1"),
)
OF_IDEAL = ("waits, to_tf_dataset", "waits, fit(feed)", "waits, from_indexable")


def in_a_process(name: str) -> float:
    """Seconds of one case, measured in its own process."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow"}
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.rim", "--case", name],
        capture_output=True, text=True, timeout=600, env=environment, check=False,
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith("seconds ")]
    if not lines:
        raise SystemExit(f"{name} failed (exit code {done.returncode}): {done.stderr[-2000:]}")
    return float(lines[-1].split()[1])


def main(arguments: list[str]) -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.rim", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="how often each case runs")
    parser.add_argument("--case", choices=CASES, help="run only this case, in this process")
    options = parser.parse_args(arguments)
    if options.case:
        print(f"seconds {CASES[options.case]()}")
        return
    found: dict[str, list[float]] = {name: [] for name in CASES}
    for _ in range(options.repeats):
        for name in CASES:
            found[name].append(in_a_process(name))
    for name, seconds in found.items():
        print(f"{name:32s}{min(seconds) * 1e6:10,.0f} us  (median {median(seconds) * 1e6:,.0f})")
    for name, base, bound in BARS:
        ratios = [one / other for one, other in zip(found[name], found[base], strict=True)]
        print(f"{name} / {base}: {median(ratios):.2f}  (goal {bound})")
    for name in OF_IDEAL:
        alone = median(one / other for one, other in zip(found["waits, threads alone"], found[name], strict=True))
        print(f"{name}: {WAIT / min(found[name]):.3f} of ideal  (goal > 0.95), {alone:.2f} of threads alone")


if __name__ == "__main__":
    main(sys.argv[1:])
