"""Padded and ragged batches of every loader equal plain NumPy, in pooled slots."""

import gc
import time

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scenes_sized import KINDS, Broken, Drawn, Lengths, bits, padded

import kerasfeed as kf
from kerasfeed.errors import SpecError

LENGTHS = [(7 * index) % 13 for index in range(37)]
COLLATIONS = {
    "pad": kf.Pad(),
    "values and masks": kf.Pad(value={"0": -1.5}, mask=True),
    "multiple": kf.Pad(multiple_of=8, mask="0"),
    "length": kf.Pad(length=16, mask=True),
    "ragged": kf.Ragged(),
}
LIGHT_IN_PROCESSES = ["values and masks", "ragged"]


@pytest.mark.parametrize(
    ("kind", "name"), [("thread", name) for name in COLLATIONS] + [("process", name) for name in LIGHT_IN_PROCESSES]
)
def test_every_loader_and_load_equal_the_reference_bit_for_bit(feed_on, kind, name):
    reference = feed_on("inline", Lengths(LENGTHS), collate=COLLATIONS[name])
    feed = feed_on(kind, Lengths(LENGTHS), collate=COLLATIONS[name])
    for epoch in (0, 5):
        expected = bits(reference.epoch(epoch))
        assert bits(feed.epoch(epoch)) == expected
        assert bits(kf.load(feed, epoch=epoch, step=step) for step in range(len(feed))) == expected


def test_batches_are_padded_to_their_longest_scene(feed_on):
    sequence = Lengths(LENGTHS)
    feed = feed_on("inline", sequence, collate=kf.Pad(-2, multiple_of=4, mask=True))
    for step, ((points, mask), labels) in enumerate(feed.epoch(0)):
        indices = feed.plan.indices(0, step)
        longest = -(-max(LENGTHS[index] for index in indices) // 4) * 4
        expected = np.full((len(indices), longest, 3), -2, np.float32)
        for row, index in enumerate(indices):
            expected[row, : LENGTHS[index]] = sequence[index][0]
        assert np.array_equal(points, expected)
        assert np.array_equal(mask, np.arange(longest) < np.array(LENGTHS)[indices][:, None])
        assert labels.tolist() == indices.tolist()


def test_a_fixed_length_gives_the_one_shape_of_the_spec(feed_on):
    feed = feed_on("inline", Lengths(LENGTHS), collate=kf.Pad(length=16), drop_remainder=True)
    assert feed.element_spec[0].shape == (8, 16, 3)
    assert {points.shape for points, _ in feed} == {(8, 16, 3)}


@pytest.mark.parametrize("kind", KINDS)
def test_ragged_batches_contain_the_scenes_concatenated(feed_on, kind):
    sequence = Lengths(LENGTHS)
    feed = feed_on(kind, sequence, collate="ragged")
    for step, (points, _) in enumerate(feed.epoch(0)):
        assert isinstance(points, kf.RaggedArray)
        indices = feed.plan.indices(0, step)
        assert points.values.shape == (points.row_splits[-1], 3)
        for row, index in enumerate(indices):
            found = points.values[points.row_splits[row] : points.row_splits[row + 1]]
            assert np.array_equal(found, sequence[index][0])


SHAPES = st.integers(0, 40)


@pytest.mark.heavy
@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(
    data=st.data(), inner=st.sampled_from([(), (3,), (2, 2), (0,)]), dtype=st.sampled_from(["u1", "f2", "f8", "c16"])
)
@pytest.mark.parametrize("kind", ["inline", "thread"])
def test_any_shapes_are_padded_as_numpy_would(feed_on, kind, data, inner, dtype):
    count = data.draw(st.integers(2, 12))
    lengths = data.draw(st.lists(SHAPES | st.just(3000), min_size=count, max_size=count))
    images = data.draw(st.lists(st.tuples(st.integers(0, 5), SHAPES), min_size=count, max_size=count))
    sequence = Drawn([(n, *inner) for n in lengths], images, dtype)
    multiple, batch_size = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 5))
    collate = kf.Pad(value={"0.image": -1}, multiple_of={"0.image": multiple}, mask="0.points", fields="0.image")
    images[-1] = (images[0][0], images[0][1] + 1)  # the first and the last scene show that the second axis differs
    with feed_on(kind, sequence, batch_size, collate=collate) as feed:
        for step, (fields, labels) in enumerate(feed):
            scenes = [sequence[index][0] for index in feed.plan.indices(0, step)]
            points, _ = padded([scene["points"] for scene in scenes])
            assert bits([fields["points"]]) == bits([points])
            longest = max(len(scene["points"]) for scene in scenes)
            assert fields["points_mask"].tolist() == [
                [position < len(scene["points"]) for position in range(longest)] for scene in scenes
            ]
            image, _ = padded([scene["image"] for scene in scenes], -1, multiple)
            assert bits([fields["image"]]) == bits([image])
            assert fields["name"].tolist() == [scene["name"] for scene in scenes]
            assert labels.tolist() == feed.plan.indices(0, step).tolist()


@pytest.mark.heavy
@settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
@given(lengths=st.lists(SHAPES | st.just(3000), min_size=2, max_size=20), batch_size=st.integers(1, 6))
@pytest.mark.parametrize("kind", ["inline", "thread"])
def test_any_lengths_are_joined_as_numpy_would(feed_on, kind, lengths, batch_size):
    sequence = Lengths(lengths)
    with feed_on(kind, sequence, batch_size, collate=kf.Ragged("0")) as feed:
        for step, (points, _) in enumerate(feed):
            rows = [sequence[index][0] for index in feed.plan.indices(0, step)]
            splits = np.cumsum([0, *map(len, rows)])
            assert bits([points]) == bits([kf.RaggedArray(np.concatenate(rows), splits)])


# ---- memory


class Paced(Lengths):
    """Lengths that take a while, so that each is a separate task."""

    def __getitem__(self, index):
        time.sleep(0.004)
        return super().__getitem__(index)


@pytest.mark.light(where=lambda kind, name: kind != "process" or name in LIGHT_IN_PROCESSES)
@pytest.mark.parametrize("name", COLLATIONS)
@pytest.mark.parametrize("kind", ["thread", "process"])
def test_rows_loaded_in_parts_and_out_of_order_give_the_same_batch(feed_on, kind, name):
    reference = feed_on("inline", Lengths(LENGTHS), collate=COLLATIONS[name])
    assert bits(feed_on(kind, Paced(LENGTHS), collate=COLLATIONS[name], workers=2)) == bits(reference)


@pytest.mark.parametrize("name", COLLATIONS)
def test_batches_are_aligned_views_of_the_slot(feed_on, name):
    feed = feed_on("inline", Lengths(LENGTHS), collate=COLLATIONS[name])
    spec, slot = feed.element_spec, feed.layout
    assert spec is not None
    batch = feed[0]
    arrays = batch[0] if isinstance(batch[0], tuple) else (batch[0],)
    for array in arrays[: 1 if name == "ragged" else 2]:
        owner = array
        while isinstance(getattr(owner, "base", None), np.ndarray):
            owner = owner.base
        assert memoryview(owner.base).nbytes == slot.nbytes
        assert array.ctypes.data % 64 == 0
        assert array.flags.c_contiguous


@pytest.mark.parametrize("name", COLLATIONS)
def test_batches_that_are_kept_keep_their_bits_and_their_slots(feed_on, name):
    feed = feed_on("thread", Lengths(LENGTHS), collate=COLLATIONS[name], max_queue_size=2)
    expected = bits(feed.epoch(0))
    kept = list(feed.epoch(0))
    for _ in feed.epoch(1):
        pass
    assert bits(kept) == expected
    del kept
    gc.collect()
    before = feed.stats().slots
    for epoch in range(12):
        for _ in feed.epoch(epoch):
            pass
    assert feed.stats().slots == before


@pytest.mark.filterwarnings("ignore::kerasfeed.FeedWarning")
@pytest.mark.parametrize("name", COLLATIONS)
def test_batches_are_copied_out_at_max_memory_without_changes(feed_on, name):
    expected = bits(feed_on("inline", Lengths(LENGTHS), collate=COLLATIONS[name]))
    whole = feed_on("inline", Lengths(LENGTHS), collate=COLLATIONS[name])
    assert whole.element_spec
    feed = feed_on("thread", Lengths(LENGTHS), collate=COLLATIONS[name], max_memory=2 * whole.layout.nbytes)
    kept = list(feed)
    assert feed.stats().copied > 0
    assert bits(kept) == expected


@pytest.mark.light(where=lambda kind, collate: kind != "process" or type(collate) is kf.Ragged)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("collate", [kf.Pad(mask=True), kf.Ragged()], ids=["pad", "ragged"])
def test_a_row_larger_than_its_slot_is_correct(feed_on, kind, collate):
    lengths = [3, 4, 5, 5000, 2, 1, 5, 2, 900, 4, 3, 2]  # scenes 0, 3, 6, 8 and 11 are read first
    lengths[3], lengths[4] = lengths[4], lengths[3]
    sequence = Lengths(lengths)
    feed = feed_on(kind, sequence, 6, collate=collate, shuffle=False)
    for step, (points, _) in enumerate(feed.epoch(0)):
        rows = [sequence[index][0] for index in range(6 * step, 6 * step + 6)]
        if isinstance(points, kf.RaggedArray):
            assert np.array_equal(points.values, np.concatenate(rows))
        else:
            assert bits([points[0]]) == bits([padded(rows)[0]])
            assert points[1].sum(axis=1).tolist() == list(map(len, rows))


# ---- errors


@pytest.mark.parametrize("kind", KINDS)
def test_the_error_for_a_scene_longer_than_the_fixed_length_names_it(feed_on, kind):
    feed = feed_on(kind, Lengths(LENGTHS), collate=kf.Pad(length={"0": 11}))
    with pytest.raises(
        SpecError, match=r"scene \d+: field '0' has shape \(12, 3\), longer on axis 0 than the length 11"
    ):
        list(feed)


def test_a_scene_longer_than_the_length_of_one_of_two_axes_raises(feed_on):
    images = [np.zeros((n % 3 + 1, n % 5 + 1)) for n in range(20)]
    feed = feed_on("inline", images, collate=kf.Pad(length={"scene": (None, 4)}))
    with pytest.raises(SpecError, match=r"longer on axis 1 than the length 4.*Crop it in __getitem__, or use a larger"):
        list(feed)


def test_stacking_unequal_shapes_suggests_pad_and_ragged(feed_on):
    message = (
        r"field '0' cannot be stacked: scene \d+ has shape \(\d+, 3\) and scene \d+ has shape \(\d+, 3\). Use "
        r"collate='pad' \(pads to the longest of the batch\) or collate='ragged'"
    )
    with pytest.raises(SpecError, match=message):
        list(feed_on("inline", Lengths(LENGTHS)))


@pytest.mark.light(where=lambda kind, collate: kind != "process" or collate == "pad")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("collate", ["stack", "pad"])
def test_the_error_for_a_rarely_differing_field_names_scenes_and_remedy(feed_on, kind, collate):
    message = (
        r"field '0' cannot be stacked: scene 0 has shape \(4, 3\) and scene 17 has shape \(9, 3\), unlike the few "
        r"scenes that were read first. Name the field: collate=kf.Pad\(fields='0'\) .* collate=kf.Ragged\('0'\)"
    )
    scenes = Lengths([9 if index == 17 else 4 for index in range(40)])
    with pytest.raises(SpecError, match=message):
        list(feed_on(kind, scenes, collate=collate))
    assert len(list(feed_on("inline", scenes, collate=kf.Pad(fields="0")))) == 5


def test_a_rare_difference_on_a_later_axis_suggests_one_shape(feed_on):
    images = [np.zeros((4, 5 if index == 17 else 3)) for index in range(40)]
    message = r"scene 0 has shape \(4, 3\) and scene 17 has shape \(4, 5\), unlike .*first. Return one shape for every"
    with pytest.raises(SpecError, match=message):
        list(feed_on("inline", images))


def test_other_errors_of_a_scene_are_reported_unchanged(feed_on):
    for wrong in (np.zeros((4, 3, 1), np.float32), np.zeros((4, 3)), np.ma.zeros((4, 3), np.float32)):
        scenes = [wrong if index == 17 else np.zeros((4, 3), np.float32) for index in range(40)]
        with pytest.raises(SpecError, match=r"^scene 17: field 'scene'(: expected float32\[4, 3\]| is a masked array)"):
            list(feed_on("inline", scenes))


def test_the_error_for_text_arrays_of_unequal_shape_names_a_remedy(feed_on):
    words = [np.array(["a"] * (n % 3 + 1)) for n in range(9)]
    with pytest.raises(SpecError, match=r"cannot be stacked: .* Text is always stacked, whatever `collate` is"):
        list(feed_on("inline", words, collate="pad"))


@pytest.mark.light(where=lambda kind, collate: kind != "process" or type(collate) is kf.Pad)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("collate", ["pad", "ragged", kf.Pad(length=16, mask=True)], ids=["pad", "ragged", "length"])
def test_failed_scenes_are_replaced_masked_or_skipped(feed_on, kind, collate):
    sequence = Broken(LENGTHS, (3, 7, 20))
    for on_error in ("replace", "mask", "skip"):
        feed = feed_on(kind, sequence, collate=collate, on_error=on_error)
        assert bits(feed.epoch(1)) == bits(feed_on("inline", sequence, collate=collate, on_error=on_error).epoch(1))
        for step, (points, labels, *weights) in enumerate(feed.epoch(0)):
            indices = feed.plan.indices(0, step)
            good = [int(index) for index in indices if index not in sequence.bad]
            lengths = _lengths(points, on_error)
            if on_error == "skip":
                assert labels.tolist() == good
                assert lengths == [LENGTHS[index] for index in good]
            elif on_error == "mask":
                assert weights[0].tolist() == [float(index in good) for index in indices]
                assert lengths == [LENGTHS[index] if index in good else 0 for index in indices]
            else:
                assert lengths == [LENGTHS[label] for label in labels]
                assert not set(labels.tolist()) & set(sequence.bad)


def _lengths(points, on_error):
    if isinstance(points, kf.RaggedArray):
        return np.diff(points.row_splits).tolist()
    if isinstance(points, tuple):
        return points[1].sum(axis=1).tolist()
    return (points[:, :, 0] != 0).sum(axis=1).tolist()


def test_a_batch_that_is_all_masked_has_no_axis_of_length_0(feed_on):
    feed = feed_on("inline", Broken(LENGTHS, (3,)), 1, collate=kf.Pad(value=7, multiple_of=4), on_error="mask")
    shapes = {tuple(points.shape) for points, _, weight in feed if weight[0] == 0}
    assert shapes == {(1, 4, 3)}


def test_a_sequence_with_get_batch_is_read_scene_by_scene_if_shapes_differ(feed_on):
    class Vectorised(Lengths):
        def get_batch(self, indices):
            raise AssertionError("scenes of different lengths cannot be stacked")

    assert bits(feed_on("inline", Vectorised(LENGTHS), collate="pad")) == bits(
        feed_on("inline", Lengths(LENGTHS), collate="pad")
    )


def test_the_html_of_a_feed_describes_its_batches(feed_on):
    html = feed_on("inline", Lengths(LENGTHS), collate=kf.Ragged())._repr_html_()
    assert "0.values" in html
    assert "[?, 3]" in html
    assert "0.row_splits" in html
