"""The speed of an epoch, and the time it waited for input."""

import copy
import time
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import scenes_costs
from waits import wait_until

import kerasfeed as kf
from kerasfeed.adapters.keras import input_monitor as callbacks
from kerasfeed.adapters.keras.input_monitor import EpochTiming, InputMonitor
from kerasfeed.loaders.base import LoaderStats
from kerasfeed.orders.base import Sequential
from kerasfeed.orders.plan import Plan

# ---- an epoch with a fake clock


class Clock:
    def __init__(self, monkeypatch):
        self.now = 100.0
        monkeypatch.setattr(callbacks.time, "perf_counter", lambda: self.now)


def _monitor(finished, *, length=10, batch_size=4, steps_per_execution=1):
    """A monitor of a feed whose k-th request is finished at `finished[k]` seconds after 100."""
    log = SimpleNamespace(
        begun=lambda k: 100.0 if k < len(finished) else None,
        finished=lambda k: 100.0 + finished[k] if k < len(finished) else None,
    )
    plan = Plan(length, batch_size, Sequential())
    stats = LoaderStats("thread", 2, 0, 0, 0, 0)
    monitor = InputMonitor(SimpleNamespace(request_log=log, plan=plan, stats=lambda: stats, worker_choice=None))
    monitor.set_params({"steps": plan.steps})
    monitor.set_model(SimpleNamespace(steps_per_execution=steps_per_execution))
    monitor.on_train_begin()
    return monitor


def _train(monitor, clock, moments, steps_per_execution=1):
    monitor.on_epoch_begin(0)
    for number, (begin, end) in enumerate(moments):
        first = number * steps_per_execution
        clock.now = 100.0 + begin
        monitor.on_train_batch_begin(first)
        clock.now = 100.0 + end
        monitor.on_train_batch_end(first + steps_per_execution - 1)


def test_the_wait_of_an_epoch_is_the_sum_over_its_steps(monkeypatch):
    clock = Clock(monkeypatch)
    monitor = _monitor([1.0, 1.5, 6.0])
    _train(monitor, clock, [(0, 2), (2, 3), (3, 8)])
    logs = {}
    monitor.on_epoch_end(0, logs)
    assert monitor.epochs == [EpochTiming(epoch=0, steps=3, scenes=10, seconds=8.0, wait_seconds=4.0)]
    assert logs == {"scenes_per_second": 10 / 8, "input_wait_share": 0.5}


def test_the_time_of_an_epoch_excludes_validation(monkeypatch):
    clock = Clock(monkeypatch)
    monitor = _monitor([0.0, 0.0, 0.0])
    _train(monitor, clock, [(0, 1), (1, 2), (2, 4)])
    monitor.on_test_begin()
    clock.now = 150.0
    monitor.on_epoch_end(0)
    assert monitor.epochs[0].seconds == 4.0


def test_every_step_of_an_execution_is_counted(monkeypatch):
    clock = Clock(monkeypatch)
    monitor = _monitor([1.0, 1.5, 4.0], steps_per_execution=2)
    # It waits 1.5 s until both batches of the first execution are there, and 1 s for the batch of the second.
    _train(monitor, clock, [(0, 3), (3, 5)], steps_per_execution=2)
    monitor.on_epoch_end(0)
    assert monitor.epochs[0].steps == 3
    assert monitor.epochs[0].scenes == 10
    assert monitor.epochs[0].wait_seconds == pytest.approx(2.5)


def test_a_late_report_of_a_step_does_not_affect_the_next_step(monkeypatch):
    clock = Clock(monkeypatch)
    monitor = _monitor([0.0, 3.0, 3.0])
    monitor.on_epoch_begin(0)
    for step, begin in enumerate([0, 2, 4]):
        clock.now = 100.0 + begin
        monitor.on_train_batch_begin(step)
        if step:  # as on JAX, where another thread reports it
            monitor.on_train_batch_end(step - 1)
    clock.now = 106.0
    monitor.on_train_batch_end(2)
    monitor.on_epoch_end(0)
    assert monitor.epochs[0].wait_seconds == 1.0
    assert monitor.epochs[0].steps == 3


def test_a_batch_ready_before_the_device_finishes_adds_no_wait(monkeypatch):
    clock = Clock(monkeypatch)
    monitor = _monitor([0.0, 3.0, 5.0])
    monitor.on_epoch_begin(0)
    # The device is done with step 0 at 2.5 s, 0.5 s before batch 1 comes, and with step 1 at 6 s, after batch 2 came.
    for moment, report in [
        (0.0, lambda: monitor.on_train_batch_begin(0)),
        (1.0, lambda: monitor.on_train_batch_begin(1)),
        (2.5, lambda: monitor.on_train_batch_end(0)),
        (3.1, lambda: monitor.on_train_batch_begin(2)),
        (6.0, lambda: monitor.on_train_batch_end(1)),
        (8.0, lambda: monitor.on_train_batch_end(2)),
    ]:
        clock.now = 100.0 + moment
        report()
    monitor.on_epoch_end(0)
    assert monitor.epochs[0].wait_seconds == 0.5


def test_a_stopped_epoch_counts_only_its_completed_steps(monkeypatch):
    clock = Clock(monkeypatch)
    monitor = _monitor([0.0, 0.0, 0.0])
    _train(monitor, clock, [(0, 1), (1, 2)])
    monitor.on_epoch_end(0)
    assert (monitor.epochs[0].steps, monitor.epochs[0].scenes) == (2, 8)


def test_without_batch_size_the_monitor_counts_items(monkeypatch):
    clock = Clock(monkeypatch)
    monitor = _monitor([0.0, 0.0], length=2, batch_size=None)
    _train(monitor, clock, [(0, 1), (1, 2)])
    monitor.on_epoch_end(0)
    assert monitor.epochs[0].scenes == 2


# ---- a real training


class Slow(kf.SceneSequence):
    def __len__(self):
        return 66

    def __init__(self, seconds=0.005):
        self.seconds, self.read = seconds, []

    def __getitem__(self, index):
        time.sleep(self.seconds)
        self.read.append(index)
        return np.ones(4, np.float32), 1.0


class Computing(keras.callbacks.Callback):
    """Extends every step by some seconds, and until the next step's scenes are loaded."""

    def __init__(self, sequence, seconds):
        super().__init__()
        self.sequence, self.seconds = sequence, seconds

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        time.sleep(self.seconds)
        wait_until(lambda: len(self.sequence.read) >= 66 * self.epoch + min(66, 6 * (batch + 2)))


def _fit(feed, callbacks=(), **options):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=options.pop("steps_per_execution", 1))
    monitor = InputMonitor(feed)
    history = model.fit(feed, epochs=3, callbacks=[monitor, *callbacks], verbose=0, **options)
    return monitor, history.history


@pytest.mark.heavy
@pytest.mark.parametrize("steps_per_execution", [1, 3])
def test_training_that_computes_nothing_waits_for_its_input(steps_per_execution):
    with kf.Feed(Slow(0.01), 6, workers=1, worker_type="thread") as feed:
        monitor, history = _fit(feed, steps_per_execution=steps_per_execution)
    assert [(timing.epoch, timing.steps, timing.scenes) for timing in monitor.epochs] == [(k, 11, 66) for k in range(3)]
    assert max(timing.wait_seconds for timing in monitor.epochs) > 0.5 * 66 * 0.01
    assert history["input_wait_share"] == [timing.input_wait_share for timing in monitor.epochs]
    assert history["scenes_per_second"] == [timing.scenes_per_second for timing in monitor.epochs]


@pytest.mark.heavy
def test_training_slower_than_loading_hardly_waits():
    sequence = Slow()
    with kf.Feed(sequence, 6, workers=4, worker_type="thread") as feed:
        monitor, _ = _fit(feed, [Computing(sequence, 0.04)])
    assert min(timing.input_wait_share for timing in monitor.epochs) < 0.2
    assert min(timing.seconds for timing in monitor.epochs) > 11 * 0.04


@pytest.mark.heavy
def test_training_on_the_tf_dataset_is_timed_too():
    with kf.Feed(Slow(), 6, workers=4, worker_type="thread") as feed:
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        monitor = InputMonitor(feed)
        model.fit(feed.to_tf_dataset(), epochs=2, shuffle=False, callbacks=[monitor], verbose=0)
    assert [(timing.steps, timing.scenes) for timing in monitor.epochs] == [(11, 66), (11, 66)]
    assert all(0 <= timing.input_wait_share <= 1 for timing in monitor.epochs)


def test_the_monitor_counts_the_scenes_of_a_stream():
    def scenes():
        for index in range(24):
            yield np.full(1, index, np.float32), np.full(1, index, np.float32)

    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with kf.StreamFeed(scenes, batch_size=6, workers=0) as feed:
        monitor = InputMonitor(feed)
        model.fit(feed, epochs=2, verbose=0, callbacks=[monitor])
    assert [(epoch.epoch, epoch.steps, epoch.scenes) for epoch in monitor.epochs] == [(0, 4, 24), (1, 4, 24)]


def test_a_monitor_refuses_an_object_that_is_not_a_feed():
    with pytest.raises(TypeError, match="needs the feed passed to fit, received a ndarray"):
        kf.InputMonitor(np.zeros((4, 2)))


# ---- its messages


def test_the_monitor_reports_every_epoch_and_explains_only_the_first(capsys):
    scenes = kf.Map(np.zeros((4, 2), np.float32), _slow)
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    with kf.Feed(scenes, batch_size=1, workers=0) as feed:
        monitor = kf.InputMonitor(feed)
        model.fit(feed, epochs=3, callbacks=[monitor], verbose=2)
        reports = [line for line in capsys.readouterr().out.splitlines() if line.startswith("kerasfeed: ")]
        assert [line.split(" of epoch ")[1][0] for line in reports] == ["0", "1", "2"]
        assert ["loaded" in line for line in reports] == [True, False, False]
        assert "of epoch 2 for input" in monitor.verdict
        lines = repr(monitor).splitlines()
    assert lines[0].startswith("InputMonitor of Feed(")
    assert [line.split(":")[0].strip() for line in lines[1:]] == ["epoch 0", "epoch 1", "epoch 2"]
    assert "4 steps" in lines[3]


def _slow(scene):
    time.sleep(0.2)
    return scene, np.float32(0)


# ---- the feed


def test_a_monitor_warns_if_fit_trains_on_another_feed():
    scenes = kf.Zip(np.zeros((8, 4), np.float32), np.zeros(8, np.float32))
    with kf.Feed(scenes, 4, workers=0) as feed, kf.Feed(scenes, 4, workers=0) as other:
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        with pytest.warns(kf.FeedWarning, match="fit does not use the feed of InputMonitor"):
            model.fit(feed, epochs=2, callbacks=[InputMonitor(other)], validation_data=other, verbose=0)


def test_copies_of_callbacks_keep_the_feed(tmp_path):
    with kf.Feed(np.zeros(8), 4, workers=0) as feed:
        backup, place = kf.BackupAndRestore(feed, tmp_path / "b"), kf.FeedCheckpoint(feed, tmp_path / "p")
        for callback in (InputMonitor(feed), backup, place):
            (copied,) = copy.deepcopy([callback])
            assert type(copied) is type(callback)
            assert copied.feed is feed
            assert copied is not callback
            copied.set_params({"epochs": 1})
            assert not callback.params


class Loud(kf.InputMonitor):
    """Like `verbose=1`, without the progress bar."""

    def set_params(self, params):
        super().set_params({**params, "verbose": 1})


def test_the_monitor_reports_the_wait_of_each_epoch_and_its_reason(capsys):
    inputs = keras.Input((4,))
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", "mse")
    scenes = scenes_costs.Waits()[:200]
    with kf.Feed(scenes, 20, workers=1, worker_type="thread") as feed:
        model.fit(feed, verbose=0)  # compiles the step, which may take longer than an epoch
        monitor = Loud(feed)
        assert monitor.verdict == ""
        model.fit(feed, epochs=2, verbose=0, callbacks=[monitor])
        said = capsys.readouterr().out
        assert said.count("kerasfeed: training waited") == 2
        assert "of epoch 0 for input: 1 thread loaded" in said
        assert "of epoch 1 for input: 1 thread loaded" in monitor.verdict
        assert "kf.profile(feed)" in monitor.verdict
        monitor = kf.InputMonitor(feed)
        model.fit(feed, epochs=1, verbose=0, callbacks=[monitor])
        assert "training waited" not in capsys.readouterr().out
        assert monitor.verdict
