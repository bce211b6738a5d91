"""Scenes that hang: ended in processes, reported in threads, and never ignored."""

import contextlib
import importlib
import inspect
import os
import sys
import textwrap
import threading
import time
import warnings

import pytest
import scenes
import scenes_faulty as faulty
from faulty_feeds import bits, reference
from waits import once_told, wait_until

import kerasfeed as kf
from kerasfeed.pool import watchdog as watch
from kerasfeed.pool.processes.protocol import STACK_SIGNAL
from kerasfeed.pool.processes.stack_dumps import StackDumps


@pytest.mark.light(where=lambda way: way is faulty.hang)
@pytest.mark.parametrize("way", [faulty.hang, faulty.hang_in_c], ids=["sleep", "c"])
def test_a_hung_worker_is_replaced_and_its_scene_is_retried(feed_of, tmp_path, way):
    feed = feed_of(faulty.Faulty(way, folder=tmp_path, times=1), timeout=2.0)
    pattern = r"^worker process \d+ \(pid \d+\) was ended because scene 7 \(.*\) took longer than timeout=2.0 s.* A new"
    with pytest.warns(kf.FeedWarning, match=pattern) as caught:
        assert bits(feed.epoch(0)) == reference(scenes.Augmented())
    assert not any("SIGKILL" in str(each.message) for each in caught)
    assert feed.stats().respawns == 1


@pytest.mark.heavy
def test_the_error_for_a_scene_that_always_hangs_shows_the_worker_s_stack(feed_of):
    feed = feed_of(faulty.Faulty(faulty.hang), timeout=1.0, shuffle=False)
    with pytest.raises(kf.errors.SceneTimeoutError) as caught:
        list(feed.epoch(0))
    text = str(caught.value)
    assert text.startswith("scene 7 (epoch 0, step 0) took longer than timeout=1.0 s 2 times in worker process")
    assert "scenes_faulty.py" in text
    assert "in hang" in text
    assert isinstance(caught.value, TimeoutError)


@pytest.mark.heavy
@pytest.mark.parametrize("kind", [faulty.Faulty, faulty.FaultyBatches], ids=["scene", "batch"])
def test_a_scene_that_always_hangs_can_be_replaced(feed_of, kind):
    feed = feed_of(kind(faulty.hang), timeout=1.0, on_error="replace")
    with pytest.warns(kf.FeedWarning):
        assert len(list(feed.epoch(0))) == 5
    respawns = feed.stats().respawns
    assert len(list(feed.epoch(1))) == 5
    assert feed.stats().respawns == respawns  # it is known to fail, so it is not retried
    assert feed.failures[0].exception.startswith("SceneTimeoutError: scene 7")


@pytest.mark.heavy
def test_many_short_scenes_do_not_add_up_to_a_timeout(feed_of):
    feed = feed_of(scenes.Slow(60, 0.1), 30, timeout=2.0)
    assert len(list(feed.epoch(0))) == 2
    assert feed.stats().respawns == 0


@pytest.mark.heavy
def test_the_error_for_a_hung_thread_shows_its_stack_and_suggests_processes():
    over = threading.Event()

    class Waits(scenes.Clouds):
        def __getitem__(self, index):
            if index == 7:
                over.wait(60)
            return super().__getitem__(index)

    with kf.Feed(Waits(), 8, workers=2, worker_type="thread", timeout=1.0) as feed:
        with pytest.raises(kf.errors.SceneTimeoutError) as caught:
            list(feed)
        text = str(caught.value)
        assert "scene 7 (epoch 0, step 0) took longer than timeout=1.0 s in worker thread" in text
        assert "A thread cannot be ended" in text
        assert "Use worker_type='process'" in text
        assert "over.wait(60)" in text
        # As many others took over.
        assert [feed[step][1][0] for step in (1, 2, 3)] == [8, 16, 24]
        assert feed.failures[0].index == 7
        over.set()
        assert feed[0][1].tolist() == list(range(8))


@pytest.mark.heavy
def test_a_hang_during_spec_inference_fails_only_its_own_scene():
    over = threading.Event()

    class Waits(scenes.Clouds):
        def __getitem__(self, index):
            if index == 36:
                over.wait(60)
            return super().__getitem__(index)

    with kf.Feed(Waits(), 8, workers=2, worker_type="thread", timeout=1.0, on_error="skip") as feed:
        assert feed.element_spec[0].shape == (None, 4, 3)
        assert [(row.index, row.count) for row in feed.failures] == [(36, 1)]
        over.set()


def _loads(feed, step):
    with contextlib.suppress(kf.errors.SceneTimeoutError):
        return feed[step] is not None
    return False


@pytest.mark.heavy
def test_hung_threads_that_hold_all_memory_raise_instead_of_deadlocking():
    over = threading.Event()

    class Waits(scenes.Clouds):
        hangs = False

        def __getitem__(self, index):
            if self.hangs:
                over.wait(60)
            return super().__getitem__(index)

    sequence = Waits()
    with kf.Feed(sequence, 8, workers=2, worker_type="thread", timeout=1.0, max_memory=3 * 4096) as feed:
        assert feed.element_spec
        assert feed.stats().slot_bytes == 4096
        sequence.hangs = True
        for step in range(3):
            with pytest.raises(kf.errors.SceneTimeoutError, match="A thread cannot be ended"):
                feed[step]
        with pytest.raises(
            kf.errors.SceneTimeoutError,
            match=r"hold 3 of the 3 batches that fit into max_memory, .* worker_type='process'",
        ):
            feed[3]
        sequence.hangs = False
        over.set()
        wait_until(lambda: _loads(feed, 3))
        assert [feed[step][1][0] for step in range(5)] == [0, 8, 16, 24, 32]


@pytest.mark.heavy
def test_a_hanging_on_worker_begin_is_reported(monkeypatch):
    monkeypatch.setattr(watch, "STALL_SECONDS", 1.0)
    over = threading.Event()

    class Begins(scenes.Clouds):
        def on_worker_begin(self, worker):
            over.wait(60)

    for workers, name in ((0, "the calling thread"), (1, "worker thread 0")):
        over.clear()
        warning = pytest.warns(
            kf.FeedWarning, match=rf"{name} has been loading the sequence \(on_worker_begin\) for \d+ s"
        )
        arguments = {"worker_type": "thread", "timeout": 0.5} if workers else {}
        feed = kf.Feed(Begins(), 8, workers=workers, **arguments)
        with feed, warning as found, once_told(found, over.set):
            feed[0]
        assert "no progress" not in str(found[0].message)
        assert found[0].filename == __file__


@pytest.mark.heavy
def test_the_timeout_allows_read_ahead_as_long_as_loading(feed_of):
    class Announces(scenes.Clouds):
        def read_ahead(self, indices):
            time.sleep(0.2 * len(indices))

    feed = feed_of(Announces(16), timeout=1.0, workers=1)
    assert len(list(feed)) == 2
    assert feed.stats().respawns == 0


def _stalls(action, hold):
    """The warnings of a stall; the first one removes the file `hold`. A warning of a slow start does not count."""
    hold.touch()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with once_told(caught, hold.unlink, what="no progress"):
            action()
    return [each for each in caught if "no progress" in str(each.message)]


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("workers", "worker_type", "name"),
    [(0, "auto", "the calling thread"), (1, "thread", "worker thread 0"), (1, "process", "worker process 0")],
)
def test_hangs_are_reported_with_default_options(monkeypatch, tmp_path, workers, worker_type, name):
    with kf.Feed(scenes.Held(tmp_path, 1), 1, workers=workers, worker_type=worker_type) as feed:
        feed[0]  # starts the worker
        (tmp_path / "hold").touch()
        monkeypatch.setattr(watch, "STALL_SECONDS", 1.0)
        warning = pytest.warns(kf.FeedWarning, match=rf"no progress for \d+ s: {name}.* is still loading scene 0")
        with warning as caught, once_told(caught, (tmp_path / "hold").unlink, after=2.0):
            line = inspect.currentframe().f_lineno + 1
            feed[0]
        assert [(each.filename, each.lineno) for each in caught] == [(__file__, line)]
        text = str(caught[0].message)
        assert "scenes.py" in text
        assert "__getitem__" in text
        assert "timeout=<seconds>" in text
        assert ("worker_type='process'" in text) is (worker_type != "process")


@pytest.fixture(scope="module")
def slow_module(tmp_path_factory):
    """A module with a sequence whose import waits for the warning, in more calls than faulthandler prints."""
    folder = tmp_path_factory.mktemp("slow")
    (folder / "slow_to_import.py").write_text(
        textwrap.dedent("""
            import os, sys, time
            import kerasfeed as kf
            import numpy as np

            def wait(depth):
                if depth:
                    return wait(depth - 1)
                open(os.environ["BEGUN"], "w").close()
                while not os.path.exists(os.environ["TOLD"]):
                    time.sleep(0.02)

            if os.environ.get("PARENT") == str(os.getppid()):
                wait(int(os.environ["DEPTH"]))

            class Rooms(kf.SceneSequence):
                def __len__(self):
                    return 3
                def __getitem__(self, index):
                    return np.int64(index)
        """)
    )
    sys.path.insert(0, str(folder))
    yield importlib.import_module("slow_to_import")
    sys.path.remove(str(folder))


@pytest.mark.heavy
@pytest.mark.parametrize("depth", [0, 150])
def test_a_class_that_is_slow_to_import_is_reported_as_loading_with_its_stack(
    monkeypatch, tmp_path, slow_module, depth
):
    monkeypatch.setenv("DEPTH", str(depth))
    monkeypatch.setenv("PARENT", str(os.getpid()))
    monkeypatch.setenv("BEGUN", str(tmp_path / "begun"))
    monkeypatch.setenv("TOLD", str(tmp_path / "told"))

    def look_once_begun():  # without this, a busy machine is still starting the interpreter
        wait_until((tmp_path / "begun").exists)
        monkeypatch.setattr(watch, "STALL_SECONDS", 1.0)

    thread = threading.Thread(target=look_once_begun)
    thread.start()
    with kf.Feed(slow_module.Rooms(), 1, workers=1, worker_type="process") as feed:
        message = r"worker process 0 \(pid \d+\) has been loading the sequence and"
        with pytest.warns(kf.FeedWarning, match=message) as caught, once_told(caught, (tmp_path / "told").touch):
            assert feed[0].tolist() == [0]
        thread.join()
        assert len(caught) == 1
        text = str(caught[0].message)
        assert "slow_to_import.py" in text
        assert "in wait" in text
        assert "no progress" not in text
        assert "timeout" not in text
        assert caught[0].filename == __file__


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("way", "workers", "worker_type"),
    [(way, *workers) for way in ("fit", "dataset", "thread") for workers in ((0, "thread"), (1, "process"))]
    + [("stream", 1, "thread"), ("stream", 1, "process")],
)
def test_the_warning_of_a_stall_names_the_user_s_line(monkeypatch, tmp_path, way, workers, worker_type):
    monkeypatch.setattr(watch, "STALL_SECONDS", 1.0)
    lines = []

    def consume(feed):
        if way == "fit":
            keras = pytest.importorskip("keras")
            model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
            model.compile("sgd", "mse", jit_compile=False)
            lines.append(inspect.currentframe().f_lineno + 1)
            model.fit(feed, verbose=0)
        else:
            found = feed.to_tf_dataset() if way == "dataset" else feed
            lines.append(inspect.currentframe().f_lineno + 1)
            next(iter(found))

    pairs = scenes.HeldPairs(tmp_path / "hold")
    if way == "stream":
        feed = kf.StreamFeed(pairs.generate, 1, workers=workers, worker_type=worker_type)
    else:
        feed = kf.Feed(pairs, 4, workers=workers, worker_type=worker_type)

    def consume_in_thread(feed):
        thread = threading.Thread(target=consume, args=(feed,))
        thread.start()
        thread.join()

    action = consume_in_thread if way == "thread" else consume
    with feed:
        stalls = _stalls(lambda: action(feed), pairs.hold)
    assert [(each.filename, each.lineno) for each in stalls] == [(__file__, lines[0])]


def test_a_worker_survives_an_early_request_for_its_stack(feed_of):
    feed = feed_of(scenes.Clouds())
    for pid in feed.stats().pids:
        os.kill(pid, STACK_SIGNAL)
    assert len(list(feed)) == 5
    assert feed.stats().respawns == 0


@pytest.mark.heavy
def test_the_stack_of_a_stalled_worker_is_requested_once(feed_of, monkeypatch, tmp_path):
    asked = []
    ask = StackDumps.ask
    monkeypatch.setattr(StackDumps, "ask", lambda stacks, pid: asked.append(pid) or ask(stacks, pid))
    feed = feed_of(scenes.Held(tmp_path, 1), 1, workers=1)
    feed[0]  # starts the worker
    (tmp_path / "hold").touch()
    monkeypatch.setattr(watch, "STALL_SECONDS", 1.0)
    warning = pytest.warns(kf.FeedWarning, match="no progress")
    with warning as caught, once_told(caught, (tmp_path / "hold").unlink, after=2.5):
        feed[0]
    assert len(asked) == 1
