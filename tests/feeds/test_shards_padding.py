"""Padding rows fill up a short batch and count for nothing, in every loader, for every kind of field."""

import numpy as np
import pytest
import scenes
import scenes_faulty as faulty
from hypothesis import given, settings
from hypothesis import strategies as st
from scenes_padding import Labelled, LabelledBatches, Pointwise

import kerasfeed as kf
from kerasfeed.adapters.keras.input_monitor import scenes_of

KINDS = {"inline": (0, "auto"), "thread": (3, "thread"), "process": (1, "process")}


def _feed(kind, sequence, batch_size=8, **arguments):
    workers, worker_type = KINDS[kind]
    arguments = {"seed": 3, "shuffle": True, "workers": workers, "worker_type": worker_type, **arguments}
    return kf.Feed(sequence, batch_size, pad_remainder=True, **arguments)


def _bits(batches):
    return [[np.asarray(field).tobytes() for field in batch] for batch in batches]


@pytest.mark.parametrize("kind", KINDS)
def test_every_batch_is_full_and_padding_rows_have_weight_zero(kind):
    with _feed(kind, Labelled(), shard=(1, 3)) as feed:
        batches = list(feed.epoch(0))
        assert [str(field) for field in feed.element_spec] == ["float32[8, 4, 3]", "int64[8]", "float32[8]"]
    for step, (points, labels, weights) in enumerate(batches):
        assert points.shape == (8, 4, 3)
        assert weights.dtype == np.float32
        assert labels.tolist() == feed.plan.indices(0, step).tolist()
        assert weights.tolist() == [1.0] * (8 - feed.plan.padding_rows(0, step)) + [0.0] * feed.plan.padding_rows(
            0, step
        )
    own = sum(feed.plan.scenes_of(0, step) for step in range(len(batches)))
    assert sum(batch[2].sum() for batch in batches) == own < 16


@pytest.mark.parametrize("on_error", ["raise", "replace", "mask"])
@pytest.mark.parametrize(
    ("kind", "shard"), [("thread", (0, 1)), ("thread", (0, 3)), ("thread", (2, 3)), ("process", (2, 3))]
)
def test_all_loaders_and_load_add_the_same_padding_rows(kind, on_error, shard):
    sequence = Labelled() if on_error == "raise" else faulty.Raising((0, 7, 8, 36))
    arguments = {"on_error": on_error, "shard": shard, "max_failures": 10}
    with _feed(kind, sequence, **arguments) as feed, _feed("inline", sequence, **arguments) as reference:
        for epoch in (0, 3):
            assert _bits(feed.epoch(epoch)) == _bits(reference.epoch(epoch))
        if on_error == "raise":
            last = len(feed) - 1
            assert _bits([kf.load(feed, epoch=3, step=last)]) == _bits([reference.submit(3, last).result()])


@pytest.mark.parametrize("kind", KINDS)
def test_get_batch_scenes_are_filled(kind):
    with _feed(kind, LabelledBatches(), shard=(2, 3)) as feed, _feed("inline", scenes.Clouds(), shard=(2, 3)) as other:
        assert _bits(feed.epoch(1)) == _bits(other.epoch(1))


@pytest.mark.parametrize("kind", KINDS)
def test_padding_rows_zero_the_weights_of_scenes_of_any_shape(kind):
    with _feed(kind, Pointwise(), 3, shuffle=False) as feed:
        first, _, last = feed.epoch(0)
    assert first[2]["each"].tolist() == [[0.5, 0.5]] * 3
    assert first[2]["all"].tolist() == [3, 3, 3]
    assert last[1].tolist() == [6, 7, 6]
    assert last[0].tolist() == [[6] * 4, [7] * 4, [6] * 4]
    assert last[2]["each"].tolist() == [[0.5] * 4, [0.5] * 4, [0] * 4]
    assert last[2]["all"].tolist() == [3, 3, 0]
    assert last[2]["all"].dtype == np.int16


@pytest.mark.parametrize("kind", KINDS)
def test_text_and_every_other_kind_of_field_is_filled(kind):
    with _feed(kind, faulty.RaisingNested(()), 8, shuffle=False) as feed:
        fields, more, weights = list(feed.epoch(0))[2]
    assert fields["name"].tolist() == [f"scene é {index}" for index in (*range(16, 23), 16)]
    assert fields["raw"].tolist()[-1] == bytes([0, 16, 0])
    assert fields["x"][1][-1].tolist() == [16, -16]
    assert more[-1].tolist() == [16, 17, 18]
    assert weights.tolist() == [1] * 7 + [0]


def test_batches_copied_out_of_their_slots_are_filled():
    with _feed("thread", Pointwise(), 3, shuffle=False, max_memory=2 * 4096) as feed:
        with pytest.warns(kf.FeedWarning, match="keeps so many batches"):
            kept = [batch for _ in range(3) for batch in feed.epoch(0)]
        assert feed.stats().copied
    assert [batch[2]["all"].tolist() for batch in kept] == [[3, 3, 3], [3, 3, 3], [3, 3, 0]] * 3


@pytest.mark.parametrize("kind", KINDS)
def test_a_failed_scene_used_as_padding_is_masked_and_counts_once(kind):
    with _feed(kind, faulty.Raising((36,)), 8, shuffle=False, on_error="mask", max_failures=1) as feed:
        batches = list(feed.epoch(0))
        assert batches[-1][1].tolist() == [32, 33, 34, 35, 0, 32, 33, 34]
        assert batches[-1][2].tolist() == [1, 1, 1, 1, 0, 0, 0, 0]
        assert feed.stats().failed == 1
    with _feed(kind, faulty.Raising((36,)), 6, shuffle=False, on_error="mask", max_failures=1) as feed:
        *_, last = feed.epoch(0)
        assert last[1].tolist() == [0] * 6  # the only scene of the step, and so all its padding rows
        assert last[2].tolist() == [0] * 6
        assert feed.stats().failed == 1


@settings(deadline=None, max_examples=60)
@given(
    length=st.integers(1, 60),
    batch_size=st.integers(1, 9),
    shard_count=st.integers(1, 5),
    shuffle=st.booleans(),
    epoch=st.integers(0, 2),
)
def test_weighted_sums_over_all_shards_equal_those_of_the_sequence(length, batch_size, shard_count, shuffle, epoch):
    total = weight = rows = 0.0
    for shard in range(shard_count):
        arguments = {"shard": (shard, shard_count), "shuffle": shuffle}
        with _feed("inline", scenes.Clouds(length), batch_size, **arguments) as feed:
            for points, labels, weights in feed.epoch(epoch):
                assert len(points) == len(labels) == len(weights) == batch_size
                total += float((labels * weights).sum())
                weight += float(weights.sum())
                rows += batch_size
    assert (total, weight) == (length * (length - 1) / 2, length)
    assert rows % (batch_size * shard_count) == 0


@pytest.mark.parametrize(
    ("on_error", "sequence", "message"),
    [
        (
            "raise",
            scenes.Nested(),
            r"pad_remainder=True gives the scenes that fill up a short batch sample_weight 0",
        ),
        ("mask", [np.zeros(2)] * 5, r"structure \*. Return such a tuple, or use drop_remainder=True"),
        (
            "raise",
            [(1, 2, "three")] * 5,
            r"pad_remainder=True needs a numeric sample_weight, .* field '2', str\[\]",
        ),
        ("raise", [(1, 2, None)] * 5, r"the structure \(\*, \*, None\)"),
        ("raise", [(1, {"a": 1, "b": 2}, {"a": 1, "b": None})] * 5, r"the structure .*'b': None"),
        ("raise", [(1, 2, {"a": 1, "b": 2j})] * 5, r"numeric sample_weight, received field '2.b', complex128\[\]"),
    ],
)
def test_scenes_of_a_structure_without_weights_are_refused(on_error, sequence, message):
    with _feed("inline", sequence, 4, on_error=on_error) as feed, pytest.raises(kf.errors.SpecError, match=message):
        feed[0]


def test_a_monitor_counts_no_padding_rows():
    for shard in range(3):
        with _feed("inline", scenes.Clouds(37), 4, shard=(shard, 3)) as feed:
            own = [len(feed.plan.indices(0, step)) - feed.plan.padding_rows(0, step) for step in range(4)]
            assert [scenes_of(feed.plan, steps) for steps in (1, 3, 4, 8)] == [4, 12, sum(own), 2 * sum(own)]


def test_a_tf_dataset_with_padding_rows_has_a_static_shape_and_weights():
    import tensorflow as tf

    with _feed("thread", Labelled(), 8, shard=(0, 2)) as feed:
        dataset = feed.to_tf_dataset()
        assert [tuple(spec.shape) for spec in dataset.element_spec] == [(8, 4, 3), (8,), (8,)]
        assert dataset.element_spec[2].dtype == tf.float32
        own = sum(feed.plan.scenes_of(0, step) for step in range(len(feed)))
        assert sum(float(tf.reduce_sum(weights)) for _, _, weights in dataset) == own
