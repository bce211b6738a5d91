"""Generators of one function: calls, errors, and the same run in the calling thread."""

import functools
import threading

import numpy as np
import pytest
from scenes_streams import Source, all_of, counting, drawing, in_turn, new_source, until_error

from kerasfeed.errors import SceneError
from kerasfeed.loaders.generators import Generators


class Scans:
    """A typical user's class."""

    def __init__(self, number=3):
        self.number = number

    def generate_data(self, shuffle=True, scale=1):
        for k in range(self.number):
            yield k * scale, shuffle


def with_others(path, n, count):
    return iter([(path, n, count)])


def three(a, b, c):
    return iter([a])


def scenes_of(*arguments):
    return all_of(Source(Generators(*arguments)))


def test_make_generator_may_be_a_method_without_arguments():
    assert scenes_of(Scans().generate_data) == [(0, True), (1, True), (2, True)]


def test_make_generator_gets_the_number_and_the_count():
    assert scenes_of(lambda n, count: [(n, count)], 3) == [(0, 3), (1, 3), (2, 3)]
    assert scenes_of(lambda n, count: [(n, count)], 1) == [(0, 1)]
    assert scenes_of(functools.partial(with_others, "a.h5"), 2) == [("a.h5", 0, 2), ("a.h5", 1, 2)]
    assert scenes_of(lambda *arguments: [arguments], 2) == [(0, 2), (1, 2)]


def test_make_generator_may_return_any_iterable():
    assert scenes_of(lambda: np.arange(3)) == [0, 1, 2]
    assert scenes_of(lambda n, count: range(n + 1), 2) == [0, 0, 1]


def test_the_parameter_rng_gets_a_generator_of_random_numbers():
    source = new_source("inline", drawing, 2)
    first, second = all_of(source, 0), all_of(source, 1)
    assert len({*first, *second}) == 20
    assert all_of(source, 0) == first
    assert all_of(new_source("inline", drawing, 2, seed=8)) != first


def test_the_parameter_start_gets_the_first_scene_to_yield():
    def starting(n, count, start=0):
        return iter(range(start, 5))

    assert list(Generators(starting, 2).make(0, 0, 3)) == [3, 4]
    for start, left in ((5, [(0, 5), (0, 6)]), (50, [])):
        source = new_source("inline", counting)
        source.begin(0, start)
        assert source.take(7) == left


def images(folder, batch_size):
    yield folder, batch_size


@pytest.mark.parametrize(
    ("made", "count", "message"),
    [
        (counting(0, 1), 1, r"is a generator, which .* only once.*counting and not counting\(\.\.\.\)"),
        (iter([1]), 1, r"is a list_iterator, which .* only once: pass the function.*lambda: iter\(items\)"),
        ((k for k in [1]), 1, "is a generator, which can .* only once: .* without calling it, or"),
        (None, 1, "must be a function .* received a NoneType"),
        ([1, 2], 1, r"received a list\. For a sequence that can be indexed use kf\.Feed"),
        (three, 2, r"called as three\(n, count\), .* takes three\(a, b, c\). Wrap it"),
        (images, 1, r"called as images\(n, count\), .* takes images\(folder, batch_size\). Wrap it: lambda: images"),
        (Scans().generate_data, 2, r"takes Scans\.generate_data\(shuffle=True, scale=1\).*files\[n::count\]"),
        (three, 1, "A function without arguments needs count=1"),
        (list, 3, "the function takes list"),
    ],
    ids=[
        "generator",
        "iterator",
        "expression",
        "none",
        "list",
        "three",
        "own",
        "method",
        "three alone",
        "list class",
    ],
)
def test_a_wrong_make_generator_raises_an_error_with_a_remedy(made, count, message):
    with pytest.raises(TypeError, match=message):
        Generators(made, count)


def test_count_must_be_at_least_1():
    with pytest.raises(ValueError, match=r"count must be at least 1, received 0 .the number of generators"):
        Generators(counting, 0)


def test_lists_and_dicts_that_a_generator_reuses_do_not_change():
    def reusing():
        parameters = {"paths": []}
        for k in range(3):
            parameters["paths"].append(k)
            yield parameters

    assert [len(each["paths"]) for each in scenes_of(reusing)] == [1, 2, 3]


async def asynchronous():
    yield 1


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda: None, "returned a NoneType. Is a `yield` or a `return` missing"),
        (lambda: 5, "must return a generator of scenes, .* returned a int"),
        (lambda: counting, "returned a function"),
        (lambda: {"x": 1}, "returned a dict"),
        (lambda: "abc", "returned a str"),
        (asynchronous, "asynchronous must return .*`async def`"),
    ],
    ids=["none", "number", "function", "dict", "text", "async"],
)
def test_a_function_that_returns_no_iterable_raises_an_error_with_a_remedy(made, message):
    _, error = until_error(Source(Generators(made)))
    assert isinstance(error, TypeError)
    with pytest.raises(TypeError, match=message):
        raise error


def test_a_stop_iteration_in_make_generator_is_an_error():
    _, error = until_error(Source(Generators(lambda: next(iter([])))))
    assert isinstance(error, SceneError)
    assert "StopIteration" in str(error)


def test_system_exit_in_a_generator_is_an_error_and_does_not_end_the_program():
    def leaving():
        yield 1
        raise SystemExit(3)

    items, error = until_error(Source(Generators(leaving)))
    assert items == [1]
    assert isinstance(error, SceneError)
    assert "generator 0 raised SystemExit: 3" in str(error)


def test_a_running_generator_is_closed_when_its_consumer_stops():
    inside, released, ended = threading.Event(), threading.Event(), threading.Event()

    def waiting():
        try:
            inside.set()
            released.wait(30)
            yield 1
        finally:
            ended.set()

    source = Source(Generators(waiting))
    source.begin(0)
    found = []
    taker = threading.Thread(target=lambda: found.extend(source.take(5)))  # and ends it when it has noticed
    taker.start()
    assert inside.wait(30)
    source.leave()
    released.set()
    taker.join(30)
    assert found == []
    assert ended.is_set()
    assert source.take(5) == []


def test_the_reference_for_turns_is_right():
    assert in_turn("ab", "", "cde") == ["a", "c", "b", "d", "e"]


class OneBuffer:
    """Generators that fill the same memory for each scene; every second scene has no room in the block of the first."""

    def __init__(self):
        self.memory = np.zeros(1_000_000, np.uint8)

    def make(self, n, count):
        for number in range(40):
            self.memory[:] = 100 * n + number
            yield self.memory[: 990_000 if number % 2 else 100_000]


@pytest.mark.parametrize("kind", ["inline", "thread", "process"])
def test_generators_that_share_one_buffer_do_not_overwrite_each_others_scenes(kind):
    source = new_source(kind, OneBuffer().make, 2, workers=int(kind != "inline"))
    found = all_of(source)
    source.close()
    assert [int(scene[0]) for scene in found] == [100 * n + number for number in range(40) for n in range(2)]
    assert all(scene.min() == scene.max() for scene in found)
