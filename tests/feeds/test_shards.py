"""Shards: together exactly the epoch, with equally many steps; the shard of a feed, and its source."""

import math
import pickle
import re
from dataclasses import dataclass, field, replace
from itertools import accumulate
from types import SimpleNamespace

import numpy as np
import pytest
import scenes
from hypothesis import given, settings
from hypothesis import strategies as st

import kerasfeed as kf
from kerasfeed.feeds import sharding as shards
from kerasfeed.feeds.sharding import Shard
from kerasfeed.orders.base import Bounds, Order
from kerasfeed.orders.custom import CustomOrder
from kerasfeed.orders.plan import Plan


@dataclass(frozen=True)
class Staircase:
    """Like `EpochBatches`: batches of 1, 2, 3 times `unit` scenes and so on in turn; the last may be short."""

    scenes: int
    unit: int
    is_even = False

    @property
    def _sizes(self):
        sizes, left = [], self.scenes
        while left > 0:
            sizes.append(self.unit * (1 + len(sizes) % 3))
            left -= sizes[-1]
        return sizes

    @property
    def _starts(self):
        return [0, *accumulate(self._sizes)]

    @property
    def steps(self):
        return len(self._sizes)

    @property
    def full(self):
        return max(self._sizes)

    @property
    def _real(self):
        bounds = [self.bounds(step, seed=0, epoch=0) for step in range(self.steps)]
        return [each.stop - each.start for each in bounds]

    @property
    def largest(self):
        return max(self._real)

    @property
    def smallest(self):
        return min(self._real)

    @property
    def kept(self):
        return self.scenes

    @property
    def has_one_size(self):
        return len(set(self._sizes)) == 1

    def bounds(self, step, *, seed, epoch):
        start, size = self._starts[step], self._sizes[step]
        return Bounds(start, min(start + size, self.scenes), size)


@dataclass(frozen=True)
class Stairs(Order):
    """Another order in batches of unequal size."""

    of: Order = field(default_factory=kf.Shuffled)

    def indices(self, start, stop, *, length, seed, epoch):
        return self.of.indices(start, stop, length=length, seed=seed, epoch=epoch)

    def batches(self, length, batch_size, shard_count, drop_remainder):
        return Staircase(self.num_scenes(length), batch_size * shard_count)


# Every order that fits any length: what holds below holds for all.
ORDERS = [
    kf.Sequential(),
    kf.Shuffled(),
    kf.BlockShuffled(3, window=2),
    kf.BlockShuffled(block_of=lambda index: index % 5, window=2),
    CustomOrder(lambda length, seed, epoch: (np.arange(length) * -1 - epoch) % length),
    Stairs(),
]
_plans = st.builds(
    Plan,
    length=st.integers(1, 60),
    batch_size=st.integers(1, 9),
    order=st.sampled_from(ORDERS),
    seed=st.integers(0, 5),
    drop_remainder=st.just(False),
    shard_count=st.integers(1, 5),
    pad_remainder=st.booleans(),
)


def _all(plan):
    return [replace(plan, shard_index=shard) for shard in range(plan.shard_count)]


def _own(plan, epoch, step):
    """Indices of a step without padding rows."""
    found = plan.indices(epoch, step)
    return found[: len(found) - plan.padding_rows(epoch, step)].tolist()


# ---- plans


@settings(deadline=None, max_examples=200)
@given(plan=_plans, epoch=st.integers(0, 3))
def test_shards_of_any_order_agree_on_the_steps_and_together_are_the_epoch_in_its_order(plan, epoch):
    assert len({shard.steps for shard in _all(plan)}) == 1
    found = [index for step in range(plan.steps) for shard in _all(plan) for index in _own(shard, epoch, step)]
    order = plan.order.indices(0, plan.scenes, length=plan.length, seed=plan.seed, epoch=epoch)
    assert found == order.tolist()
    assert sum(shard.scenes_of(0, step) for shard in _all(plan) for step in range(plan.steps)) == plan.scenes


@settings(deadline=None, max_examples=200)
@given(plan=_plans, epoch=st.integers(0, 3))
def test_padding_rows_complete_a_batch_with_scenes_of_the_same_global_batch(plan, epoch):
    plan = replace(plan, pad_remainder=True)
    for step in range(plan.steps):
        together = {index for shard in _all(plan) for index in _own(shard, epoch, step)}
        bounds = plan.batches.bounds(step, seed=plan.seed, epoch=epoch)
        for shard in _all(plan):
            found = shard.indices(epoch, step).tolist()
            assert len(found) == bounds.full // plan.shard_count <= plan.rows
            own = _own(shard, epoch, step)
            assert set(found) == set(own) if own else set(found) <= together
            assert len(own) == shard.scenes_of(epoch, step)
    if plan.is_uniform:
        assert {len(shard.indices(epoch, step)) for shard in _all(plan) for step in range(plan.steps)} == {plan.rows}


@pytest.mark.parametrize("order", ORDERS, ids=repr)
@pytest.mark.parametrize("pad", [False, True])
@pytest.mark.parametrize("length", [1, 7, 23, 24, 29])
def test_the_scenes_of_every_step_do_not_depend_on_the_shard_count(order, pad, length):
    def steps(shard_count):
        plan = Plan(length, 12 // shard_count, order, 9, False, 0, shard_count, pad)
        return [[index for shard in _all(plan) for index in _own(shard, 2, step)] for step in range(plan.steps)]

    assert steps(1) == steps(2) == steps(3) == steps(4) == steps(12)


def test_without_padding_rows_a_short_batch_is_divided_as_evenly_as_possible():
    plan = Plan(19, 4, kf.Sequential(), shard_count=3)
    assert [len(shard.indices(0, 1)) for shard in _all(plan)] == [2, 2, 3]
    assert not plan.is_uniform


def test_an_empty_step_of_a_shard_is_filled_from_the_global_batch():
    plan = Plan(13, 2, kf.Sequential(), shard_index=0, shard_count=6, pad_remainder=True)
    assert plan.indices(0, 1).tolist() == [12, 12]
    assert plan.padding_rows(0, 1) == 2


# ---- a feed's arguments


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"shard": "first"}, ValueError, 'shard must be "auto", a pair (shard_index, shard_count), or the tf.distr'),
        ({"shard": 3}, TypeError, "received 3 of type int"),
        ({"shard": (1, 2, 3)}, TypeError, "received (1, 2, 3) of type tuple"),
        ({"shard": (2, 2)}, ValueError, "shard_index must be below shard_count (2), received 2"),
        ({"shard": (0.0, 2)}, TypeError, "shard_index must be an integer, received 0.0 of type float"),
        ({"shard": (0, 0)}, ValueError, "shard_count must be at least 1, received 0"),
        (
            {"shard": "auto", "shard_count": 2},
            ValueError,
            "shard='auto' cannot be combined with shard_index or shard_count: pass one or the other",
        ),
        ({"num_processes": 2}, TypeError, "Feed() has no argument 'num_processes'. Use shard_count, or shard=\"auto\""),
        (
            {"shard": (0, 3), "shuffle": True, "seed": None},
            ValueError,
            "3 shards of a shuffled epoch need the same seed: otherwise each draws a different order",
        ),
        (
            {"pad_remainder": True, "drop_remainder": True},
            ValueError,
            "drop_remainder=True and pad_remainder=True exclude each other",
        ),
        ({"pad_remainder": True, "batch_size": None}, ValueError, "pad_remainder=True needs a batch_size"),
        ({"pad_remainder": True, "on_error": "skip"}, ValueError, "on_error='skip' removes rows: use"),
        ({"batch_size": 2, "shard": (0, 6)}, ValueError, "the last step has 1 scene for 6 shards: one would"),
    ],
)  # fmt: skip
def test_invalid_shard_arguments_are_refused(arguments, error, message):
    arguments = {"batch_size": 4, "seed": 0, **arguments}
    with pytest.raises(error, match=re.escape(message)):
        kf.Feed(scenes.Clouds(37), **arguments)


def test_shards_in_sequence_need_no_seed():
    with kf.Feed(scenes.Clouds(40), 4, shard=(0, 3), workers=0) as feed:
        assert feed.shard == Shard(0, 3)


@pytest.mark.parametrize(
    "given",
    [(1, 3), [1, np.int64(3)], Shard(1, 3), SimpleNamespace(input_pipeline_id=1, num_input_pipelines=3)],
    ids=["pair", "list", "shard", "context"],
)
def test_a_shard_may_be_given_in_several_ways(given):
    sharded = kf.Feed(scenes.Clouds(40), 4, shuffle=True, seed=3, workers=0, shard=given)
    plain = kf.Feed(scenes.Clouds(40), 4, shuffle=True, seed=3, workers=0, shard_index=1, shard_count=3)
    with sharded, plain:
        assert sharded.plan == plain.plan
        assert (sharded.shard.index, sharded.shard.count) == (1, 3)


def test_a_feed_names_its_shard_and_the_source_of_the_number():
    context = SimpleNamespace(input_pipeline_id=1, num_input_pipelines=3)
    with kf.Feed(scenes.Clouds(40), 4, workers=0, shard=context, pad_remainder=True) as feed:
        assert "4 steps, shard 1 of 3 (tf.distribute.InputContext), no workers" in repr(feed)
        page = feed._repr_html_()
        assert "1 of 3 (tf.distribute.InputContext)" in page
        assert "filled up, with weight 0" in page
    with kf.Feed(scenes.Clouds(40), 4, workers=0) as feed:
        assert "shard" not in repr(feed) + feed._repr_html_()
        assert "filled up" not in feed._repr_html_()


# ---- pickling


def _copy(feed):
    return pickle.loads(pickle.dumps(feed))


def test_a_pickled_feed_keeps_its_given_shard(monkeypatch):
    with kf.Feed(scenes.Clouds(40), 4, workers=0, shard=(2, 3), pad_remainder=True) as feed, _copy(feed) as copy:
        assert copy.plan == feed.plan
        assert copy.shard == feed.shard
    context = SimpleNamespace(input_pipeline_id=1, num_input_pipelines=3, unpicklable=lambda: None)
    with kf.Feed(scenes.Clouds(40), 4, workers=0, shard=context) as feed, _copy(feed) as copy:
        assert copy.shard == Shard(1, 3, "tf.distribute.InputContext")


def test_a_pickled_feed_detects_its_shard_again_if_it_is_automatic(monkeypatch):
    answers = iter([(0, 2), (1, 2)])
    monkeypatch.setattr(shards, "_SOURCES", {"a test": lambda: next(answers)})
    with kf.Feed(scenes.Clouds(40), 4, workers=0, shuffle=True, seed=1, shard="auto") as feed, _copy(feed) as copy:
        assert (feed.shard, copy.shard) == (Shard(0, 2, "auto: a test"), Shard(1, 2, "auto: a test"))
        assert copy.plan == replace(feed.plan, shard_index=1)


def test_a_padded_plan_has_the_steps_of_the_global_batches():
    for length in range(1, 30):
        plan = Plan(length, 4, pad_remainder=True, shard_count=3)
        assert plan.steps == math.ceil(length / 12)
        assert plan.is_uniform
