"""Mixture and split: proportions, passes, sizes, classes; all depend only on their arguments."""

import pickle
import tracemalloc
from collections import Counter

import numpy as np
import pytest
import scenes
from hypothesis import given, settings
from hypothesis import strategies as st

import kerasfeed as kf
from kerasfeed.feeds.base import BaseFeed
from kerasfeed.orders.permutation import permute, permute_one, stream_keys
from kerasfeed.spec.inference import probe_indices

# ---- Mixture


@pytest.mark.heavy
@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 50) | st.floats(0.01, 50)), min_size=1, max_size=9),
    st.integers(0, 1 << 40),
)
def test_every_prefix_of_a_mixture_has_the_proportions_and_every_pass_every_scene(sources, far):
    lengths, weights = zip(*sources, strict=True)
    mixture = kf.Mixture([range(length) for length in lengths], weights, num_scenes=1 << 50)
    shares = np.array(weights, float) / sum(weights)
    routes = [mixture._route(place) for place in range(300)]
    taken = np.zeros(len(lengths), int)
    passes = [[] for _ in lengths]
    for place, (source, inner) in enumerate(routes):
        taken[source] += 1
        passes[source].append(inner)
        assert tuple(taken) == mixture.counts(place + 1)
        assert (abs(taken - shares * (place + 1)) < 2 + 1e-9).all()
    for length, seen in zip(lengths, passes, strict=True):
        for start in range(0, len(seen) - length + 1, length):
            assert sorted(seen[start : start + length]) == list(range(length))
    assert (abs(np.array(mixture.counts(far)) - shares * far) < 2 + 1e-3).all()
    source, _ = mixture._route(far)
    assert np.flatnonzero(np.subtract(mixture.counts(far + 1), mixture.counts(far))).tolist() == [source]


def test_decimal_weights_are_exact():
    mixture = kf.Mixture([range(7), range(3)], [0.7, 0.3])
    assert len(mixture) == 10
    assert kf.Mixture([range(7), range(3)], np.float32([0.7, 0.3])).counts(10**15) == (7 * 10**14, 3 * 10**14)
    assert repr(mixture) == "Mixture of 0.7 of range, 0.3 of range, 10 scenes"
    of_a_tensor = kf.Mixture([range(7), range(3)], lambda epoch: [np.array(0.7), np.array(0.3)], num_scenes=10)
    assert of_a_tensor.counts() == (7, 3)
    later = kf.Mixture([range(7), range(3)], lambda epoch: [True, epoch > 0], num_scenes=10)
    assert [later.counts(epoch=epoch) for epoch in (0, 1)] == [(10, 0), (5, 5)]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 9)), min_size=1, max_size=6))
def test_the_default_length_of_a_mixture_just_covers_every_scene(sources):
    lengths, weights = zip(*sources, strict=True)
    mixture = kf.Mixture([range(length) for length in lengths], weights)
    seen = Counter(mixture._route(place) for place in range(len(mixture)))
    assert len(seen) == sum(lengths)
    assert any(taken < length for taken, length in zip(mixture.counts(len(mixture) - 1), lengths, strict=True))


def test_a_mixture_depends_only_on_its_seed_and_needs_no_table():
    def scenes_of(seed, start=0):
        mixture = kf.Mixture([range(10**12), range(70_000), range(3)], [3, 2, 1], num_scenes=10**12, seed=seed)
        return [mixture._route(place) for place in range(start, start + 200)]

    assert scenes_of(1) == scenes_of(1)
    assert scenes_of(1) != scenes_of(2)
    far = [inner for source, inner in scenes_of(1, 10**12 - 200) if source == 0]
    assert len(set(far)) == len(far)
    assert max(far) > 10**11
    assert kf.Mixture([range(5)] * 2, [1, 1])[:4].sequence._route(0)[1] in range(5)


def test_the_sources_of_a_mixture_are_shuffled_independently():
    mixture = kf.Mixture([range(1000), range(1000)], [1, 1])
    orders = [[inner for source, inner in map(mixture._route, range(2000)) if source == wanted] for wanted in (0, 1)]
    assert sorted(orders[0]) == sorted(orders[1])
    assert orders[0] != orders[1]
    longer = kf.Mixture([range(1000)], [1], num_scenes=2000)
    assert list(longer)[:1000] != list(longer)[1000:]


def harder(epoch):
    return [4, epoch, 0]


def by_epoch(seed=0):
    return kf.Mixture([range(40), range(100, 190), range(200, 203)], harder, num_scenes=24, seed=seed)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_mixture_by_epoch_has_the_proportions_of_each_epoch(workers):
    found = []
    with kf.Feed(by_epoch(), 8, workers=workers, worker_type="thread") as feed:
        for epoch in (0, 2, 4):
            scenes_of_epoch = np.concatenate(list(feed.epoch(epoch)))
            assert len(set(scenes_of_epoch)) == 24
            easy, hard = (scenes_of_epoch < 100).sum(), (scenes_of_epoch >= 100).sum()
            assert (
                (easy, hard, 0) == by_epoch().counts(epoch=epoch) == ((24, 0, 0), (16, 8, 0), (12, 12, 0))[epoch // 2]
            )
            found.append(set(scenes_of_epoch))
            again = np.concatenate([kf.load(feed, epoch=epoch, step=step) for step in range(3)])
            assert np.array_equal(again, scenes_of_epoch)
    assert len(found[0] & found[1]) < 16
    assert np.array_equal(list(by_epoch()), [by_epoch()[index] for index in range(24)])
    assert {int(scene) for scene in by_epoch()} == found[0]


class ReadsAhead(scenes.Clouds):
    def __init__(self, length):
        super().__init__(length)
        self.announced, self.read = [], []

    def read_ahead(self, indices):
        self.announced += indices.tolist()

    def __getitem__(self, index):
        self.read.append(index)
        return super().__getitem__(index)


def test_a_mixture_by_epoch_reads_ahead_the_scenes_of_that_epoch():
    parts = [ReadsAhead(40), ReadsAhead(90)]
    with kf.Feed(kf.Mixture(parts, lambda epoch: [1, epoch], num_scenes=24), 8, workers=0) as feed:
        _ = feed.element_spec
        for part in parts:
            part.announced.clear()
            part.read.clear()
        list(feed.epoch(3))
    for part, count in zip(parts, (6, 18), strict=True):
        assert sorted(part.announced) == sorted(part.read)
        assert len(part.read) == count


def test_a_state_is_refused_after_a_change_of_the_weights_function():
    def softer(epoch):
        return [4, 0, epoch]

    def feed_of(weights):
        mixture = kf.Mixture([range(40), range(90), range(3)], weights, num_scenes=24)
        return kf.Feed(mixture, 8, order=kf.Weighted(lambda epoch: np.full(24, sum(weights(epoch)))), seed=0, workers=0)

    with feed_of(harder) as feed, feed_of(harder) as same, feed_of(softer) as other:
        state = feed.get_state(epoch=1, step=2)
        same.set_state(state)
        with pytest.raises(
            ValueError, match=r"class was Mixture by .*harder.* order was Weighted\(24 weights of .*lambda"
        ):
            other.set_state(state)


def test_a_mixture_by_epoch_cannot_be_cached_but_its_sources_can():
    with pytest.raises(kf.KerasfeedError, match="uses random numbers or the epoch, but a cache would keep"):
        kf.Cached(by_epoch())[0]
    inside = kf.Mixture([kf.Cached(range(5)), range(5)], lambda epoch: [1, epoch], num_scenes=4)
    with kf.Feed(inside, 4, workers=0) as feed:
        assert len(feed[0]) == 4


def test_an_error_of_the_weights_function_names_the_epoch():
    def failing(epoch):
        return [1, 1 / (2 - epoch)]

    with kf.Feed(kf.Mixture([range(5), range(5)], failing, num_scenes=4), 4, workers=0) as feed:
        assert len(feed[0]) == 4
        with pytest.raises(ZeroDivisionError) as caught:
            list(feed.epoch(2))
    assert "failing raised it when called with (2)" in "\n".join(caught.value.__notes__)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([range(3)], lambda epoch: [1]), TypeError, "needs num_scenes if weights is a function: all epochs"),
        (
            ([range(3)], lambda epoch: [0], 3),
            ValueError,
            "weights=.*lambda.* for epoch 0: all are 0, so no scene can",
        ),
        (
            ([range(3)], lambda epoch: [-1], 3),
            ValueError,
            r"weights=.*lambda.* for epoch 0: weight 0 is -1.0, but must be at least 0",
        ),
        (
            ([range(3)], lambda epoch: [1, 2], 3),
            ValueError,
            "1 sequences need 1 weights, received 2 as weights=.*lambda",
        ),
        (
            ([range(3)], lambda epoch: None, 3),
            TypeError,
            "weights=.*lambda.* for epoch 0 must be numbers, one per sequence",
        ),
        (([range(3)], [1, 2]), ValueError, "1 sequences need 1 weights, received 2"),
        (([range(3), range(2)], [1, 0]), ValueError, "weight 1 is 0.0, but must be positive; leave the sequence out"),
        (([range(3)], ["a"]), TypeError, "weights must be numbers, one per sequence"),
        (([range(3)], 1), TypeError, "weights must be numbers, one per sequence"),
        (([range(3), []], [1, 1]), ValueError, r"sequences\[1\], a list, is empty"),
        (([], []), ValueError, "kf.Mixture needs at least one sequence"),
        ((range(3), [1]), TypeError, "needs a list of sequences and a list of weights"),
        (([range(3)], [1], 0), ValueError, "num_scenes must be at least 1, received 0"),
        (([range(3)], [1], 1.5), TypeError, "num_scenes must be an integer, received 1.5"),
        (([range(3)], [1], 3, -1), ValueError, "seed must be at least 0, received -1"),
        (
            ([range(3), range(3)], [1, 10**30]),
            ValueError,
            "more than 4,611,686,018,427,387,904 scenes: pass num_scenes",
        ),
    ],
)
def test_invalid_mixture_arguments_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        kf.Mixture(*arguments)


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 1 << 62), st.integers(0, 5), st.integers(0, 1 << 62))
def test_permute_one_equals_permute_of_an_array(length, seed, position):
    keys = stream_keys(seed, (0, 7))
    expected = permute(np.array([position % length]), length, keys)[0]
    assert permute_one(position % length, length, tuple(keys.tolist())) == expected


# ---- split


@settings(max_examples=100, deadline=None)
@given(st.integers(20, 300), st.lists(st.integers(1, 20), min_size=1, max_size=5), st.integers(0, 5), st.integers(0, 9))
def test_split_gives_disjoint_complete_stratified_parts_of_the_right_sizes(length, shares, classes, seed):
    fractions = [share / sum(shares) for share in shares]
    labels = np.random.default_rng(seed).integers(0, classes, length) ** 2 if classes else None
    if min(fractions) * length < 1:
        return
    parts = kf.split(range(length), fractions, seed, labels)
    indices = [np.asarray(part.indices) for part in parts]
    assert sorted(np.concatenate(indices).tolist()) == list(range(length))
    for part, fraction in zip(indices, fractions, strict=True):
        assert abs(len(part) - fraction * length) < 1
        assert (np.diff(part) > 0).all()
        for label in np.unique(labels) if classes else ():
            members = labels == label
            assert abs(members[part].sum() - fraction * members.sum()) <= 1 + 1e-6
    again = kf.split(range(length), fractions, seed, labels)
    assert all(np.array_equal(one.indices, other.indices) for one, other in zip(parts, again, strict=True))


def _groups(sizes, seed=0):
    """The group of each scene, in random order."""
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(1, 30), min_size=5, max_size=60),
    st.lists(st.integers(1, 20), min_size=1, max_size=5),
    st.integers(0, 4),
    st.integers(0, 9),
)
def test_a_group_is_in_one_part_and_parts_exceed_their_share_by_one_group_at_most(sizes, shares, classes, seed):
    groups = _groups(sizes, seed)
    fractions = [share / sum(shares) for share in shares]
    labels = np.random.default_rng(seed).integers(0, classes, len(groups)) if classes else None
    if min(fractions) * len(groups) < 1:
        return
    parts = kf.split(range(len(groups)), fractions, seed, labels, groups=groups)
    indices = [np.asarray(part.indices) for part in parts]
    assert sorted(np.concatenate(indices).tolist()) == list(range(len(groups)))
    assert all((np.diff(part) > 0).all() and len(part) for part in indices)
    assert len(np.unique(groups)) == sum(len(np.unique(groups[part])) for part in indices)
    if labels is None:
        assert all(
            len(part) <= fraction * len(groups) + max(sizes) for part, fraction in zip(indices, fractions, strict=True)
        )
    again = kf.split(range(len(groups)), fractions, seed, labels, groups=[f"patient {group:02}" for group in groups])
    assert all(np.array_equal(one.indices, other.indices) for one, other in zip(parts, again, strict=True))


def test_groups_of_one_class_are_stratified_as_closely_as_possible():
    sizes = [7, 3, 5, 9, 4, 6, 8, 2, 5, 7] * 12
    groups = _groups(sizes)
    labels = groups % 4 == 0
    for part, fraction in zip(
        kf.split(range(len(groups)), (0.7, 0.2, 0.1), 0, labels, groups=groups), (0.7, 0.2, 0.1), strict=True
    ):
        assert abs(len(part) - fraction * len(groups)) <= 3
        assert abs(labels[part.indices].sum() - fraction * labels.sum()) <= 3


def test_small_parts_receive_one_group_even_if_it_is_larger():
    assert sorted(len(part) for part in kf.split(range(300), (0.98, 0.01, 0.01), 0, groups=_groups([100] * 3))) == [
        100,
        100,
        100,
    ]


def test_groups_can_be_given_by_a_field_or_a_function():
    scans = [(np.zeros(2), {"patient": f"p{number // 3}"}) for number in range(24)]
    by_field = kf.split(scans, (0.5, 0.5), 1, groups="1.patient")
    by_function = kf.split(scans, (0.5, 0.5), 1, groups=lambda scene: scene[1]["patient"])
    patients = [{scene[1]["patient"] for scene in part} for part in by_field]
    assert not patients[0] & patients[1]
    assert [part.indices.tolist() for part in by_field] == [part.indices.tolist() for part in by_function]


@pytest.mark.parametrize("stratify", [None, np.arange(60) % 2])
@pytest.mark.parametrize("groups", [None, np.arange(60) // 5])
def test_every_scene_validates_one_fold_and_trains_the_others(groups, stratify):
    pairs = kf.folds(range(60), 4, seed=3, groups=groups, stratify=stratify)
    assert len(pairs) == 4
    validated = np.concatenate([valid.indices for _, valid in pairs])
    assert sorted(validated.tolist()) == list(range(60))
    for train, valid in pairs:
        assert len(valid) == 15
        assert sorted([*train.indices, *valid.indices]) == list(range(60))
        if groups is not None:
            assert not set(groups[train.indices]) & set(groups[valid.indices])
        if stratify is not None:
            assert 5 <= stratify[valid.indices].sum() <= 10
    expected = kf.split(range(60), [1 / 4] * 4, 3, stratify, groups=groups)
    assert [valid.indices.tolist() for _, valid in pairs] == [part.indices.tolist() for part in expected]


def test_folds_of_a_part_contain_only_its_scenes():
    rest, _ = kf.split(range(100, 130), (0.5, 0.5), seed=0)
    pairs = list(kf.folds(rest, 3, seed=1))
    assert len(pairs) == 3
    for train, valid in pairs:
        assert sorted([*train, *valid]) == sorted(rest)
    assert sorted(scene for _, valid in pairs for scene in valid) == sorted(rest)


def test_folds_are_computed_one_by_one():
    tracemalloc.start()
    try:
        pairs = kf.folds(range(1000), 1000, seed=0)
        assert sorted(len(train) for train, _ in pairs) == [999] * 1000
        assert tracemalloc.get_traced_memory()[1] < 3e6  # all of them would be 8 MB
    finally:
        tracemalloc.stop()
    assert len(pairs) == 1000
    assert [valid.indices.tolist() for _, valid in pairs[-2:]] == [pairs[k][1].indices.tolist() for k in (998, 999)]


def test_many_groups_and_classes_need_memory_only_for_their_pairs():
    numbers = np.arange(8000)
    tracemalloc.start()
    try:
        parts = kf.split(numbers, (0.5, 0.5), seed=0, groups=numbers // 2, stratify=numbers)
        assert tracemalloc.get_traced_memory()[1] < 20e6  # a table of groups and classes would be 256 MB
    finally:
        tracemalloc.stop()
    assert [len(part) for part in parts] == [4000, 4000]
    assert all(len(set(part.indices // 2)) == 2000 for part in parts)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"count": 1}, ValueError, "count must be at least 2, received 1"),
        ({"count": 40}, ValueError, "Clouds has 37 scenes, too few for 40 folds"),
        ({"seed": -1}, ValueError, "seed must be at least 0, received -1"),
        ({"groups": [0, 1]}, ValueError, r"groups needs one label per scene: Clouds has 37 scenes, .* shape \(2,\)$"),
        (
            {"groups": [0] * 37},
            ValueError,
            "groups= contains 1 group, too few for 3 parts, because no group is in two of them",
        ),
        ({"groups": [None] * 37}, TypeError, "groups must be all numbers, or all text, so that they can be sorted"),
        ({"groups": "7"}, ValueError, "a scene has no field '7': it has '0', '1'"),
        ({"stratify": np.zeros((37, 2))}, ValueError, "For one-hot labels use labels.argmax"),
    ],
)
def test_invalid_folds_arguments_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        kf.folds(scenes.Clouds(37), **{"count": 3, "seed": 0, **arguments})


def test_largest_remainders_are_exact():
    assert [len(part) for part in kf.split(range(10), (0.8, 0.1, 0.1), 0)] == [8, 1, 1]
    assert [len(part) for part in kf.split(range(101), (1 / 3, 1 / 3, 1 / 3), 0)] == [34, 34, 33]
    assert [len(part) for part in kf.split(range(7), (0.5, 0.5), 0)] == [4, 3]


def test_each_scene_is_equally_likely_in_a_part_over_seeds():
    first = np.zeros(20)
    for seed in range(400):
        part, _ = kf.split(range(20), (0.25, 0.75), seed)
        first[part.indices] += 1
    # Binomial(400, 1/4): 100 in the mean, deviation 8.7; the largest of 20 exceeds 4.5 deviations once in 10,000 runs.
    assert abs(first - 100).max() < 39
    assert first.sum() == 2000


def test_classes_can_be_given_by_labels_a_field_or_a_function():
    clouds = [(np.zeros(2), {"kind": label}) for label in ["wall", "door", "door", "wall", "door", "door"] * 4]
    by_field, by_function, by_labels = (
        kf.split(clouds, (0.5, 0.5), 1, stratify)
        for stratify in ("1.kind", lambda scene: scene[1]["kind"], [scene[1]["kind"] for scene in clouds])
    )
    for part in by_field:
        assert Counter(scene[1]["kind"] for scene in part) == {"door": 8, "wall": 4}
    pairs = [scene["kind"] for _, scene in clouds]
    for one, two in zip(by_field, kf.split(list(zip(range(24), pairs, strict=True)), (0.5, 0.5), 1, 1), strict=True):
        assert np.array_equal(one.indices, two.indices)
    for one, two, three in zip(by_field, by_function, by_labels, strict=True):
        assert np.array_equal(one.indices, two.indices)
        assert np.array_equal(one.indices, three.indices)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (((0.8, 0.1), 0), ValueError, "must sum to 1, but .* leave 0.1 over: add a part for it"),
        (((0.8, 0.3), 0), ValueError, "must sum to 1, but .* are 0.1 too much"),
        (((30, 7), 0), ValueError, r"fractions\[0\] is 30.0, .* for a count, pass count / len\(sequence\)"),
        (((1, 0), 0), ValueError, r"fractions\[1\] is 0.0, but must be in \(0, 1\]"),
        ((0.5, 0), TypeError, r"fractions must be numbers, one per part, for example \(0.8, 0.2\), received 0.5"),
        (((0.99, 0.01), 0), ValueError, "Clouds has 37 scenes, too few .*: part 1 would be empty"),
        (((0.5, 0.5), None), TypeError, "seed must be an integer, received None"),
        (((0.5, 0.5), -1), ValueError, "seed must be at least 0, received -1"),
        (
            ((0.5, 0.5), 0, [1, 2]),
            ValueError,
            r"one label per scene: Clouds has 37 scenes, received labels of shape",
        ),
        (((0.5, 0.5), 0, "2"), ValueError, "a scene has no field '2': it has '0', '1'"),
        (((0.5, 0.5), 0, 0), ValueError, r"field 0 of a scene must be a single value, received shape \(4, 3\)"),
        (((0.5, 0.5), 0, np.zeros((37, 2))), ValueError, r"labels of shape \(37, 2\). For one-hot labels"),
    ],
)
def test_invalid_split_arguments_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        kf.split(scenes.Clouds(37), *arguments)


@pytest.mark.parametrize("dtype", [float, object])
def test_scenes_without_a_group_value_are_refused(dtype):
    patients = np.array([1, np.nan, 1, 2, np.nan, 3] * 4, dtype)  # NumPy sorts them apart in an object array
    with pytest.raises(ValueError, match="groups has no value for scene 1, nan: give every scene a value, or leave"):
        kf.split(range(24), (0.5, 0.5), 0, groups=patients)


def test_an_error_while_labels_are_read_names_the_scene():
    with pytest.raises(ZeroDivisionError) as caught:
        kf.split([1, 0], (0.5, 0.5), 0, lambda scene: 1 / scene)
    assert caught.value.__notes__ == ["while reading the label of scene 1 of list for kf.split"]


# ---- very many scenes


def test_a_split_of_billions_of_scenes_needs_no_memory():
    tracemalloc.start()
    billions = range(2_500_000_000)
    train, valid = kf.split(billions, (0.8, 0.2), seed=0)
    assert (len(train), len(valid)) == (2_000_000_000, 500_000_000)
    assert [len(part) for part in kf.split(billions, [1 / 3] * 3, seed=1)] == [833333334, 833333333, 833333333]
    near, far = list(train[:1000]), list(train[-1000:])
    held_out = list(valid[::500_000])
    assert len(set(near + far + held_out)) == 3000
    assert abs(np.mean(near + far + held_out) / 2.5e9 - 0.5) < 0.05
    assert valid[7] == valid.indices[7] == pickle.loads(pickle.dumps(valid[5:]))[2:3][0]
    with BaseFeed(kf.Zip(train, train), 4, workers=0, shuffle=True, seed=0) as feed:
        one, other = feed.submit(0, 10**8).result()
        assert one.tolist() == other.tolist() == [train[index] for index in feed.plan.indices(0, 10**8)]
    again, _ = kf.split(valid, (0.5, 0.5), seed=0)
    assert list(again[:3]) == [valid[index] for index in again.indices[:3]]
    assert kf.Subset(valid, [3, 3]).indices.tolist() == [valid[3], valid[3]]
    assert kf.Subset(billions, valid.indices)[9] == valid[9]
    assert tracemalloc.get_traced_memory()[1] < 20 << 20
    tracemalloc.stop()


def test_sizes_of_a_split_are_exact_at_any_length():
    for length in (1 << 62, (1 << 62) - 1, 10**15 + 1):
        for fractions in ((0.5, 0.5), (0.7, 0.2, 0.1), (1 / 3, 2 / 3)):
            sizes = [len(part) for part in kf.split(range(length), fractions, seed=0)]
            assert sum(sizes) == length
            assert sizes[0] == pytest.approx(length * fractions[0], abs=1, rel=1e-15)


@pytest.mark.parametrize("length", [1, 2, 4, 5, 6, 1000, (1 << 53) + 1, 1 << 62])
def test_probed_scenes_are_spread_over_any_length_from_the_first_to_the_last(length):
    probes = probe_indices(length)
    assert len(probes) == min(5, length)
    assert (probes[0], probes[-1]) == (0, length - 1)
    assert sorted(set(probes)) == probes
    with BaseFeed(range(length), 1, workers=0) as feed:
        assert feed.submit(0, length - 1).result() == [length - 1]
    assert kf.Shuffled().mixing(length) >= 0


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: BaseFeed(range(1 << 63), 4), ValueError, r"len\(range\) must be at most 2\*\*63 - 1"),
        (lambda: kf.Subset([1, 2], [0, 1 << 70]), IndexError, r"indices\[1\] is 1180591620717411303424, out of range"),
        (lambda: kf.Subset([1, 2], [-(1 << 70)]), IndexError, r"indices\[0\] is -1180591620717411303424, out of range"),
        (lambda: kf.BlockShuffled(1 << 70), ValueError, "block_size must be at most 4,611,686,018,427,387,904"),
        (lambda: kf.Weighted([1], num_scenes=1 << 70), ValueError, "num_scenes must be at most 4,611,686"),
        (lambda: kf.Packed([{"x": [1]}], 1 << 70), ValueError, "length must be at most 2,147,483,647"),
        (lambda: kf.split([1, 2], (10**400, 1), seed=0), TypeError, "fractions must be numbers"),
    ],
)
def test_too_large_numbers_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()
