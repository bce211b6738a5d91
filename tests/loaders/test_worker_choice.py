"""The choice of workers for scenes, as pure arithmetic."""

import sys

import pytest

from kerasfeed.loaders.auto_workers import Setup, choose, duration, processes_for, threads_for, waits, why
from kerasfeed.loaders.base import Job
from kerasfeed.loaders.batch_runner import FirstScenes
from kerasfeed.loaders.failures.failure_log import FailurePolicy
from kerasfeed.orders.plan import Plan
from kerasfeed.util.resources import cores

BOTH = frozenset({"workers", "worker_type"})
ONE = Setup(1, "thread")
SPECS = ((0, None), (1, None))


class Scenes:
    thread_safe = False


class SafeScenes:
    thread_safe = True


def _chosen(seconds, busy, *, sequence=None, scenes=100_000, auto=BOTH, present=ONE, policy=None, **found):
    job = Job(sequence or Scenes(), Plan(scenes, 32), 3, 1 << 30, 10, policy or FailurePolicy())
    first = FirstScenes(SPECS, seconds, busy, found.pop("is_reused", False), found.pop("differing", ""))
    given = {"batch_bytes": 4096, "draws_globally": False} | found
    return choose(job, present, first, auto=auto, **given).setup


@pytest.mark.parametrize(
    ("seconds", "busy", "threads", "processes"),
    [
        pytest.param(4e-3, 4e-3, 2, 2, id="computes"),
        pytest.param(10e-3, 0.1e-3, 64, 8, id="waits"),
        pytest.param(10e-3, 3e-3, 8, 8, id="waits for two thirds"),
        pytest.param(10e-3, 0.0, 64, 8, id="only waits"),
        pytest.param(0.0, 0.0, 2, 2, id="nothing"),
        pytest.param(5e-5, 1e-6, 2, 2, id="too short to tell"),
    ],
)
def test_the_number_of_workers_suits_the_scenes(seconds, busy, threads, processes):
    assert threads_for(seconds, busy, 2) == threads
    assert processes_for(seconds, busy, 2) == processes
    assert waits(seconds, busy) == (processes > 2)


def test_scenes_that_compute_get_as_many_processes_as_cores():
    assert _chosen(4e-3, 4e-3) == Setup(cores(), "process")
    assert _chosen(4e-3, 4e-3, sequence=SafeScenes()) == Setup(cores(), "process")


def test_waiting_scenes_get_more_processes_or_threads_if_the_class_is_thread_safe():
    assert _chosen(20e-3, 1e-4) == Setup(4 * cores(), "process")
    assert _chosen(20e-3, 1e-4, sequence=SafeScenes()) == Setup(64, "thread")


def test_scenes_that_compute_get_threads_in_a_python_without_a_gil_if_the_class_allows_them(monkeypatch):
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: False, raising=False)
    assert _chosen(4e-3, 4e-3, sequence=SafeScenes()) == Setup(cores(), "thread")
    assert _chosen(20e-3, 1e-4, sequence=SafeScenes()) == Setup(64, "thread")
    assert _chosen(4e-3, 4e-3) == Setup(cores(), "process")
    assert _chosen(4e-3, 4e-3, sequence=SafeScenes(), policy=FailurePolicy(timeout=5.0)) == Setup(cores(), "process")
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: True, raising=False)
    assert _chosen(4e-3, 4e-3, sequence=SafeScenes()) == Setup(cores(), "process")


def test_an_epoch_under_a_second_keeps_the_first_worker():
    assert _chosen(4e-3, 4e-3, scenes=200) == ONE
    assert _chosen(4e-3, 4e-3, scenes=300) == Setup(cores(), "process")


def test_quick_batches_get_no_workers_unless_they_are_large():
    assert _chosen(2e-6, 2e-6, scenes=10_000_000) == Setup(0, "inline")
    assert _chosen(2e-6, 2e-6, scenes=10_000_000, batch_bytes=1 << 24) == Setup(cores(), "process")


def test_given_options_are_kept():
    assert _chosen(20e-3, 1e-4, auto={"workers"}, present=Setup(2, "process")) == Setup(4 * cores(), "process")
    assert _chosen(20e-3, 1e-4, auto={"workers"}, present=Setup(2, "thread")) == Setup(64, "thread")
    assert _chosen(2e-6, 2e-6, auto={"worker_type"}, present=Setup(3, "process")) == Setup(3, "process")
    assert _chosen(20e-3, 1e-4, auto={"worker_type"}, sequence=SafeScenes()) == Setup(3, "thread")


def test_a_timeout_and_global_random_generators_need_processes():
    policy = FailurePolicy(timeout=5.0)
    assert _chosen(20e-3, 1e-4, sequence=SafeScenes(), policy=policy) == Setup(4 * cores(), "process")
    assert _chosen(1e-3, 1e-3, scenes=64, draws_globally=True) == Setup(cores(), "process")


def test_changing_scenes_get_one_worker():
    assert _chosen(4e-3, 4e-3, differing="0") == ONE
    assert _chosen(4e-3, 4e-3, is_reused=True, present=Setup(2, "process")) == Setup(1, "process")


def test_scenes_of_unknown_cost_get_processes():
    assert _chosen(0.0, 0.0) == Setup(cores(), "process")


def test_reasons_state_the_computing_or_waiting_time():
    assert why(4e-3, 4e-3) == "a scene takes 4.0 ms and computes for 4.0 ms of it"
    assert why(10e-3, 0.1e-3) == "a scene takes 10 ms and waits for 9.9 ms of it"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(1.23e-6, "1.2 us"), (45e-6, "45 us"), (0.9999e-3, "1.0 ms"), (12.3e-3, "12 ms"), (2.34, "2.3 s"), (75, "75 s")],
)
def test_times_are_shown_with_two_or_three_digits(seconds, text):
    assert duration(seconds) == text


def test_setups_have_readable_names():
    assert [str(Setup(*each)) for each in ((0, "inline"), (1, "thread"), (4, "process"))] == [
        "no workers", "1 thread", "4 worker processes",
    ]  # fmt: skip
