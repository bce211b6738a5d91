"""Existing code. Each function returns endless batches, or, if it trains or writes, a rate."""

import itertools
import queue
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

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
    batches_of,
    load,
    names,
    read,
    read_file,
    write_files,
)

SIGNATURE = (tf.TensorSpec(SHAPE, tf.float32), tf.TensorSpec((), tf.int64))


def from_generator(kind: str) -> Any:
    """One generator."""
    dataset = tf.data.Dataset.from_generator(Generators(kind), output_signature=SIGNATURE)
    return dataset.batch(BATCH_SIZE).prefetch(tf.data.AUTOTUNE)


def interleave(kind: str) -> Any:
    """Four generators, interleaved in parallel."""
    generators = Generators(kind)
    dataset = tf.data.Dataset.range(4).interleave(
        lambda n: tf.data.Dataset.from_generator(generators, args=(n, 4), output_signature=SIGNATURE),
        cycle_length=4,
        num_parallel_calls=4,
    )
    return dataset.batch(BATCH_SIZE).prefetch(tf.data.AUTOTUNE)


def _mapped(function: Any, dataset: Any, calls: int) -> Any:
    def entry(argument: Any) -> Any:
        points, label = tf.numpy_function(function, [argument], [tf.float32, tf.int64])
        return tf.ensure_shape(points, SHAPE), tf.ensure_shape(label, ())

    return dataset.map(entry, num_parallel_calls=calls)


def range_map(kind: str, calls: int = tf.data.AUTOTUNE) -> Any:
    """`range.map(numpy_function)`."""
    dataset = _mapped(Scenes(kind).__getitem__, tf.data.Dataset.range(LENGTH).repeat(), calls)
    return dataset.batch(BATCH_SIZE).prefetch(tf.data.AUTOTUNE)


def light_map() -> Any:
    """A generator of names, followed by `map`."""
    dataset = tf.data.Dataset.from_generator(names, output_signature=tf.TensorSpec((), tf.string))
    return _mapped(read, dataset, tf.data.AUTOTUNE).batch(BATCH_SIZE).prefetch(tf.data.AUTOTUNE)


def fit_generator(seconds: float) -> float:
    """`fit` on a generator."""
    return fit_rate(batches_of("busy"), seconds)


class Batches(keras.utils.PyDataset):
    """Batches by number."""

    def __init__(self, kind: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.kind = kind

    def __len__(self) -> int:
        return STEPS

    def __getitem__(self, step: int) -> Any:
        scenes = [load(self.kind, index) for index in range(step * BATCH_SIZE, (step + 1) * BATCH_SIZE)]
        points, labels = zip(*scenes, strict=True)
        return np.stack(points), np.stack(labels)


def fit_processes(seconds: float) -> float:
    """`fit` on a PyDataset with two processes."""
    return fit_rate(Batches("busy", workers=2, use_multiprocessing=True), seconds)


def fit_threads(seconds: float) -> float:
    """`fit` on a PyDataset with eight threads."""
    return fit_rate(Batches("waiting", workers=8), seconds)


def feed_dict() -> Iterator[Any]:
    """A session that is fed by hand."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        points = tf.compat.v1.placeholder(tf.float32, [None, *SHAPE])
        total = tf.reduce_sum(points, axis=[1, 2])
        for batch, labels in batches_of("busy"):
            session.run(total, {points: batch})
            yield batch, labels


def queue_runners(kind: str, threads: int) -> Iterator[Any]:
    """Threads that put scenes into a queue of TensorFlow."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        number = tf.compat.v1.train.range_input_producer(LENGTH, shuffle=False).dequeue()
        scenes = tf.queue.FIFOQueue(10 * BATCH_SIZE, [tf.float32, tf.int64], [SHAPE, ()])
        enqueue = scenes.enqueue(tf.numpy_function(Scenes(kind).__getitem__, [number], [tf.float32, tf.int64]))
        tf.compat.v1.train.add_queue_runner(tf.compat.v1.train.QueueRunner(scenes, [enqueue] * threads))
        batch = scenes.dequeue_many(BATCH_SIZE)
        coordinator = tf.train.Coordinator()
        tf.compat.v1.train.start_queue_runners(session, coordinator)
        while True:
            yield session.run(batch)


def interleaved_files(folder: Path) -> Any:
    """Rows of files that take turns."""

    def rows(path: bytes) -> Any:
        return zip(*read_file(path.decode()), strict=True)

    dataset = tf.data.Dataset.from_tensor_slices(write_files(folder)).repeat()
    dataset = dataset.interleave(
        lambda path: tf.data.Dataset.from_generator(rows, args=(path,), output_signature=SIGNATURE),
        cycle_length=4,
        num_parallel_calls=4,
    )
    return dataset.batch(BATCH_SIZE).prefetch(tf.data.AUTOTUNE)


def rejection_resample() -> Any:
    """Two classes, balanced by rejection."""
    dataset = _mapped(Rare("busy").__getitem__, tf.data.Dataset.range(LENGTH).repeat(), tf.data.AUTOTUNE)
    dataset = dataset.rejection_resample(lambda _, label: tf.cast(label, tf.int32), [0.5, 0.5], [0.9, 0.1], seed=0)
    return dataset.map(lambda _, scene: scene).batch(BATCH_SIZE).prefetch(tf.data.AUTOTUNE)


def bucket_by_sequence_length() -> Any:
    """Texts in batches of similar length."""

    def entry(index: Any) -> Any:
        tokens, length = tf.numpy_function(Texts("busy").__getitem__, [index], [tf.int64, tf.int64])
        return tf.ensure_shape(tokens, (None,)), tf.ensure_shape(length, ())

    dataset = tf.data.Dataset.range(LENGTH).repeat().map(entry, num_parallel_calls=tf.data.AUTOTUNE)
    dataset = dataset.bucket_by_sequence_length(
        lambda _, length: tf.cast(length, tf.int32), [16, 32, 48], 4 * [BATCH_SIZE]
    )
    return dataset.prefetch(tf.data.AUTOTUNE)


def write_tfrecords(folder: Path, count: int = 3000) -> float:
    """One loop of `TFRecordWriter` over four shards."""
    began = time.perf_counter()
    writers = [tf.io.TFRecordWriter(str(folder / f"old-{shard}.tfrecord")) for shard in range(4)]
    for index in range(count):
        points, label = load("busy", index)
        features = {
            "points": tf.train.Feature(float_list=tf.train.FloatList(value=points.ravel())),
            "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
        }
        example = tf.train.Example(features=tf.train.Features(feature=features))
        writers[index % 4].write(example.SerializeToString())
    for writer in writers:
        writer.close()
    return count / (time.perf_counter() - began)


def read_tfrecords(folder: Path) -> Any:
    """`TFRecordDataset` interleaved, a buffer to shuffle in, and `parse_single_example`."""
    import kerasfeed as kf

    paths = kf.write_tfrecords(
        Scenes("instant", 5000), folder / "x-{shard:05d}-of-{count:05d}.tfrecord", num_shards=4, progress=False
    )
    spec = kf.TFRecordSequence(paths).spec
    dataset = tf.data.Dataset.from_tensor_slices([str(path) for path in paths]).repeat()
    dataset = dataset.interleave(tf.data.TFRecordDataset, cycle_length=4).shuffle(2000)
    dataset = dataset.map(lambda record: kf.parse_record(record, spec), num_parallel_calls=tf.data.AUTOTUNE)
    return dataset.batch(BATCH_SIZE).prefetch(tf.data.AUTOTUNE)


def receiving_thread() -> Any:
    """A queue that a thread fills, followed by `from_generator`."""
    received: queue.Queue[Any] = queue.Queue(maxsize=64)

    def receive() -> None:
        for index in itertools.count():
            received.put(load("instant", index))

    def drain() -> Iterator[Any]:
        while True:
            yield received.get()

    threading.Thread(target=receive, daemon=True).start()
    dataset = tf.data.Dataset.from_generator(drain, output_signature=SIGNATURE)
    return dataset.batch(BATCH_SIZE).prefetch(tf.data.AUTOTUNE)
