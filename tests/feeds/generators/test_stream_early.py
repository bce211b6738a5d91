"""Bursts of generators that pause, and copies of a generator."""

import threading

import numpy as np
import pytest
from waits import PROGRAM_SECONDS

import kerasfeed as kf
from kerasfeed.loaders.generators import Generators


@pytest.mark.parametrize("deterministic", [True, False])
def test_all_of_a_burst_comes_while_its_generator_pauses_and_each_scene_once(stream, deterministic):
    go_on = threading.Event()

    def make(n, count):
        yield from ((float(n), k) for k in range(700))
        go_on.wait(PROGRAM_SECONDS)
        yield from ((float(n), k) for k in range(700, 800))

    feed = stream(make, 10, count=2, workers=2, deterministic=deterministic)
    batches = iter(feed)
    found = [(n, k) for _ in range(140) for n, k in zip(*next(batches), strict=True)]
    go_on.set()
    found += [(n, k) for batch in batches for n, k in zip(*batch, strict=True)]
    assert [k for n, k in found if n == 0] == [k for n, k in found if n == 1] == list(range(800))


def test_a_burst_in_a_process_comes_while_its_generator_pauses(stream, tmp_path):
    path = str(tmp_path / "go on")

    def make():
        import pathlib
        import time

        yield from map(float, range(700))
        while not pathlib.Path(path).exists():
            time.sleep(0.01)
        yield 700.0

    batches = iter(stream(make, 100, count=1, workers=1, worker_type="process"))
    assert [batch[-1] for batch in (next(batches) for _ in range(7))] == [99 + 100 * k for k in range(7)]
    (tmp_path / "go on").touch()
    assert [batch.tolist() for batch in batches] == [[700]]


def draws(*, rng):
    while True:
        yield rng.random()


def test_copies_of_an_endless_generator_each_have_random_numbers_of_their_own(stream):
    feed = stream(draws, 8, count=4, copies=True, worker_type="process")
    first = next(iter(feed)).tolist()
    assert len(set(first)) == 8
    assert next(iter(stream(draws, 8, count=4, copies=True, workers=0))).tolist() == first


def test_several_of_a_generator_without_arguments_must_be_asked_for_as_copies():
    with pytest.raises(TypeError, match=r"called as draws\(n, count\).* copies=True to run copies"):
        Generators(draws, 4)
    with pytest.raises(TypeError, match=r"made without arguments, for count=2 copies, and the function takes"):
        Generators(lambda n, count: iter([n]), 2, copies=True)


def test_a_shard_runs_generators_by_the_numbers_that_all_shards_agree_on(stream):
    def make(n, count):
        yield np.float32(10 * count + n)

    with pytest.warns(kf.FeedWarning, match="on shard 1 of 2"):
        assert [batch.tolist() for batch in stream(make, 4, count=5, shard=(1, 2))] == [[51, 53]]
