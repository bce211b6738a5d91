"""`Feed.to_tf_dataset`: static specs, the feed's batches bit for bit, epochs, further transformations."""

import collections
import random
import time

import keras
import ml_dtypes
import numpy as np
import pytest
import scenes
import scenes_first
import tensorflow as tf
from scenes_frameworks import (
    Nesting,
    Numbered,
    Pair,
    Stateful,
)
from tf_batches import WORKERS, assert_batches_equal, encoded, indices_of, order_of

import kerasfeed as kf

# ---- specs


def test_every_field_has_a_static_shape_and_dtype_in_the_nesting_of_the_scene():
    with kf.Feed(Nesting(), 5, workers=2, worker_type="thread") as feed:
        spec = feed.to_tf_dataset().element_spec
    assert set(spec) == {"pair", "list", "text", "raw", "words", "flag", "nothing"}
    assert spec["pair"] == Pair(tf.TensorSpec((5, 2, 3), tf.float16), tf.TensorSpec((5,), tf.int32))
    assert isinstance(spec["pair"], Pair)
    assert spec["list"] == (tf.TensorSpec((5,), tf.uint8), {"deep": tf.TensorSpec((5, 2), tf.complex64)})
    assert spec["text"] == spec["raw"] == tf.TensorSpec((5,), tf.string)
    assert spec["words"] == tf.TensorSpec((5, 2), tf.string)
    assert spec["flag"] == tf.TensorSpec((5,), tf.bool)


def test_a_scene_of_one_array_is_a_dataset_of_one_tensor():
    with kf.Feed(np.arange(12.0).reshape(6, 2), 3, workers=1) as feed:
        dataset = feed.to_tf_dataset()
        assert dataset.element_spec == tf.TensorSpec((3, 2), tf.float64)
        assert_batches_equal(dataset, feed.epoch(0))


def test_a_scene_that_is_a_list_is_a_dataset_of_tuples():
    with kf.Feed([[np.float32(k), k] for k in range(4)], 2, workers=1) as feed:
        dataset = feed.to_tf_dataset()
        assert dataset.element_spec == (tf.TensorSpec((2,), tf.float32), tf.TensorSpec((2,), tf.int64))
        assert all(isinstance(batch, tuple) for batch in dataset)


def nested(number):
    return {"z": number, "a": (number + 1, Pair([number + 2], {"y": np.zeros(3), "x": number + 3}))}


def _described(leaf):
    return None if leaf is None else (leaf.dtype, leaf.numpy().tolist())


@pytest.mark.parametrize(
    "sequence",
    [kf.Map(np.arange(10.0), nested), Nesting(), scenes.Clouds(10), np.arange(10.0)],
    ids=["dict", "dict with None", "tuple", "array"],
)
def test_a_loop_gives_the_same_elements_as_a_derived_dataset(sequence):
    with kf.Feed(sequence, 5, workers=1, worker_type="thread") as feed:
        iterator, others = iter(feed.to_tf_dataset()), feed.to_tf_dataset().take(len(feed))
        found, expected = list(iterator), list(others)
    assert len(found) == len(expected) == len(sequence) // 5
    for one, other in zip(found, expected, strict=True):
        tf.nest.assert_same_structure(one, other)
        assert str(tf.nest.map_structure(_described, one)) == str(tf.nest.map_structure(_described, other))


@pytest.mark.parametrize(("drop_remainder", "rows"), [(False, None), (True, 8)])
def test_the_batch_axis_is_unknown_only_if_the_last_batch_is_short(drop_remainder, rows):
    with kf.Feed(scenes.Clouds(37), 8, drop_remainder=drop_remainder, workers=1, worker_type="thread") as feed:
        dataset = feed.to_tf_dataset()
        assert dataset.element_spec == (tf.TensorSpec((rows, 4, 3), tf.float32), tf.TensorSpec((rows,), tf.int64))
        assert [int(tf.shape(labels)[0]) for _, labels in dataset][-1] == (8 if drop_remainder else 5)


def test_an_axis_that_differs_between_scenes_is_unknown_and_arrives_whole():
    with kf.Feed(scenes.Sized(), 1, workers=2, worker_type="thread") as feed:
        dataset = feed.to_tf_dataset()
        assert dataset.element_spec[0] == tf.TensorSpec((1, None), tf.float32)
        assert_batches_equal(dataset, feed.epoch(0))


@pytest.mark.parametrize("epochs", [1, 3])
def test_the_cardinality_is_known(epochs):
    with kf.Feed(scenes.Clouds(37), 8, workers=1, worker_type="thread") as feed:
        dataset = feed.to_tf_dataset(epochs=epochs)
        assert int(dataset.cardinality()) == len(dataset) == 5 * epochs
        assert sum(1 for _ in dataset) == 5 * epochs


NUMERIC = [
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64",
    "complex64", "complex128",
]  # fmt: skip


@pytest.mark.parametrize("name", [*NUMERIC, ">f4", "bfloat16"])
def test_every_dtype_of_tensorflow_arrives_unharmed(name):
    dtype = tf.bfloat16.as_numpy_dtype if name == "bfloat16" else np.dtype(name)
    values = np.arange(12).reshape(6, 2).astype(dtype)
    with kf.Feed(values, 3, workers=1) as feed:
        dataset = feed.to_tf_dataset()
        assert dataset.element_spec.dtype == tf.as_dtype(np.dtype(dtype).newbyteorder("="))
        assert np.array_equal(np.concatenate([batch.numpy() for batch in dataset]), values)


def test_a_dtype_that_tensorflow_lacks_is_refused_with_the_name_of_the_field():
    for value in (np.longdouble(1), np.zeros(2, np.clongdouble), np.zeros((), [("a", "i4"), ("b", "f8")])):
        with kf.Feed([{"x": {"y": value}}] * 4, 2, workers=1) as feed:
            with pytest.raises(TypeError, match=r"field 'x\.y' is .*, a dtype TensorFlow lacks\. Convert it"):
                feed.to_tf_dataset()
            assert len(list(feed)) == 2


def test_a_value_that_tf_data_cannot_hold_is_refused_with_the_name_of_the_field():
    small = [np.zeros(2, ml_dtypes.float8_e5m2)] * 4
    with (
        kf.Feed(small, 2, workers=0) as feed,
        pytest.raises(TypeError, match=r"field 'scene' is float8_e5m2\[2, 2\], a dtype that tf.data cannot hold"),
    ):
        feed.to_tf_dataset()
    told = r"field 'name' holds the text 'a\\udc80', which UTF-8 cannot encode; TensorFlow needs UTF-8. Return bytes"
    unwritable = [{"name": "a\udc80" if index == 2 else "a", "x": 1.0} for index in range(4)]
    with kf.Feed(unwritable, 2, workers=0) as feed, pytest.raises(tf.errors.UnknownError, match=told):
        list(feed.to_tf_dataset())
    with pytest.raises(tf.errors.UnknownError, match=told):
        list(kf.from_indexable(unwritable))


def test_arrays_of_one_text_without_axes_arrive_as_strings(tmp_path):
    np.savez(tmp_path / "0.npz", text=np.array("é"), raw=np.array(b"a"))
    np.savez(tmp_path / "1.npz", text=np.array("longer"), raw=np.array(b""))
    files = [dict(np.load(tmp_path / f"{number}.npz")) | {"tensor": tf.constant("t")} for number in range(2)]
    with kf.Feed(files, 2, workers=0) as feed:
        (batch,) = feed.to_tf_dataset()
    found = {name: tensor.numpy().tolist() for name, tensor in batch.items()}
    assert found == {"text": ["é".encode(), b"longer"], "raw": [b"a", b""], "tensor": [b"t", b"t"]}


@pytest.mark.parametrize(("workers", "worker_type"), WORKERS)
def test_text_arrives_as_strings_unharmed(workers, worker_type):
    with kf.Feed(scenes.Nested(), 5, workers=workers, worker_type=worker_type) as feed:
        batch = next(iter(feed.to_tf_dataset()))
    assert batch["name"].dtype == batch["raw"].dtype == batch["words"].dtype == tf.string
    assert batch["name"].numpy().tolist() == [f"scene é {index}".encode() for index in range(5)]
    assert batch["raw"].numpy().tolist() == [bytes([0, index, 0]) for index in range(5)]
    assert batch["words"].numpy().tolist() == [[b"a" * (index % 4), b"b"] for index in range(5)]


@pytest.mark.parametrize("value", ["née", b"\0a\0", np.array([["a", "bc"]]), np.array(b"x\0y", object)])
def test_text_of_ready_made_batches_arrives_unharmed(value):
    with kf.Feed([value] * 3, None, workers=1) as feed:
        batches = list(feed.to_tf_dataset())
    expected = encoded(np.array(value, object)).tolist()
    assert [np.array(batch.numpy(), object).tolist() for batch in batches] == [expected] * 3


def test_dicts_of_every_kind_become_plain_dicts_with_the_same_keys():
    scene = collections.OrderedDict(b=np.zeros((0, 3)), a={1: np.float32(2), 0: np.zeros(2)})
    scene["c"] = collections.defaultdict(list, q=np.int8(7))
    with kf.Feed([scene] * 6, 4, workers=1) as feed:
        dataset = feed.to_tf_dataset()
        assert type(dataset.element_spec) is dict
        assert dataset.element_spec["b"] == tf.TensorSpec((None, 0, 3), tf.float64)
        assert set(dataset.element_spec["a"]) == {0, 1}
        assert next(iter(dataset))["c"]["q"].numpy().tolist() == [7] * 4


# ---- the same batches


@pytest.mark.heavy
@pytest.mark.parametrize(("workers", "worker_type"), WORKERS)
def test_the_dataset_has_the_batches_of_the_feed_bit_for_bit(workers, worker_type):
    for sequence, batch_size in ((scenes.Augmented(), 8), (Nesting(), 6)):
        with kf.Feed(sequence, batch_size, shuffle=True, seed=1, workers=workers, worker_type=worker_type) as feed:
            dataset = feed.to_tf_dataset()
            for epoch in range(2):
                assert_batches_equal(dataset, feed.epoch(epoch))


def test_a_new_iteration_of_the_dataset_is_a_new_epoch_of_the_feed():
    with kf.Feed(scenes.Clouds(), 8, shuffle=True, seed=1, workers=2, worker_type="thread") as feed:
        dataset = feed.to_tf_dataset()
        for epoch in range(3):
            assert indices_of(dataset) == order_of(feed, epoch)
        assert next(iter(feed))[1].tolist() == feed.plan.indices(3, 0).tolist()
        assert indices_of(feed.to_tf_dataset()) == order_of(feed, 4)


def test_several_epochs_follow_each_other_in_one_iteration():
    with kf.Feed(scenes.Clouds(), 8, shuffle=True, seed=1, workers=3, worker_type="thread") as feed:
        dataset = feed.to_tf_dataset(epochs=3)
        for first in (0, 3):
            assert indices_of(dataset) == [
                index for epoch in range(first, first + 3) for index in order_of(feed, epoch)
            ]


@pytest.mark.parametrize("epochs", [0, -1, 1.5, True])
def test_an_invalid_number_of_epochs_is_refused(epochs):
    refused = pytest.raises((TypeError, ValueError), match="epochs must be")
    with kf.Feed(scenes.Clouds(), 8, workers=1, worker_type="thread") as feed, refused:
        feed.to_tf_dataset(epochs=epochs)


def test_without_an_order_every_scene_is_delivered_once():
    class Uneven(Numbered):
        def __getitem__(self, index):
            time.sleep(random.Random(index).random() / 100)
            return index

    with kf.Feed(Uneven(60), 2, shuffle=True, workers=8, worker_type="thread") as feed:
        for _ in range(2):
            found = [index for batch in feed.to_tf_dataset(deterministic=False) for index in batch.numpy().tolist()]
            assert sorted(found) == list(range(60))


def test_two_iterators_of_one_dataset_are_two_epochs_at_once():
    with kf.Feed(scenes.Clouds(), 8, shuffle=True, seed=1, workers=2, worker_type="thread") as feed:
        dataset = feed.to_tf_dataset()
        one, other = [], []
        for a, b in zip(iter(dataset), iter(dataset), strict=True):
            one.extend(a[1].numpy().tolist())
            other.extend(b[1].numpy().tolist())
    assert {tuple(one), tuple(other)} == {tuple(order_of(feed, 0)), tuple(order_of(feed, 1))}


# ---- hooks of a Keras-style class


@pytest.mark.heavy
@pytest.mark.parametrize(("workers", "worker_type"), [*WORKERS[:2], (2, "process")])
def test_hooks_are_called_once_an_epoch_and_each_batch_sees_its_own_epoch(workers, worker_type):
    sequence = Stateful(12)
    with kf.Feed(sequence, None, workers=workers, worker_type=worker_type) as feed:
        dataset = feed.to_tf_dataset(epochs=3)
        for first in range(0, 24, 3):  # often: the order of TensorFlow's threads differs from run to run
            states = [int(state[0, 0]) for _, state in dataset]
            assert states == [100 * (epoch + 1) + epoch for epoch in range(first, first + 3) for _ in range(12)]
    assert sequence.began == 24


@pytest.mark.parametrize("worker_type", ["thread", "process"])
def test_a_keras_style_class_reshuffles_between_the_epochs_of_a_dataset(worker_type):
    with kf.Feed(scenes.Reshuffled(), None, workers=2, worker_type=worker_type) as feed:
        found = [int(x) for batch, _ in feed.to_tf_dataset(epochs=3) for x in batch.numpy().ravel()]
    assert found == [0, 1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 0, 2, 3, 4, 5, 0, 1]


def test_a_pydataset_of_batches_is_used_unchanged():
    class Batches(keras.utils.PyDataset):
        def __len__(self):
            return 4

        def __getitem__(self, index):
            return np.full((3, 2), index, np.float32), np.full(3, index)

    with kf.Feed(Batches(), None, workers=2, worker_type="thread") as feed:
        dataset = feed.to_tf_dataset()
        assert dataset.element_spec == (tf.TensorSpec((None, 2), tf.float32), tf.TensorSpec((None,), tf.int64))
        assert indices_of(dataset) == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]


def test_batches_may_differ_in_rows_in_fit_and_in_a_dataset():
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with kf.Feed(scenes_first.Uneven(), None, workers=0) as feed:
        assert len(model.predict(feed, verbose=0)) == sum(len(y) for _, y in feed)
        assert [len(x) for x, _ in feed.to_tf_dataset()] == [len(x) for x, _ in feed]


class Widths(kf.SceneSequence):
    """Batches (int64[2, width], float64[2]); batch 7 is wider than the batches that are read first."""

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return np.full((2, 3 if index == 7 else 2), index), np.zeros(2)


def test_batches_wider_than_the_first_need_a_signature_in_a_dataset():
    with kf.Feed(Widths(), None, workers=0) as feed:
        assert feed.to_tf_dataset().element_spec[0].shape.as_list() == [None, 2]
        with pytest.raises(
            tf.errors.UnknownError, match=r"shape \(2, 3\) in a batch.*output_signature=.*shape \(None, None\)"
        ):
            list(feed.to_tf_dataset())
    signature = tf.TensorSpec((None, None), tf.int64), tf.TensorSpec((None,), tf.float64)
    model = keras.Sequential([keras.Input((None,), dtype="int64"), keras.layers.Embedding(20, 1),
                              keras.layers.GlobalMaxPooling1D()])  # fmt: skip
    model.compile("sgd", "mse")
    with kf.Feed(Widths(), None, workers=0, output_signature=signature) as feed:
        assert feed.to_tf_dataset().element_spec == signature
        assert [x.shape[1] for x, _ in feed.to_tf_dataset()] == [2] * 7 + [3] + [2] * 12
        model.fit(feed, verbose=0)
        model.fit(feed.to_tf_dataset(), shuffle=False, verbose=0)


# ---- further transformations


@pytest.fixture
def feed():
    with kf.Feed(scenes.Clouds(40), 8, shuffle=True, seed=1, workers=2, worker_type="thread") as feed:
        yield feed


def test_the_dataset_can_be_mapped_and_filtered(feed):
    doubled = feed.to_tf_dataset().map(lambda points, labels: (points * 2, labels), num_parallel_calls=tf.data.AUTOTUNE)
    expected = [points * 2 for points, _ in feed.epoch(0)]
    assert all(np.array_equal(a.numpy(), b) for (a, _), b in zip(doubled, expected, strict=True))
    even = feed.to_tf_dataset().unbatch().filter(lambda _, label: label % 2 == 0)
    assert sorted(int(label) for _, label in even) == list(range(0, 40, 2))


def test_the_dataset_can_be_taken_from_and_skipped(feed):
    order = order_of(feed, 0)
    assert indices_of(feed.to_tf_dataset().take(2)) == order[:16]
    assert indices_of(feed.to_tf_dataset().skip(3)) == order_of(feed, 1)[24:]
    assert len(feed.to_tf_dataset().take(2)) == 2


def test_every_repetition_of_the_dataset_is_a_new_epoch(feed):
    assert indices_of(feed.to_tf_dataset().repeat(3)) == [i for epoch in range(3) for i in order_of(feed, epoch)]
    endless = iter(feed.to_tf_dataset().repeat())
    assert [i for _ in range(11) for i in next(endless)[1].numpy().tolist()][:80] == order_of(feed, 3) + order_of(
        feed, 4
    )
    del endless


def test_the_dataset_can_be_batched_again(feed):
    assert indices_of(feed.to_tf_dataset().unbatch().batch(10)) == order_of(feed, 0)
    rebatched = feed.to_tf_dataset().rebatch(5)
    assert indices_of(rebatched) == order_of(feed, 1)
    assert {batch[1].shape[0] for batch in rebatched} == {5}
    stacked = next(iter(feed.to_tf_dataset().batch(5)))
    assert stacked[0].shape == (5, 8, 4, 3)


def test_the_dataset_can_be_cached_shuffled_and_enumerated(feed):
    cached = feed.to_tf_dataset().cache()
    assert indices_of(cached) == indices_of(cached) == order_of(feed, 0)
    assert sorted(indices_of(feed.to_tf_dataset().shuffle(3))) == list(range(40))
    assert [int(step) for step, _ in feed.to_tf_dataset().enumerate()] == [0, 1, 2, 3, 4]


def test_cached_batches_beyond_max_memory_are_copied_and_stay_correct():
    with kf.Feed(scenes.Clouds(200), 4, max_memory=6 * 4096, workers=2, worker_type="thread") as feed:
        cached = feed.to_tf_dataset().cache()
        with pytest.warns(kf.FeedWarning, match=r"fill max_memory \(24,576 bytes\)"):
            first = indices_of(cached)
        assert first == indices_of(cached) == list(range(200))
        assert all(np.array_equal(points[:, 0, 0], 100.0 * labels.numpy()) for points, labels in _numpy_pairs(cached))
        assert feed.stats().slots <= 6
        assert feed.stats().copied > 0


def _numpy_pairs(dataset):
    return [(points.numpy(), labels) for points, labels in dataset]


@pytest.mark.heavy
def test_datasets_of_two_feeds_are_zipped(feed):
    with kf.Feed(scenes.Nested(), 4, shuffle=True, seed=2, workers=2, worker_type="process") as other:
        zipped = tf.data.Dataset.zip((feed.to_tf_dataset(), other.to_tf_dataset()))
        assert len(zipped) == 5
        pairs = list(zipped)
        assert_batches_equal([one for one, _ in pairs], feed.epoch(0))
        assert_batches_equal([two for _, two in pairs], list(other.epoch(0))[:5])


@pytest.mark.heavy
def test_datasets_of_two_feeds_are_interleaved_and_concatenated(feed):
    with kf.Feed(scenes.Clouds(40), 8, workers=1, worker_type="thread") as other:
        both = feed.to_tf_dataset().concatenate(other.to_tf_dataset())
        assert indices_of(both) == order_of(feed, 0) + list(range(40))
        mixed = tf.data.Dataset.sample_from_datasets([feed.to_tf_dataset(), other.to_tf_dataset()], seed=1)
        assert sorted(indices_of(mixed)) == sorted(2 * list(range(40)))
        chosen = tf.data.Dataset.range(2).interleave(lambda _: other.to_tf_dataset(), cycle_length=2)
        assert sorted(indices_of(chosen)) == sorted(2 * list(range(40)))
