"""Packed: every scene is complete and occurs once, with few gaps, in any worker, shard and run."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scenes_drawn import assert_same

import kerasfeed as kf
from kerasfeed.sequences.optional_methods import optional_method


class Texts(kf.SceneSequence):
    """Scenes {"tokens": int32[n], "place": float32[n, 2]} of given lengths, which contain their index."""

    def __init__(self, lengths):
        self.lengths = list(lengths)
        self.announced = []

    def __len__(self):
        return len(self.lengths)

    def __getitem__(self, index):
        count = self.lengths[index]
        return {
            "tokens": np.arange(count, dtype=np.int32) + 1000 * (index + 1),
            "place": np.full((count, 2), index, np.float32),
        }


class Announced(Texts):
    def read_ahead(self, indices):
        self.announced += indices.tolist()


def lognormal(count, median=200, sigma=0.8, longest=1024, seed=0):
    drawn = np.random.default_rng(seed).lognormal(np.log(median), sigma, count)
    return np.clip(drawn, 1, longest).astype(int)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(0, 30), min_size=1, max_size=80),
    st.integers(1, 40),
    st.sampled_from(["cut", "drop"]),
    st.integers(0, 3),
)
def test_every_scene_is_packed_once_unchanged_with_its_segment_id(lengths, length, overflow, seed):
    kept = [index for index, n in enumerate(lengths) if n and (n <= length or overflow == "cut")]
    texts = Texts(lengths)
    if not kept:
        return
    packed = kf.Packed(texts, length, overflow=overflow, seed=seed)
    seen = []
    for number, scene in enumerate(packed):
        assert scene["tokens"].shape == scene["segment_ids"].shape == scene["positions"].shape == (length,)
        assert scene["segment_ids"].dtype == scene["positions"].dtype == np.int32
        assert scene["place"].shape == (length, 2)
        indices = packed.scenes_of(number).tolist()
        expected = [texts[index] for index in indices]
        used = 0
        for segment, one in enumerate(expected, 1):
            where = np.flatnonzero(scene["segment_ids"] == segment)
            count = min(len(one["tokens"]), length)
            assert where.tolist() == list(range(used, used + count))
            assert np.array_equal(scene["positions"][where], np.arange(count))
            assert np.array_equal(scene["tokens"][where], one["tokens"][:count])
            assert np.array_equal(scene["place"][where], one["place"][:count])
            used += count
        assert not scene["segment_ids"][used:].any()
        assert not scene["positions"][used:].any()
        assert not scene["tokens"][used:].any()
        seen += indices
    assert sorted(seen) == kept


@pytest.mark.parametrize(
    ("count", "length", "median", "sigma"),
    [(2000, 1024, 200, 0.8), (5000, 2048, 300, 1.0), (3000, 512, 30, 0.6), (400, 1024, 200, 0.8)],
)
def test_scenes_of_log_normal_lengths_fill_95_percent(count, length, median, sigma):
    lengths = lognormal(count, median, sigma, length)
    packed = kf.Packed(Texts(lengths), length, lengths=lengths)
    assert packed.fill == pytest.approx(lengths.sum() / (len(packed) * length))
    assert packed.fill >= 0.95
    assert sum(len(packed.scenes_of(number)) for number in range(len(packed))) == count


def test_long_and_short_scenes_are_mixed_differently_for_each_seed():
    lengths = np.sort(lognormal(4000))
    plans = []
    for seed in (0, 0, 1):
        packed = kf.Packed(range(4000), 1024, lengths=lengths, seed=seed)
        plans.append([packed.scenes_of(number).tolist() for number in range(len(packed))])
    assert plans[0] == plans[1] != plans[2]
    apart = [np.ptp(lengths[scenes]) for scenes in plans[0] if len(scenes) > 1]
    assert np.mean(apart) > 100


def test_the_plan_depends_only_on_the_lengths():
    class Unread(Texts):
        def __getitem__(self, index):
            raise AssertionError("no scene is read")

    lengths = lognormal(500)
    given = kf.Packed(Unread(lengths), 1024, lengths=lengths)
    read = kf.Packed(Texts(lengths), 1024)
    by_function = kf.Packed(Texts(lengths), 1024, lengths=lambda scene: len(scene["tokens"]))
    plans = [[one.scenes_of(k).tolist() for k in range(len(one))] for one in (given, read, by_function)]
    assert plans[0] == plans[1] == plans[2]


@pytest.mark.parametrize(
    ("workers", "worker_type"), [(2, "thread"), pytest.param(2, "process", marks=pytest.mark.heavy)]
)
def test_packed_feeds_can_be_shuffled_sharded_and_resumed(workers, worker_type):
    packed = kf.Packed(Texts(lognormal(300, longest=256, median=40)), 256)
    with kf.Feed(packed, 4, shuffle=True, seed=0, workers=0) as feed:
        epochs = [list(feed.epoch(epoch)) for epoch in (0, 1)]
        assert feed.element_spec["tokens"].shape == (None, 256)
        assert not np.array_equal(epochs[0][0]["tokens"], epochs[1][0]["tokens"])
        state = feed.get_state(epoch=1, step=2)
    with kf.Feed(packed, 4, shuffle=True, seed=0, workers=workers, worker_type=worker_type) as feed:
        feed.set_state(state)
        assert_same(list(feed), epochs[1][2:])
    shards = [
        kf.Feed(packed, 2, shuffle=True, seed=0, workers=0, shard_index=shard, shard_count=2) for shard in range(2)
    ]
    for whole, *parts in zip(epochs[0], *(shard.epoch(0) for shard in shards), strict=True):
        assert np.array_equal(whole["tokens"], np.concatenate([part["tokens"] for part in parts]))
    for shard in shards:
        shard.close()


def test_a_state_of_another_plan_is_refused():
    texts = Texts(lognormal(60, longest=256, median=40))
    with (
        kf.Feed(kf.Packed(texts, 256), 2, seed=0, workers=0) as feed,
        kf.Feed(kf.Packed(texts, 256, seed=1), 2, seed=0, workers=0) as other,
        pytest.raises(ValueError, match=r"class was Packed to 256 [0-9a-f]{24} of Texts, is Packed to 256"),
    ):
        other.set_state(feed.get_state(epoch=0, step=1))


def test_packed_reads_ahead_its_scenes_and_can_be_pickled():
    texts = Announced([3, 5, 2, 4])
    packed = kf.Packed(texts, 8)
    assert optional_method(kf.Packed(Texts([3]), 8), "read_ahead") is None
    optional_method(packed, "read_ahead")(np.array([1, 0]))
    assert texts.announced == [*packed.scenes_of(1), *packed.scenes_of(0)]
    optional_method(packed, "read_ahead")(np.array([], np.int64))  # as for a batch whose scenes are all left out
    assert len(texts.announced) == 4
    copied = pickle.loads(pickle.dumps(packed))
    assert_same(list(copied), list(packed))
    assert repr(packed) == "Packed of Announced, 2 scenes of length 8, 87.5% full"


def drawing(scene, rng):
    return {"x": scene["x"] + rng.random(len(scene["x"]))}


def test_packed_scenes_draw_separate_numbers_equal_in_each_run():
    scenes = [{"x": np.zeros(2)} for _ in range(8)]
    packed = kf.Packed(kf.Map(scenes, drawing), 8)
    found = []
    for workers in (0, 2):
        with kf.Feed(packed, 2, seed=0, workers=workers, worker_type="thread") as feed:
            found.append(np.concatenate([batch["x"] for batch in feed.epoch(1)]))
    assert np.array_equal(*found)
    assert len(np.unique(found[0])) == 16


def two(**fields):
    return [{"x": np.zeros(2)}, {"x": np.zeros(2), **fields}]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: kf.Packed(Texts([3, 9, 10]), 8),
            ValueError,
            "scene 1 of Texts has length 9, more than length=8, and 1",
        ),
        (
            lambda: kf.Packed(Texts([9]), 8),
            ValueError,
            "length=8: pass a larger length, or overflow='cut' .* or 'drop'",
        ),
        (lambda: kf.Packed(Texts([9]), 8, overflow="drop"), ValueError, "Texts has no scene to pack: all are left out"),
        (lambda: kf.Packed([], 8), ValueError, "list has no scene to pack"),
        (lambda: kf.Packed(Texts([3]), 0), ValueError, "length must be at least 1, received 0"),
        (lambda: kf.Packed(Texts([3]), 8.0), TypeError, "length must be an integer, received 8.0"),
        (lambda: kf.Packed(Texts([3]), 8, seed=-1), ValueError, "seed must be at least 0"),
        (
            lambda: kf.Packed(Texts([3]), 8, overflow="skip"),
            ValueError,
            "overflow must be 'raise', 'cut' or 'drop', rec",
        ),
        (
            lambda: kf.Packed(Texts([3]), 8, lengths=[1, 2]),
            ValueError,
            "lengths has 2 entries, but the sequence has 1 scene",
        ),
        (lambda: kf.Packed(Texts([3]), 8, lengths="n"), ValueError, "lengths must be one number per scene"),
        (lambda: kf.Packed(Texts([3]), 8, lengths=[1.5]), TypeError, "lengths must be integers, received float64"),
        (
            lambda: kf.Packed(Texts([3]), 8, lengths=[-1]),
            ValueError,
            "lengths must be at least 0 and below 2[*][*]63, received -1",
        ),
        (
            lambda: kf.Packed(Texts([3, 3]), 8, lengths=np.array([3, 2**63 + 3], np.uint64)),
            ValueError,
            "below 2[*][*]63, received 9223372036854775811 at index 1",
        ),
        (lambda: kf.Packed(Texts([3]), 8, lengths=[4])[0], ValueError, "a scene of length 3 had length 4 when it was"),
        (lambda: kf.Packed([(np.zeros(2),)], 8), kf.SpecError, r"received a tuple. Convert them by kf.Map\(sequence"),
        (lambda: kf.Packed([{}], 8), kf.SpecError, "dicts of arrays, received a dict without any"),
        (lambda: kf.Packed([{"x": None}], 8), kf.SpecError, "field 'x' is of type NoneType"),
        (
            lambda: kf.Packed(two(about={"y": np.zeros(2)}), 8),
            kf.SpecError,
            "field 'about' is nested, text or a single",
        ),
        (lambda: kf.Packed(two(label=3), 8), kf.SpecError, "field 'label' is nested, text or a single value"),
        (lambda: kf.Packed(two(name=["a", "b"]), 8), kf.SpecError, "field 'name' is nested, text or a single value"),
        (
            lambda: kf.Packed(two(y=np.zeros(3)), 8),
            kf.SpecError,
            r"share their first axis, received 'x' \(2,\), 'y' \(3,\)",
        ),
        (
            lambda: kf.Packed(two(positions=np.zeros(2)), 8),
            kf.SpecError,
            "field 'positions' has the name of a field that kf.Packed adds",
        ),
        (
            lambda: kf.Packed(two(y=np.zeros(2)), 8)[0],
            kf.SpecError,
            r"field 'y' is float64\[\*\], but absent in the scene",
        ),
        (
            lambda: kf.Packed(two(x=np.zeros((2, 3))), 8)[0],
            kf.SpecError,
            r"field 'x' is float64\[\*, 3\], but float64\[\*\]",
        ),
        (
            lambda: kf.Packed(two(x=np.zeros(2, int)), 8)[0],
            kf.SpecError,
            r"field 'x' is int64\[\*\], but float64\[\*\] in",
        ),
        (lambda: kf.Packed(Texts([3]), 8)[1], IndexError, "index 1 is out of range: Packed of Texts, 1 scene"),
    ],
)
def test_packed_refuses_invalid_arguments_and_scenes(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_an_error_names_the_inner_scene():
    with pytest.raises(kf.SpecError) as caught:
        kf.Packed(two(x=np.zeros(2, int)), 8)[0]
    assert caught.value.__notes__ == ["scene 0 of Packed is scene 1 of list"]
    with pytest.raises(kf.SpecError) as caught:
        kf.Packed(two(label=3), 8)
    assert caught.value.__notes__ == ["while reading the length of scene 1 of list for kf.Packed"]
