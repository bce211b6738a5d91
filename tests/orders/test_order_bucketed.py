"""Batches of similar length: one bucket each, every scene once, shuffled steps, little padding."""

import pickle

import numpy as np
import pytest
import scenes
from hypothesis import given, settings
from hypothesis import strategies as st

import kerasfeed as kf
from kerasfeed.adapters.keras.input_monitor import scenes_of
from kerasfeed.loaders.arguments import check_plan
from kerasfeed.orders.plan import Plan

LENGTHS = np.random.default_rng(0).gamma(2, 100, 5000).astype(int)
BOUNDARIES = [100, 200, 400]


@settings(deadline=None, max_examples=120)
@given(
    lengths=st.lists(st.integers(0, 50), min_size=1, max_size=150),
    boundaries=st.lists(st.integers(0, 60), min_size=1, max_size=4, unique=True).map(sorted),
    sizes=st.one_of(st.none(), st.lists(st.integers(1, 9), min_size=5, max_size=5)),
    shards=st.integers(1, 3),
    remainder=st.sampled_from(["keep", "drop", "pad"]),
    epoch=st.integers(0, 50),
)
def test_a_batch_has_one_bucket_and_all_shards_together_equal_the_epoch(
    lengths, boundaries, sizes, shards, remainder, epoch
):
    lengths = np.array(lengths)
    sizes = sizes and sizes[: len(boundaries) + 1]
    order = kf.Bucketed(lengths, boundaries, sizes)
    plans = [
        Plan(len(lengths), 4, order, 3, remainder == "drop", shard, shards, remainder == "pad")
        for shard in range(shards)
    ]
    bucket_of = np.searchsorted(boundaries, lengths, side="right")
    assert len({plan.steps for plan in plans}) == 1
    found = []
    for step in range(plans[0].steps):
        real = []
        for plan in plans:
            indices = plan.indices(epoch, step)
            assert len(indices) <= plan.rows
            real += indices[: len(indices) - plan.padding_rows(epoch, step)].tolist()
            if remainder == "pad" and plan.is_uniform:
                assert len(indices) == plan.rows
        assert len(set(bucket_of[real].tolist())) == 1
        bucket = bucket_of[real[0]]
        full = (sizes[bucket] if sizes else 4) * shards
        assert len(real) == full or (len(real) < full and remainder != "drop")
        found += real
    assert len(found) == len(set(found)) == plans[0].batches.kept
    if remainder != "drop":
        assert sorted(found) == list(range(len(lengths)))


def test_the_scenes_of_a_step_do_not_depend_on_the_number_of_shards():
    order = kf.Bucketed(LENGTHS, BOUNDARIES)
    whole, halves = Plan(5000, 16, order, 9), [Plan(5000, 8, order, 9, False, shard, 2) for shard in (0, 1)]
    for step in range(whole.steps):
        joined = np.concatenate([plan.indices(2, step) for plan in halves])
        assert np.array_equal(joined, whole.indices(2, step))


def test_members_and_steps_are_reshuffled_every_epoch():
    plan = Plan(5000, 16, kf.Bucketed(LENGTHS, BOUNDARIES), 9)
    bucket_of = np.searchsorted(BOUNDARIES, LENGTHS, side="right")
    turns = [[int(bucket_of[plan.indices(epoch, step)[0]]) for step in range(plan.steps)] for epoch in (0, 1)]
    assert sorted(turns[0]) == sorted(turns[1])
    assert turns[0] != turns[1]
    changes = sum(one != other for one, other in zip(turns[0], turns[0][1:], strict=False))
    assert changes > plan.steps / 2  # the buckets are mixed
    batches = [{frozenset(plan.indices(epoch, step).tolist()) for step in range(plan.steps)} for epoch in (0, 1)]
    assert not batches[0] & batches[1]


def _padding(batches):
    values = sum(len(batch) * LENGTHS[batch].max() for batch in batches)
    return 1 - LENGTHS.sum() / values


@pytest.mark.parametrize("sizes", [None, [64, 32, 16, 8]])
def test_the_reported_padding_equals_that_of_the_batches(sizes):
    order = kf.Bucketed(LENGTHS, BOUNDARIES, sizes)
    report = order.report(None if sizes else 32, seed=5, epoch=1)
    plan = Plan(5000, 32, order, 5)
    assert report.steps == plan.steps
    assert report.padded == pytest.approx(_padding([plan.indices(1, step) for step in range(plan.steps)]))
    full = Plan(5000, report.batch_size, kf.Shuffled(), 5)
    assert report.shuffled_padded == pytest.approx(_padding([full.indices(1, step) for step in range(full.steps)]))
    assert report.saved == pytest.approx(1 - (1 - report.shuffled_padded) / (1 - report.padded))
    assert report.padded < 0.35 < 0.6 < report.shuffled_padded
    assert f"{report.padded:.1%} padding (full shuffle in batches of {report.batch_size}" in str(report)


def test_empty_buckets_and_zero_lengths_are_supported():
    order = kf.Bucketed([0, 0, 0, 500], [10, 20])
    plan = Plan(4, 2, order)
    assert order.bucket_sizes == (3, 0, 1)
    assert plan.steps == 3
    assert order.report(2).padded == 0.0
    assert kf.Bucketed([0, 0], [10]).report(2).saved == 0.0


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (
            lambda: kf.Bucketed([1, 2], []),
            ValueError,
            r"must be one or more ascending integers, received \[\]",
        ),
        (lambda: kf.Bucketed([1, 2], [5, 5]), ValueError, r"ascending integers, received \[5, 5\].*k \+ 1 buckets"),
        (lambda: kf.Bucketed([1, 2], 5), TypeError, "boundaries must be a list of integers, received 5"),
        (lambda: kf.Bucketed([1, 2], [5.5]), TypeError, r"boundaries\[0\] must be an integer, received 5.5"),
        (lambda: kf.Bucketed([1, 2], [5], [4]), ValueError, "one integer per bucket, 2 for 1 boundaries .*received 1"),
        (lambda: kf.Bucketed([1, 2], [5], [4, 0]), ValueError, r"batch_sizes\[1\] must be at least 1, received 0"),
        (lambda: kf.Bucketed([1.5, 2], [5]), TypeError, r"lengths must be integers, received float64 \(.*1.5"),
        (lambda: kf.Bucketed([1, -2], [5]), ValueError, "at least 0 and below 2[*][*]63, received -2 at index 1"),
        (lambda: kf.Bucketed([[1]], [5]), ValueError, r"received shape \(1, 1\)"),
        (lambda: kf.Bucketed([1, 2], [5]).report(), TypeError, r"this order has none: write report\(batch_size\)"),
        (
            lambda: kf.Feed(scenes.Clouds(), 8, order=kf.Bucketed([1, 2], [5])),
            ValueError,
            "lengths has 2 entries, but the sequence has 37 scenes",
        ),
        (
            lambda: kf.Feed(scenes.Clouds(), None, order=kf.Bucketed(range(37), [5], [4, 4])),
            ValueError,
            "batches of up to 4 items, but with batch_size=None every item .* is a batch already",
        ),
        (
            lambda: check_plan(Plan(9, 2, kf.Bucketed(range(9), [5]), shard_count=2), "raise"),
            ValueError,
            "the short step of a bucket has 1 scene for 2 shards: one would have none.*pad_remainder=True",
        ),
        (
            lambda: check_plan(Plan(9, 40, kf.Bucketed(range(9), [5]), drop_remainder=True), "raise"),
            ValueError,
            "drops every scene: an epoch has 9 scenes and a step takes 40",
        ),
    ],
)
def test_invalid_lengths_and_boundaries_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_bucketed_orders_are_equal_if_and_only_if_they_give_the_same_order():
    one = kf.Bucketed([1, 2, 30], [5])
    assert one == kf.Bucketed([1, 3, 30], [5]) == pickle.loads(pickle.dumps(one))  # the same buckets, so the same order
    assert hash(one) == hash(kf.Bucketed([1, 3, 30], [5]))
    assert one != kf.Bucketed([1, 20, 30], [5])
    assert one != kf.Bucketed([1, 2, 30], [5], [4, 4])


class Words(kf.SceneSequence):
    """Scenes with the lengths `LENGTHS`."""

    def __len__(self):
        return 300

    def __getitem__(self, index):
        return np.int64(index), np.int64(LENGTHS[index])


@pytest.mark.parametrize("sizes", [None, [8, 6, 4, 2]])
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_have_the_size_of_their_bucket(sizes, workers):
    order = kf.Bucketed(LENGTHS[:300], BOUNDARIES, sizes)
    with kf.Feed(Words(), 8, order=order, seed=2, workers=workers, worker_type="thread", drop_remainder=True) as feed:
        shape = (8,) if sizes is None else (None,)
        assert feed.element_spec[0].shape == shape
        assert "4 buckets by length" in feed._repr_html_()
        batches = list(feed)
        assert len(batches) == len(feed)
        for _, lengths in batches:
            (bucket,) = set(np.searchsorted(BOUNDARIES, lengths, side="right").tolist())
            assert len(lengths) == (sizes[bucket] if sizes else 8)


def test_the_input_monitor_counts_the_scenes_of_buckets():
    order = kf.Bucketed(LENGTHS[:300], BOUNDARIES, [8, 6, 4, 2])
    with kf.Feed(Words(), 8, order=order, seed=2, workers=0) as feed:
        assert scenes_of(feed.plan, len(feed)) == 300
