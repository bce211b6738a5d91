"""`kf.show` of orders: the right points, in a figure that does not affect others."""

import numpy as np
import pytest
import scenes

import kerasfeed as kf
from kerasfeed.explore.show.show import points_of
from kerasfeed.orders.custom import CustomOrder
from kerasfeed.orders.plan import Plan

pytest.importorskip("matplotlib", reason="needs the extra `plot`")

ORDERS = [
    kf.Sequential(),
    kf.Shuffled(),
    kf.BlockShuffled(64),
    kf.BlockShuffled(block_of=np.arange(300) % 7),
    kf.Weighted(np.arange(300)),
    kf.Balanced(np.arange(300) > 280),
    kf.Bucketed(np.arange(300), [100, 200]),
    lambda length, seed, epoch: np.arange(length)[::-1],
]


def _drawn(figure):
    (axes,) = figure.axes
    return axes, np.asarray(axes.collections[0].get_offsets()).astype(int)


@pytest.mark.parametrize("order", ORDERS, ids=range(len(ORDERS)))
@pytest.mark.parametrize("batch_size", [None, 16])
def test_an_order_is_drawn_as_the_indices_at_their_positions(order, batch_size):
    axes, points = _drawn(kf.show(order, 300, batch_size, seed=3, epoch=2))
    assert np.array_equal(points[:, 0], np.arange(len(points)))
    plan = Plan(300, batch_size or 300, CustomOrder(order, 3) if callable(order) else order, 3)
    if batch_size is None:
        expected = plan.order.indices(0, 300, length=300, seed=3, epoch=2)
    else:
        expected = np.concatenate([plan.indices(2, step) for step in range(plan.steps)])
    assert points[:, 1].tolist() == expected.tolist()
    assert str(plan.order)[1:] in axes.get_title()
    assert "mixing " in axes.get_title()
    assert axes.get_xlabel() == "position in epoch 2"


def test_the_length_defaults_to_the_length_of_the_order_or_1000():
    assert len(_drawn(kf.show(kf.Weighted(np.ones(77))))[1]) == 77
    assert len(_drawn(kf.show(kf.Shuffled()))[1]) == 1000


@pytest.mark.parametrize("batch_size", [None, 32, 10_000])
def test_a_long_epoch_is_drawn_as_a_few_thousand_points(batch_size):
    positions, indices, _ = points_of(Plan(10**9, batch_size, kf.Sequential(), 0), 0)
    assert 3000 < len(positions) <= 4000
    assert positions.max() > 0.99e9
    assert np.array_equal(positions, indices)


def test_the_plan_of_a_feed_is_drawn_with_its_batches_and_its_shard():
    with kf.Feed(
        scenes.Clouds(), 4, shuffle=True, seed=5, shard_index=1, shard_count=2, pad_remainder=True, workers=0
    ) as feed:
        axes, points = _drawn(kf.show(feed.plan))
        plan = feed.plan
        expected = [plan.indices(0, step)[: 4 - plan.padding_rows(0, step)] for step in range(plan.steps)]
        assert points[:, 1].tolist() == np.concatenate(expected).tolist()
        assert axes.get_title().startswith("Shuffled, 5 batches, shard 1 of 2; mixing ")
        with pytest.raises(TypeError, match="a plan has its length, batch_size and seed"):
            kf.show(feed.plan, batch_size=8)


def test_show_returns_a_png_and_does_not_change_pyplot():
    import matplotlib.pyplot as plt

    before = plt.get_fignums()
    figure = kf.show(kf.Shuffled())
    assert figure._repr_png_().startswith(b"\x89PNG")
    assert plt.get_fignums() == before
    own, axes = plt.subplots()
    try:
        assert kf.show(kf.Shuffled(), axes=axes) is own
    finally:
        plt.close(own)


@pytest.mark.parametrize("order", ["shuffled", kf.Shuffled, 5])
def test_show_refuses_objects_that_it_cannot_draw(order):
    message = r"kf.show draws a sequence of scenes, a feed, or an order such as kf.Shuffled\(\); received "
    with pytest.raises(TypeError, match=message):
        kf.show(order)


def test_show_tells_how_to_open_a_file_instead_of_its_path():
    with pytest.raises(TypeError, match=r"such as kf\.Shuffled\(\); .* Open a file first: kf\.HDF5File\(path\)"):
        kf.show("rooms.h5")


def test_an_order_of_another_length_is_refused():
    with pytest.raises(ValueError, match="weights has 2 entries, but the sequence has 3 scenes"):
        kf.show(kf.Weighted([1, 1]), 3)
