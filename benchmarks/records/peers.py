"""Writers and readers. Each takes the scenes and a folder, and returns the number of scenes."""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.records.scenes import Scenes

NAME = "x-{shard:05d}-of-{count:05d}.tfrecord"
SHARDS = 6


def tensorflow_loop(compression: str) -> Callable[[Scenes, Path], int]:
    """One loop over one TFRecordWriter a shard; `compression` is "" or "GZIP"."""
    return functools.partial(_tensorflow_loop, compression)


def _tensorflow_loop(compression: str, scenes: Scenes, folder: Path) -> int:
    """Examples are built as tutorials build them."""
    import tensorflow as tf

    def integers(value: Any) -> Any:
        return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))

    def raw(array: Any) -> Any:
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=[array.tobytes()]))

    def floats(array: Any) -> Any:
        return tf.train.Feature(float_list=tf.train.FloatList(value=array.ravel()))

    paths = [str(folder / NAME.format(shard=shard, count=SHARDS)) for shard in range(SHARDS)]
    writers = [tf.io.TFRecordWriter(path, compression) for path in paths]
    for index in range(len(scenes)):
        x, label = scenes[index]
        fields = {name: raw(array) for name, array in x.items()} if isinstance(x, dict) else {"x": floats(x)}
        features = tf.train.Features(feature={**fields, "label": integers(label)})
        writers[index % SHARDS].write(tf.train.Example(features=features).SerializeToString())
    for writer in writers:
        writer.close()
    return len(scenes)


def kerasfeed_writes(workers: Any, worker_type: str, compression: str | None = None) -> Callable[[Scenes, Path], int]:
    """`kf.write_tfrecords`."""

    def write(scenes: Scenes, folder: Path) -> int:
        import kerasfeed as kf

        kf.write_tfrecords(
            scenes, folder / NAME, num_shards=SHARDS, workers=workers, worker_type=worker_type, compression=compression,
            progress=False,
        )  # fmt: skip
        return len(scenes)

    return write


def tensorflow_reads(scenes: Scenes, folder: Path) -> Iterator[None]:
    """`TFRecordDataset` and `parse_single_example`, in order, with two reads and calls at a time."""
    import tensorflow as tf

    import kerasfeed as kf

    spec = kf.TFRecordSequence(str(folder / NAME)).spec
    paths = sorted(str(path) for path in folder.glob("x-*.tfrecord"))
    dataset = tf.data.TFRecordDataset(paths, num_parallel_reads=2)
    dataset = dataset.map(lambda record: kf.parse_record(record, spec), num_parallel_calls=2).batch(32).prefetch(2)
    for batch in dataset:
        yield from [None] * len(batch[1])


def kerasfeed_reads(worker_type: str, shuffle: bool) -> Callable[[Scenes, Path], Iterator[None]]:
    """A feed of `kf.TFRecordSequence`."""

    def read(scenes: Scenes, folder: Path) -> Iterator[None]:
        import kerasfeed as kf

        sequence = kf.TFRecordSequence(str(folder / NAME))
        with kf.Feed(sequence, 32, shuffle=shuffle, seed=0, workers=2, worker_type=worker_type) as feed:
            for batch in feed:
                yield from [None] * len(batch[1])

    return read


LOOP, LOOP_GZIP = "one loop of tf.io.TFRecordWriter", "one loop of tf.io.TFRecordWriter, GZIP"
WRITERS = {
    LOOP: tensorflow_loop(""),
    "kerasfeed, 2 processes": kerasfeed_writes(2, "process"),
    "kerasfeed, workers='auto'": kerasfeed_writes("auto", "auto"),
    "kerasfeed, calling thread": kerasfeed_writes(0, "thread"),
    LOOP_GZIP: tensorflow_loop("GZIP"),
    "kerasfeed, 2 processes, GZIP": kerasfeed_writes(2, "process", "GZIP"),
}
READERS = {
    "TFRecordDataset, parse_single_example, in order": tensorflow_reads,
    "kerasfeed, 2 threads, full shuffle": kerasfeed_reads("thread", True),
    "kerasfeed, 2 processes, full shuffle": kerasfeed_reads("process", True),
}


def count(found: Iterator[None]) -> int:
    """Number of scenes that came."""
    return int(np.sum([1 for _ in found]))
