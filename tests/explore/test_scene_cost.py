"""What a scene costs, and what follows from that: arithmetic alone."""

import pytest

from kerasfeed.explore.profiling.scene_cost import SceneCost


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
    assert cost(apart=4e-3, cores=8).predict(8, "process") == pytest.approx(2000, rel=0.02)


def test_as_many_scenes_that_wait_are_loaded_at_once_as_there_are_workers():
    assert WAITING.predict(1, "thread") == pytest.approx(100, rel=0.02)
    assert WAITING.predict(16, "thread") == WAITING.predict(16, "process") == pytest.approx(1600, rel=0.02)
    assert WAITING.predict(0, "inline") == WAITING.predict(1, "thread")


def test_batches_cost_something_where_scenes_are_tiny():
    tiny = cost(1e-6, apart=0.6e-6, collate=1e-7)
    assert tiny.predict(2, "process", 64) > 10 * tiny.predict(2, "process", 1)


def test_a_scene_without_cost_is_no_error():
    nothing = cost(0.0, apart=0.0, collate=0.0)
    assert nothing.predict(2, "thread", 32) > 0
