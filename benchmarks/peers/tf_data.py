"""Three ways of calling Python scene by scene from `tf.data`, as its guides show them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.peers.job import Job
from benchmarks.real.scenes import MEAN, STD


def _signature(job: Job) -> tuple[tf.TensorSpec, ...]:
    return tuple(tf.TensorSpec(field.shape, field.dtype) for field in job.scene)


def _batched(scenes: tf.data.Dataset, job: Job) -> tf.data.Dataset:
    return scenes.batch(job.batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


@contextmanager
def from_generator(job: Job) -> Iterator[tf.data.Dataset]:
    """`Dataset.from_generator` over the scenes, batched and prefetched."""

    def scenes() -> Iterator[tuple[np.ndarray, ...]]:
        for index in range(len(job.sequence)):
            yield job.sequence[index]

    dataset = tf.data.Dataset.from_generator(scenes, output_signature=_signature(job))
    yield _batched(dataset.apply(tf.data.experimental.assert_cardinality(len(job.sequence))), job)


@contextmanager
def range_map(job: Job) -> Iterator[tf.data.Dataset]:
    """`Dataset.range` mapped through `tf.numpy_function`; 64 parallel calls for 64 workers."""
    signature = _signature(job)
    dtypes = [spec.dtype for spec in signature]

    def read(index: np.int64) -> list[np.ndarray]:
        return list(job.sequence[int(index)])

    def load(index: tf.Tensor) -> tuple[tf.Tensor, ...]:
        fields = tf.numpy_function(read, [index], dtypes)
        return tuple(tf.ensure_shape(field, spec.shape) for field, spec in zip(fields, signature, strict=True))

    calls = job.workers if job.workers > 8 else tf.data.AUTOTUNE
    yield _batched(tf.data.Dataset.range(len(job.sequence)).map(load, num_parallel_calls=calls), job)


@contextmanager
def decoded_images(job: Job) -> Iterator[tf.data.Dataset]:
    """JPEG files that TensorFlow itself decodes, crops, flips and normalises."""
    length, files = len(job.sequence), job.sequence.paths

    def load(path: tf.Tensor, index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        image = tf.io.decode_jpeg(tf.io.read_file(path), channels=3)
        image = tf.image.random_flip_left_right(tf.image.random_crop(image, job.scene[0].shape))
        return (tf.cast(image, tf.float32) / 255 - MEAN) / STD, index

    paths = [files[index % len(files)] for index in range(length)]
    scenes = tf.data.Dataset.from_tensor_slices((paths, np.arange(length))).shuffle(length).repeat(job.epochs)
    yield _batched(scenes.map(load, num_parallel_calls=tf.data.AUTOTUNE), job)


@contextmanager
def interleave(job: Job) -> Iterator[tf.data.Dataset]:
    """As many generators as workers, each over its share of the scenes, interleaved in parallel."""
    signature = _signature(job)

    def share(first: Any) -> Iterator[tuple[np.ndarray, ...]]:
        for index in range(int(first), len(job.sequence), job.workers):
            yield job.sequence[index]

    dataset = tf.data.Dataset.range(job.workers).interleave(
        lambda first: tf.data.Dataset.from_generator(share, output_signature=signature, args=(first,)),
        cycle_length=job.workers,
        num_parallel_calls=job.workers,
    )
    yield _batched(dataset, job)
