"""Counts and messages of the watching thread; the tests of loaders cover scenes that hang."""

import threading
import time
from functools import partial

import numpy as np
import pytest
from waits import wait_until

import kerasfeed as kf
from kerasfeed.pool import watchdog as watch
from kerasfeed.pool.base import PoolOptions
from kerasfeed.pool.local import InlinePool, LocalWorker
from kerasfeed.pool.task import FutureTask
from kerasfeed.sequences.context import Worker
from kerasfeed.util.deferred_warnings import DeferredWarnings


@pytest.mark.parametrize(("kind", "timeout", "remedy"), [
    ("inline", None, "timeout=<seconds> and worker_type='process'"), ("thread", None, "worker_type='process'"),
    ("thread", 60.0, "timeout=60.0 s will give up the scene"), ("process", None, "it then replaces the worker"),
    ("process", 60.0, "timeout=60.0 s will end the scene"),
])  # fmt: skip
def test_the_advice_fits_the_feed(kind, timeout, remedy):
    assert remedy in watch.remedy_of(kind, timeout)


def test_the_position_of_an_unresponsive_worker_is_reported_as_unknown():
    options = PoolOptions(1, "the test")
    with pytest.warns(kf.FeedWarning, match=r"worker process 0 is still loading scene 3\. Its position is unknown"):
        watch.warn_of_stall(options, "process", "worker process 0", "scene 3", 31.0, lambda: "")


class Waiting(kf.SceneSequence):
    def __init__(self):
        self.begun, self.go_on = threading.Event(), threading.Event()

    def __len__(self):
        return 1

    def __getitem__(self, index):
        self.begun.set()
        self.go_on.wait(60)
        return index


def test_the_stack_of_a_thread_begins_with_the_user_s_class():
    sequence = Waiting()
    with kf.Feed(sequence, 1, workers=1, worker_type="thread") as feed:
        loop = threading.Thread(target=lambda: list(feed))
        loop.start()
        sequence.begun.wait(60)
        worker = next(each for each in threading.enumerate() if each.name.startswith("kerasfeed-worker"))
        lines = watch.stack_of(worker).splitlines()
        sequence.go_on.set()
        loop.join()
    assert lines[0].startswith(f'  File "{__file__}"')
    assert lines[0].endswith("in __getitem__")


@pytest.mark.parametrize("folder", ["sequences", "pool"])
def test_a_user_s_file_in_a_folder_named_like_one_of_kerasfeed_is_shown(folder):
    source = """
def __getitem__(begun, go_on):
    inner(begun, go_on)

def inner(begun, go_on):
    begun.set()
    go_on.wait(60)
"""
    scope = {}
    exec(compile(source, f"/home/me/kerasfeed/{folder}/rooms.py", "exec"), scope)
    begun, go_on = threading.Event(), threading.Event()
    worker = LocalWorker(Worker(0, 1, "thread"), "worker thread 0", InlinePool(Tokens(), PoolOptions(1, "the test")))
    thread = threading.Thread(target=worker.in_turn, args=(partial(scope["__getitem__"], begun, go_on),))
    thread.start()
    begun.wait(60)
    stack = watch.stack_of(thread)
    go_on.set()
    thread.join()
    assert "in __getitem__" in stack
    assert "in inner" in stack


def test_a_stall_timer_counts_time_at_one_step_and_hardly_time_between_missed_checks():
    timer = watch.StallTimer(1.0)
    for now, expected in [(0.0, 0.0), (1.0, 1.0), (2.0, 2.0), (100.0, 4.0)]:
        timer.begin(now)
        assert timer.look(0, "a") == expected
    timer.begin(101.0)
    assert timer.look(0, "b") == 0.0
    assert timer.look(1, None) == 0.0


class Tokens:
    """A runner whose tasks return the watching thread's view."""

    def run(self, record, progress, context):
        progress[1] = 0
        return context.token()


def test_consecutive_tasks_of_a_thread_are_distinguished():
    worker = LocalWorker(Worker(0, 1, "thread"), "worker thread 0", InlinePool(Tokens(), PoolOptions(1, "the test")))
    task, again = FutureTask(0, 0), FutureTask(0, 0)
    worker.do(task)
    worker.do(again)
    assert task.future.result() != again.future.result()


class Owner:
    """A checker that fails at first."""

    def __init__(self, failures):
        self.failures, self.looks, self.enough = failures, 0, threading.Event()

    def look(self):
        self.looks += 1
        if self.looks <= self.failures:
            raise RuntimeError("can't start new thread")
        self.enough.set()


def test_a_check_that_raises_is_reported_once_and_checking_continues(recwarn):
    owner = Owner(3)
    watching = watch.Watchdog(owner.look, 0.01, "the feed of Rooms", DeferredWarnings())
    assert owner.enough.wait(60)
    watching.stop()
    text = "the workers of the feed of Rooms could not be checked: RuntimeError: can't start new thread."
    assert [str(warning.message)[: len(text)] for warning in recwarn] == [text]


def test_a_hung_thread_is_replaced_at_the_next_check_if_the_first_fails(monkeypatch, recwarn):
    release = threading.Event()

    class Rooms(kf.SceneSequence):
        def __len__(self):
            return 40

        def __getitem__(self, index):
            if index == 7:
                release.wait(100)
            return np.float32(index)

    refused, start = [], threading.Thread.start

    def refuse(thread):
        if len(refused) < 2 and thread.name.startswith("kerasfeed-worker"):
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    try:
        with kf.Feed(Rooms(), 1, workers=1, worker_type="thread", timeout=0.1) as feed:
            assert feed.submit(0, 0).result() == [0]
            monkeypatch.setattr(threading.Thread, "start", refuse)
            promises = [feed.submit(0, step) for step in (7, 8)]
            with pytest.raises(kf.errors.SceneTimeoutError):
                promises[0].result()
            assert promises[1].result() == [8]
    finally:
        release.set()
    assert len(refused) == 2
    assert len(recwarn) == 1
    assert "needs 1 thread, " in str(recwarn[0].message)


def _watching():
    return [thread for thread in threading.enumerate() if thread.name == "kerasfeed-watch"]


@pytest.mark.heavy
def test_a_feed_without_workers_is_watched_only_while_it_is_read():
    sequence = Waiting()
    with kf.Feed(sequence, 1, workers=0) as feed:
        for _ in range(2):
            loop = threading.Thread(target=lambda: list(feed))
            loop.start()
            sequence.begun.wait(60)
            time.sleep(2.5)  # the watching thread checks once a second
            assert len(_watching()) == 1
            sequence.go_on.set()
            loop.join()
            wait_until(lambda: not _watching())
            sequence.begun.clear()
            sequence.go_on.clear()
