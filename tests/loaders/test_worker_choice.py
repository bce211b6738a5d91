"""Which workers suit scenes: arithmetic alone."""

import pytest

from kerasfeed.loaders.auto_workers import Setup, duration, processes_for, threads_for, waits, why


@pytest.mark.parametrize(
    ("seconds", "busy", "threads", "processes"),
    [
        pytest.param(4e-3, 4e-3, 2, 2, id="computes"),
        pytest.param(10e-3, 0.1e-3, 64, 8, id="waits"),
        pytest.param(10e-3, 3e-3, 7, 7, id="waits for two thirds"),
        pytest.param(10e-3, 0.0, 64, 8, id="only waits"),
        pytest.param(0.0, 0.0, 2, 2, id="nothing"),
        pytest.param(5e-5, 1e-6, 2, 2, id="too short to tell"),
    ],
)
def test_the_number_of_workers_suits_the_scenes(seconds, busy, threads, processes):
    assert threads_for(seconds, busy, 2) == threads
    assert processes_for(seconds, busy, 2) == processes
    assert waits(seconds, busy) == (processes > 2)


def test_reasons_name_what_takes_the_time():
    assert why(4e-3, 4e-3) == "a scene takes 4.0 ms and computes for 4.0 ms of it"
    assert why(10e-3, 0.1e-3) == "a scene takes 10 ms and waits for 9.9 ms of it"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1.23e-6, "1.2 us"), (45e-6, "45 us"), (0.9999e-3, "1.0 ms"), (12.3e-3, "12 ms"), (2.34, "2.3 s"), (75, "75 s")],
)
def test_times_are_told_with_two_digits_or_three(seconds, text):
    assert duration(seconds) == text


def test_workers_are_named():
    assert [str(Setup(*each)) for each in ((0, "inline"), (1, "thread"), (4, "process"))] == [
        "no workers", "1 thread", "4 worker processes",
    ]  # fmt: skip
