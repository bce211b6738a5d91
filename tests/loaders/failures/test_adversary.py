"""For any arguments, every loader delivers the batches of the inline loader, and every scene exactly once per epoch."""

import os
from contextlib import closing

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loader_kinds import InlineLoader, ProcessLoader, ThreadLoader
from scenes_drawn import Drawn, assert_same

from kerasfeed.loaders.base import Job
from kerasfeed.loaders.failures.failure_log import FailurePolicy
from kerasfeed.orders.base import Sequential, Shuffled
from kerasfeed.orders.blocks import BlockShuffled
from kerasfeed.orders.bucketed import Bucketed
from kerasfeed.orders.plan import Plan

# A worker process takes 0.3 s to start, so few examples have some by default.
EXAMPLES = float(os.environ.get("KERASFEED_TEST_EXAMPLES", "1"))
LOADERS = {"thread": (ThreadLoader, int(60 * EXAMPLES)), "process": (ProcessLoader, int(4 * EXAMPLES))}

shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
dtypes = st.sampled_from(
    ["bool", "int8", "uint16", ">i4", "int64", "uint64", "float16", "float32", "float64", "complex64", "text", "bytes"]
)


def orders(length):
    """Orders with every scene once."""
    numbers = st.lists(st.integers(0, 5), min_size=length, max_size=length)
    return st.one_of(
        st.just(Sequential()),
        st.just(Shuffled()),
        st.builds(BlockShuffled, st.integers(1, 9), window=st.integers(1, 4)),
        st.builds(BlockShuffled, block_of=numbers, window=st.integers(1, 4)),
        st.builds(Bucketed, numbers, st.just([2, 4])),
        st.builds(Bucketed, numbers, st.just([3]), st.tuples(st.integers(1, 12), st.integers(1, 12))),
    )


@st.composite
def plans(draw):
    """A plan of one shard; the others differ only in `shard_index`."""
    length, shards = draw(st.integers(1, 50)), draw(st.integers(1, 3))
    order = draw(orders(length))
    plan = Plan(length, draw(st.integers(1, 12)), order, draw(st.integers(0, 9)), draw(st.booleans()), 0, shards)
    if not plan.steps or plan.batches.smallest < shards:  # a feed refuses it
        return Plan(length, plan.batch_size, plan.order, plan.seed)
    return plan


def _shards(plan):
    for shard in range(plan.shard_count):
        yield Plan(plan.length, plan.batch_size, plan.order, plan.seed, plan.drop_remainder, shard, plan.shard_count)


def _end(future):
    """The outcome of a batch: the batch, or its error."""
    try:
        return future.result(timeout=30)
    except ValueError as error:
        return error


def _assert_same_end(one, other):
    if isinstance(one, ValueError):
        assert (type(one), str(one)) == (type(other), str(other))
    else:
        assert_same(one, other)


@pytest.mark.heavy
@pytest.mark.parametrize("kind", LOADERS)
def test_every_loader_equals_the_inline_loader_for_random_arguments(kind):
    make, examples = LOADERS[kind]

    @settings(deadline=None, max_examples=examples, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(
        plan=plans(),
        fields=st.lists(st.tuples(shapes, dtypes), min_size=1, max_size=4),
        nesting=st.sampled_from(["tuple", "dict", "list", "deep"]),
        bad=st.sets(st.integers(0, 49), max_size=3),
        random=st.booleans(),
        workers=st.integers(1, 4),
        slots=st.integers(2, 20),
        on_error=st.sampled_from(["raise", "replace", "skip"]),
    )
    def check(plan, fields, nesting, bad, random, workers, slots, on_error):
        policy = FailurePolicy(on_error, max_failures=50)
        sequence = Drawn(plan.length, fields, nesting, bad, random)
        for shard in _shards(plan):
            with closing(InlineLoader(Job(sequence, shard, 1, 1 << 30, 1, policy))) as reference:
                try:
                    assert reference.spec
                except ValueError:  # one of the first scenes is bad
                    continue
                most = slots * reference.layout.nbytes
                with closing(make(Job(sequence, shard, workers, most, 4, policy))) as loader:
                    for epoch in (0, 3):
                        futures = [loader.submit(epoch, step) for step in range(shard.steps)]
                        for step, future in enumerate(futures):
                            _assert_same_end(_end(reference.submit(epoch, step)), _end(future))

    check()


@pytest.mark.heavy
@pytest.mark.parametrize("kind", LOADERS)
def test_all_shards_together_deliver_every_scene_once_per_epoch(kind):
    make, examples = LOADERS[kind]

    @settings(deadline=None, max_examples=examples, suppress_health_check=list(HealthCheck), derandomize=True)
    @given(plan=plans(), workers=st.integers(1, 4), epoch=st.integers(0, 5))
    def check(plan, workers, epoch):
        sequence = Drawn(plan.length, [((), "int64")], "tuple")
        found = []
        for shard in _shards(plan):
            with closing(make(Job(sequence, shard, workers, 1 << 30, 4))) as loader:
                for future in [loader.submit(epoch, step) for step in range(shard.steps)]:
                    found += future.result(timeout=30)[0].tolist()
        # All different: 7 times the index, modulo a prime above the length.
        expected = [sequence[index][0].item() for index in range(plan.length)]
        if plan.drop_remainder:
            assert len(found) == plan.batches.kept
            assert len(set(found)) == len(found)
        else:
            assert sorted(found) == sorted(expected)

    check()
