"""Blocks named scene by scene: of unequal size, at any position, each read once."""

import pickle
from itertools import pairwise

import numpy as np
import pytest
import scenes
from hypothesis import given, settings
from hypothesis import strategies as st
from order_checks import epoch_of

import kerasfeed as kf
from kerasfeed.orders.plan import Plan

NAMES = np.random.default_rng(0).integers(0, 50, 4000) ** 2 // 40  # 50 names, some of them equal, spread over the range


@pytest.mark.heavy
@settings(deadline=None, max_examples=100)
@given(
    names=st.lists(st.integers(-4, 9), min_size=1, max_size=200),
    window=st.integers(1, 6),
    cuts=st.lists(st.integers(0, 200), min_size=2, max_size=6),
    epoch=st.integers(0, 99),
)
def test_every_scene_occurs_once_and_the_blocks_of_a_window_together(names, window, cuts, epoch):
    order, length = kf.BlockShuffled(block_of=names, window=window), len(names)
    whole = epoch_of(order, length, epoch=epoch)
    assert whole.dtype == np.int64
    assert sorted(whole.tolist()) == list(range(length))
    cuts = sorted(min(cut, length) for cut in cuts)
    for start, stop in pairwise(cuts):
        assert np.array_equal(order.indices(start, stop, length=length, seed=3, epoch=epoch), whole[start:stop])
    open_blocks, seen, reads = set(), set(), 0
    for block in np.array(names)[whole].tolist():
        if block not in open_blocks:
            if len(open_blocks) == window:
                seen |= open_blocks
                open_blocks = set()
            assert block not in seen
            open_blocks.add(block)
            reads += 1
    assert reads == order.reads_per_epoch(length) == len(set(names))


def test_the_report_compares_reads_and_mixing_with_a_full_shuffle():
    report = kf.BlockShuffled(block_of=NAMES, window=4).report()
    blocks = len(np.unique(NAMES))
    assert (report.scenes, report.blocks, report.reads) == (4000, blocks, blocks)
    assert report.shuffled_reads > 3000
    assert report.mixing == pytest.approx(3 / 4, abs=0.12)
    assert report.shuffled_mixing == pytest.approx(1, abs=0.03)
    assert f"reads per epoch {blocks} (full shuffle {report.shuffled_reads:,})" in str(report)
    even = kf.BlockShuffled(64, window=4).report(64_000)
    assert (even.blocks, even.reads) == (1000, 1000)
    assert even.shuffled_reads == pytest.approx(64_000 * (1 - 4 / 1000), rel=0.01)
    assert even.mixing == pytest.approx(3 / 4, abs=0.06)
    assert "mixing 0.7" in str(even)


def test_blocks_can_be_named_by_strings_or_a_function():
    numbers = [index % 3 for index in range(30)]
    orders = [
        kf.BlockShuffled(block_of=numbers),
        kf.BlockShuffled(block_of=[f"file {number}" for number in numbers]),
        kf.BlockShuffled(block_of=lambda index: index % 3),
    ]
    first, *others = [epoch_of(order, 30).tolist() for order in orders]
    assert others == [first, first]
    assert str(orders[0]) == "3 blocks shuffled, windows of 4"
    assert repr(orders[1]) == "BlockShuffled(block_of=<3 blocks>, window=4)"
    assert "<lambda>" in str(orders[2])


def test_a_block_function_is_called_once_per_index_and_can_be_pickled():
    called = []

    def block_of(index):
        called.append(index)
        return index // 7

    order = kf.BlockShuffled(block_of=block_of, window=2)
    whole = epoch_of(order, 40)
    epoch_of(order, 40, epoch=1)
    assert called == list(range(40))
    copy = pickle.loads(pickle.dumps(kf.BlockShuffled(block_of=lambda index: index // 7, window=2)))
    assert np.array_equal(epoch_of(copy, 40), whole)


def test_orders_are_equal_if_and_only_if_they_name_the_same_blocks():
    one, same, other = (kf.BlockShuffled(block_of=names) for names in ([1, 1, 2], ["a", "a", "b"], [1, 2, 2]))
    assert one == same == pickle.loads(pickle.dumps(one))
    assert hash(one) == hash(same)
    assert one != other
    assert one.identity() != other.identity() != kf.BlockShuffled(2).identity()
    assert one != kf.BlockShuffled(block_of=[1, 1, 2], window=2)


def _failing(index):
    return [0, 1][index]


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: kf.BlockShuffled(), TypeError, "either block_size .* or block_of .*, received neither"),
        (lambda: kf.BlockShuffled(4, block_of=[1]), TypeError, "received both"),
        (lambda: kf.BlockShuffled(np.arange(4)), TypeError, "pass an array of the block of each scene as block_of"),
        (lambda: kf.BlockShuffled(block_of=[1.5]), TypeError, "block_of must be integers, booleans or strings"),
        (
            lambda: kf.BlockShuffled(block_of=[]),
            ValueError,
            r"block_of must be one name per scene.*received shape \(0,\)",
        ),
        (lambda: kf.BlockShuffled(4).report(), TypeError, r"fits sequences of any length: write report\(length\)"),
        (
            lambda: kf.Feed(scenes.Clouds(), 8, order=kf.BlockShuffled(block_of=[1, 2])),
            ValueError,
            "block_of has 2 entries, but the sequence has 37 scenes",
        ),
    ],
)
def test_invalid_block_names_are_refused(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_an_error_of_the_block_function_names_the_index():
    with pytest.raises(IndexError) as caught:
        kf.BlockShuffled(block_of=_failing).num_scenes(5)
    assert "block_of=_failing raised it when called with (2)" in caught.value.__notes__


def test_a_feed_and_its_shards_accept_named_blocks():
    order = kf.BlockShuffled(block_of=np.arange(37) % 5, window=2)
    with kf.Feed(scenes.Clouds(), 8, order=order, seed=3, workers=2, worker_type="thread") as feed:
        assert [label for _, labels in feed for label in labels.tolist()] == epoch_of(order, 37).tolist()
    plans = [Plan(37, 4, order, 3, False, shard, 3) for shard in range(3)]
    found = [index for plan in plans for step in range(plan.steps) for index in plan.indices(1, step).tolist()]
    assert sorted(found) == list(range(37))
