"""`workers="auto"` and `worker_type="auto"`: measured with the first batch, and nothing else depends on it."""

import logging
import warnings

import numpy as np
import pytest
import scenes_costs

import kerasfeed as kf
from kerasfeed.feeds.base import BaseFeed
from kerasfeed.loaders import auto_workers, worker_choice
from kerasfeed.loaders import loader as loader_module


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch):
    """As in a program that begins: no class was measured before."""
    monkeypatch.setattr(worker_choice, "_known", type(worker_choice._known)())


@pytest.fixture(autouse=True)
def costs_of_a_quiet_machine(monkeypatch, request):
    """Scenes are measured, and then cost what they do on a quiet machine: on a busy one they may cost anything."""
    measure = auto_workers.measure_scenes

    def measured(session, *given, **options):
        found = measure(session, *given, **options)
        return getattr(session.job.sequence, "cost", None) or found

    if "as_measured" not in request.fixturenames:
        monkeypatch.setattr(auto_workers, "measure_scenes", measured)


@pytest.fixture
def as_measured():
    """What scenes cost here and now decides."""


@pytest.fixture
def choices(monkeypatch):
    """Every choice that is made."""
    made = []
    choose = loader_module.choose

    def noted(*given):
        made.append(choose(*given))
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


def test_the_log_says_once_a_feed_what_was_chosen_and_why(caplog):
    caplog.set_level(logging.INFO, "kerasfeed")
    for how in ("auto chooses", "auto chooses, as before,"):
        with _feed(scenes_costs.Waits()) as feed:
            _first(feed)
            chosen = [line for line in caplog.messages if "auto" in line]
            assert chosen == [f"the feed of Waits: {how} {feed.stats().chosen}"]
        caplog.clear()


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
def test_what_is_measured_decides(kind, expected, as_measured, monkeypatch):
    def chosen():
        monkeypatch.setattr(worker_choice, "_known", type(worker_choice._known)())
        with _feed(kind()) as feed:
            feed[0]
            return feed.stats().worker_type

    assert any(chosen() == expected for _ in range(20))  # a busy machine measures wrong now and then


def test_scenes_that_hold_the_gil_get_processes():
    with _feed(scenes_costs.Counts()) as feed:
        assert _first(feed) == _expected(scenes_costs.Counts())
        assert feed.stats().worker_type == "process"
        assert "holds the GIL" in feed.stats().chosen


def test_scenes_that_wait_get_processes_and_one_hint_where_the_class_does_not_speak_of_threads():
    def twice():
        for _ in range(2):
            with _feed(scenes_costs.Shares()) as feed:
                assert _first(feed) == _expected(scenes_costs.Shares())
                assert feed.stats().worker_type == "process"
                assert feed.stats().workers > 2

    hint = r"scenes of Shares wait for (9\d|100)% of .* set thread_safe = True"
    with pytest.warns(kf.FeedWarning, match=hint) as told:
        twice()
    assert len(told) == 1


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
def test_a_class_is_measured_once_in_a_program_its_parts_and_views_too(choices):
    parts = kf.split(scenes_costs.Waits(), [0.5, 0.5], seed=0)
    for sequence in (*parts, scenes_costs.Waits()):
        with _feed(sequence) as feed:
            feed[0]
            assert feed.stats().worker_type == "thread"
            assert feed.stats().chosen
    assert len(choices) == 1
    with _feed(kf.Map(scenes_costs.Waits(), _slower)) as feed:
        feed[0]
    assert len(choices) == 2


def _slower(scene):
    return scene


_slower.thread_safe = True


@pytest.mark.heavy
def test_a_feed_of_a_known_class_starts_its_workers_at_once(choices):
    with _feed(scenes_costs.Counts()) as feed:
        feed[0]
    with _feed(scenes_costs.Counts()) as feed:
        assert feed.stats().chosen
        assert feed.stats().worker_type == "process"
    assert len(choices) == 1


def test_a_scene_that_raises_ends_the_measurement_and_is_counted_where_it_is_loaded_alone():
    def failed(**workers):
        with _feed(scenes_costs.Fails(), on_error="replace", **workers) as feed:
            found = _first(feed, 8)
            return found, [(row.index, row.count) for row in feed.failures], feed.stats()

    auto, given = failed(), failed(workers=2, worker_type="process")
    assert auto[:2] == given[:2]
    assert auto[2].failed == given[2].failed


@pytest.mark.heavy
def test_scenes_that_take_longer_than_the_measurement_leave_it_at_processes():
    with _feed(scenes_costs.SlowLater(), workers=2) as feed:
        assert feed.scene_spec.fields[0].shape == (4,)
        assert feed.stats().worker_type == "process"
        assert "could not be measured" in feed.stats().chosen


def test_what_workers_are_told_pairs_up(tmp_path):
    path = tmp_path / "told"
    with _feed(scenes_costs.Told(path)) as feed:
        feed[0]
        assert feed.stats().worker_type == "thread"
    told = [line.split()[0] for line in path.read_text().splitlines()]
    assert told.count("begin") == told.count("end") > 2


def test_counters_begin_with_the_first_batch_of_the_feed(monkeypatch):
    monkeypatch.setattr(auto_workers, "_NEAR", 1e9)  # threads are tried however slow they seem
    monkeypatch.setattr(auto_workers, "_MOST_SECONDS", 60.0)
    with _feed(scenes_costs.Tiny()) as feed:
        _first(feed)
        assert feed.stats().batches == 3
        assert "in a trial" in feed.stats().chosen


def test_scenes_in_memory_and_short_epochs_are_not_measured(choices):
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


def test_two_threads_that_ask_at_once_measure_once(choices):
    from concurrent.futures import ThreadPoolExecutor

    with _feed(scenes_costs.Waits()) as feed, _feed(scenes_costs.Waits()) as other, ThreadPoolExecutor(4) as crowd:
        found = list(crowd.map(lambda given: given[0][given[1]][0].tolist(), [(feed, 0), (other, 0), (feed, 1)]))
        assert found == [feed[0][0].tolist(), feed[0][0].tolist(), feed[1][0].tolist()]
    assert len(choices) == 1
