"""Copies of a generator, and their numbers on shards."""

import numpy as np
import pytest

import kerasfeed as kf
from kerasfeed.loaders.generators import Generators


def draws(*, rng):
    while True:
        yield rng.random()


def test_each_copy_of_an_endless_generator_has_its_own_random_numbers(stream):
    feed = stream(draws, 8, count=4, copies=True, worker_type="process")
    first = next(iter(feed)).tolist()
    assert len(set(first)) == 8
    assert next(iter(stream(draws, 8, count=4, copies=True, workers=0))).tolist() == first


def test_several_generators_without_arguments_need_copies():
    with pytest.raises(TypeError, match=r"called as draws\(n, count\).* copies=True to run copies"):
        Generators(draws, 4)
    with pytest.raises(TypeError, match=r"made without arguments, for count=2 copies, and the function takes"):
        Generators(lambda n, count: iter([n]), 2, copies=True)


def test_shards_agree_on_the_numbers_of_generators(stream):
    def make(n, count):
        yield np.float32(10 * count + n)

    with pytest.warns(kf.FeedWarning, match="on shard 1 of 2"):
        assert [batch.tolist() for batch in stream(make, 4, count=5, shard=(1, 2))] == [[51, 53]]
