"""The common behaviour of generators in the calling thread, in threads, and in processes."""

import numpy as np
import optree
import pytest
from scenes_streams import (
    KINDS,
    Drawing,
    all_of,
    counting,
    drawing,
    empty,
    endless,
    failing,
    in_turn,
    leaving,
    new_source,
    reusing,
    until_error,
    varied,
)

from kerasfeed.feeds.stream_merge import Shuffler
from kerasfeed.orders.buffered import BufferShuffled


@pytest.fixture(params=sorted(KINDS))
def source_of(request):
    """Make sources of one kind, which are closed after the test."""
    made = []

    def make(*given, **arguments):
        made.append(new_source(request.param, *given, **arguments))
        return made[-1]

    make.kind = request.param
    yield make
    for source in made:
        source.close()


def test_generators_take_turns_until_they_end(source_of):
    wanted = in_turn(*(counting(n, 4) for n in range(4)))
    source = source_of(counting, 4)
    assert all_of(source) == wanted
    assert all_of(source, 1, limit=1000) == wanted
    assert source.take(5) == []


def test_each_repetition_has_its_own_random_numbers(source_of):
    source = source_of(drawing, 3)
    reference = new_source("inline", drawing, 3)
    for repetition in (0, 1, 0):
        items = all_of(source, repetition)
        assert len(set(items)) == 15
        assert items == all_of(reference, repetition)


def test_self_rng_gives_the_same_numbers_in_every_kind_of_worker(source_of):
    items = all_of(source_of(Drawing().scenes, 2), 3)
    assert len(set(items)) == 8
    assert items == all_of(new_source("inline", Drawing().scenes, 2), 3)


def test_a_shuffle_buffer_may_be_larger_than_the_data():
    source = new_source("inline", lambda: range(30))
    source.begin(0)
    items = list(Shuffler(BufferShuffled(10**12), 0, 0, 0).shuffled(source.each()))
    assert items != sorted(items) == list(range(30))


def test_endless_generators_can_be_stopped_and_started_again(source_of):
    source = source_of(endless, 3)
    for repetition in range(2):
        source.begin(repetition)
        items = []
        while len(items) < 1000:
            items += source.take(1000 - len(items))
        assert items == [(n, k) for k in range(334) for n in range(3)][:1000]
    source.leave()
    source.leave()
    source.begin(2)
    assert source.take(1) == [(0, 0)]


@pytest.mark.parametrize("source_of", ["inline", "thread"], indirect=True)
def test_generators_without_scenes_give_an_empty_repetition(source_of):
    source = source_of(empty, 3)
    assert all_of(source) == []
    assert all_of(source, 1) == []


def test_an_error_comes_after_the_earlier_scenes_and_names_generator_and_scene(source_of):
    source = source_of(failing, 3)
    items, error = until_error(source, 2)
    assert items == in_turn(*([(n, k) for k in range(4 if n == 1 else 6)] for n in range(3)))[: 3 * 4 + 1]
    assert type(error) is LookupError
    assert error.__notes__[0].startswith("kerasfeed: generator 1 of 3, at its scene 4, repetition 2")
    assert source.take(5) == []
    if source_of.kind == "process":
        assert ", in worker process " in error.__notes__[0]
        assert "in failing" in error.__notes__[1]
    items, _ = until_error(source, 3)
    assert len(items) == 13


def test_failures_list_the_index_of_the_scene(source_of):
    source = source_of(failing, 3)
    for repetition in range(2):
        until_error(source, repetition)
    (row,) = source.failure_log.table()
    assert (row.index, row.epoch, row.count, row.exception) == (4 * 3 + 1, 1, 2, "LookupError: no scene 4")


def test_arrays_that_a_generator_reuses_do_not_change(source_of):
    for k, (array, name) in enumerate(all_of(source_of(reusing))):
        assert array.tolist() == [k, k, k]
        assert name.tolist() == [f"name {k}"]


def test_scenes_of_any_type_and_shape_arrive_unchanged(source_of):
    found = all_of(source_of(varied), limit=1000)
    assert len(found) == 300
    for scene, wanted in zip(found, varied(), strict=True):
        leaves, treespec = optree.tree_flatten(scene)
        wanted_leaves, wanted_treespec = optree.tree_flatten(wanted)
        assert treespec == wanted_treespec
        for leaf, other in zip(leaves, wanted_leaves, strict=True):
            np.testing.assert_array_equal(leaf, other)
            assert np.asarray(leaf).dtype == np.asarray(other).dtype
            assert isinstance(leaf, type(other))


def test_generators_are_closed_before_the_next_repetition_and_at_the_end(source_of, tmp_path):
    source = source_of(leaving(tmp_path), 2)
    source.begin(0)
    assert source.take(1) == [0]
    assert source.take(1) == [0]
    source.begin(1)
    assert source.take(1) == [0]
    assert source.take(1) == [0]
    assert len(list(tmp_path.iterdir())) == 2
    source.close()
    assert sorted(path.name[0] for path in tmp_path.iterdir()) == ["0", "0", "1", "1"]
