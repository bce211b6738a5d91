"""Blocks shuffled, scenes mixed within a window: exact, local, computed anywhere."""

import tracemalloc
from itertools import pairwise

import numpy as np
import pytest
import scenes
from hypothesis import given, settings
from hypothesis import strategies as st

import kerasfeed as kf
from kerasfeed.orders.base import Sequential, Shuffled
from kerasfeed.orders.blocks import BlockShuffled
from kerasfeed.orders.plan import Plan


def _epoch(order, length, seed=3, epoch=0):
    return order.indices(0, length, length=length, seed=seed, epoch=epoch)


@pytest.mark.heavy
@settings(deadline=None, max_examples=200)
@given(
    length=st.integers(1, 700),
    block_size=st.integers(1, 90),
    window=st.integers(1, 9),
    seed=st.integers(0, 2**70),
    epoch=st.integers(0, 10**6),
)
def test_every_scene_occurs_exactly_once_for_any_sizes(length, block_size, window, seed, epoch):
    found = _epoch(BlockShuffled(block_size, window=window), length, seed, epoch)
    assert found.dtype == np.int64
    assert np.array_equal(np.sort(found), np.arange(length))


@settings(deadline=None, max_examples=100)
@given(
    length=st.integers(1, 500),
    block_size=st.integers(1, 60),
    window=st.integers(1, 6),
    cuts=st.lists(st.integers(0, 500), min_size=2, max_size=9),
)
def test_indices_in_pieces_equal_the_whole_order(length, block_size, window, cuts):
    order = BlockShuffled(block_size, window=window)
    whole = _epoch(order, length)
    pieces = list(pairwise(sorted(min(cut, length) for cut in cuts)))
    for start, stop in reversed(pieces):
        assert np.array_equal(order.indices(start, stop, length=length, seed=3, epoch=0), whole[start:stop])


@settings(deadline=None, max_examples=100)
@given(length=st.integers(1, 700), block_size=st.integers(1, 60), window=st.integers(1, 6), epoch=st.integers(0, 99))
def test_the_blocks_of_a_window_occur_together_and_only_once(length, block_size, window, epoch):
    blocks = _epoch(BlockShuffled(block_size, window=window), length, epoch=epoch) // block_size
    changes, open_blocks, seen = 0, set(), set()
    for block in blocks.tolist():  # a reader that holds `window` blocks and drops all when it meets another
        if block in open_blocks:
            continue
        if len(open_blocks) == window:
            seen |= open_blocks
            open_blocks = set()
        assert block not in seen
        open_blocks.add(block)
        changes += 1
    assert changes == -(-length // block_size)


def test_epochs_and_seeds_differ_and_each_is_a_function_of_its_arguments():
    order = BlockShuffled(16)
    first = _epoch(order, 1000)
    assert not np.array_equal(first, _epoch(order, 1000, epoch=1))
    assert not np.array_equal(first, _epoch(order, 1000, seed=4))
    assert np.array_equal(first, _epoch(BlockShuffled(16), 1000))


def test_a_scene_is_equally_likely_in_every_part_of_the_epoch():
    length, epochs, parts = 1000, 400, 10
    order = BlockShuffled(50, window=2)
    counts = np.zeros((3, parts))
    for epoch in range(epochs):
        found = _epoch(order, length, epoch=epoch)
        for row, index in enumerate((0, 555, 999)):
            counts[row, int(np.flatnonzero(found == index)[0]) * parts // length] += 1
    expected = epochs / parts
    assert (((counts - expected) ** 2 / expected).sum(axis=1) < 33.7).all()  # 9 degrees of freedom, p = 1e-4


@pytest.mark.heavy
def test_the_short_block_is_equally_likely_at_every_position():
    order, length, epochs = BlockShuffled(100, window=1), 950, 1000
    counts = np.zeros(10)
    for epoch in range(epochs):
        found = _epoch(order, length, epoch=epoch)
        place = int(np.flatnonzero(found >= 900)[0])
        assert (found[place : place + 50] >= 900).all()
        counts[place // 100] += 1
    expected = epochs / 10
    assert ((counts - expected) ** 2 / expected).sum() < 33.7


def test_a_window_of_all_blocks_mixes_like_a_full_shuffle():
    order = BlockShuffled(10, window=100)
    found = np.array([_epoch(order, 1000, epoch=epoch)[:50] for epoch in range(100)])
    counts = np.histogram(found, bins=10, range=(0, 1000))[0]
    assert ((counts - 500) ** 2 / 500).sum() < 33.7


def test_a_huge_sequence_needs_neither_memory_nor_time():
    # A table would take hours and exceed the timeout.
    order, length = BlockShuffled(64), 10**12 + 7
    tracemalloc.start()
    try:
        for epoch, position in enumerate(np.linspace(0, length - 5000, 20).astype(int).tolist()):
            found = order.indices(position, position + 5000, length=length, seed=1, epoch=epoch)
            assert len(np.unique(found)) == 5000
            assert found.min() >= 0
            assert found.max() < length
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()


def test_the_short_block_of_a_huge_sequence_occurs_exactly_once():
    block, full = 100, 70_000  # enough blocks for the computed permutation
    length = block * full + 23
    order = BlockShuffled(block, window=30)
    starts = [*range(0, length, 70_000), length]
    short = sum(
        int((order.indices(a, b, length=length, seed=8, epoch=2) >= block * full).sum()) for a, b in pairwise(starts)
    )
    assert short == 23


def test_mixing_grows_with_the_window_from_0_to_1():
    length = 64_000
    assert Sequential().mixing(length) < 0.001
    assert Shuffled().mixing(length) == pytest.approx(1, abs=0.02)
    found = [BlockShuffled(64, window=window).mixing(length) for window in (1, 2, 4, 16)]
    assert found[0] < 0.02
    assert found[1:] == pytest.approx([1 / 2, 3 / 4, 15 / 16], abs=0.06)
    assert Sequential().mixing(1) == 1.0


def test_block_reads_counts_the_reads_with_that_many_blocks_held():
    length, size = 6400, 64
    order = BlockShuffled(size, window=4)
    assert order.reads_per_epoch(length) == order.block_reads(length, size, held=4) == 100
    assert Sequential().block_reads(length, size, held=1) == 100
    assert Shuffled().block_reads(length, size, held=100) == 100
    assert 5500 < Shuffled().block_reads(length, size, held=4) <= 6400
    assert order.block_reads(length, size, held=1) > 1000
    assert Sequential().block_reads(10**7, size, held=1) == pytest.approx(10**7 / size)


@pytest.mark.parametrize(
    ("block_size", "window", "error", "message"),
    [
        (0, 4, ValueError, "block_size must be at least 1, received 0"),
        (8, 0, ValueError, "window must be at least 1, received 0"),
        (
            2.5,
            4,
            TypeError,
            r"block_size must be an integer, or a dataset that has a block_size .*block_of.*received 2.5",
        ),
        (True, 4, TypeError, "block_size must be an integer"),
        (8, "4", TypeError, "window must be an integer, received '4' of type str"),
    ],
)
def test_arguments_out_of_range_are_refused(block_size, window, error, message):
    with pytest.raises(error, match=message):
        BlockShuffled(block_size, window=window)


def test_block_size_is_taken_from_an_object_that_has_one():
    class Dataset:
        block_size = np.int64(21)

    assert BlockShuffled(Dataset()) == BlockShuffled(21)
    assert hash(BlockShuffled(21)) == hash(BlockShuffled(21, window=4))
    assert repr(BlockShuffled(21)) == "BlockShuffled(block_size=21, window=4)"


def test_all_shards_together_equal_the_epoch():
    order = BlockShuffled(10, window=3)
    plans = [Plan(237, 8, order, 3, False, shard, 3) for shard in range(3)]
    found = [index for plan in plans for step in range(plan.steps) for index in plan.indices(1, step).tolist()]
    assert sorted(found) == list(range(237))


def _labels(feed):
    return [label for _, labels in feed for label in labels.tolist()]


def test_a_feed_accepts_an_order_and_keeps_it_when_pickled():
    import pickle

    order = kf.BlockShuffled(5, window=2)
    with kf.Feed(scenes.Clouds(), 8, order=order, seed=3, workers=2, worker_type="thread") as feed:
        expected = _epoch(order, 37).tolist()
        assert _labels(feed) == expected
        assert "blocks of 5 shuffled, windows of 2, seed 3" in feed._repr_html_()
        with pickle.loads(pickle.dumps(feed)) as copy:
            assert _labels(copy) == expected
    with kf.Feed(scenes.Clouds(), 8, order=kf.Sequential(), workers=0) as feed:
        assert _labels(feed) == list(range(37))
        assert "sequential" in feed._repr_html_()
    with (
        kf.Feed(scenes.Clouds(), 8, order=kf.Shuffled(), seed=3, workers=0) as one,
        kf.Feed(scenes.Clouds(), 8, shuffle=True, seed=3, workers=0) as other,
    ):
        assert _labels(one) == _labels(other)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (
            {"order": BlockShuffled(4), "shuffle": True},
            ValueError,
            r"order=BlockShuffled\(block_size=4, window=4\) and shuffle=True exclude each other.*leave shuffle out",
        ),
        ({"order": BlockShuffled}, TypeError, r"needs an instance.*write BlockShuffled\(\.\.\.\)"),
        (
            {"order": "random"},
            TypeError,
            r"kf.Sequential\(\), kf.Shuffled\(\), kf.BlockShuffled.*a function .length, seed, epoch.*received 'random'",
        ),
    ],
)
def test_an_invalid_order_is_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        kf.Feed(scenes.Clouds(), 8, workers=0, **arguments)
