"""`workers="auto"` and `worker_type="auto"`: chosen with the first batch, and nothing else depends on it."""

import dataclasses
import logging
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scenes_costs
from waits import PROGRAM_SECONDS

import kerasfeed as kf
from kerasfeed.feeds.base import BaseFeed
from kerasfeed.loaders import auto_workers
from kerasfeed.loaders import loader as loader_module


@pytest.fixture
def as_measured():
    """What scenes cost here and now decides."""


@pytest.fixture(autouse=True)
def choices(monkeypatch, request):
    """Every choice that is made. Scenes cost what they do on a quiet machine: on a busy one they may cost anything."""
    made = []
    choose = loader_module.choose

    def noted(session, make):
        cost = getattr(session.job.sequence, "cost", None)
        if cost and "as_measured" not in request.fixturenames:
            session.first = dataclasses.replace(session.first, seconds=cost[0], cpu_seconds=cost[1])
        made.append(choose(session, make))
        return made[-1]

    monkeypatch.setattr(loader_module, "choose", noted)
    return made


def _feed(sequence, **arguments):
    return BaseFeed(sequence, 4, seed=1, shuffle=True, **arguments)


def _first(feed, steps=3):
    return [[leaf.tolist() for leaf in feed[step]] for step in range(steps)]


def _expected(sequence, **arguments):
    with _feed(sequence, workers=0, **arguments) as feed:
        return _first(feed)


def test_the_log_says_what_was_chosen_and_why(caplog):
    caplog.set_level(logging.INFO, "kerasfeed")
    with _feed(scenes_costs.Waits()) as feed:
        _first(feed)
        chosen = [line for line in caplog.messages if "auto" in line]
        assert chosen == [f"the feed of Waits: auto chooses {feed.stats().chosen}"]


def test_scenes_that_wait_get_many_threads_and_stay_the_same():
    with _feed(scenes_costs.Waits()) as feed:
        assert feed.stats().chosen == ""
        assert _first(feed) == _expected(scenes_costs.Waits())
        stats = feed.stats()
        assert stats.worker_type == "thread"
        assert stats.workers > 8
        assert stats.chosen.startswith(f"{stats.workers} threads: a scene takes")
        assert "waits for" in stats.chosen
        assert f"{stats.workers} thread workers (auto: a scene takes" in repr(feed)
        assert "(auto: a scene takes" in feed._repr_html_()
        assert feed.look_ahead * 4 >= 2 * stats.workers


@pytest.mark.heavy
@pytest.mark.parametrize(("kind", "expected"), [(scenes_costs.Waits, "thread"), (scenes_costs.Counts, "process")])
def test_what_is_measured_decides(kind, expected, as_measured):
    def chosen():
        with _feed(kind()) as feed:
            feed[0]
            return feed.stats().worker_type

    assert any(chosen() == expected for _ in range(20))  # a busy machine measures wrong now and then


def test_scenes_that_compute_get_processes():
    with _feed(scenes_costs.Counts()) as feed:
        assert _first(feed) == _expected(scenes_costs.Counts())
        assert feed.stats().worker_type == "process"
        assert "a scene takes 1.0 ms and computes for 1.0 ms of it" in feed.stats().chosen


@pytest.mark.heavy
def test_scenes_that_wait_get_processes_and_a_hint_where_the_class_does_not_speak_of_threads():
    hint = r"scenes of Shares wait for (9\d|100)% of .* set thread_safe = True in the class: 64 threads may"
    with _feed(scenes_costs.Shares()) as feed:
        with pytest.warns(kf.FeedWarning, match=hint) as told:
            found = _first(feed)
        assert len(told) == 1
        assert found == _expected(scenes_costs.Shares())
        assert feed.stats().worker_type == "process"
        assert feed.stats().workers > 2


@pytest.mark.heavy
def test_a_class_that_says_it_is_not_thread_safe_gets_no_hint():
    class Single(scenes_costs.Shares):
        thread_safe = False

    with _feed(Single()) as feed:
        feed[0]
        assert feed.stats().worker_type == "process"


@pytest.mark.heavy
def test_scenes_that_draw_from_global_generators_get_processes():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", kf.FeedWarning)
        with _feed(scenes_costs.DrawsGlobally()) as feed:
            assert feed[0][0].shape == (4, 4)
            assert feed.stats().worker_type == "process"
            assert feed.stats().seeds_random


def test_a_number_that_is_given_is_kept():
    with _feed(scenes_costs.Waits(), workers=3) as feed:
        assert _first(feed) == _expected(scenes_costs.Waits())
        assert feed.stats().workers == 3
        assert feed.stats().chosen


@pytest.mark.heavy
def test_a_type_that_is_given_is_kept():
    with _feed(scenes_costs.Waits(), worker_type="process") as feed:
        assert _first(feed) == _expected(scenes_costs.Waits())
        assert feed.stats().worker_type == "process"
        assert feed.stats().workers > 2
    with _feed(scenes_costs.Waits(), worker_type="thread") as feed:
        assert _first(feed) == _expected(scenes_costs.Waits())
        assert feed.stats().worker_type == "thread"
        assert feed.stats().workers > 8
    with _feed(scenes_costs.Waits(), workers=2, worker_type="thread") as feed:
        assert _first(feed) == _expected(scenes_costs.Waits())
        assert feed.stats().chosen == ""


@pytest.mark.heavy
def test_a_function_given_as_collate_leaves_scenes_to_be_measured():
    def collate(scenes):
        return np.stack([scene[0] for scene in scenes])

    collate.thread_safe = True
    with _feed(scenes_costs.Waits(), collate=collate, drop_remainder=True) as feed:
        assert feed[0].tolist() == _expected(scenes_costs.Waits())[0][0]
        assert feed.stats().worker_type == "thread"


@pytest.mark.heavy
def test_a_scene_that_raises_is_counted_as_with_workers_that_are_given():
    def failed(**workers):
        with _feed(scenes_costs.Fails(), on_error="replace", **workers) as feed:
            found = _first(feed, 8)
            return found, [(row.index, row.count) for row in feed.failures], feed.stats()

    auto, given = failed(), failed(workers=2, worker_type="process")
    assert auto[:2] == given[:2]
    assert auto[2].failed == given[2].failed


def test_what_workers_are_told_pairs_up(tmp_path):
    path = tmp_path / "told"
    with _feed(scenes_costs.Told(path)) as feed:
        feed[0]
        assert feed.stats().worker_type == "thread"
    told = [line.split()[0] for line in path.read_text().splitlines()]
    assert told.count("begin") == told.count("end") > 2


def test_counters_begin_with_the_first_batch_of_the_feed(monkeypatch):
    monkeypatch.setattr(auto_workers, "_MOST_TRIAL_SECONDS", 60.0)  # threads are tried however slow scenes seem
    with _feed(scenes_costs.Tiny()) as feed:
        _first(feed)
        assert feed.stats().batches == 3
        assert "in a trial" in feed.stats().chosen


@pytest.mark.heavy
def test_scenes_in_memory_and_short_epochs_get_no_other_workers(choices, few_processes):
    with _feed(np.zeros((100_000, 2))) as feed:
        feed[0]
        assert feed.stats().worker_type == "inline"
        assert feed.stats().chosen == ""
        assert kf.profile(feed, seconds=1).workers == 0
    short = scenes_costs.Costly()
    short.length = 40
    with _feed(short) as feed:
        feed[0]
        assert "little to gain" in feed.stats().chosen
        assert "auto" not in repr(feed)
    assert [choice.measured for choice in choices] == [False]


def test_a_function_that_makes_batches_of_scenes_in_memory_runs_in_workers():
    def collate(scenes):
        return np.stack(scenes)

    collate.thread_safe = True
    with _feed(np.zeros((100, 2)), collate=collate) as feed:
        feed[0]
        assert feed.stats().worker_type == "thread"


def test_two_threads_that_ask_at_once_choose_once(choices):
    with _feed(scenes_costs.Waits()) as feed, ThreadPoolExecutor(4) as crowd:
        found = list(crowd.map(lambda step: feed[step][0].tolist(), [0, 1, 0]))
        assert found == [feed[0][0].tolist(), feed[1][0].tolist(), feed[0][0].tolist()]
    assert len(choices) == 1


def test_a_batch_that_is_asked_for_while_workers_are_tried_waits_for_the_choice(monkeypatch):
    choose, begun, came = loader_module.choose, threading.Event(), threading.Event()

    def chosen_late(session, make):
        begun.set()
        assert not came.wait(0.3)
        return choose(session, make)

    def ask(feed):
        assert begun.wait(PROGRAM_SECONDS)
        batch = feed[1]
        came.set()
        return batch

    monkeypatch.setattr(loader_module, "choose", chosen_late)
    with _feed(scenes_costs.Waits()) as feed, ThreadPoolExecutor(1) as other:
        second = other.submit(ask, feed)
        feed[0]
        assert np.array_equal(second.result(PROGRAM_SECONDS)[0], feed[1][0])
        assert feed.stats().worker_type == "thread"


@pytest.mark.heavy
def test_threads_are_chosen_only_where_they_are_faster_than_the_processes_would_be(monkeypatch):
    rates = {"thread": 100.0, "process": 90.0}
    monkeypatch.setattr(auto_workers, "_trials", lambda *given: (rates["thread"], rates["process"]))

    class Counts(scenes_costs.Counts):
        thread_safe = True

    def chosen():
        with _feed(Counts()) as feed:
            feed[0]
            return feed.stats()

    assert chosen().worker_type == "thread"
    assert "in a trial, 100 scenes/s with 2 threads, 90 with 2 worker processes" in chosen().chosen
    rates["process"] = 95.0
    assert chosen().worker_type == "process"
