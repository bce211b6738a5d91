"""The full shuffle: a permutation as uniform as NumPy's, without a table at any length."""

import tracemalloc

import numpy as np
import pytest
import scenes
from order_checks import STATISTICS, by_distance, by_neighbour, by_position, epoch_of

import kerasfeed as kf
from kerasfeed.orders import permutation as permute
from kerasfeed.orders.permutation import EXACT_BELOW, SMALL_ROUNDS, permute_each, stream_keys

BOUND = 4.5  # standard deviations: a correct shuffle exceeds it with a chance of 5e-4 at most, and the draws are fixed
DRAWN, COMPUTED = 2_000, EXACT_BELOW + 9_001


def _epochs(kind, length, count=12):
    rng = np.random.default_rng(5)
    if kind == "ours":
        return [epoch_of(kf.Shuffled(), length, seed=7, epoch=epoch) for epoch in range(count)]
    if kind == "numpy":
        return [rng.permutation(length) for _ in range(count)]
    if kind == "rotation":
        return [(np.arange(length) + rng.integers(length)) % length for _ in range(count)]
    found = []  # each scene of even index, in random order, followed by its neighbour
    for _ in range(count):
        first = rng.permutation(length // 2) * 2
        found.append(np.stack([first, first + 1], 1).ravel())
    return found


@pytest.mark.parametrize("length", [DRAWN, COMPUTED])
@pytest.mark.parametrize("statistic", STATISTICS)
@pytest.mark.parametrize("kind", ["ours", "numpy"])
def test_positions_and_neighbours_are_as_uniform_as_in_numpy_permutations(kind, statistic, length):
    assert abs(statistic(_epochs(kind, length), length)) < BOUND


@pytest.mark.parametrize("length", [DRAWN, COMPUTED])
@pytest.mark.parametrize(
    ("kind", "statistic"), [("rotation", by_neighbour), ("rotation", by_distance), ("couples", by_neighbour)]
)
def test_an_order_that_is_not_a_shuffle_fails_the_same_statistic(kind, statistic, length):
    assert abs(statistic(_epochs(kind, length), length)) > 10 * BOUND


@pytest.mark.parametrize("length", [10**9, 10**12])
@pytest.mark.parametrize("kind", ["ours", "numpy"])
def test_a_huge_shuffle_is_uniform(kind, length):
    starts = np.linspace(0, length - 4096, 16).astype(np.int64).tolist()
    order, rng = kf.Shuffled(), np.random.default_rng(5)
    runs = [
        order.indices(start, start + 4096, length=length, seed=7, epoch=0)
        if kind == "ours"
        else rng.integers(length, size=4096)
        for start in starts
    ]
    assert abs(by_position([np.concatenate(runs)], length)) < BOUND
    assert abs(by_neighbour(runs, length)) < BOUND
    assert abs(by_distance(runs, length)) < BOUND


@pytest.mark.parametrize("length", [10**9, 10**12])
def test_a_huge_shuffle_computes_only_the_requested_indices(length, monkeypatch):
    computed = []

    def counting(positions, *rest):
        computed.append(len(positions))
        return permute.permute.original(positions, *rest)

    counting.original = permute.permute
    monkeypatch.setattr(permute, "permute", counting)
    order = kf.Shuffled()
    tracemalloc.start()
    try:
        for start in np.linspace(0, length - 32, 25).astype(np.int64).tolist():
            found = order.indices(start, start + 32, length=length, seed=91, epoch=4)
            assert len(np.unique(found)) == 32
        assert tracemalloc.get_traced_memory()[1] < 4e6
    finally:
        tracemalloc.stop()
    assert sum(computed) <= 50 * 2048


@pytest.mark.parametrize("length", [10**9, 10**12])
def test_a_huge_shuffle_has_no_repeats(length):
    starts = np.linspace(0, length - 20_000, 10).astype(np.int64).tolist()
    order = kf.Shuffled()
    found = np.concatenate([order.indices(s, s + 20_000, length=length, seed=1, epoch=3) for s in starts])
    assert len(np.unique(found)) == 200_000
    assert 0 <= found.min() <= found.max() < length


@pytest.mark.parametrize("length", [EXACT_BELOW - 1, EXACT_BELOW, EXACT_BELOW + 1, 2 * EXACT_BELOW + 1])
def test_small_and_large_shuffles_contain_every_scene_once_in_a_new_order(length):
    epochs = [epoch_of(kf.Shuffled(), length, epoch=epoch) for epoch in range(3)]
    for found in epochs:
        assert np.array_equal(np.sort(found), np.arange(length))
    for one, other in ((0, 1), (0, 2), (1, 2)):
        assert (epochs[one] == epochs[other]).sum() < 12  # 1 on average


def test_the_seed_of_an_order_overrides_the_seed_of_the_feed():
    own = kf.Shuffled(9)
    assert np.array_equal(epoch_of(own, 100, seed=1), epoch_of(kf.Shuffled(), 100, seed=9))
    assert (str(kf.Shuffled()), str(own)) == ("shuffled", "shuffled with seed 9")
    assert (repr(kf.Shuffled()), repr(own)) == ("Shuffled()", "Shuffled(9)")
    assert kf.Shuffled().identity() != own.identity()
    with kf.Feed(scenes.Clouds(), 8, order=own, seed=1, workers=0) as feed:
        assert "shuffled with seed 9" in repr(feed)
        assert "seed 1" not in feed._repr_html_()
    with kf.Feed(scenes.Clouds(), 8, order=own, shard=(0, 2), workers=0) as feed:  # shards need share no other seed
        assert feed.plan.indices(0, 0).tolist() == epoch_of(own, 37).tolist()[:8]


@pytest.mark.parametrize(
    ("seed", "error", "message"),
    [
        (-1, ValueError, "seed must be at least 0, received -1"),
        (0.5, TypeError, "seed must be an integer, received 0.5"),
    ],
)
def test_an_invalid_seed_is_refused(seed, error, message):
    with pytest.raises(error, match=message):
        kf.Shuffled(seed)


@pytest.mark.parametrize("length", [1, 2, 3, 5, 8, 100, 4097])
def test_permute_each_gives_one_permutation_per_tweak(length):
    rng = np.random.default_rng(0)
    for tweak in rng.integers(2**40, size=3).tolist():
        positions = np.arange(length)
        found = permute_each(
            positions, np.full(length, length), np.full(length, tweak), stream_keys(1, (7, tweak % 5), SMALL_ROUNDS)
        )
        assert np.array_equal(np.sort(found), positions)


@pytest.mark.heavy
@pytest.mark.parametrize("length", [2, 3, 4, 5, 6, 7, 10])
def test_small_permutations_are_uniform_and_consecutive_ones_independent(length):
    many = 100_000
    tweaks = np.repeat(np.arange(many), length)
    positions = np.tile(np.arange(length), many)
    keys = stream_keys(3, (7, 0), SMALL_ROUNDS)
    found = permute_each(positions, np.full(len(tweaks), length), tweaks, keys).reshape(many, length)
    numbers = {
        "first": found[:, 0],
        "first two": found[:, 0] * length + found[:, 1],
        "last two": found[:, -1] * length + found[:, -2],
        "first and the next's first": found[:-1, 0] * length + found[1:, 0],
    }
    possible = [length, length * (length - 1), length * (length - 1), length**2]
    for (what, values), count in zip(numbers.items(), possible, strict=True):
        counts = np.unique(values, return_counts=True)[1]
        expected = len(values) / count
        assert len(counts) == count, what
        freedom = count - 1
        statistic = ((counts - expected) ** 2 / expected).sum()
        assert statistic < freedom + 4.5 * np.sqrt(2 * freedom) + 8, what  # p < 1e-4
