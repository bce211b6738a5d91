"""A stream as a `tf.data.Dataset`: its spec, its repetitions, errors, and what keeps it alive."""

import gc
import time
import weakref

import numpy as np
import pytest
import tensorflow as tf
from keras_fits import MARKS
from streams import endless, labels_in, names, numbered, scene_of

import kerasfeed as kf

pytestmark = MARKS
LABELS = [list(range(start, min(start + 4, 22))) for start in range(0, 22, 4)]


def test_each_iteration_of_the_dataset_is_the_next_repetition(stream):
    dataset = stream().to_tf_dataset()
    assert dataset.element_spec == (tf.TensorSpec((None, 1), tf.float32), tf.TensorSpec((None,), tf.float32))
    assert [labels_in(dataset) for _ in range(2)] == [LABELS] * 2


def test_shapes_are_static_if_short_batches_are_dropped(stream):
    dataset = stream(drop_remainder=True).to_tf_dataset()
    assert dataset.element_spec[0].shape == (4, 1)
    assert labels_in(dataset) == LABELS[:-1]


def test_text_ragged_and_nested_fields_arrive_as_their_tensors(stream):
    def scenes(n, count):
        for size in (1, 3, 2, 4):
            yield {"points": np.ones((size, 2), np.float32), "place": [np.int32(size), f"room {size}"]}

    dataset = stream(scenes, count=1, collate="ragged").to_tf_dataset()
    (batch,) = list(dataset)
    assert isinstance(batch["points"], tf.RaggedTensor)
    assert batch["points"].row_lengths().numpy().tolist() == [1, 3, 2, 4]
    assert batch["place"][1].numpy().tolist() == [b"room 1", b"room 3", b"room 2", b"room 4"]


def test_a_dataset_of_a_mapped_stream_can_be_mapped_and_taken_from(stream):
    dataset = stream(names, function=scene_of).to_tf_dataset().map(lambda x, y, name: (x, 2 * y)).take(2)
    assert [labels_in(dataset) for _ in range(2)] == [[[0, 2, 4, 6], [8, 10, 12, 14]]] * 2


def test_take_limits_a_dataset_of_an_endless_stream(stream):
    dataset = stream(endless).to_tf_dataset()
    assert labels_in(dataset.take(3)) == [list(range(start, start + 4)) for start in (0, 4, 8)]


def test_keras_fits_the_dataset(stream):
    from keras_fits import ScalarTrainer

    trainer = ScalarTrainer()
    trainer.fit(stream(endless).to_tf_dataset(), epochs=2, steps_per_epoch=2, shuffle=False)
    assert trainer.trained == [list(range(8)), list(range(8, 16))]


def test_the_error_of_a_loop_contains_the_exception_of_the_generator(stream):
    def breaking():
        yield from numbered(0, 1, 4)
        raise KeyError("the end of the disk")

    dataset = stream(breaking, count=1).to_tf_dataset()
    batches = iter(dataset)
    assert next(batches)[1].numpy().tolist() == [0, 1, 2, 3]
    with pytest.raises(tf.errors.UnknownError, match="KeyError: 'the end of the disk'"):
        next(batches)


def test_closing_a_stream_during_a_loop_over_its_dataset_raises_an_error(stream):
    feed = stream(endless, max_queue_size=1)
    batches = iter(feed.to_tf_dataset())
    next(batches)
    feed.close()
    with pytest.raises(tf.errors.UnknownError, match=r"FeedClosedError: .*was closed"):
        list(batches)


def test_a_field_that_tensorflow_lacks_is_named(stream):
    def scenes():
        yield np.zeros(2, np.longdouble), 1

    with pytest.raises(TypeError, match=r"field .0. is .* a dtype TensorFlow lacks"):
        stream(scenes, count=1).to_tf_dataset()


def test_a_dataset_keeps_its_stream_and_releases_it_at_its_end():
    stream = kf.StreamFeed(endless, 4, workers=1, worker_type="thread")
    feed, dataset = weakref.ref(stream), stream.to_tf_dataset()
    del stream
    gc.collect()
    assert labels_in(dataset.take(1)) == [[0, 1, 2, 3]]
    assert feed() is not None
    del dataset
    deadline = time.monotonic() + 20  # the thread that takes from it ends a moment after the loop
    while feed() is not None and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.05)
    assert feed() is None
