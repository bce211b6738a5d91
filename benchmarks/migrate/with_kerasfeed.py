"""The same with kerasfeed. Each function returns endless batches, or, if it trains or writes, a rate."""

import itertools
import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import kerasfeed as kf
from benchmarks.migrate.fitting import fit_rate
from benchmarks.migrate.scenes import (
    BATCH_SIZE,
    LENGTH,
    SHAPE,
    STEPS,
    Generators,
    Rare,
    Scenes,
    Texts,
    load,
    names,
    read,
    read_file,
    write_files,
)


def _epochs(feed: Any) -> Iterator[Any]:
    while True:
        yield from feed


def one_generator(kind: str, worker_type: Any) -> Any:
    """One generator, in one worker."""
    return kf.StreamFeed(Generators(kind), batch_size=BATCH_SIZE, workers=1, worker_type=worker_type)


def four_generators(kind: str, workers: int, worker_type: Any) -> Any:
    """Four generators."""
    return kf.StreamFeed(Generators(kind), batch_size=BATCH_SIZE, count=4, workers=workers, worker_type=worker_type)


def by_number(kind: str, workers: int, worker_type: Any) -> Any:
    """A feed of the same scenes."""
    return _epochs(kf.Feed(Scenes(kind), BATCH_SIZE, workers=workers, worker_type=worker_type))


def light_map() -> Any:
    """A generator of names, followed by a function in two processes."""
    return kf.StreamFeed(names, batch_size=BATCH_SIZE, workers=2, worker_type="process").map(read)


def fit_stream(seconds: float) -> float:
    """`fit` on four generators, in two processes."""
    return fit_rate(four_generators("busy", 2, "process"), seconds)


def fit_feed(kind: str, workers: int, worker_type: Any, seconds: float) -> float:
    """`fit` on a feed."""
    scenes = Scenes(kind, STEPS * BATCH_SIZE)
    return fit_rate(kf.Feed(scenes, BATCH_SIZE, workers=workers, worker_type=worker_type), seconds)


def session(kind: str, workers: int, worker_type: Any) -> Iterator[Any]:
    """A session that is fed from a feed."""
    import tensorflow as tf

    with tf.Graph().as_default(), tf.compat.v1.Session() as running:
        points = tf.compat.v1.placeholder(tf.float32, [None, *SHAPE])
        total = tf.reduce_sum(points, axis=[1, 2])
        for batch, labels in by_number(kind, workers, worker_type):
            running.run(total, {points: batch})
            yield batch, labels


def dataset_in_session(kind: str, workers: int, worker_type: Any) -> Iterator[Any]:
    """A feed's dataset in a graph."""
    import tensorflow as tf

    feed = kf.Feed(Scenes(kind), BATCH_SIZE, workers=workers, worker_type=worker_type)
    with tf.Graph().as_default(), tf.compat.v1.Session() as running:
        iterator = tf.compat.v1.data.make_initializable_iterator(feed.to_tf_dataset())
        batch = iterator.get_next()
        while True:
            running.run(iterator.initializer)
            for _ in range(len(feed)):
                yield running.run(batch)


def interleaved_files(folder: Path) -> Any:
    """Rows of files that take turns."""
    paths = write_files(folder)
    files = kf.FileSequence(paths, read_file, count=500)
    return _epochs(kf.Feed(files, BATCH_SIZE, workers=2, worker_type="thread"))


def balanced() -> Any:
    """Two classes, balanced by index."""
    scenes = Rare("busy")
    order = kf.Balanced(np.arange(LENGTH) % 10 == 0)
    return _epochs(kf.Feed(scenes, BATCH_SIZE, order=order, seed=0, workers=2, worker_type="process"))


def bucketed() -> Any:
    """Texts in batches of similar length."""
    order = kf.Bucketed(Texts.length_of(np.arange(LENGTH)), [16, 32, 48])
    return _epochs(
        kf.Feed(Texts("busy"), BATCH_SIZE, order=order, seed=0, collate="pad", workers=2, worker_type="process")
    )


def write_tfrecords(folder: Path, count: int = 3000) -> float:
    """Four shards by two workers, including their start."""
    began = time.perf_counter()
    kf.write_tfrecords(
        Scenes("busy", count), folder / "new-{shard:05d}-of-{count:05d}.tfrecord", num_shards=4, workers=2,
        progress=False,
    )  # fmt: skip
    return count / (time.perf_counter() - began)


def read_tfrecords(worker_type: Any, folder: Path) -> Any:
    """Any record at any time: a full shuffle."""
    paths = kf.write_tfrecords(
        Scenes("instant", 5000), folder / "x-{shard:05d}-of-{count:05d}.tfrecord", num_shards=4, progress=False
    )
    sequence = kf.TFRecordSequence(paths)
    return _epochs(kf.Feed(sequence, BATCH_SIZE, shuffle=True, seed=0, workers=2, worker_type=worker_type))


def receiving_thread() -> Any:
    """A stream of a queue that a thread fills."""
    received: queue.Queue[Any] = queue.Queue(maxsize=64)

    def receive() -> None:
        for index in itertools.count():
            received.put(load("instant", index))

    threading.Thread(target=receive, daemon=True).start()
    return kf.StreamFeed(lambda: iter(received.get, None), BATCH_SIZE, workers=0)
