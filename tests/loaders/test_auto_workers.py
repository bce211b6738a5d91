"""`workers="auto"` and `worker_type="auto"`: chosen with the first batch, and nothing else depends on it."""

import dataclasses
import logging
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import scenes_costs
from waits import PROGRAM_SECONDS

import kerasfeed as kf
from kerasfeed.errors import WorkerStartError
from kerasfeed.feeds.base import BaseFeed
from kerasfeed.loaders import loader as loader_module


@pytest.fixture
def as_measured():
    """Use the measured cost of scenes."""


@pytest.fixture(autouse=True)
def choices(monkeypatch, request):
    """Record every choice. Scenes have the cost of a quiet machine, because on a busy one it may be anything."""
    made = []
    choose = loader_module.choose

    def noted(job, present, first, **arguments):
        cost = getattr(job.sequence, "cost", None)
        if cost and "as_measured" not in request.fixturenames:
            first = dataclasses.replace(first, seconds=cost[0], cpu_seconds=cost[1])
        made.append(choose(job, present, first, **arguments))
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


def test_the_log_contains_the_choice_and_its_reason(caplog):
    caplog.set_level(logging.INFO, "kerasfeed")
    with _feed(scenes_costs.Waits()) as feed:
        _first(feed)
        chosen = [line for line in caplog.messages if "auto" in line]
        assert chosen == [f"the feed of Waits: auto chooses {feed.stats().chosen}"]


def test_auto_chooses_many_threads_for_waiting_scenes_without_changing_them():
    with _feed(scenes_costs.Waits()) as feed:
        assert feed.stats().chosen == ""
        assert _first(feed) == _expected(scenes_costs.Waits())
        stats = feed.stats()
        assert (stats.worker_type, stats.workers) == ("thread", 64)
        assert stats.chosen == "64 threads: a scene takes 5.0 ms and waits for 5.0 ms of it"
        assert "64 thread workers (auto: a scene takes" in repr(feed)
        assert "(auto: a scene takes" in feed._repr_html_()
        assert feed.look_ahead * 4 >= 2 * stats.workers


@pytest.mark.heavy
@pytest.mark.parametrize(("kind", "expected"), [(scenes_costs.Waits, "thread"), (scenes_costs.Counts, "process")])
def test_auto_chooses_by_measurement(kind, expected, as_measured):
    def chosen():
        with _feed(kind()) as feed:
            feed[0]
            return feed.stats().worker_type

    assert any(chosen() == expected for _ in range(20))  # measurements on a busy machine are sometimes wrong


@pytest.mark.heavy
@pytest.mark.parametrize("kind", [scenes_costs.Counts, scenes_costs.Shares])
def test_batches_are_equal_before_and_after_worker_processes_start(kind):
    with _feed(kind()) as feed, _feed(kind(), workers=0) as reference:
        steps = 0
        end = time.monotonic() + PROGRAM_SECONDS
        while len(feed.stats().pids) < feed.stats().workers or steps < 20:
            assert time.monotonic() < end
            assert np.array_equal(feed[steps][0], reference[steps][0])
            assert np.array_equal(feed[steps][1], reference[steps][1])
            steps += 1
        assert feed.stats().worker_type == "process"


# ---- the first thread


def test_an_epoch_under_a_second_starts_no_process(monkeypatch):
    monkeypatch.setattr("kerasfeed.pool.processes.pool.start_worker", None)
    scenes = scenes_costs.Costly()
    scenes.length = 40
    scenes.cost = (1e-3, 1e-3)
    with _feed(scenes) as feed:
        assert _first(feed) == _expected(scenes)
        stats = feed.stats()
        assert (stats.worker_type, stats.workers, stats.pids) == ("thread", 1, ())
        assert stats.chosen == "1 thread: an epoch takes 40 ms in one worker"


class Own(scenes_costs.Costly):
    """Logs which threads use the object."""

    length = 40
    cost = (1e-3, 1e-3)

    def __init__(self):
        self.used_by, self.scratch = [], np.zeros(5_000)

    def scene(self, index):
        self.used_by.append(threading.current_thread().name)
        self.scratch[:] = index
        return super().scene(index)


def test_auto_threads_use_a_copy_of_the_sequence():
    scenes = Own()
    with _feed(scenes) as feed:
        _first(feed)
        assert feed.stats().worker_type == "thread"
    assert scenes.used_by == []
    assert not scenes.scratch.any()


def test_changes_to_the_sequence_after_the_feed_was_created_have_no_effect():
    scenes = Own()
    scenes.scene = "as it was"
    del scenes.scene
    with _feed(scenes) as feed:
        scenes.scene = lambda index: 1 / 0
        _first(feed)


SCALE = 1


def test_auto_does_not_change_a_class_that_is_pickled_by_value():
    class Local(scenes_costs.Costly):
        length = 40
        cost = (1e-3, 1e-3)

        def scene(self, index):
            return super().scene(index * SCALE)

    method = Local.scene
    with _feed(Local()) as feed:
        _first(feed)
    assert Local.scene is method
    assert Local.scene.__globals__ is sys.modules[__name__].__dict__


def test_the_copy_follows_changes_by_an_epoch_hook():
    class Hooked(Own):
        epoch = -1

        def on_epoch_begin(self):
            self.epoch += 1

        def scene(self, index):
            return super().scene(index + 1000 * self.epoch)

    with _feed(Hooked()) as feed:
        assert [sorted({row // 1000 for batch in feed for row in batch[0][:, 0]}) for _ in range(3)] == [[0], [1], [2]]
        assert feed.stats().worker_type == "thread"


def test_on_worker_begin_and_on_worker_end_are_called_in_pairs(tmp_path):
    path = tmp_path / "told"
    scenes = scenes_costs.LogsHooks(path)
    scenes.length = 40
    with _feed(scenes) as feed:
        feed[0]
        assert feed.stats().workers == 1
    assert [line.split()[0] for line in path.read_text().splitlines()] == ["begin", "end"]


def test_a_failing_hook_is_an_error_of_the_first_batch():
    class Fails(Own):
        def on_worker_begin(self, worker):
            raise OSError("no licence")

    with _feed(Fails()) as feed, pytest.raises(WorkerStartError, match="no licence"):
        feed[0]


def test_an_exception_of_a_local_class_is_raised_unchanged():
    class Damaged(Exception):
        pass

    class Fails(Own):
        def scene(self, index):
            raise Damaged(f"scene {index}")

    with _feed(Fails()) as feed, pytest.raises(Damaged, match="scene 0"):
        feed[0]


@pytest.mark.heavy
def test_views_of_arrays_need_no_processes_in_another_directory(tmp_path, monkeypatch):
    array = np.zeros((64, 3), np.float32)
    with kf.Feed(kf.Zip(array, array)[:32], 4) as feed:
        monkeypatch.chdir(tmp_path)
        assert len(list(feed)) == 8
        assert len(list(feed)) == 8
        assert feed.stats().worker_type == "inline"


@pytest.mark.heavy
@pytest.mark.parametrize("seconds", [0, 0.03], ids=["quick scenes", "scenes that wait"])
def test_scenes_are_read_in_the_directory_where_the_feed_was_created(tmp_path, monkeypatch, seconds):
    class Relative(scenes_costs.Costly):
        length = 40
        thread_safe = True

        def scene(self, index):
            time.sleep(seconds)
            return np.load("scene.npy")

    (tmp_path / "there").mkdir()
    np.save(tmp_path / "scene.npy", np.zeros(4, np.float32))
    monkeypatch.chdir(tmp_path)
    with _feed(Relative()) as feed:
        monkeypatch.chdir(tmp_path / "there")
        assert not feed[0][0].any()


# ---- the choice


def test_scenes_that_compute_get_processes():
    with _feed(scenes_costs.Counts()) as feed:
        assert _first(feed) == _expected(scenes_costs.Counts())
        assert feed.stats().worker_type == "process"
        assert "a scene takes 1.0 ms and computes for 1.0 ms of it" in feed.stats().chosen


@pytest.mark.heavy
def test_auto_loads_scenes_that_use_global_generators_only_in_processes():
    def loaded():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", kf.FeedWarning)
            scenes = scenes_costs.DrawsGlobally()
            scenes.length = 40
            with _feed(scenes) as feed:
                found = [batch[0].tolist() for batch in feed]
                assert feed.stats().worker_type == "process"
                assert feed.stats().seeds_random
                return found

    assert loaded() == loaded()


class DrawsSeldom(scenes_costs.Costly):
    """Draws from its generator in scenes that are not among the first ones."""

    length = 40
    cost = (1e-3, 1e-3)

    def __init__(self):
        self.generator = np.random.default_rng(7)

    def scene(self, index):
        return super().scene(index) + (self.generator.random(dtype=np.float32) if index % 5 == 3 else 0)


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore::kerasfeed.FeedWarning")
def test_auto_detects_global_generators_in_later_scenes():
    with _feed(DrawsSeldom()) as feed:
        found = [batch[0].tolist() for batch in feed]
        assert feed.stats().worker_type == "process"
        assert feed.stats().seeds_random
    with _feed(DrawsSeldom(), workers=1, worker_type="process") as feed:
        assert found == [batch[0].tolist() for batch in feed]


def test_a_given_number_of_workers_is_kept():
    with _feed(scenes_costs.Waits(), workers=3) as feed:
        assert _first(feed) == _expected(scenes_costs.Waits())
        assert feed.stats().workers == 3
        assert feed.stats().chosen


@pytest.mark.heavy
def test_a_given_worker_type_is_kept():
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
def test_auto_measures_scenes_despite_a_collate_function():
    def collate(scenes):
        return np.stack([scene[0] for scene in scenes])

    collate.thread_safe = True
    with _feed(scenes_costs.Waits(), collate=collate, drop_remainder=True) as feed:
        assert feed[0].tolist() == _expected(scenes_costs.Waits())[0][0]
        assert feed.stats().worker_type == "thread"


@pytest.mark.heavy
def test_auto_counts_failed_scenes_like_explicit_workers():
    def failed(**workers):
        with _feed(scenes_costs.Fails(), on_error="replace", **workers) as feed:
            found = _first(feed, 8)
            return found, [(row.index, row.count) for row in feed.failures], feed.stats()

    auto, given = failed(), failed(workers=2, worker_type="process")
    assert auto[:2] == given[:2]
    assert auto[2].failed == given[2].failed


def test_scenes_of_microseconds_get_no_workers(choices, as_measured):
    with _feed(scenes_costs.Tiny()) as feed:
        _first(feed)
        assert feed.stats().batches == 3
        assert feed.stats().worker_type == "inline"
        assert "a batch takes" in feed.stats().chosen
        assert "no workers (auto: a batch takes" in repr(feed)


def spin(seconds):
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_auto_measures_get_batch_by_its_call(as_measured):
    class ReadAtOnce(scenes_costs.Costly):
        length = 200_000

        def scene(self, index):
            spin(2e-5)
            return super().scene(index)

        def get_batch(self, indices):
            return np.repeat(indices[:, None], 4, axis=1).astype(np.float32), indices.astype(np.float32)

    with BaseFeed(ReadAtOnce(), 64, seed=1) as feed:
        feed[0]
        assert feed.stats().worker_type == "inline"


@pytest.mark.heavy
def test_auto_measures_cached_scenes_at_their_first_read(as_measured):
    class Kept(scenes_costs.Costly):
        def __init__(self):
            self.kept = set()

        def scene(self, index):
            if index not in self.kept:
                spin(1e-3)
                self.kept.add(index)
            return super().scene(index)

    with _feed(Kept()) as feed:
        feed[0]
        assert feed.stats().worker_type == "process"


@pytest.mark.heavy
def test_scenes_in_memory_are_loaded_without_workers(choices, few_processes):
    with _feed(np.zeros((100_000, 2))) as feed:
        feed[0]
        assert feed.stats().worker_type == "inline"
        assert feed.stats().chosen == ""
        assert kf.profile(feed, seconds=1).present.setup.workers == 0
    assert choices == []


def test_a_collate_function_over_scenes_in_memory_runs_in_workers():
    def collate(scenes):
        return np.stack(scenes)

    collate.thread_safe = True
    with _feed(np.zeros((100, 2)), collate=collate) as feed:
        feed[0]
        assert feed.stats().worker_type == "thread"


def test_concurrent_first_requests_choose_once(choices):
    with _feed(scenes_costs.Waits()) as feed, ThreadPoolExecutor(4) as crowd:
        found = list(crowd.map(lambda step: feed[step][0].tolist(), [0, 1, 0]))
        assert found == [feed[0][0].tolist(), feed[1][0].tolist(), feed[0][0].tolist()]
    assert len(choices) == 1
