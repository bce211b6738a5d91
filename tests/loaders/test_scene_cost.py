"""What a scene costs, and what follows from that: arithmetic alone."""

import json

import pytest

from kerasfeed.loaders.scene_cost import SceneCost
from kerasfeed.loaders.worker_choice import (
    WORKER_TYPE,
    WORKERS,
    Setup,
    best,
    duration,
    processes_for,
    setups,
    threads_for,
    why,
)

BOTH = frozenset([WORKERS, WORKER_TYPE])


def cost(seconds=4e-3, cpu=None, *, apart, threads=2, collate=1e-5, cores=2):
    return SceneCost(seconds, seconds if cpu is None else cpu, collate, threads, apart, 64, 20, cores)


GIL = cost(apart=4e-3)
FREE = cost(apart=2.01e-3)
WAITING = cost(10e-3, 0.1e-3, apart=10e-3 / 16, threads=16)


def test_what_does_not_overlap_holds_the_gil():
    assert (GIL.gil_seconds, GIL.free_seconds, GIL.waiting_seconds) == (4e-3, 0.0, 0.0)


def test_what_overlaps_computes_without_the_gil():
    assert FREE.gil_seconds == pytest.approx(0, abs=1e-4)
    assert FREE.free_seconds == pytest.approx(4e-3, rel=0.05)


def test_what_needs_no_processor_waits():
    assert WAITING.waiting_seconds == pytest.approx(9.9e-3)
    assert WAITING.gil_seconds <= 0.1e-3


def test_the_parts_of_a_scene_add_up():
    for each in (GIL, FREE, WAITING, cost(cpu=1e-3, apart=None)):
        assert each.waiting_seconds + each.gil_seconds + each.free_seconds == pytest.approx(each.seconds)


def test_threads_do_not_help_scenes_that_hold_the_gil_and_processes_do_up_to_the_cores():
    assert GIL.predict(8, "thread") == pytest.approx(250, rel=0.02)
    assert GIL.predict(2, "process") == GIL.predict(8, "process") == pytest.approx(500, rel=0.02)
    assert GIL.predict(8, "process", cores=8) == pytest.approx(2000, rel=0.02)


def test_as_many_scenes_that_wait_are_loaded_at_once_as_there_are_workers():
    assert WAITING.predict(1, "thread") == pytest.approx(100, rel=0.02)
    assert WAITING.predict(16, "thread") == WAITING.predict(16, "process") == pytest.approx(1600, rel=0.02)
    assert WAITING.predict(0, "inline") == WAITING.predict(1, "thread")


def test_batches_cost_something_where_scenes_are_tiny():
    tiny = cost(1e-6, apart=0.6e-6, collate=1e-7)
    assert tiny.predict(2, "process", 64) > 10 * tiny.predict(2, "process", 1)


def test_what_one_thread_reads_first_from_a_file_does_not_count_where_threads_find_it_in_a_cache():
    cold = cost(20e-3, apart=0.5e-3, collate=0.0)
    assert cold.under_way().seconds == pytest.approx(1e-3)
    assert cold.under_way().free_seconds == pytest.approx(1e-3)
    for each in (GIL, FREE, WAITING, cost(apart=None)):
        assert each.under_way() == each


def test_a_scene_without_cost_is_no_error():
    nothing = cost(0.0, apart=0.0, collate=0.0)
    assert nothing.predict(2, "thread", 32) > 0
    assert duration(nothing.total_seconds) == "0.0 us"
    assert why(nothing)


@pytest.mark.parametrize(
    ("each", "threads", "processes"), [(GIL, 2, 2), (FREE, 2, 2), (WAITING, 64, 8)], ids=["gil", "free", "waiting"]
)
def test_the_number_of_workers_suits_the_scenes(each, threads, processes):
    assert threads_for(each, each.cores) == threads
    assert processes_for(each, each.cores) == processes


def test_only_what_is_free_is_chosen():
    present = Setup(3, "process")
    assert {each.workers for each in setups(WAITING, present, frozenset([WORKER_TYPE]))} == {3}
    assert {each.worker_type for each in setups(WAITING, present, frozenset([WORKERS]))} == {"process"}
    assert Setup(64, "thread") in setups(WAITING, present, BOTH)
    assert all(each.worker_type == "process" for each in setups(WAITING, present, BOTH, threads=False))
    assert setups(WAITING, present, BOTH)[0] == present


def test_the_first_is_kept_where_others_are_faster_by_noise_alone():
    present, other = Setup(2, "process"), Setup(2, "thread")
    assert best({present: 100.0, other: 105.0}) == present
    assert best({present: 100.0, other: 120.0}) == other


def test_reasons_name_what_takes_the_time():
    assert why(GIL) == "a scene takes 4.0 ms and holds the GIL for 4.0 ms of it"
    assert why(WAITING) == "a scene takes 10 ms and waits for 9.9 ms of it"


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
    json.dumps([GIL.predict(2, "thread")])
